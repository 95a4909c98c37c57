"""Choice of turns, and the prompts and thoughts that are gathered from them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.diagnostics.pairs import any_turns, draw, first_turns, gather_pairs
from ragen_jax.types import Windows
from tests.trajectories import make_trajectory

KEY = jax.random.key(5)
NUM_ROWS, NUM_TURNS, GROUP_SIZE, REPLY = 12, 3, 4, 5


def valid_turns(seed=0, share=0.7):
    random = np.random.default_rng(seed)
    return random.random((NUM_ROWS, NUM_TURNS)) < share


def draws_of(key, num_samples):
    return draw(key, NUM_ROWS, NUM_TURNS, num_samples=num_samples)


def choose_first(key, is_valid, num_samples):
    draws = jax.device_get(draws_of(key, num_samples))
    return first_turns(draws, is_valid, num_samples=num_samples, group_size=GROUP_SIZE)


def choose_any(key, is_valid, num_samples):
    return any_turns(jax.device_get(draws_of(key, num_samples)), is_valid)


def test_first_turns_are_spread_over_the_groups():
    everyone = np.ones((NUM_ROWS, NUM_TURNS), bool)
    drawn = set()
    for seed in range(5):
        chosen = choose_first(jax.random.key(seed), everyone, 7)
        rows = np.asarray(chosen.row)
        assert len(set(rows.tolist())) == 7
        drawn.add(tuple(rows.tolist()))
        assert np.all(np.asarray(chosen.is_chosen))
        assert not np.any(np.asarray(chosen.turn))
        per_group = np.bincount(rows // GROUP_SIZE, minlength=3)
        assert per_group.max() - per_group.min() <= 1
    assert len(drawn) > 1


@pytest.mark.parametrize("num_samples", [2, 50])
def test_first_turns_without_a_thought_are_left_out(num_samples):
    is_valid = valid_turns()
    chosen = choose_first(KEY, is_valid, num_samples)
    rows = np.asarray(chosen.row)[np.asarray(chosen.is_chosen)]
    assert len(rows) == min(num_samples, is_valid[:, 0].sum())
    assert np.all(is_valid[rows, 0])
    nobody = choose_first(KEY, np.zeros_like(is_valid), num_samples)
    assert not np.any(np.asarray(nobody.is_chosen))


def test_any_turns_are_of_episodes_drawn_alike():
    """However many of an episode's turns have a thought."""
    is_valid = np.zeros((NUM_ROWS, NUM_TURNS), bool)
    is_valid[2, 1] = is_valid[7] = True
    keys = jax.random.split(KEY, 2000)
    draws = jax.device_get(jax.vmap(lambda key: draws_of(key, 64))(keys))
    samples = [
        any_turns(jax.tree.map(lambda x, i=i: x[i], draws), is_valid)
        for i in range(len(keys))
    ]
    chosen = jax.tree.map(lambda *parts: np.stack(parts), *samples)
    assert np.all(np.asarray(chosen.is_chosen).sum(axis=1) == is_valid.sum())
    assert np.all(is_valid[chosen.row, chosen.turn])
    share = np.mean(np.asarray(chosen.row) == 2)
    # 2,000 x 36 draws: six standard deviations.
    assert abs(share - 0.5) < 0.012
    turns = np.asarray(chosen.turn)[np.asarray(chosen.row) == 7]
    assert np.all(np.abs(np.bincount(turns) / turns.size - 1 / 3) < 0.016)


def episodes(random):
    """Of few different tokens, so that prompts of one length are often equal."""
    filler = make_trajectory([0.0] * NUM_ROWS, num_tokens=20, vocab_size=2)
    start = 1 + np.arange(NUM_TURNS)[None] * 6 + random.integers(0, 2, (NUM_ROWS, 1))
    turns = filler.turns.replace(reply_start=jnp.asarray(start, jnp.int32))
    return filler.replace(turns=turns)


@pytest.mark.parametrize("has_windows", [False, True])
def test_equal_prompts_are_one(has_windows):
    random = np.random.default_rng(1)
    trajectory = episodes(random)
    lengths = np.where(valid_turns(), random.integers(1, REPLY + 1, (12, 3)), 0)
    seen = np.repeat(np.asarray(trajectory.tokens)[:, None], NUM_TURNS, 1)
    start = np.asarray(trajectory.turns.reply_start)
    if has_windows:
        seen = random.integers(0, 2, (NUM_ROWS, NUM_TURNS, 9))
        start = random.integers(1, 4, (NUM_ROWS, NUM_TURNS))
        # Turns have windows in any order.
        order = random.permuted(np.tile(np.arange(NUM_TURNS), (NUM_ROWS, 1)), axis=1)
        held = np.take_along_axis(seen, np.argsort(order)[..., None], axis=1)
        windows = Windows(*map(jnp.asarray, (held, start, start, order)))
        trajectory = trajectory.replace(windows=windows)
    chosen = choose_any(KEY, lengths > 0, 30)
    on_host = jax.device_get(trajectory)
    pairs = gather_pairs(on_host, chosen, lengths, max_reply_tokens=REPLY)
    count = int(pairs.num_pairs)
    assert count == min(30, (lengths > 0).sum())
    prompts = []
    for i in range(count):
        row, turn = int(chosen.row[i]), int(chosen.turn[i])
        prompts.append(tuple(seen[row, turn, : start[row, turn]].tolist()))
        at = int(trajectory.turns.reply_start[row, turn])
        thought = np.asarray(trajectory.tokens)[row, at : at + lengths[row, turn]]
        size = pairs.thought_lengths[i]
        assert pairs.thoughts[i, :size].tolist() == thought.tolist()
        number = pairs.prompt_of[i]
        found = pairs.prompts[number, : pairs.prompt_lengths[number]]
        assert tuple(found.tolist()) == prompts[i]
    assert pairs.num_prompts == len(set(prompts)) < count
    assert set(pairs.prompt_of[:count].tolist()) == set(range(pairs.num_prompts))
    assert not np.any(pairs.thought_lengths[count:])
