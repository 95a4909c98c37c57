"""Bandit: one choice between two arms that differ in nothing visible but their names.

One arm pays a small constant, the other pays 1 or nothing and more on average. A level
is a pair of names and their order; the payout is drawn when the arm is played. The
names suggest which arm takes risks, so a player that reads them can do better than
chance on names it never trained on.

Source: the bi-arm bandits of RAGEN (arXiv 2504.20073), with other names. The paper pays
0.15 on the low arm, the repository 0.1, which is the default here. Unlike the
repository's, levels depend on the level key alone, so a group shares its prompt.
"""

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import spaces
from jaxtyping import Array, Bool, Float, Int, Key

from envs import base
from envs.base import PlayBudget, Solution, StateFacts
from envs.parameters import check_flag, number
from envs.templates import Choice, Template

# Pairs of names: one that sounds safe, one that sounds risky.
NAME_PAIRS = {
    "train": (
        ("Anchor", "Rocket"),
        ("Pillow", "Cannon"),
        ("Harbor", "Tornado"),
        ("Blanket", "Firework"),
        ("Bench", "Trapeze"),
        ("Fence", "Cliff"),
        ("Teapot", "Volcano"),
        ("Pension", "Casino"),
        ("Cushion", "Dynamite"),
        ("Shelter", "Lightning"),
        ("Meadow", "Avalanche"),
        ("Brick", "Bubble"),
    ),
    "test": (
        ("Ledger", "Lottery"),
        ("Pond", "Whirlpool"),
        ("Pebble", "Meteor"),
        ("Umbrella", "Hurricane"),
        ("Lantern", "Wildfire"),
        ("Oatmeal", "Chili"),
        ("Tortoise", "Stallion"),
        ("Sofa", "Rollercoaster"),
    ),
}

INSTRUCTION = (
    "You are offered two options and take one of them, once. One pays a small, certain "
    "reward. The other pays much or nothing, and more on average. Nobody tells you "
    "which is which: think about what their names suggest, then take the option that "
    "pays more on average."
)


@struct.dataclass
class EnvState(base.EnvState):
    """A level and what was chosen.

    Attributes:
      time: actions taken, int32.
      pair: index of the pair of names, int32.
      high_arm: the action (0 or 1) that plays the arm with the higher mean, int32.
      chosen: the action taken, -1 before, int32.
    """

    pair: Int[Array, ""]
    high_arm: Int[Array, ""]
    chosen: Int[Array, ""]


@struct.dataclass
class EnvParams(base.EnvParams):
    """Traced numbers of the game.

    Attributes:
      low_arm_reward: what the low arm always pays (paper: 0.15, its repository: 0.1).
      high_arm_probability: chance that the high arm pays 1; it pays 0 otherwise.
    """

    low_arm_reward: float = 0.1
    high_arm_probability: float = number(0.25, least=0, most=1)
    max_steps_in_episode: int = 1


class Bandit(base.TextEnvironment):
    """Two named arms, one choice. Actions: 0 the arm named first, 1 the other.

    Success is having chosen the high arm, even if it paid nothing.
    """

    # Two dozen levels; generalization is measured with the other set of names.
    holds_out_levels = False
    default_params = EnvParams()

    def __init__(self, split: str = "train", reverse: bool = False):
        """Builds the game.

        Args:
          split: "train" (12 pairs of names) or "test" (8 pairs, no name in common).
          reverse: gives the high arm the name that sounds safe.

        Raises:
          ValueError: an unknown split, or `reverse` is not a bool.
        """
        if split not in NAME_PAIRS:
            raise ValueError(
                f"split={split!r} is not a set of arm names; "
                f"choose one of {', '.join(NAME_PAIRS)}"
            )
        check_flag("reverse", reverse)
        self.num_pairs = len(NAME_PAIRS[split])
        self.reverse = reverse
        self.instruction = INSTRUCTION
        self.action_vocabulary = tuple(n for pair in NAME_PAIRS[split] for n in pair)
        arms = ("first_arm", "second_arm")
        self.named_actions = dict.fromkeys(arms, self.action_vocabulary)
        # Every option begins with its blank, since pre-tokenizers join it to the word.
        names = tuple(f" {name}" for name in self.action_vocabulary)
        taken = ("", *(f"You took {name}.\n" for name in self.action_vocabulary))
        self.template = Template(
            (
                "Your options:",
                Choice("first_arm", names),
                " or",
                Choice("second_arm", names),
                ".\n",
                Choice("taken_arm", taken),
            )
        )

    @property
    def num_actions(self) -> int:
        """Number of arms."""
        return 2

    def reset_env(
        self, key: Key[Array, ""], params: EnvParams
    ) -> tuple[Int[Array, "2"], EnvState]:
        """A pair of names and an order, each with equal chance."""
        pair_key, order_key = jax.random.split(key)
        state = EnvState(
            time=jnp.int32(0),
            pair=jax.random.randint(pair_key, (), 0, self.num_pairs, jnp.int32),
            high_arm=jax.random.randint(order_key, (), 0, 2, jnp.int32),
            chosen=jnp.int32(-1),
        )
        return self.observe(key, state, None, params), state

    def step_env(self, key, state, action, params):
        """Plays an arm; returns (obs, state, reward, terminated, info)."""
        finished = self.is_finished(state, params)
        action = jnp.asarray(action, jnp.int32)
        wins = jax.random.uniform(key) < params.high_arm_probability
        payout = jnp.where(
            action == state.high_arm, jnp.where(wins, 1.0, 0.0), params.low_arm_reward
        )
        reward = jnp.where(finished, 0.0, payout).astype(jnp.float32)
        state = state.replace(
            time=jnp.where(finished, state.time, state.time + 1),
            chosen=jnp.where(finished, state.chosen, action),
        )
        info = {"success": self.is_success(state, params), "effective": ~finished}
        obs = self.observe(key, state, action, params)
        return obs, state, reward, self.is_terminated(state, params), info

    def observe(self, key, state, action, params) -> Int[Array, "2"]:
        """Index into `action_vocabulary` of the two names, in their order."""
        return self.action_names(state, params)

    def is_terminated(self, state: EnvState, params: EnvParams) -> Bool[Array, ""]:
        """Whether an arm has been played."""
        return state.chosen >= 0

    def is_success(self, state: EnvState, params: EnvParams) -> Bool[Array, ""]:
        """Whether the high arm has been chosen."""
        return state.chosen == state.high_arm

    def action_names(self, state: EnvState, params: EnvParams) -> Int[Array, "2"]:
        """Index into `action_vocabulary` of each arm's name."""
        is_high = jnp.arange(2) == state.high_arm
        sounds_risky = ~is_high if self.reverse else is_high
        return 2 * state.pair + sounds_risky.astype(jnp.int32)

    def text_fields(
        self, state: EnvState, params: EnvParams
    ) -> dict[str, Int[Array, ""]]:
        """Names in order, and the name of the chosen arm, 0 before there is one."""
        names = self.action_names(state, params)
        taken = jnp.where(state.chosen == 0, names[0], names[1]) + 1
        return {
            "first_arm": names[0],
            "second_arm": names[1],
            "taken_arm": jnp.where(state.chosen < 0, 0, taken),
        }

    def facts(self) -> StateFacts:
        """The arm that sounds risky, whether or not it is the better one.

        The vocabulary lists pairs, the name that sounds safe first.
        """

        def read(state, params):
            names = self.action_names(state, params)
            return 1 + jnp.sum(jnp.where(names % 2 == 1, names, 0))[None]

        words = (Choice("risky_arm", ("", *self.action_vocabulary)),)
        return StateFacts(words, (1,), (False,), read)

    def solve(
        self,
        states: EnvState,
        params: EnvParams,
        *,
        budget: base.PlayBudget,
        discount: float,
    ) -> base.Solution:
        """Means of the arms; a game of one action has nothing to discount."""
        return solve_bandit(
            states.high_arm,
            jax.vmap(self.is_finished, in_axes=(0, None))(states, params),
            jax.vmap(self.is_success, in_axes=(0, None))(states, params),
            low_arm_reward=jnp.float32(params.low_arm_reward),
            high_arm_probability=jnp.float32(params.high_arm_probability),
            budget=budget,
        )

    def fewest_actions(self, states: EnvState, params: EnvParams) -> Int[Array, " B"]:
        """1 before an arm has been played."""
        won = jax.vmap(self.is_success, in_axes=(0, None))(states, params)
        over = jax.vmap(self.is_finished, in_axes=(0, None))(states, params)
        return jnp.where(won, 0, jnp.where(over, base.NEVER, 1)).astype(jnp.int32)

    def observation_space(self, params: EnvParams) -> spaces.Box:
        """Pairs of indices into `action_vocabulary`."""
        return spaces.Box(0, 2 * self.num_pairs - 1, (2,), jnp.int32)

    def state_space(self, params: EnvParams) -> spaces.Dict:
        """Ranges of the state's fields."""
        return spaces.Dict(
            {
                "time": spaces.Discrete(2),
                "pair": spaces.Discrete(self.num_pairs),
                "high_arm": spaces.Discrete(2),
                "chosen": spaces.Box(-1, 1, (), jnp.int32),
            }
        )


def solve_bandit(
    high_arm: Int[Array, " B"],
    finished: Bool[Array, " B"],
    success: Bool[Array, " B"],
    *,
    low_arm_reward: Float[Array, ""],
    high_arm_probability: Float[Array, ""],
    budget: PlayBudget,
) -> Solution:
    """Exact best play of the two-armed game: the means of the arms.

    Args:
      high_arm: the action that plays the high arm.
      finished: games that are over; all their values are 0.
      success: games in which the high arm has been chosen.
      low_arm_reward: what the low arm pays.
      high_arm_probability: chance of 1 on the high arm, its mean.
      budget: play allowed from here on.
    """
    is_high = jnp.arange(2)[None, :] == high_arm[:, None]
    means = jnp.where(is_high, high_arm_probability, low_arm_reward)
    action_values = jnp.where(finished[:, None], 0.0, means)
    can_succeed = success | (~finished & (budget.num_actions > 0))
    return Solution(
        action_values=action_values,
        value=jnp.max(action_values, axis=1),
        best_success=can_succeed.astype(jnp.float32),
    )
