"""Compilations: seconds by stage, and whether they came from the cache."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from ragen_jax.diagnostics.timing import compilations, timed
from ragen_jax.runs import console


@pytest.fixture
def empty_cache(tmp_path):
    """A cache of compiled programs that holds nothing yet."""
    names = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    before = {name: getattr(jax.config, name) for name in names}
    for name, value in zip(names, (str(tmp_path), 0.0, -1), strict=True):
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_compilations_of_a_stage(empty_cache):
    def program(x):
        return jnp.sin(x) * 3 + 1

    x, stages = jnp.ones(7), []
    for function in (jax.jit(program), jax.jit(program)):
        timing = {}
        with timed(timing, "update"):
            function(x).block_until_ready()
        stages.append(timing)
        jax.clear_caches()
    first, second = stages
    assert first["perf/compile_cached/update"] == 0
    assert 0 < first["perf/compile_s/update"] < first["timing_s/update"]
    assert second["perf/compile_cached/update"] == 1


def test_a_stage_without_compilations():
    function, x = jax.jit(lambda x: x + 1), jnp.ones(3)
    function(x)
    stage = {}
    with timed(stage, "rollout"):
        function(x)
    assert list(stage) == ["timing_s/rollout"]
    # Compilations after the block are not counted.
    with compilations() as compiled:
        pass
    jax.jit(lambda x: x + 2)(x)
    assert compiled.num_programs == 0


def test_the_display_shows_them_before_the_iteration(capsys):
    metrics = {
        "train/A/success": 0.5,
        "perf/compile_s/rollout": 9.04,
        "perf/compile_cached/rollout": 0.5,
        "perf/compile_s/update": 0.31,
        "perf/compile_cached/update": 1.0,
    }
    with console.Display(["A"], start=0, total=2) as display:
        display.iteration(1, metrics)
        display.iteration(2, {"train/A/success": 0.5})
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "compiled: rollout 9.0s, update 0.3s (from the cache)"
    assert [line.split()[0] for line in shown[1:]] == ["1/2", "2/2"]
