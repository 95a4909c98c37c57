"""Every advantage estimator: its contract, its oracle, and what it must not see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ragen_jax.algo.advantages import ADVANTAGES, bi_level_gae, gae, gigpo, grpo
from ragen_jax.algo.rewards import at_turn_ends
from ragen_jax.algo.segments import turn_sums
from ragen_jax.learner.batch import named_arrays
from ragen_jax.registry.functions import data_names
from ragen_jax.types import Trajectory
from tests.algo import calls
from tests.algo.calls import OPTIONS, options_of
from tests.reference import advantages_oracle as oracle
from tests.trajectories import make_dialogues, make_trajectory

SIZE, ROWS = 4, 12
CRITICS = [name for name, x in ADVANTAGES.items() if "values" in data_names(x)]
SEEDS = st.integers(0, 2**16)
few = settings(max_examples=8, deadline=None)


@struct.dataclass
class Credit:
    """An estimator's inputs; None: no values."""

    trajectory: Trajectory
    rewards: jax.Array
    values: jax.Array | None = None

    @property
    def loss_mask(self):
        return self.trajectory.loss_mask

    @property
    def turn_index(self):
        return self.trajectory.turn_index

    def change(self, **changes):
        return self.replace(trajectory=self.trajectory.replace(**changes))

    def change_turns(self, **changes):
        return self.change(turns=self.trajectory.turns.replace(**changes))


def run(name, credit, group_size=SIZE):
    return calls.run(ADVANTAGES[name], arrays(credit, group_size))


def arrays(credit, group_size=SIZE):
    own = {"rewards": credit.rewards, "values": credit.values}
    return named_arrays(credit.trajectory, group_size=group_size) | own


def place_by_turn(trajectory):
    data = named_arrays(trajectory, group_size=1)
    return at_turn_ends(
        data["turn_rewards"], data["mask"], turn_index=data["turn_index"]
    )


def make_random(seed) -> Credit:
    """Turn rewards, a critic, few states, some rows dropped; not-a-number elsewhere."""
    random = np.random.default_rng(seed)
    trajectory = make_dialogues(ROWS, seed=seed)
    is_kept = random.random((ROWS, 1)) < 0.8
    is_kept[0] = is_kept[1] = True
    mask = trajectory.loss_mask & is_kept
    values = random.normal(size=trajectory.tokens.shape)
    hashes = jnp.asarray(random.integers(0, 2, (ROWS, 3, 2)), jnp.uint32)
    trajectory = trajectory.replace(
        loss_mask=mask, turns=trajectory.turns.replace(state_hash=hashes)
    )
    return Credit(
        trajectory,
        jnp.where(mask, place_by_turn(trajectory), jnp.nan),
        jnp.asarray(np.where(mask, values, np.nan), "f4"),
    )


def make_scored(scores) -> Credit:
    trajectory = make_trajectory([float(s) for s in scores])
    return Credit(trajectory, place_by_turn(trajectory))


def exact(rewards) -> np.ndarray:
    """Rewards of two decimals without float32's rounding, which is not a difference."""
    return np.round(np.asarray(rewards, float), 6)


def expected(name, credit, group_size=SIZE):
    mask, turn_index = np.asarray(credit.loss_mask), np.asarray(credit.turn_index)
    rewards = exact(np.where(mask, credit.rewards, 0.0))
    scores = [float(s) for s in rewards.sum(axis=1)]
    values = None if credit.values is None else np.asarray(credit.values, float)
    gamma, lam = OPTIONS["gamma"], OPTIONS["lam"]
    high = OPTIONS["high_level_gamma"]
    if name == "gae":
        return oracle.gae(rewards, values, mask, gamma, lam)
    if name == "bi_level_gae":
        return oracle.bi_level_gae(rewards, values, mask, turn_index, gamma, lam, high)
    if name in ("reinforce", "reinforce_plus_plus"):
        return getattr(oracle, name)(rewards, mask, gamma), None
    if name == "gigpo":
        turns = credit.trajectory.turns
        states = [[tuple(h) for h in row] for row in np.asarray(turns.state_hash)]
        per_turn = exact(arrays(credit)["turn_rewards"]).tolist()
        options = {"gamma": gamma, "step_weight": OPTIONS["step_weight"]}
        options["group_size"] = group_size
        return oracle.gigpo(scores, per_turn, states, mask, turn_index, **options), None
    return getattr(oracle, name)(scores, group_size, mask), None


@pytest.mark.parametrize("name", ADVANTAGES)
def test_contract(name):
    """Shape, dtype, nothing off the mask, no look at what is not a trained token."""
    credit = make_random(0)
    estimate = run(name, credit)
    for x in jax.tree.leaves(estimate):
        assert x.shape == credit.rewards.shape
        assert x.dtype == jnp.float32
        assert np.isfinite(x).all()
        assert not x[~credit.loss_mask].any()
        assert x[credit.loss_mask].any()
    assert (estimate.returns is not None) == (name in CRITICS)
    noisy = credit.replace(
        rewards=jnp.where(credit.loss_mask, credit.rewards, 1e9),
        values=jnp.where(credit.loss_mask, credit.values, 1e9),
    ).change(turn_index=jnp.where(credit.turn_index < 0, 99, credit.turn_index))
    jax.tree.map(np.testing.assert_array_equal, run(name, noisy), estimate)


@pytest.mark.parametrize("group_size", [1, 2, 3, SIZE, ROWS])
@pytest.mark.parametrize("name", ADVANTAGES)
@settings(max_examples=3, deadline=None)
@given(seed=SEEDS)
# Steps of one state, and episodes of a group, whose equal sums differ in rounding.
@example(seed=6210)
@example(seed=992)
def test_equals_oracle(name, group_size, seed):
    credit = make_random(seed)
    advantages, returns = expected(name, credit, group_size)
    estimate = run(name, credit, group_size)
    np.testing.assert_allclose(estimate.advantages, advantages, rtol=1e-4, atol=1e-4)
    if returns is not None:
        np.testing.assert_allclose(estimate.returns, returns, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ADVANTAGES)
@few
@given(seed=SEEDS)
def test_padding_does_not_matter(name, seed):
    credit = make_random(seed)

    def pad(x, value):
        return jnp.pad(x, ((0, 0), (0, 5)), constant_values=value)

    padded = credit.replace(
        rewards=pad(credit.rewards, 7.0), values=pad(credit.values, 7.0)
    ).change(
        loss_mask=pad(credit.loss_mask, False), turn_index=pad(credit.turn_index, -1)
    )
    # Reductions over more entries come in another order.
    np.testing.assert_allclose(
        run(name, padded).advantages[:, :-5],
        run(name, credit).advantages,
        atol=2e-5,
        rtol=1e-4,
    )


@pytest.mark.parametrize("name", ADVANTAGES)
@few
@given(seed=SEEDS)
def test_dropped_rows_do_not_matter(name, seed):
    """Whatever stands in a row without trained tokens, nobody else's estimate moves."""
    credit = make_random(seed)
    is_dropped = ~credit.loss_mask.any(axis=1)
    turns = credit.trajectory.turns
    noisy = credit.change_turns(
        reward=jnp.where(is_dropped[:, None], 50.0, turns.reward),
        played=turns.played | is_dropped[:, None],
        state_hash=jnp.where(is_dropped[:, None, None], 1, turns.state_hash),
    )
    jax.tree.map(np.testing.assert_array_equal, run(name, noisy), run(name, credit))


@pytest.mark.parametrize("name", ADVANTAGES)
@few
@given(seed=SEEDS)
def test_a_dropped_group_might_as_well_not_be_there(name, seed):
    credit = make_random(seed)
    is_kept = jnp.arange(ROWS)[:, None] < 8
    dropped = credit.change(loss_mask=credit.loss_mask & is_kept)
    absent = jax.tree.map(lambda x: x[:8], credit)
    np.testing.assert_allclose(
        run(name, dropped).advantages[:8],
        run(name, absent).advantages,
        atol=2e-5,
        rtol=1e-4,
    )


@pytest.mark.parametrize("name", ADVANTAGES)
@few
@given(seed=SEEDS)
def test_the_order_of_groups_does_not_matter(name, seed):
    credit = make_random(seed)
    order = np.asarray([2, 0, 1])[:, None] * SIZE + np.arange(SIZE)
    permuted = jax.tree.map(lambda x: x[order.reshape(-1)], credit)
    np.testing.assert_allclose(
        run(name, permuted).advantages,
        run(name, credit).advantages[order.reshape(-1)],
        atol=2e-5,
        rtol=1e-4,
    )


@pytest.mark.parametrize("name", ADVANTAGES)
def test_no_trained_token_at_all(name):
    credit = make_random(0)
    silent = credit.change(loss_mask=jnp.zeros_like(credit.loss_mask))
    for x in jax.tree.leaves(run(name, silent)):
        assert not x.any()


GROUP_RELATIVE = ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline")


@pytest.mark.parametrize("name", GROUP_RELATIVE)
@few
@given(seed=SEEDS)
def test_a_groups_bonus_does_not_matter(name, seed):
    """The same number added to every score of a group changes nothing."""
    scores = np.random.default_rng(seed).integers(-4, 5, ROWS) / 4
    bonus = np.repeat([0.0, 2.0, -1.0], SIZE)
    np.testing.assert_allclose(
        run(name, make_scored(scores + bonus)).advantages,
        run(name, make_scored(scores)).advantages,
        atol=1e-5,
    )


@pytest.mark.parametrize("name", ["grpo", "reinforce_plus_plus", *CRITICS])
def test_the_scale_of_rewards_does_not_matter(name):
    credit = make_random(1)
    scaled = credit.replace(rewards=4 * credit.rewards, values=4 * credit.values)
    np.testing.assert_allclose(
        run(name, scaled).advantages, run(name, credit).advantages, atol=1e-4
    )


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus", CRITICS[1]])
def test_whitened_over_trained_tokens(name):
    credit = make_random(2)
    chosen = np.asarray(run(name, credit).advantages)[np.asarray(credit.loss_mask)]
    assert chosen.mean() == pytest.approx(0, abs=1e-6)
    assert chosen.std(ddof=1) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("name", [*GROUP_RELATIVE, "gigpo"])
@pytest.mark.parametrize("group_size", [3, 6])
def test_equal_scores_are_worth_exactly_nothing(name, group_size):
    """Rounding must not make a deviation where there is none (10.9 * 3 / 3 != 10.9)."""
    credit = make_scored([10.9, 0.7] * 6)
    num_turns = credit.trajectory.turns.played.shape[1]
    credit = credit.change_turns(state_hash=jnp.zeros((ROWS, num_turns, 2), jnp.uint32))
    order = np.argsort(np.arange(ROWS) % 2, kind="stable")
    equal = jax.tree.map(lambda x: x[order], credit)
    assert not run(name, equal, group_size).advantages.any()


# By hand: one row, trained tokens at 1, 3 and 4, the environment speaks at 2.
MASK = jnp.asarray([[False, True, False, True, True, False]])
VALUES = jnp.asarray([[9.0, 0.5, 9.0, 0.25, 0.5, 9.0]])
TURN = jnp.asarray([[0, 0, 1, 1, 1, -1]], jnp.int32)


def by_hand(estimator, rewards, **options):
    estimate = estimator(jnp.asarray([rewards]), MASK, values=VALUES, **options)
    return np.asarray(estimate.returns)[np.asarray(MASK)]


def test_gae_by_hand():
    """Undiscounted, the return is what is paid from here on, whoever speaks between."""
    rewards = [0.0, 0.0, 5.0, 0.0, 1.0, 0.0]
    np.testing.assert_allclose(by_hand(gae, rewards, gamma=1.0, lam=1.0), [1, 1, 1])
    # delta = -.375, 0, .5; A = -.34375, .125, .5
    returns = by_hand(gae, rewards, gamma=0.5, lam=0.5)
    np.testing.assert_allclose(returns, [0.15625 + 0, 0.375, 1.0], atol=1e-6)


def test_bi_level_gae_by_hand():
    """Turn 0 pays nothing and is a turn: its value stands between its token and V_1."""
    rewards = [0.0, 0.0, 5.0, 0.0, 1.0, 0.0]
    options = {"gamma": 1.0, "lam": 1.0, "high_level_gamma": 0.5}
    options |= {"turn_index": TURN, "num_turns": 2}
    # A_1 = 1 - .5 = .5, A_0 = 0 + .5 * (.5 + .5) - .5 = 0; returns .5, then 1, 1.
    np.testing.assert_allclose(by_hand(bi_level_gae, rewards, **options), [0.5, 1, 1])


def test_bi_level_gae_of_one_turn_is_gae():
    credit = make_random(3)
    one = credit.change(turn_index=jnp.where(credit.turn_index < 0, -1, 0))
    total = turn_sums(one.rewards, one.loss_mask, one.turn_index, 1)
    last = np.asarray(one.loss_mask)[:, ::-1].argmax(axis=1)
    is_last = np.arange(20)[None, ::-1] == last[:, None]
    one = one.replace(rewards=jnp.where(is_last & one.loss_mask, total, 0.0))
    np.testing.assert_allclose(
        run("bi_level_gae", one).returns, run("gae", one).returns, atol=1e-5
    )


def test_grpo_by_hand():
    """Scores 0 and 1: mean 1/2, std sqrt(1/2)."""
    credit = make_scored([0.0, 1.0])
    estimate = grpo(credit.rewards, credit.loss_mask, group_size=2)
    advantages = np.asarray(estimate.advantages)
    mask = np.asarray(credit.loss_mask)
    np.testing.assert_allclose(advantages[0][mask[0]], -np.sqrt(0.5), rtol=1e-5)
    np.testing.assert_allclose(advantages[1][mask[1]], np.sqrt(0.5), rtol=1e-5)


def test_grpo_of_a_group_of_one_is_its_score():
    credit = make_scored([2.0, -3.0])
    estimate = grpo(credit.rewards, credit.loss_mask, group_size=1)
    advantages = estimate.advantages
    for row, score in enumerate([2.0, -3.0]):
        mine = np.asarray(advantages[row])[np.asarray(credit.loss_mask[row])]
        np.testing.assert_allclose(mine, score / (1 + 1e-6), rtol=1e-6)


def steps_only(credit, **changes):
    """GiGPO's advantages without the episodes' part."""
    data = arrays(credit, 2)
    whole = calls.run(gigpo, data, step_weight=1.0, **changes).advantages
    return np.asarray(whole - calls.run(grpo, data).advantages)


def test_gigpo_compares_equal_states_of_a_group():
    """Rows 0 and 1 begin alike: 1 beats 0. Rows 2 and 3 never meet, and 3 meets row 0
    only, which is of another group."""
    credit = make_scored([0.0, 1.0, 0.0, 1.0])
    states = jnp.asarray([[[7, 1]], [[7, 1]], [[7, 2]], [[7, 1]]], jnp.uint32)
    steps = steps_only(credit.change_turns(state_hash=states), gamma=0.9)
    mask = np.asarray(credit.loss_mask)
    np.testing.assert_allclose(steps[0][mask[0]], -np.sqrt(0.5), rtol=1e-5)
    np.testing.assert_allclose(steps[1][mask[1]], np.sqrt(0.5), rtol=1e-5)
    assert not steps[2:].any()


def test_options_change_something():
    """Each own option of each estimator."""
    credit = make_random(5)
    for name, entry in ADVANTAGES.items():
        usual = run(name, credit).advantages
        for option, value in options_of(entry).items():
            changed = options_of(entry, **{option: value / 2})
            data = arrays(credit)
            data = {key: data[key] for key in data_names(entry)}
            other = entry(**data, **changed).advantages
            assert (other != usual).any(), (name, option)
