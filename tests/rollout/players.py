"""What the rollout tests play with: a tokenizer, small games, a small policy."""

import asyncio
import dataclasses
import functools
import itertools
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

import envs
from envs.base import PlayBudget
from ragen_jax.devices.sharding import make_mesh
from ragen_jax.models.families import new_config
from ragen_jax.models.policy import Policy, build_policy
from ragen_jax.program import build as program
from ragen_jax.rollout.collect import make_collect
from ragen_jax.rollout.host.loop import play_turns
from ragen_jax.rollout.host.text import Chat, ChatGame
from ragen_jax.rollout.keys import rollout_keys
from ragen_jax.rollout.record_fields import EPISODE, TURN, wrong_field
from ragen_jax.rollout.records import chat_record, episodes
from ragen_jax.rollout.turns import EpisodeLimits
from ragen_jax.text.context import count_past
from ragen_jax.text.dialogue import build_dialogue
from ragen_jax.text.prompts import build_wording
from ragen_jax.text.tokenizer import load_tokenizer
from tests.reference.tokenizers import train_qwen_style

BUDGET = PlayBudget(max_turns=3, max_actions_per_turn=3, max_actions_per_episode=5)
REPLY_TOKENS = 20
LIMITS = EpisodeLimits(BUDGET, REPLY_TOKENS, format_penalty=-0.1)
TEMPERATURE = 0.9
VOCAB = 640
# Shapes of the tokens at every trace of the network.
TRACES: list[tuple[int, ...]] = []
GAMES = {"bandit": {}, "frozen_lake": {}, "sokoban": {}}
MODEL = new_config(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rope_theta=10_000.0,
    tie_word_embeddings=True,
    initializer_range=0.3,
)


# Tokenizer -> how boards are cut for it.
WORDS = {"bpe": "rows", "pocket": "symbols"}
POCKET = pathlib.Path(program.__file__).parents[1] / "pocket"


@functools.cache
def tokenizer(words: str = "bpe"):
    """The pocket model's, or a BPE with two stop tokens and a token per tag."""
    if words == "pocket":
        return load_tokenizer(POCKET)
    with tempfile.TemporaryDirectory() as folder:
        path = train_qwen_style(
            pathlib.Path(folder) / "bpe",
            plain_tokens=("<think>", "</think>", "<answer>", "</answer>"),
            stop_tokens=["<|im_end|>", "<|endoftext|>"],
        )
        return load_tokenizer(path)


@functools.cache
def game(name: str, budget: PlayBudget = BUDGET, *, words: str = "bpe", **changes):
    env = envs.make(name, **GAMES[name])
    settings = {"style": "terse", "tokenization": WORDS[words]}
    dialogue = build_dialogue(
        env,
        tokenizer(words),
        budget=budget,
        max_reply_tokens=REPLY_TOKENS,
        length_hint_words=100,
        **settings | changes,
    )
    return env, dialogue


@functools.cache
def speaker() -> Policy:
    """A network with a bias by last token, so that it often writes whole answers.

    Its parameters are the network's and the table of biases; the hidden state is the
    network's with the last token, one-hot, behind it.
    """
    network = build_policy(MODEL)

    def init(key):
        return {"network": network.init(key), "bias": jnp.zeros((VOCAB, VOCAB))}

    def forward(params, tokens, positions, cache, sight=None):
        TRACES.append(tokens.shape)
        hidden, cache = network.forward(params["network"], tokens, positions, cache)
        last = jax.nn.one_hot(tokens, VOCAB)
        return jnp.concatenate([hidden, last], axis=-1), cache

    def logits(params, hidden):
        hidden, last = jnp.split(hidden, [MODEL.hidden_size], axis=-1)
        return network.logits(params["network"], hidden) + last @ params["bias"]

    return dataclasses.replace(
        network,
        config=dataclasses.replace(MODEL, hidden_size=MODEL.hidden_size + VOCAB),
        shapes=jax.eval_shape(init, jax.random.key(0)),
        init=init,
        forward=forward,
        logits=logits,
        cast_params=lambda params: params,
    )


@functools.cache
def speaker_params(name: str, words: str = "bpe"):
    """Parameters that mostly walk along replies of a game."""
    env, _ = game(name)
    encode = tokenizer(words).encode
    bias = np.zeros((VOCAB, VOCAB), np.float32)
    before = encode("<|im_start|>assistant\n<think>")[-1]
    for text in answers(env):
        chain = [before, *encode(text)]
        for first, second in itertools.pairwise(chain):
            bias[first, second] = 12
    params = jax.jit(speaker().init)(jax.random.key(7))
    return params | {"bias": jnp.asarray(bias)}


def answers(env) -> list[str]:
    listed = [f"</think><answer>{a}||{a}</answer><|im_end|>" for a in _words(env)]
    return [
        *listed,
        "</think><answer>Fly</answer><|im_end|>",
        "<|im_end|>",
        "go go go go",
        "</think><answer>||</answer><|endoftext|>",
    ]


def _words(env) -> tuple[str, ...]:
    """As many names as a level has, of the first level where levels differ."""
    return env.action_vocabulary[: env.num_actions]


@functools.cache
def collector(
    name: str,
    *,
    make=make_collect,
    num_groups=4,
    group_size=2,
    data=1,
    fsdp=1,
    **changes,
):
    """Rollouts of the speaker by `make`, with settings that tests change one by one."""
    env, _ = game(name)
    settings = {
        "mesh": make_mesh(data=data, fsdp=fsdp, tensor=1),
        "temperature": TEMPERATURE,
        "top_k": None,
        "top_p": None,
        "rules": LIMITS,
        "decode_chunk_tokens": 4,
    }
    return make(
        env,
        env.default_params,
        speaker(),
        num_groups=num_groups,
        group_size=group_size,
        **settings | changes,
    )


# Tokenizer -> a seed with replies of every kind; two of the Bandit's four levels offer
# the names that the speaker has learned.
SEEDS = {"bpe": 36, "pocket": 4}
# Game, tokenizer, style, context, its turns.
Case = tuple[str, str, str, str, int | None]
SOKOBAN: Case = ("sokoban", "bpe", "terse", "full", None)
WINDOWS: Case = ("sokoban", "bpe", "terse", "last_k", 2)


def keys_of(case: Case, num_groups=4, seed=None):
    seed = SEEDS[case[1]] if seed is None else seed
    return rollout_keys(jax.random.key(seed), num_groups, 2)


def dialogue_of(case: Case):
    name, words, style, context, turns = case
    windows = {} if context == "full" else {"context": context, "context_turns": turns}
    return game(name, words=words, style=style, **windows)[1]


@functools.cache
def collected(case: Case):
    """Episodes of the compiled rollout."""
    params = speaker_params(*case[:2])
    return collector(case[0])(params, dialogue_of(case), keys_of(case))


def records_of(case: Case):
    dialogue = dialogue_of(case)
    return episodes(collected(case), tokenizer(case[1]), dialogue.prompts)


def check_equal_bits(found, expected):
    flat, _ = jax.tree.flatten_with_path(found)
    for (path, leaf), other in zip(flat, jax.tree.leaves(expected), strict=True):
        place = jax.tree_util.keystr(path)
        assert leaf.dtype == other.dtype, place
        np.testing.assert_array_equal(leaf, other, err_msg=place)


def declared(records):
    """The records, after a look whether all they hold is declared, and of its kind."""
    for record in records:
        assert record.keys() <= EPISODE.keys()
        assert wrong_field(record, EPISODE) is None
        for turn in record["turns"]:
            assert turn.keys() <= TURN.keys()
            assert wrong_field(turn, TURN) is None
    return records


def chat_game(env, params, rules, style="terse", context="full", turns=None):
    wording = build_wording(
        env, style=style, budget=rules.budget, length_hint_words=100
    )
    num_past = count_past(context, turns, rules.budget.max_turns)
    chat = Chat(wording, context, num_past, thinking=True, shown=env.template)
    return ChatGame(env, params, rules, chat)


def play_chat(game, level, noise_key, ask):
    episode = game.episode(level, noise_key)
    trajectory = asyncio.run(play_turns(episode, ask))
    return trajectory, *declared([chat_record(trajectory, episode.turns, game.chat)])


# What only tokens have, what only an endpoint reports, and a record's place.
_NOT_OF_BOTH = {
    *("tokens", "sampled_tokens", "reply_tokens", "log_prob", "row"),
    *("token_texts", "token_log_probs"),
    *("prompt_tokens", "cached_tokens", "finish_reason"),
}


def of_both(record):
    """What records of token episodes and of chat episodes share."""
    if not isinstance(record, dict):
        return record
    return {
        key: [*map(of_both, value)] if key == "turns" else value
        for key, value in record.items()
        if key not in _NOT_OF_BOTH
    }
