"""Functions of `ragen_jax.algo` on a user's arrays: NumPy's, in 64 bits."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.algo import credit, losses, mismatch, repetition, rewards
from ragen_jax.algo.segments import from_windows, to_windows
from ragen_jax.learner.batch import game_rewards, named_arrays
from tests.algo.calls import options_of, unchecked
from tests.registry.test_tables import TABLES
from tests.trajectories import make_dialogues

ROWS, GROUP_SIZE, NUM_TURNS = 12, 4, 3
TRAJECTORY = make_dialogues(ROWS, num_turns=NUM_TURNS)
MASK = np.asarray(TRAJECTORY.loss_mask)
PAID = {
    name: np.nan_to_num(getattr(TRAJECTORY.turns, name)).astype(np.float64)
    for name in ("reward", "penalty", "bonus")
}
NORMAL = np.random.default_rng(0).normal(size=(4, *MASK.shape))
LOG_PROBS, OTHERS, VALUES, TOKENS = NORMAL
TOTALS = game_rewards(TRAJECTORY)
DATA = named_arrays(TRAJECTORY, group_size=GROUP_SIZE) | {
    "values": VALUES,
    "entropies": np.abs(VALUES),
    "counted": np.ones(len(VALUES), bool),
    "scores": np.asarray([0.5, 2.0, 1.0]),
    "kept_ratio": np.asarray(0.5),
    "log_probs": LOG_PROBS,
    "old_log_probs": OTHERS,
    "advantages": VALUES,
}
# `rewards` of each table.
REWARDS = {
    "ADVANTAGES": np.where(MASK, VALUES, 0.0),
    "SCORES": TOTALS,
    "FILTERS": TOTALS.reshape(-1, GROUP_SIZE),
}
NAMED = {
    "tokens": (TOKENS * 10).astype(np.int64),
    "mask": MASK,
    "turn_index": DATA["turn_index"],
    "played": DATA["played"],
    "reply_start": np.tile(np.arange(NUM_TURNS) * 5, (ROWS, 1)),
    "reply_length": np.full((ROWS, NUM_TURNS), 2),
    "window_start": np.ones((ROWS, NUM_TURNS), np.int64),
    "window_of_turn": np.tile(np.arange(NUM_TURNS), (ROWS, 1)),
    "rewards": REWARDS["ADVANTAGES"],
    "log_probs": LOG_PROBS,
    "sample_log_probs": OTHERS,
    **PAID,
}


def calls():
    """(name, function, arguments) of every public function that is not of a class."""
    for table, entries in TABLES.items():
        for name, entry in entries.items():
            data = DATA | {"rewards": REWARDS.get(table)}
            options = options_of(entry)
            names = [x for x in entries.data if x in entry.__annotations__]
            yield f"{table} {name}", entry, {x: data[x] for x in names} | options
    for name, entry in (losses.KL_ESTIMATORS | losses.AGGREGATIONS).items():
        words = {"log_probs": LOG_PROBS, "ref_log_probs": OTHERS, "mask": MASK}
        names = [x for x in words if x in entry.__annotations__]
        yield name, entry, {x: words[x] for x in names}
    for function, options in [
        (rewards.raw_episode_rewards, {}),
        (rewards.episode_rewards, {}),
        (rewards.rewards_per_turn, {}),
        (repetition.distinct_ngrams, {"size": 2}),
        (repetition.top_reply_share, {}),
        (mismatch.mismatch_sums, {"cap": 1.5}),
        (credit.group_std_weights, {"group_size": GROUP_SIZE}),
        (credit.length_weights, {}),
        (to_windows, {"x": VALUES, "num_windows": NUM_TURNS, "width": 9}),
        (from_windows, {"y": np.resize(VALUES, (ROWS, NUM_TURNS, 9))}),
    ]:
        names = [x for x in NAMED if x in function.__annotations__]
        arguments = {x: NAMED[x] for x in names} | options
        yield function.__name__, function, arguments


def convert(arguments, to):
    return {
        name: to(x) if isinstance(x, np.ndarray | jax.Array) else x
        for name, x in arguments.items()
    }


def wide(x):
    """NumPy's array, in 64 bits where it holds numbers that are not hashes."""
    x = np.asarray(x)
    return x.astype({"f": np.float64, "i": np.int64}.get(x.dtype.kind, x.dtype))


@pytest.mark.parametrize(
    ("function", "arguments"), [pytest.param(f, x, id=name) for name, f, x in calls()]
)
def test_numpy_arrays_give_what_jax_arrays_give(function, arguments):
    """Without a warning of a type that JAX does not have."""
    expected = function(**convert(arguments, jnp.asarray))
    with unchecked(), warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = function(**convert(arguments, wide))
    for x, y in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        # A difference of two inputs is NumPy's, in 64 bits.
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
