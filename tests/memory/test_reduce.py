"""Options: each changes a configuration into a valid, smaller one; the search ends."""

import pytest

from configs import sokoban
from ragen_jax.config import validate
from ragen_jax.memory import reduce
from ragen_jax.memory.plan import Plan, changed
from ragen_jax.memory.programs import MemoryUse
from ragen_jax.program.lowering import PROGRAMS
from ragen_jax.registry.settings import flatten

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
    memory = {n: MemoryUse(0, 0, size, 0) for n, size in sizes.items()} | dict(
        known or {}
    )
    return Plan({}, {}, memory, dict.fromkeys(PROGRAMS, state), floor=state)


def find_fix(limit, monkeypatch, config=BIG):
    monkeypatch.setattr(reduce, "make_plan", fake_plan)
    lines = []
    plan = fake_plan(config)
    fix = reduce.find_fix(config, None, None, plan, limit, report=lines.append)
    return fix, lines


@pytest.mark.parametrize(
    "option", reduce.MEMORY_OPTIONS, ids=lambda x: x.change.__name__
)
def test_an_option_ends_and_stays_valid(option):
    config, times = changed(BIG, {"model.remat": None}), 0
    while (change := option.change(flatten(config))) is not None:
        smaller = changed(config, change)
        validate(smaller)
        assert flatten(smaller) != flatten(config)
        config, times = smaller, times + 1
    assert 1 <= times <= 3
    assert option.relieves in option.programs


def test_a_group_that_shares_its_prompt_stays_in_one_pass():
    changes = {"learner.microbatch_rows": 32, "learner.share_prompts": True}
    leaves = flatten(changed(BIG, changes))
    assert reduce.fewer_rows_at_a_time(leaves) == {"learner.microbatch_rows": 16}
    leaves["learner.microbatch_rows"] = 16
    assert reduce.fewer_rows_at_a_time(leaves) is None


def test_results_are_kept_before_algorithms_are_changed(monkeypatch):
    fix, lines = find_fix(82, monkeypatch)
    assert fix.changes == {
        "learner.microbatch_rows": 2,
        "evaluation.num_prompts": 128,
    }
    assert fix.plan.peak <= 82
    assert len(lines) == 2
    assert len(fix.costs) == 2


def test_settings_that_no_run_accepts_are_not_offered(monkeypatch):
    """Half of the groups would be fewer than the filter keeps."""
    changes = {"filter.rule": "top_k", "filter.top_k": 8, "rollout.num_groups": 8}
    config = changed(BIG, changes)
    plan = fake_plan(config)
    sizes = plan.memory | {"rollout": MemoryUse(0, 0, 1000, 0)}
    plan = Plan({}, {}, sizes, dict.fromkeys(PROGRAMS, 0), floor=0)
    chosen = reduce._next(config, plan, 999)
    assert chosen is None or "rollout.num_groups" not in chosen[1]


def test_a_state_that_is_too_large_is_made_smaller_first(monkeypatch):
    fix, _ = find_fix(50, monkeypatch)
    assert fix.changes["critic.trunk"] == "shared"
    assert "lora.rank" not in fix.changes
    assert fix.plan.peak <= 50
    fix, _ = find_fix(25, monkeypatch)
    assert fix.changes["lora.rank"] == 64
    assert fix.changes["optimizer.learning_rate"] == 1e-5
    assert fix.changes["critic.learning_rate"] == 1e-4


def test_nothing_fits_a_device_without_memory(monkeypatch):
    fix, lines = find_fix(3, monkeypatch)
    assert fix is None
    assert lines


def test_programs_that_an_option_leaves_alone_are_not_compiled_again(monkeypatch):
    known = []

    def spy(config, model, tokenizer, kept):
        known.append(set(kept))
        return fake_plan(config, known=kept)

    monkeypatch.setattr(reduce, "make_plan", spy)
    plan = fake_plan(BIG)
    reduce.find_fix(BIG, None, None, plan, 82)
    assert known == [{"rollout", "update"}, {"rollout", "evaluation"}]
