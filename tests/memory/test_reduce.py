"""Levers: each changes a configuration into a valid, smaller one; the search ends."""

import pytest

from configs import sokoban
from ragen_jax.config import flatten, validate
from ragen_jax.memory import reduce
from ragen_jax.memory.plan import PROGRAMS, Memory, Plan, changed

BIG = sokoban.get_config("qwen2.5-0.5b,ppo")
# What each program needs of the settings, in a world of simple sums.
STATE = {"separate": 60, "shared": 30}


def fake_plan(config, model=None, tokenizer=None, known=None):
    leaves = flatten(config)
    state = STATE[leaves["critic.trunk"]]
    state = state if leaves["lora.rank"] is None else 5
    passes = 5 * leaves["learner.microbatch_rows"]
    passes += 40 * (leaves["model.remat"] is None)
    passes += leaves["learner.logprob_chunk_tokens"] // 100
    sizes = {
        "rollout": 2 * leaves["rollout.num_groups"],
        "evaluation": leaves["evaluation.num_prompts"] // 8,
        "update": passes,
    }
    memory = {n: Memory(0, 0, size, 0) for n, size in sizes.items()} | dict(known or {})
    return Plan({}, {}, memory, dict.fromkeys(PROGRAMS, state), floor=state)


def cure(limit, monkeypatch, config=BIG):
    monkeypatch.setattr(reduce, "make_plan", fake_plan)
    said = []
    plan = fake_plan(config)
    found = reduce.find_cure(config, None, None, plan, limit, report=said.append)
    return found, said


@pytest.mark.parametrize("lever", reduce.LEVERS, ids=lambda x: x.change.__name__)
def test_a_lever_ends_and_stays_valid(lever):
    config, pulls = changed(BIG, {"model.remat": None}), 0
    while (change := lever.change(flatten(config))) is not None:
        smaller = changed(config, change)
        validate(smaller)
        assert flatten(smaller) != flatten(config)
        config, pulls = smaller, pulls + 1
    assert 1 <= pulls <= 3
    assert lever.relieves in lever.programs


def test_results_are_kept_before_algorithms_are_changed(monkeypatch):
    found, said = cure(82, monkeypatch)
    assert found.changes == {
        "learner.microbatch_rows": 2,
        "evaluation.num_prompts": 128,
    }
    assert found.plan.peak <= 82
    assert len(said) == 2
    assert len(found.prices) == 2


def test_a_state_that_is_too_large_is_made_smaller_first(monkeypatch):
    found, _ = cure(50, monkeypatch)
    assert found.changes["critic.trunk"] == "shared"
    assert "lora.rank" not in found.changes
    assert found.plan.peak <= 50
    found, _ = cure(25, monkeypatch)
    assert found.changes["lora.rank"] == 64
    assert found.changes["optimizer.learning_rate"] == 1e-5
    assert found.changes["critic.learning_rate"] == 1e-4


def test_nothing_fits_a_device_without_memory(monkeypatch):
    found, said = cure(3, monkeypatch)
    assert found is None
    assert said


def test_programs_that_a_lever_leaves_alone_are_not_compiled_again(monkeypatch):
    known = []

    def spy(config, model, tokenizer, kept):
        known.append(set(kept))
        return fake_plan(config, known=kept)

    monkeypatch.setattr(reduce, "make_plan", spy)
    plan = fake_plan(BIG)
    reduce.find_cure(BIG, None, None, plan, 82)
    assert known == [{"rollout", "update"}, {"rollout", "evaluation"}]
