"""Exact information against an enumeration by hand; estimates against both."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.exact_information import (
    enumerate_replies,
    exact_information,
    reply_log_probs,
)
from ragen_jax.diagnostics.mutual_information import estimates
from ragen_jax.diagnostics.pairs import Pairs
from ragen_jax.diagnostics.scoring import Scorer
from ragen_jax.models.policy import build_policy
from tests.models.random_adapters import EVEN
from tests.reference import exact_oracle

CONFIG = dataclasses.replace(EVEN, vocab_size=23, rope_theta=1e4, initializer_range=0.6)
POLICY = build_policy(CONFIG)
PARAMS = POLICY.init(jax.random.key(1))
ALPHABET, TEMPERATURE = (3, 11, 7, 20), 0.8
PROMPTS = np.random.default_rng(0).integers(0, 23, (6, 7)).astype(np.int32)
LENGTHS = np.array([7, 1, 4, 6, 7, 3], np.int32)


@functools.cache
def log_probs(length, stop):
    found = jax.jit(
        lambda params: reply_log_probs(
            POLICY,
            params,
            jnp.asarray(PROMPTS),
            jnp.asarray(LENGTHS),
            alphabet=ALPHABET,
            length=length,
            stop=stop,
            temperature=TEMPERATURE,
        )
    )(PARAMS)
    return np.asarray(found, np.float64)


@functools.cache
def by_hand(prompt, length, stop):
    forward = jax.jit(POLICY.forward)

    def next_log_probs(text):
        row = [*PROMPTS[prompt, : LENGTHS[prompt]], *text]
        padded = jnp.asarray([row + [0] * (12 - len(row))])
        hidden, _ = forward(PARAMS, padded, jnp.arange(12)[None], None)
        return POLICY.logits(PARAMS, hidden[0, len(row) - 1]) / TEMPERATURE

    return exact_oracle.replies(next_log_probs, ALPHABET, length, stop)


@pytest.mark.parametrize(("length", "stop"), [(1, None), (3, None), (3, 7)])
def test_every_reply_and_its_information(length, stop):
    found = log_probs(length, stop)
    texts, lengths = enumerate_replies(ALPHABET, length, stop)
    names = [tuple(t[:n].tolist()) for t, n in zip(texts, lengths, strict=True)]
    worlds = [by_hand(prompt, length, stop) for prompt in range(len(PROMPTS))]
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1.0, atol=1e-5)
    for prompt, world in enumerate(worlds):
        assert set(world) == set(names)
        wanted = [world[name] for name in names]
        np.testing.assert_allclose(np.exp(found[prompt]), wanted, atol=1e-5)
    exact = exact_information(found)
    mutual, conditional = exact_oracle.information(worlds)
    assert mutual > 0.05
    assert exact.mutual == pytest.approx(mutual, abs=1e-5)
    assert exact.conditional == pytest.approx(conditional, abs=1e-5)
    assert exact.entropy == pytest.approx(mutual + conditional, abs=1e-5)


def draw(key, world, prompts, num_replies):
    """Replies drawn under each prompt, and what `estimates` asks for."""
    keys = jax.random.split(key, len(prompts))
    logits = jnp.asarray(world[list(prompts)])
    replies = jax.vmap(
        lambda key, row: jax.random.categorical(key, row, shape=(num_replies,))
    )(keys, logits)
    replies = np.asarray(replies).reshape(-1)
    scores = world[list(prompts)][:, replies].T
    return replies, scores, np.repeat(np.arange(len(prompts)), num_replies)


def test_the_estimate_approaches_the_exact_value():
    """As replies grow in number, and as prompts do.

    Within five standard errors, which are known exactly: a false alarm has probability
    6e-7 if the seed is changed.
    """
    world, (_, lengths) = log_probs(3, 7), enumerate_replies(ALPHABET, 3, 7)
    exact, prompts = exact_information(world), range(len(PROMPTS))
    marginal = np.logaddexp.reduce(world, axis=0) - np.log(len(world))
    gains, probs = world - marginal, np.exp(world)
    within = np.mean(np.sum(probs * gains**2, 1) - np.sum(probs * gains, 1) ** 2)
    for num_replies in (4, 64, 1024):
        key = jax.random.fold_in(jax.random.key(0), num_replies)
        replies, scores, prompt_of = draw(key, world, prompts, num_replies)
        found = estimates(scores, lengths[replies], prompt_of)
        error = np.sqrt(within / len(replies))
        assert found["mi_seq_estimate"] == pytest.approx(exact.mutual, abs=5 * error)
    assert error < 0.05 * exact.mutual
    # Fewer prompts know less: what is estimated then is the information among them.
    among = [
        np.mean(
            [
                exact_information(world[list(some)]).mutual
                for some in itertools.combinations(prompts, size)
            ]
        )
        for size in (2, 3, 4, 5, 6)
    ]
    assert all(a < b for a, b in itertools.pairwise(among))
    assert among[-1] == pytest.approx(exact.mutual)


def test_scoring_finds_the_enumerated_log_probabilities():
    """The scores of training, with the distribution renormalised on the alphabet."""
    world, (texts, lengths) = log_probs(3, 7), enumerate_replies(ALPHABET, 3, 7)
    replies, wanted, prompt_of = draw(jax.random.key(3), world, range(6), 2)
    ids = jnp.asarray(ALPHABET)

    def renormalised(params, hidden, tokens):
        logits = POLICY.logits(params, hidden[:, :-1])[..., ids] / TEMPERATURE
        chosen = tokens[:, 1:, None] == ids[None, None]
        log_softmax = jax.nn.log_softmax(logits)
        found = jnp.sum(jnp.where(chosen, log_softmax, 0.0), axis=-1)
        return jnp.pad(found, [(0, 0), (1, 0)])

    pairs = Pairs(
        prompts=jnp.pad(jnp.asarray(PROMPTS), [(0, 6), (0, 0)]),
        prompt_lengths=jnp.pad(jnp.asarray(LENGTHS), (0, 6)),
        num_prompts=jnp.int32(6),
        thoughts=jnp.asarray(texts[replies]),
        thought_lengths=jnp.asarray(lengths[replies]),
        prompt_of=jnp.asarray(prompt_of),
        num_pairs=jnp.int32(12),
    )
    scorer = Scorer(POLICY, renormalised, lambda tree: tree, 1, 30)
    found = jax.jit(scorer.score)(PARAMS, pairs)[:, :6]
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("alphabet", "length", "stop", "words"),
    [
        ((1, 1), 2, None, "2 to 8 different tokens"),
        (range(9), 2, None, "2 to 8 different tokens"),
        ((1, 2), 2, 3, "stop token 3 is not in the alphabet"),
        ((1, 2), 6, None, "length = 6"),
        ((1, 2), 0, 1, "length = 0"),
    ],
)
def test_what_cannot_be_enumerated_is_refused(alphabet, length, stop, words):
    with pytest.raises(ValueError, match=words):
        enumerate_replies(alphabet, length, stop)
