"""A dialogue about FrozenLake, and what a turn of it is told."""

import numpy as np

import envs
from envs.base import PlayBudget
from ragen_jax.text.dialogue import build_dialogue

BUDGET = PlayBudget(max_turns=4, max_actions_per_turn=2, max_actions_per_episode=8)
REPLY_TOKENS = 40
BOARD = "P_OG\nX√P_\nOGX√\nP_OG\n"
FIELDS = {
    "turn": 2,
    "actions_left": 5,
    "reward_hundredths": -20,
    "was_invalid": 0,
    "was_cut": 0,
    "board": np.arange(16).reshape(4, 4) % 6,
}


def build(tokenizer, name="frozen_lake", **changes):
    options = {
        "style": "full",
        "tokenization": "rows",
        "budget": BUDGET,
        "max_reply_tokens": REPLY_TOKENS,
        "length_hint_words": 60,
    }
    return build_dialogue(envs.make(name), tokenizer, **options | changes)
