"""Games played in text are the device's: same messages, same levels, same outcomes."""

import asyncio
import functools
import itertools
import json

import jax
import pytest

from ragen_jax.rollout.collect import rollout_keys
from ragen_jax.rollout.host import ChatReply, TextGame
from ragen_jax.rollout.records import episodes
from ragen_jax.text.messages import in_markup, strip_prefix
from ragen_jax.text.prompts import build_wording
from tests.rollout import players

# With replies of every kind, as in `tests/rollout`.
SEED = 36
END, OTHER_END = "<|im_end|>", "<|endoftext|>"
# Game, tokenizer, style, context, its turns; cases that `tests/rollout` compiles too.
CASES = [
    ("sokoban", "bpe", "terse", "full", None),
    ("sokoban", "bpe", "terse", "last_k", 2),
    ("frozen_lake", "bpe", "full", "single_turn", 9),
]
# What only tokens have, and what only an endpoint reports.
OF_TOKENS = (
    *("tokens", "sampled_tokens", "reply_tokens", "log_prob"),
    *("token_texts", "token_log_probs"),
)
OF_ENDPOINTS = ("prompt_tokens", "cached_tokens", "finish_reason")


@functools.cache
def played(case):
    """Episodes of the compiled rollout, and their keys."""
    name, words, style, context, turns = case
    windows = {} if context == "full" else {"context": context, "context_turns": turns}
    _, dialogue = players.game(name, words=words, style=style, **windows)
    keys = rollout_keys(jax.random.key(SEED), 4, 2)
    params = players.speaker_params(name, words)
    trajectory = players.collector(name)(params, dialogue, keys)
    return episodes(trajectory, players.tokenizer(words), dialogue.prompts), keys


def text_game(case):
    name, _, style, context, turns = case
    env, _ = players.game(name)
    wording = build_wording(
        env, style=style, budget=players.BUDGET, length_hint_words=100
    )
    return TextGame(
        name,
        env,
        env.default_params,
        players.BUDGET,
        wording,
        context=context,
        context_turns=turns,
        thinking=True,
        format_penalty=-0.1,
    )


def with_one_ending(record):
    """Endpoints say that a reply has ended, not with which token."""
    text = json.dumps(record).replace(OTHER_END + END, END)
    turns = json.loads(text)["turns"]
    for turn, following in itertools.pairwise([*turns, {"observation": ""}]):
        if turn["reply"].endswith(OTHER_END):
            turn["reply"] = turn["reply"].removesuffix(OTHER_END) + END
            following["observation"] = following["observation"].removeprefix(END)
    return record | {"turns": turns}


def without(record, names):
    shown = {k: v for k, v in record.items() if k not in (*names, "row", "turns")}
    turns = [{k: v for k, v in t.items() if k not in names} for t in record["turns"]]
    return shown | {"turns": turns}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_episode_is_the_rollout_s(case):
    records, keys = played(case)
    game = text_game(case)
    levels = game.levels(keys)
    sent = []
    for record in map(with_one_ending, records):

        async def ask(turn, messages, record=record):
            sent.append(messages)
            told = record["turns"][turn]
            text = told["reply"].removesuffix(END)
            finish = "length" if told["is_cut"] else "stop"
            return ChatReply(text, finish, 10, 4, told["reply_tokens"], "scripted")

        level = jax.tree.map(lambda x, r=record: x[r["row"] // 2], levels)
        found = asyncio.run(game.play(level, keys.noise[record["row"]], ask))
        assert without(found, OF_TOKENS + OF_ENDPOINTS) == without(record, OF_TOKENS)
        assert found["sampled_tokens"] == record["sampled_tokens"]
        assert found["prompt_tokens"] == 10 * len(record["turns"])
    turns = [turn for record in records for turn in record["turns"]]
    for kind in ("valid", "effective", "penalty", "is_cut"):
        assert any(turn[kind] for turn in turns), kind
    for messages in sent:
        roles = [message["role"] for message in messages]
        assert roles == ["system", *["user", "assistant"] * len(roles)][: len(roles)]
        assert roles[-1] == "user"
        assert not any("<|im_" in message["content"] for message in messages)


def test_a_whole_dialogue_in_markup_is_the_rollout_s_text():
    case = CASES[0]
    records, _ = played(case)
    record = next(with_one_ending(r) for r in records if len(r["turns"]) == 3)
    game, told, written = text_game(case), [], ""

    async def ask(turn, messages):
        nonlocal written
        assert in_markup(messages, "<think>") == written + _said(record, turn)
        written += _said(record, turn) + record["turns"][turn]["reply"]
        told.append(turn)
        text = record["turns"][turn]["reply"].removesuffix(END)
        is_cut = record["turns"][turn]["is_cut"]
        return ChatReply(text, "length" if is_cut else "stop", 1, 0, 1, "scripted")

    _, keys = played(case)
    level = jax.tree.map(lambda x: x[record["row"] // 2], game.levels(keys))
    asyncio.run(game.play(level, keys.noise[record["row"]], ask))
    assert told == [0, 1, 2]


def _said(record, turn):
    return record["turns"][turn]["observation"]


def test_the_forced_prefix_may_be_there_or_not():
    assert strip_prefix("<think>a</think>", "<think>") == "a</think>"
    assert strip_prefix("\n <think>a", "<think>") == "a"
    assert strip_prefix(" a<think>", "<think>") == " a<think>"
    assert strip_prefix("", "<answer>") == ""
