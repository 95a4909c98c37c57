"""Rollouts that cannot fit into memory are refused by the sizes of their arrays."""

import pytest

from configs import sokoban
from ragen_jax.models.hf.weights import load_config
from ragen_jax.program.build import POCKET, build_parts, check_memory
from ragen_jax.rollout.footprint import Footprint
from ragen_jax.text.tokenizer import load_tokenizer


def test_sizes():
    footprint = Footprint(10, trajectory_tokens=7, cached_tokens=3, cache_bytes=5)
    assert (footprint.trajectory, footprint.cache) == (10 * 7 * 13, 10 * 3 * 5)
    footprint.check("rows", memory=910 + 150)
    with pytest.raises(ValueError, match=r"rows = 10 episodes .* at least 0.0 GB"):
        footprint.check("rows", memory=910 + 149)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rollout.num_groups": 3_000_000}, "= 24000000 episodes at a time need"),
        ({"evaluation.num_prompts": 10**9}, "evaluation.num_prompts = 1000000000 epi"),
    ],
)
def test_a_run_that_cannot_fit_says_how_much_it_needs(changes, words):
    tokenizer, model = load_tokenizer(POCKET), load_config(POCKET)
    config = sokoban.get_config("pocket")
    check_memory(config, build_parts(config, model, tokenizer))
    config.update_from_flattened_dict(changes)
    with pytest.raises(ValueError, match=words) as refusal:
        check_memory(config, build_parts(config, model, tokenizer))
    assert "GB of keys and values" in str(refusal.value)
