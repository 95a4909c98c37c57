"""The update is compiled ahead of its stage, once, and counted there."""

import pytest

from configs import sokoban, world
from ragen_jax.diagnostics.timing import compilations, timed
from ragen_jax.program.build import build_program
from ragen_jax.program.compile_ahead import CompileAhead
from ragen_jax.train import make_iterate
from tests import commands

RUNS = {
    "PPO": {},
    "adapters, two games, prompts shared": {
        "env.mix": (("bandit", 1), ("frozen_lake", 1)),
        "rollout.max_turns": 1,
        "lora.rank": 2,
        "kl.placement": "loss",
        "learner.share_prompts": True,
    },
    "several devices, turn by turn": {
        "mesh.data": 2,
        "mesh.fsdp": 2,
        "rollout.context": "single_turn",
        "rollout.context_turns": 1,
    },
    "other devices play": {
        "rollout.ahead": 1,
        "rollout.devices": 1,
        "loss.importance_cap": 2.0,
        "loss.old_log_probs": "learner",
    },
    "in parts": {"rollout.part_rows": 2},
}


def start(config, program, num_left=1):
    return CompileAhead(config, program, timed, num_left)


@pytest.mark.parametrize("run", RUNS)
def test_a_stage_finds_what_was_compiled_ahead(model, compiled_names, run):
    changes = {key.replace(".", "__"): value for key, value in RUNS[run].items()}
    config = commands.tiny_config(sokoban, model, **changes)
    program = build_program(config)

    with start(config, program) as ahead:
        ahead._pending.result()
        assert compiled_names().count("update") == 1
        result = make_iterate(config, program, ahead.timed)(program.state, 1)
    assert compiled_names().count("update") == 1
    assert result.timing["perf/compile_s/update"] > 0


def test_a_thread_apart_is_counted_by_its_stage_alone(model):
    config = commands.tiny_config(sokoban, model)
    program, timing = build_program(config), {}
    with compilations() as outside, start(config, program) as ahead:
        ahead._pending.result()
        assert outside.num_programs == 0
        for stage in ("testing", "rollout", "update"):
            with ahead.timed(timing, stage):
                pass
    assert outside.num_programs == 1
    assert "perf/compile_s/testing" not in timing
    assert outside.seconds == pytest.approx(timing["perf/compile_s/update"])


def test_games_in_python_compile_as_they_are_played():
    config = commands.tiny_config(world)
    program = build_program(config)
    with start(config, program) as ahead:
        assert not ahead._pending


def test_a_finished_run_compiles_nothing(model):
    config = commands.tiny_config(sokoban, model)
    with start(config, build_program(config), num_left=0) as ahead:
        assert not ahead._pending


def test_an_error_reaches_the_stage(model, monkeypatch):
    config = commands.tiny_config(sokoban, model)
    program = build_program(config)

    def fail(*_):
        raise MemoryError("no room")

    monkeypatch.setattr("ragen_jax.program.compile_ahead.lower", fail)
    ahead = start(config, program)
    with ahead, pytest.raises(MemoryError), ahead.timed({}, "update"):
        pass
