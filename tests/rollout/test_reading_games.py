"""Games that read answers themselves: in compiled rollouts, in text, demonstrated."""

import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.base import NO_FACTS, PlayBudget
from ragen_jax.program.build import POCKET
from ragen_jax.rollout.collect import play_episodes
from ragen_jax.rollout.demonstrators import Mixture, build_responder, compile_replies
from ragen_jax.rollout.host.text import ChatReply
from ragen_jax.rollout.keys import rollout_keys
from ragen_jax.rollout.records import episodes
from ragen_jax.rollout.turns import EpisodeLimits, Responder
from ragen_jax.text.chat import END
from ragen_jax.text.dialogue import build_dialogue
from ragen_jax.text.tokenizer import load_tokenizer
from ragen_jax.types import Reply
from tests.rollout import players

BUDGET = PlayBudget(max_turns=3, max_actions_per_turn=2, max_actions_per_episode=5)
MAX_REPLY_TOKENS = 64
LIMITS = EpisodeLimits(BUDGET, MAX_REPLY_TOKENS, format_penalty=-0.1)
NUM_ROWS = 32
# Name, constructor arguments, parameters.
GAMES = {"countdown": ({}, {"max_steps_in_episode": 4})}
FRAGMENTS = {
    "countdown": (
        *("{0}+{1}+{2}", "({0}-{1})*{2}", "{2}*({1} - {0})", "{0}/{1}/{2}", "{0}+{1}"),
        *("-{0}+{1}+{2}", "{0}**{1}", "{0}#{1}", "1_2", "(({0}+{1})+{2}", "x" * 70),
    ),
}
THOUGHT = "</think><answer>"


@functools.cache
def tokenizer():
    return load_tokenizer(POCKET)


@functools.cache
def game(name):
    kwargs, params = GAMES[name]
    env = envs.make(name, **kwargs)
    dialogue = build_dialogue(
        env,
        tokenizer(),
        budget=BUDGET,
        max_reply_tokens=MAX_REPLY_TOKENS,
        style="terse",
        tokenization="symbols",
        length_hint_words=100,
    )
    return env, env.default_params.replace(**params), dialogue


def levels(name, keys):
    env, params, _ = game(name)
    draw = jax.jit(jax.vmap(env.draw_level, (0, None, 0)))
    return draw(keys.level, params, keys.is_held_out)


def hostile_replies(name, keys) -> list[list[str]]:
    """A reply for every row and turn; numbers are those of the row's level."""
    draw, states = random.Random(3), levels(name, keys)
    replies = []
    for row in range(NUM_ROWS):
        numbers = np.asarray(states.numbers[row]).tolist()
        texts = [fragment.format(*numbers) for fragment in FRAGMENTS[name]]
        rows = []
        for _ in range(BUDGET.max_turns):
            listed = " || ".join(draw.choices(texts, k=draw.randrange(4)))
            opening = THOUGHT if draw.random() < 0.9 else ""
            rows.append(f"{opening}{listed}</answer>")
        replies.append(rows)
    return replies


def scripted(replies) -> Responder:
    """A player that writes these replies."""
    end = tokenizer().id_of(END)
    tokens = np.zeros((NUM_ROWS, BUDGET.max_turns, MAX_REPLY_TOKENS), np.int32)
    lengths = np.zeros((NUM_ROWS, BUDGET.max_turns), np.int32)
    for row, texts in enumerate(replies):
        for turn, text in enumerate(texts):
            ids = [*tokenizer().encode(text), end][:MAX_REPLY_TOKENS]
            tokens[row, turn, : len(ids)], lengths[row, turn] = ids, len(ids)
    tokens, lengths = jnp.asarray(tokens), jnp.asarray(lengths)

    def reply(carry, starts, states, keys, turn, is_active):
        length = jnp.where(is_active, lengths[:, turn], 0)
        return carry, Reply(
            tokens=tokens[:, turn],
            log_probs=jnp.zeros((NUM_ROWS, MAX_REPLY_TOKENS)),
            length=length,
            is_cut=(length == MAX_REPLY_TOKENS) & (tokens[:, turn, -1] != end),
        )

    return Responder(
        init=lambda num_rows: jnp.zeros(num_rows),
        observe=lambda carry, *_: carry,
        reply=reply,
    )


def in_text(name, record, level, noise_key):
    """The record of the same replies in chat messages."""
    env, params, _ = game(name)
    chat = players.chat_game(env, params, LIMITS)

    async def ask(turn, messages):
        told = record["turns"][turn]
        finish = "length" if told["is_cut"] else "stop"
        return ChatReply(told["reply"].removesuffix(END), finish, 1, 0, 1, "scripted")

    return players.play_chat(chat, level, noise_key, ask)[1]


@pytest.mark.parametrize("name", GAMES)
def test_the_same_replies_do_the_same_as_tokens_and_as_text(name):
    env, params, dialogue = game(name)
    keys = rollout_keys(jax.random.key(1), NUM_ROWS, 1)
    play = functools.partial(
        play_episodes, env, params, dialogue, scripted(hostile_replies(name, keys))
    )
    trajectory = jax.jit(functools.partial(play, rules=LIMITS))(keys)
    records = episodes(trajectory, tokenizer(), dialogue.prompts)
    states = levels(name, keys)
    for row in range(8):
        level = jax.tree.map(lambda x, row=row: x[row], states)
        found = in_text(name, records[row], level, keys.noise[row])
        assert players.of_both(found) == players.of_both(records[row])
    turns = [turn for record in records for turn in record["turns"]]
    assert {turn["valid"] for turn in turns} == {0, 1, 2}
    assert {len(turn["actions"]) for turn in turns} == {0, 1, 2}
    penalties = [turn for turn in turns if turn["penalty"]]
    assert 0 < len(penalties) < len(turns)
    assert any(turn["valid"] and turn["penalty"] for turn in turns)


@pytest.mark.parametrize("thought", ["none", "reading"])
@pytest.mark.parametrize("name", GAMES)
def test_the_solver_s_demonstrations_win(name, thought):
    env, params, dialogue = game(name)
    facts = NO_FACTS if thought == "none" else env.facts()
    replies = compile_replies(
        env, tokenizer(), facts, BUDGET, tokenization="symbols", thinking=True
    )
    player = Mixture(
        shares=jnp.ones(1),
        thoughts=jnp.array([0 if thought == "none" else 2]),
        noise=jnp.zeros(1),
        redraw=jnp.float32(0),
    )
    responder = build_responder(
        env, params, replies, player, facts=facts, rules=LIMITS, discount=0.95
    )
    keys = rollout_keys(jax.random.key(2), NUM_ROWS, 1)
    play = functools.partial(play_episodes, env, params, dialogue, responder)
    trajectory = jax.jit(functools.partial(play, rules=LIMITS))(keys)
    assert trajectory.success.all()
    assert not trajectory.turns.penalty.any()
