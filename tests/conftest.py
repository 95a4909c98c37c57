"""Strictness for every test: 8 CPU devices, no silent broadcasting, checked shapes."""

import functools
import gc
import logging
import os
import pathlib
import signal

from tests import FAST_XLA_FLAGS

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8 "
) + FAST_XLA_FLAGS
# LLVM's optimizations and the source lines of every operation take time, too.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# Many tests build the same programs: compile each once per checkout.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR",
    os.path.join(os.path.dirname(__file__), "..", ".pytest_cache", "compiled"),
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# A shell starts its background jobs deaf to Ctrl-C, which tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Nothing in the tests may reach for a model hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import jax
import optax
import pytest
from jaxtyping import install_import_hook

pytest_plugins = ["tests.pace"]

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


def _promoting(function):
    """A function of optax, and what it returns, under the promotion it counts on."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        with jax.numpy_dtype_promotion("standard"):
            result = function(*args, **kwargs)
        return _promoting(result) if callable(result) else result

    return call


optax.tree.bias_correction = _promoting(optax.tree.bias_correction)
optax.warmup_cosine_decay_schedule = _promoting(optax.warmup_cosine_decay_schedule)

# Modules of plain functions: their signatures are checked at every call. Modules that
# define pytree classes are left out: JAX rebuilds those with leaves of any type.
install_import_hook(
    [
        "envs.countdown.expressions",
        "envs.frozen_lake.solver",
        "envs.sokoban.levels",
        "envs.sudoku.answers",
        "envs.sudoku.levels",
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
MAX_MAPPINGS = 30_000
MAX_BYTES = 5 << 30


def _holds_much() -> bool:
    self = pathlib.Path("/proc/self")
    if not self.exists():
        return False
    resident = int((self / "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    mappings = (self / "maps").read_bytes().count(b"\n")
    return mappings > MAX_MAPPINGS or resident > MAX_BYTES


def pytest_collection_finish():
    """Spend little on garbage: modules and traced programs are many, and live long."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """Compiled programs are dropped after a file of tests if they hold much memory."""
    yield
    if _holds_much():
        jax.clear_caches()
        gc.collect()


@pytest.fixture(autouse=True, scope="module")
def _optimize(request):
    """Compile with LLVM's optimizations in files whose `pytestmark` is `optimized`."""
    name = "jax_disable_most_optimizations"
    before = jax.config.values[name]
    if request.node.get_closest_marker("optimized"):
        jax.config.update(name, False)
    yield
    jax.config.update(name, before)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    from tests import commands

    return commands.tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def compiled_names(caplog):
    """Names of the functions that were compiled, in order."""
    before = jax.config.jax_log_compiles
    jax.config.update("jax_log_compiles", True)
    caplog.set_level(logging.WARNING, logger="jax")

    def names():
        finished = [r.getMessage() for r in caplog.records]
        begin = "Finished XLA compilation of jit("
        return [x.split(begin)[1].split(")")[0] for x in finished if begin in x]

    yield names
    jax.config.update("jax_log_compiles", before)
