"""Strictness for every test: 8 CPU devices, no silent broadcasting, checked shapes."""

import gc
import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
# Many tests build the same programs: compile each once per checkout.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR",
    os.path.join(os.path.dirname(__file__), "..", ".pytest_cache", "compiled"),
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
# Nothing in the tests may reach for a model hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_rank_promotion", "raise")

# Modules of plain functions: their signatures are checked at every call. Modules that
# define pytree classes are left out: JAX rebuilds those with leaves of any type.
install_import_hook(
    [
        "envs.frozen_lake_solver",
        "envs.sokoban_levels",
        "ragen_jax.algo.advantages",
        "ragen_jax.algo.filters",
        "ragen_jax.algo.losses",
        "ragen_jax.algo.masked",
        "ragen_jax.algo.rewards",
        "ragen_jax.algo.credit",
        "ragen_jax.learner.logprobs",
        "ragen_jax.rollout.sampling",
    ],
    "beartype.beartype",
)

# Linux lets a process have 65,530 mappings; every compiled program takes several, and
# XLA aborts the process when there are no more.
MAPS, MOST_MAPS = pathlib.Path("/proc/self/maps"), 15_000


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """After a file of tests, drop what was compiled if there is much of it."""
    yield
    if MAPS.exists() and len(MAPS.read_bytes().splitlines()) > MOST_MAPS:
        jax.clear_caches()
        gc.collect()
