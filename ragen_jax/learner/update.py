"""One iteration of learning, as one compiled program.

In: the train state, a batch of episodes, a key for the order of the rows. Out: the new
state, a number per entry of `METRICS`, and the credit of every episode. `update`,
inside `make_update`, has the five stages in order: filter the groups, compute
log-probabilities and values of the kept tokens, assign credit, take optimizer steps
over minibatches, and report statistics.

Numbers of rows are data here, not shapes: the kept rows come first in a permutation,
and only as many minibatches and microbatches run as they fill. Dropped groups cost no
compute, and another number of them compiles nothing. Reference: RAGEN sections 3 and 4,
arXiv 2504.20073; StarPO-S is a filter, no KL and `clip_high` > `clip_low`.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key

from ragen_jax.algo.credit import CreditAssignment
from ragen_jax.algo.segments import Estimate, turn_sums
from ragen_jax.algo.selection import FilterConfig
from ragen_jax.devices.sharding import replicated
from ragen_jax.learner.batch import (
    drop_rows,
    gather_samples,
    named_arrays,
    replace_rewards,
    rows_of,
    token_entropies,
    token_stats,
)
from ragen_jax.learner.loss import TokenSums
from ragen_jax.learner.metrics import (
    credit_stats,
    filter_stats,
    learning_stats,
    reply_stats,
)
from ragen_jax.learner.passes import Passes, TrainedParams, kept_first
from ragen_jax.learner.state import Network, Schedule, TrainState
from ragen_jax.registry.numbers import Number, Numbers
from ragen_jax.types import Images, Params, Trajectory

Stats = dict[str, Float[Array, ""]]


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """Rows of an update, see `configs/base.py`.

    Attributes:
      num_groups, group_size: of the trajectory.
      minibatch_rows: rows per optimizer step, a multiple of `Passes.microbatch_rows`.
      epochs: passes over the kept rows.
      rows_together: adjacent rows that stay together in a minibatch.
    """

    num_groups: int
    group_size: int
    minibatch_rows: int
    epochs: int
    rows_together: int = 1


@struct.dataclass
class EpisodeCredit:
    """What the update made of each episode, for people to look at.

    Attributes:
      kept: the filter kept it.
      advantages: mean over the sampled tokens of each turn; 0 where none is trained on.
    """

    kept: Bool[Array, " B"]
    advantages: Float[Array, "B K"]


@struct.dataclass
class LoopCarry:
    """State and sums of the loop over minibatches.

    Attributes:
      state: the train state.
      sums: over the minibatches whose step was taken.
      first: of the first minibatch, computed with the sampler's parameters.
      grad_norm, critic_grad_norm: sums of the gradients' norms over the steps taken.
    """

    state: TrainState
    sums: TokenSums
    first: TokenSums
    grad_norm: Float[Array, ""]
    critic_grad_norm: Float[Array, ""]


@dataclasses.dataclass(frozen=True)
class Trainer:
    """Optimizer steps from gradients, of both networks.

    Attributes:
      optimizer: see `build_optimizer`.
      schedule: of both learning rates, see `build_schedule`.
      warmup_updates: updates in which only the critic is trained.
      peak, critic_peak: the highest learning rates of the policy and of the critic.
    """

    optimizer: optax.GradientTransformation
    schedule: Schedule
    warmup_updates: Number
    peak: Number
    critic_peak: Number

    def step(self, state: TrainState, grads: TrainedParams) -> TrainState:
        """The state after one step of each network."""
        policy_grads, critic_grads = grads
        policy_rate, critic_rate = self.rates(state)
        stepped = self._advance(state.policy, policy_grads, policy_rate)
        # A rate of 0 is not enough: moments must not move either.
        policy = _select(self._is_warm(state.iteration), stepped, state.policy)
        critic = state.critic
        if critic is not None:
            critic = self._advance(critic, critic_grads, critic_rate)
        return state.replace(policy=policy, critic=critic)

    def rates(self, state: TrainState) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Learning rates of the policy, 0 while it waits, and of the critic."""
        iteration = state.iteration
        rate = self.schedule(self.peak, iteration)
        rate = jnp.where(self._is_warm(iteration), rate, 0.0)
        if state.rate_scale is not None:
            rate = rate * state.rate_scale
        return rate, self.schedule(self.critic_peak, iteration)

    def _is_warm(self, iteration) -> Bool[Array, ""]:
        return iteration >= self.warmup_updates

    def _advance(self, network: Network, grads: Params, rate) -> Network:
        directions, opt_state = self.optimizer.update(
            grads, network.opt_state, network.params
        )
        changes = jax.tree.map(lambda x: -rate * x, directions)
        return Network(optax.apply_updates(network.params, changes), opt_state)


@dataclasses.dataclass(frozen=True)
class Stages:
    """What an update computes with, settings included; see the classes."""

    passes: Passes
    trainer: Trainer
    filter_config: FilterConfig
    credit: CreditAssignment

    def shown(self, images: Images | None) -> "Stages":
        """The stages of an update whose tokens name these images."""
        return dataclasses.replace(self, passes=self.passes.shown(images))


def make_update(
    make_stages: Callable[[Numbers], Stages],
    shardings: TrainState,
    shape: BatchShape,
    mesh: Mesh,
) -> Callable[..., tuple[TrainState, Stats, EpisodeCredit]]:
    """Build `update(frozen, numbers, state, trajectory, key) -> state, stats, credit`.

    `frozen` are the parameters the policy started with, where adapters stand on them or
    a KL penalty keeps it near them; else None. `numbers` are settings, of which each
    call may have its own. The state is donated: use the returned one. An
    optimizer step is not taken, and counted, when a gradient is not finite; it is not
    taken, and not counted, when no token of its minibatch is trained on.

    Args:
      make_stages: from `numbers`, traced.
      shardings: where the state lives, see `state_shardings`.
      shape: see its class.
      mesh: rows are split over it.

    Raises:
      ValueError: when called, the trajectory has another number of rows.
    """
    arrays = functools.partial(named_arrays, group_size=shape.group_size)

    def update(frozen, numbers, state, trajectory, key):
        _check_rows(trajectory, shape)
        stages = make_stages(numbers).shown(trajectory.images)
        passes, credit, trainer = stages.passes, stages.credit, stages.trainer
        filter_config, kl_penalty = stages.filter_config, passes.objective.kl_penalty
        # First: the filter scores the rewards that are learned from.
        trajectory = replace_rewards(trajectory, credit, group_size=shape.group_size)
        params, entropies = (trained_params(state), frozen), None
        # A forward pass over all rows, the dropped ones too, so only on demand.
        if filter_config.needs_entropies:
            entropies = token_entropies(passes, params, trajectory)
        filtered = filter_config.choose(arrays(trajectory), entropies)
        kept = drop_rows(trajectory, filtered.kept)
        before = token_stats(passes, params, kept, filtered.kept)
        estimate, reward_kl = credit.assign(
            arrays(kept),
            **vars(before),
            loss_scale=filtered.loss_scale,
            kl_penalty=kl_penalty,
            kl_coeff=state.kl_coeff,
        )

        samples = gather_samples(passes, kept, estimate, before)
        carry, num_minibatches = _run_minibatches(
            trainer,
            functools.partial(passes.gradient, frozen=frozen, samples=samples),
            # A row of the networks is a turn where the model saw windows.
            (state, passes.whole_groups(rows_of(filtered.kept, trajectory)), key),
            shape,
        )

        # Of all rows: a filter must not hide a collapse.
        stats = reply_stats(trajectory)
        stats |= filter_stats(trajectory, filtered, group_size=shape.group_size)
        stats |= learning_stats(state, carry, num_minibatches, trainer, reward_kl)
        stats |= credit_stats(kept.loss_mask, estimate, before)
        # Without any step there is no KL to adapt to, which is not a KL of 0.
        num_rows = jnp.where(carry.sums.num_tokens > 0, jnp.sum(filtered.kept), 0)
        kl_coeff = kl_penalty.adapt(state.kl_coeff, stats["actor/ref_kl"], num_rows)
        after = carry.state.replace(iteration=state.iteration + 1, kl_coeff=kl_coeff)
        return after, stats, _episode_credit(kept, filtered.kept, estimate)

    whole = replicated(mesh)
    # Donated: the new state takes the old one's memory.
    return jax.jit(update, donate_argnums=2, out_shardings=(shardings, whole, whole))


def trained_params(state: TrainState) -> TrainedParams:
    return state.policy.params, None if state.critic is None else state.critic.params


def _episode_credit(
    trajectory: Trajectory, kept: Bool[Array, " B"], estimate: Estimate
) -> EpisodeCredit:
    mask, turn_index = trajectory.loss_mask, trajectory.turn_index
    num_turns = trajectory.turns.reward.shape[1]
    total, count = (
        turn_sums(x, mask, turn_index, num_turns)
        for x in (estimate.advantages, mask.astype(jnp.float32))
    )
    return EpisodeCredit(kept=kept, advantages=total / jnp.maximum(count, 1.0))


def _check_rows(trajectory: Trajectory, shape: BatchShape) -> None:
    num_rows = trajectory.tokens.shape[0]
    if num_rows != shape.num_groups * shape.group_size:
        raise ValueError(
            f"the trajectory has {num_rows} rows, but this update was made for "
            f"{shape.num_groups} groups of {shape.group_size}; make both from one "
            "configuration"
        )


def _run_minibatches(
    trainer: Trainer,
    gradient: Callable[..., tuple[TrainedParams, TokenSums]],
    start: tuple[TrainState, Bool[Array, " B"], Key[Array, ""]],
    shape: BatchShape,
) -> tuple[LoopCarry, Int[Array, ""]]:
    """Optimizer steps over the kept rows; also returns how many minibatches ran."""
    state, kept, key = start
    size = shape.minibatch_rows
    # A traced number: dropped rows cost no steps and no recompilation.
    per_epoch = -(-jnp.sum(kept) // size)

    def step(i, carry):
        # The same in all minibatches of an epoch, which take successive slices.
        num_draws = kept.shape[0] // shape.rows_together
        of_epoch = jax.random.fold_in(key, i // per_epoch)
        draws = jax.random.uniform(of_epoch, (num_draws,))
        if shape.rows_together > 1:
            # Equal draws: the order is stable, so the rows stay adjacent.
            draws = jnp.repeat(draws, shape.rows_together)
        order = kept_first(kept, draws, size)
        rows = jax.lax.dynamic_slice_in_dim(order, i % per_epoch * size, size)
        now = carry.state
        grads, sums = gradient(trained_params(now), rows=rows, kl_coeff=now.kl_coeff)
        return _step(trainer, carry, i, grads, sums)

    zero = jnp.zeros((), jnp.float32)
    carry = LoopCarry(state, TokenSums.zero(), TokenSums.zero(), zero, zero)
    num_minibatches = shape.epochs * per_epoch
    return jax.lax.fori_loop(0, num_minibatches, step, carry), num_minibatches


def _step(
    trainer: Trainer, carry: LoopCarry, i, grads: TrainedParams, sums: TokenSums
) -> LoopCarry:
    """Take one optimizer step, unless its gradient is empty or not finite."""
    state = carry.state
    policy_norm = optax.tree.norm(grads[0])
    critic_norm = jnp.float32(0) if grads[1] is None else optax.tree.norm(grads[1])
    is_finite = jnp.isfinite(policy_norm) & jnp.isfinite(critic_norm)
    # An empty minibatch has a gradient of 0, by which Adam's moments would move.
    is_taken = is_finite & (sums.num_tokens > 0)
    stepped = trainer.step(state, grads).replace(
        num_updates=state.num_updates + 1,
        consecutive_skipped=jnp.zeros_like(state.consecutive_skipped),
    )
    skip = (~is_finite).astype(jnp.int32)
    stayed = state.replace(
        num_skipped=state.num_skipped + skip,
        consecutive_skipped=state.consecutive_skipped + skip,
    )
    critic_grad_norm = carry.critic_grad_norm + jnp.where(is_taken, critic_norm, 0.0)
    return LoopCarry(
        state=_select(is_taken, stepped, stayed),
        sums=_select(is_taken, carry.sums.plus(sums), carry.sums),
        # Sampler and learner are compared before the first step moves the learner.
        first=_select(i == 0, sums, carry.first),
        grad_norm=carry.grad_norm + jnp.where(is_taken, policy_norm, 0.0),
        critic_grad_norm=critic_grad_norm,
    )


def _select(condition, new, old):
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)
