"""Scores of thoughts under prompts, against one row at a time and the sampler."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import bandit
from ragen_jax import rngs
from ragen_jax.diagnostics import mutual_information
from ragen_jax.diagnostics.pairs import Pairs, any_turns, draw, gather_pairs
from ragen_jax.program.build import build_program
from tests import commands

NUM_PROMPTS, NUM_THOUGHTS = 5, 7


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    # Scaled up: a random network is nearly the same under every prompt.
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return commands.tiny_model(folder, initializer_range=0.3, num_key_value_heads=2)


def make_config(model, **changes):
    changes = {"rollout.temperature": 0.7} | changes
    return commands.tiny_config(bandit, model, **changes)


def make_pairs(vocab_size, *, max_length):
    """Prompts and thoughts of random tokens, room left over, junk in the padding."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, max_length + 1, 9).astype(np.int32)
    lengths[0] = max_length
    return Pairs(
        prompts=jnp.asarray(random.integers(0, vocab_size, (9, 12))),
        prompt_lengths=jnp.asarray(random.integers(1, 13, 9)),
        num_prompts=jnp.int32(NUM_PROMPTS),
        thoughts=jnp.asarray(random.integers(0, vocab_size, (9, 8))),
        thought_lengths=jnp.asarray(lengths),
        prompt_of=jnp.zeros(9, jnp.int32),
        num_pairs=jnp.int32(NUM_THOUGHTS),
    )


def one_by_one(program, forward, params, pairs, temperature):
    scores = np.zeros((NUM_THOUGHTS, NUM_PROMPTS))
    for i, j in np.ndindex(*scores.shape):
        size, seen = int(pairs.thought_lengths[i]), int(pairs.prompt_lengths[j])
        row = jnp.concatenate([pairs.prompts[j, :seen], pairs.thoughts[i, :size]])
        row = jnp.pad(row, (0, 20 - row.size))[None]
        hidden, _ = forward(params, row, jnp.arange(20)[None], None)
        logits = program.policy.logits(params, hidden[0]) / temperature
        log_probs = np.asarray(jax.nn.log_softmax(logits))
        for t in range(seen, seen + size):
            scores[i, j] += log_probs[t - 1, int(row[0, t])]
    return scores


@pytest.mark.slow
def test_every_thought_under_every_prompt(model):
    """In passes of any size, on one device or four; short thoughts and long ones."""
    config = make_config(model)
    program = build_program(config)
    params = program.play_params(program.state)
    short, long = (
        make_pairs(program.model.vocab_size, max_length=length) for length in (3, 8)
    )
    forward = jax.jit(program.policy.forward)
    tasks = [(p, one_by_one(program, forward, params, p, 0.7)) for p in (short, long)]
    assert all(np.std(wanted, axis=1).min() > 0.1 for _, wanted in tasks)
    for chunk_rows, axis in ((4, 1), (20, 1), (8, 2)):
        config.diagnostics.chunk_rows = chunk_rows
        config.mesh.update(data=axis, tensor=axis)
        program = build_program(config)
        numbers = program.learner.numbers
        compiled = mutual_information.make_score(config, program.learner)
        score = functools.partial(compiled, numbers)
        params = program.play_params(program.state)
        for pairs, wanted in tasks:
            found = np.asarray(score(params, pairs))
            there = found[:NUM_THOUGHTS, :NUM_PROMPTS]
            np.testing.assert_allclose(there, wanted, atol=1e-4)
            if chunk_rows != 4:
                continue
            # What holds no prompt and no thought is not computed, nor compiled again.
            assert not np.any(found[:, NUM_PROMPTS:])
            fewer = np.asarray(score(params, pairs.replace(num_prompts=jnp.int32(2))))
            np.testing.assert_array_equal(fewer[:, :2], found[:, :2])
            assert not np.any(fewer[:, 2:])
            assert compiled._cache_size() == 1


@pytest.mark.slow
@pytest.mark.parametrize(("context", "data"), [("full", 1), ("last_k", 2)])
def test_own_scores_are_the_sampler_s(model, context, data, monkeypatch):
    """Whole replies in place of thoughts: a random network closes no tag."""
    changes = {"rollout.context": context, "mesh.data": data}
    if context != "full":
        changes["rollout.context_turns"] = 1
    config = make_config(model, **changes)
    program = build_program(config)
    params = program.play_params(program.state)
    key = rngs.step_key(rngs.root_key(0), 0)
    rollouts = program.collect(params, key)
    batch = program.join(rollouts)
    on_host = jax.device_get(batch)
    lengths = np.where(on_host.turns.played, on_host.turns.reply_length, 0)
    draws = jax.device_get(draw(key, *lengths.shape, num_samples=12))
    chosen = any_turns(draws, lengths > 0)
    pairs = gather_pairs(on_host, chosen, lengths, max_reply_tokens=8)
    numbers = program.learner.numbers
    score = mutual_information.make_score(config, program.learner)
    scores = np.asarray(score(numbers, params, pairs))
    assert int(pairs.num_pairs) == 12
    assert int(pairs.num_prompts) > 2
    recorded = np.asarray(batch.sample_log_probs)
    for i in range(12):
        row, turn = int(chosen.row[i]), int(chosen.turn[i])
        start = int(batch.turns.reply_start[row, turn])
        reply = recorded[row, start : start + int(lengths[row, turn])]
        assert reply.sum() == pytest.approx(scores[i, pairs.prompt_of[i]], abs=1e-4)
    monkeypatch.setattr(
        mutual_information,
        "count_thoughts",
        lambda parser, batch: batch.turns.reply_length,
    )
    measure = mutual_information.make_information(
        config, program.learner, program.frozen, program.task.dialogue.parser
    )
    metrics = measure(numbers, jax.random.key(0), program.state, batch)
    for label in (mutual_information.FIRST_TURNS, mutual_information.ANY_TURNS):
        assert metrics[f"{label}num_prompts"] >= 2
        assert metrics[f"{label}mi_seq_estimate"] <= metrics[f"{label}mi_upper_bound"]
    assert metrics["collapse/valid_thinking_rate"] == 1
