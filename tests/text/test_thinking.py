"""Thinking off: an answer alone is asked for, forced, read and demonstrated."""

import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.base import PlayBudget
from ragen_jax.evaluation.terminal.episodes import complete_reply
from ragen_jax.rollout import demonstrators
from ragen_jax.rollout.collect import play_episodes
from ragen_jax.rollout.keys import rollout_keys
from ragen_jax.rollout.turns import EpisodeLimits
from ragen_jax.sft.data import build_demo_tasks
from tests.sft import tiny
from tests.text import dialogues, test_answers

BUDGET = PlayBudget(max_turns=3, max_actions_per_turn=4, max_actions_per_episode=10)
REPLY_TOKENS = 24
# Of the form, near to it and beyond it: the tag that begins the answer is forced.
OPENINGS = [b"", b"Up || Down", b"<answer>Left", b"</think><answer>", b"a</think>"]


@functools.cache
def pocket():
    """Sokoban under the tokenizer of a model that never thinks."""
    config = tiny.demo_config("sokoban", noise=0.0, **vars(BUDGET))
    config.prompt.thinking = False
    config.max_reply_tokens = REPLY_TOKENS
    demo = build_demo_tasks(config, tiny.new_tokenizer(config))["sokoban"]
    return demo, demo.task.tokenizer, demo.task.dialogue


@pytest.fixture(scope="module")
def parser():
    return test_answers.small_parser(thinking=False)


def test_hostile_replies_are_read_as_the_regex_reads_them(parser):
    draw = random.Random(11)
    rows = []
    for _ in range(test_answers.NUM_ROWS):
        reply = draw.choice(OPENINGS)
        reply += b"".join(draw.choices(test_answers.FRAGMENTS, k=draw.randrange(6)))
        if draw.random() < 0.7:
            reply += b"</answer>" + draw.choice([b"", b"</answer>", b" more"])
        rows.append(test_answers.tokenize(reply, draw))
    num_formed = test_answers.assert_agrees(
        parser,
        test_answers.VOCABULARY,
        test_answers.NAMES,
        rows,
        test_answers.MAX_TOKENS,
    )
    assert 500 < num_formed < test_answers.NUM_ROWS - 100


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"Up || Down</answer> and more", ([0, 1], 2, True)),
        (b"</answer>", ([], 0, True)),
        (b"Up", ([], 0, False)),
        (b"<answer>Up</answer>", ([0], 1, True)),
        (b"why not</think><answer>Up</answer>", ([-1], 1, True)),
    ],
)
def test_cases(parser, reply, expected):
    assert test_answers.parse_bytes(parser, reply) == expected


@pytest.mark.parametrize("context", ["full", "last_k", "single_turn"])
@pytest.mark.parametrize("style", ["full", "terse"])
def test_no_message_asks_for_a_thought(tokenizer, style, context):
    dialogue = dialogues.build(
        tokenizer,
        style=style,
        thinking=False,
        context=context,
        context_turns=None if context == "full" else 2,
    )
    state = dialogues.FIELDS | {"has_past": 1}
    prompts = dialogue.prompts
    texts = [prompts.opening.render(state), prompts.following.render(state)]
    assert all(t.endswith("<|im_start|>assistant\n<answer>") for t in texts)
    if context != "full":
        fields = {name: jnp.asarray(value) for name, value in state.items()}
        for piece in (dialogue.windows.ending, dialogue.windows.before_reply):
            span = piece.tokens(fields)
            texts.append(tokenizer.decode(np.asarray(span.tokens)[: int(span.length)]))
        assert texts[-1].endswith("<answer>")
    assert not any("think" in text for text in texts)
    asks = "Reply with <answer>First || Second</answer> and nothing else"
    assert (asks in texts[0]) == (style == "full")


@functools.cache
def demonstrated():
    demo, tokenizer, dialogue = pocket()
    env, params = demo.task.env, demo.task.params
    mixture = demonstrators.Mixture(
        shares=jnp.ones(1),
        thoughts=jnp.array([demonstrators.READING]),
        noise=jnp.zeros(1),
        redraw=jnp.float32(0),
    )
    rules = EpisodeLimits(BUDGET, REPLY_TOKENS, -0.1)
    replies = demonstrators.compile_replies(
        env, tokenizer, demo.facts, BUDGET, tokenization="symbols", thinking=False
    )
    responder = demonstrators.build_responder(
        env,
        demo.planning_params,
        replies,
        mixture,
        facts=demo.facts,
        rules=rules,
        discount=0.95,
    )
    play = jax.jit(
        lambda dialogue, keys: play_episodes(
            env,
            params,
            dialogue,
            responder,
            keys,
            rules=rules,
        )
    )
    return tokenizer, play(dialogue, rollout_keys(jax.random.key(0), 32, 1))


@pytest.mark.slow
def test_a_solver_that_does_not_think_wins():
    """The whole way: what is demonstrated has the form, is read and is played."""
    tokenizer, trajectory = demonstrated()
    turns = trajectory.turns
    assert jnp.all(turns.has_format == turns.played)
    assert jnp.sum(turns.penalty) == 0
    assert jnp.mean(trajectory.success) > 0.9
    text = tokenizer.decode(np.asarray(trajectory.tokens[0, : trajectory.lengths[0]]))
    assert "think" not in text
    assert text.count("assistant\n<answer>") == int(jnp.sum(turns.played[0]))


def test_what_a_person_types_is_completed():
    assert complete_reply("Up || Left", thinking=False) == (
        "Up || Left</answer><|im_end|>"
    )
    assert complete_reply(" Up ", thinking=True) == (
        "</think><answer>Up</answer><|im_end|>"
    )
    assert complete_reply("Up</answer>", thinking=False) == "Up</answer><|im_end|>"
