"""Presets: every combination is a valid run, every other word is refused."""

import itertools

import pytest

from configs import (
    algorithms,
    bandit,
    base,
    countdown,
    cube2x2,
    frozen_lake,
    game2048,
    leaderboard,
    mix,
    sizes,
    sokoban,
    sudoku,
)
from ragen_jax.config import validate
from ragen_jax.registry.settings import flatten

TASKS = {
    "bandit": bandit,
    "countdown": countdown,
    "cube2x2": cube2x2,
    "frozen_lake": frozen_lake,
    "game2048": game2048,
    "leaderboard": leaderboard,
    "mix": mix,
    "sokoban": sokoban,
    "sudoku": sudoku,
}
SIZES = ["", *sizes.SIZES]
VARIANTS = ["", *algorithms.VARIANTS]
ESTIMATORS = ["", *algorithms.ESTIMATORS]


def names(*presets):
    return ",".join(filter(None, presets))


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_every_combination_is_valid(task):
    for combination in itertools.product(SIZES, VARIANTS, ESTIMATORS):
        config = task.get_config(names(*combination))
        validate(config)
        estimator = combination[-1]
        # The pocket model learns 2048 from what every move pays.
        is_small_2048 = config.model.path == "pocket_worlds" and task is game2048
        own = "bi_level_gae" if is_small_2048 else "gae"
        if config.model.path == "models/smollm2-135m":
            own = "dr_grpo"
        expected = {"ppo": "gae", "grpo": "grpo", "": own}
        assert config.algo.advantage == expected[estimator]


def test_the_order_of_the_words_does_not_matter():
    words = ("qwen2.5-0.5b", "ragen2", "grpo")
    expected = flatten(sokoban.get_config(",".join(words)))
    for permuted in itertools.permutations(words):
        assert flatten(sokoban.get_config(",".join(permuted))) == expected
    assert flatten(sokoban.get_config("")) == flatten(sokoban.get_config("pocket"))


@pytest.mark.parametrize("size", sizes.SIZES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_variants_are_what_the_papers_say(size, estimator):
    """Whatever size and estimator they are combined with."""

    def chosen(variant):
        return flatten(sokoban.get_config(names(size, variant, estimator)))

    vanilla = chosen("starpo")
    assert vanilla["filter.keep_fraction"] == 1.0
    assert vanilla["filter.keep_zero"]
    assert vanilla["loss.clip_low"] == vanilla["loss.clip_high"] == 0.2
    assert (vanilla["kl.placement"], vanilla["kl.coeff"]) == ("loss", 0.001)
    stable = chosen("starpo_s")
    assert stable["filter.score"] == "reward_std"
    assert (stable["filter.rule"], stable["filter.keep_fraction"]) == (
        "top_fraction",
        0.25,
    )
    adaptive = chosen("ragen2")
    assert (adaptive["filter.rule"], adaptive["filter.top_p"]) == ("top_p", 0.9)
    assert not adaptive["filter.keep_zero"]
    for leaves in (stable, adaptive):
        assert leaves["kl.placement"] is None
        assert (leaves["loss.clip_low"], leaves["loss.clip_high"]) == (0.2, 0.28)


@pytest.mark.parametrize(
    ("size", "times"), [("0.5b", 8), ("1.5b", 8), ("3b", 8), ("7b", 4)]
)
def test_a_host_of_eight_gpus_has_several_times_the_rows(size, times):
    """Each GPU has whole groups and an equal part of every pass."""
    one, eight = (
        sokoban.get_config(f"qwen2.5-{size}{ending}") for ending in ("", "-8gpus")
    )
    validate(eight)
    assert (eight.mesh.data, eight.mesh.fsdp, eight.mesh.tensor) == (1, 8, 1)
    assert eight.rollout.num_groups == times * one.rollout.num_groups
    assert eight.rollout.num_groups % 8 == 0
    learner, num_rows = eight.learner, eight.rollout.num_groups * 16
    # The groups that are kept are one optimizer step, as in the paper.
    assert eight.filter.keep_fraction * num_rows == learner.minibatch_rows
    assert learner.minibatch_rows % learner.microbatch_rows == 0
    assert learner.microbatch_rows % 8 == eight.evaluation.num_prompts % 8 == 0
    # What is split over the GPUs is as large on each of them.
    for chunk in ("learner.logprob_chunk_tokens", "diagnostics.chunk_rows"):
        assert flatten(eight)[chunk] == 8 * flatten(one)[chunk]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "pocket,gpt",
            "no preset 'gpt'; presets are size: pocket, pocket_vision, study",
        ),
        ("starpo_s,ragen2", "'starpo_s' and 'ragen2' both choose the variant"),
        ("ppo,grpo", "'ppo' and 'grpo' both choose the estimator"),
        ("pocket,qwen2.5-3b", "'pocket' and 'qwen2.5-3b' both choose the size"),
        ("grpo,grpo", "both choose the estimator"),
        ("pocket, grpo", "no preset ' grpo'"),
    ],
)
def test_a_wrong_combination_is_refused_with_the_list(words, message):
    with pytest.raises(ValueError, match=message) as refusal:
        sokoban.get_config(words)
    every = [*sizes.SIZES, *algorithms.VARIANTS, *algorithms.ESTIMATORS]
    assert all(name in str(refusal.value) for name in every)


def test_presets_add_no_key():
    for task in TASKS.values():
        config = task.get_config("qwen2.5-0.5b,ragen2,ppo")
        # What a task sets of its environment is new.
        keys = {
            k for k in flatten(config) if not k.startswith(("env.kwargs", "env.pa"))
        }
        assert keys == flatten(base.get_config()).keys()
