"""Tests; `tests/reference` holds the oracles."""

import os
import subprocess
import sys

# Compiling is most of what the suite does. XLA's generator of fused loops takes three
# quarters of it and gains nothing on arrays of this size; nor do its passes over loops,
# nor a split of each program into 32 parts for as many cores.
WANTED_XLA_FLAGS = (
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_disable_hlo_passes=while-loop-invariant-code-motion,simplify-while-loops",
)
_READ_FLAGS = """
from jaxlib import xla_client
xla_client.CompileOptions().executable_build_options.debug_options
"""


def is_known_to_xla(*flags: str) -> bool:
    """True if XLA accepts the flags: a process of its own reads them, then ends.

    XLA has no list of its flags; a process that is given another one is aborted.
    """
    reading = subprocess.run(
        [sys.executable, "-c", _READ_FLAGS],
        env=os.environ | {"XLA_FLAGS": " ".join(flags)},
        capture_output=True,
        text=True,
        check=False,
    )
    if reading.returncode and "Unknown flag" not in reading.stderr:
        raise RuntimeError(f"XLA read no flags: {reading.stderr}")
    return reading.returncode == 0


def _known_flags() -> str:
    # Workers of pytest-xdist and commands that tests start inherit the answer.
    if "RAGEN_JAX_TEST_XLA_FLAGS" not in os.environ:
        known = filter(is_known_to_xla, WANTED_XLA_FLAGS)
        os.environ["RAGEN_JAX_TEST_XLA_FLAGS"] = " ".join(known)
    return os.environ["RAGEN_JAX_TEST_XLA_FLAGS"]


FAST_XLA_FLAGS = _known_flags()
