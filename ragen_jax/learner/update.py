"""One iteration of learning, as one compiled program.

In: the train state, a batch of episodes, a key for the order of the rows. Out: the new
state and a number per entry of `METRICS`. The story is told by `update`, at the bottom
of `make_update`: filter the groups (`choice`), let the networks read what is kept and
share out the reward (`prepare`), then optimizer steps over minibatches, each
accumulated over microbatches (`passes`).

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
from jaxtyping import Array, Bool, Float, Int, Key

from ragen_jax.algo.credit import CreditAssignment
from ragen_jax.algo.selection import Choice
from ragen_jax.learner.batch import prepare, read_entropies
from ragen_jax.learner.loss import TokenSums
from ragen_jax.learner.metrics import (
    choice_stats,
    credit_stats,
    learning_stats,
    reply_stats,
)
from ragen_jax.learner.passes import Passes, Weights, kept_first
from ragen_jax.learner.state import Network, Schedule, TrainState
from ragen_jax.sharding import replicated
from ragen_jax.types import Params, Trajectory

Stats = dict[str, Float[Array, ""]]


@struct.dataclass
class Progress:
    """What the loop over minibatches carries.

    Attributes:
      state: the train state.
      sums: over the minibatches whose step was taken.
      first: of the first minibatch, computed with the sampler's own parameters.
      grad_norm, critic_grad_norm: sums of the gradients' norms over the steps taken.
    """

    state: TrainState
    sums: TokenSums
    first: TokenSums
    grad_norm: Float[Array, ""]
    critic_grad_norm: Float[Array, ""]


@dataclasses.dataclass(frozen=True)
class Trainer:
    """How gradients become steps.

    Attributes:
      optimizer: of both networks, see `build_optimizer`.
      policy_rate, critic_rate: learning rates, see `build_schedule`.
      warmup_updates: updates in which only the critic is trained.
    """

    optimizer: optax.GradientTransformation
    policy_rate: Schedule
    critic_rate: Schedule
    warmup_updates: int

    def step(self, state: TrainState, grads: Weights) -> TrainState:
        """The state after one step of each network."""
        policy_grads, critic_grads = grads
        policy_rate, critic_rate = self.rates(state)
        stepped = self._advance(state.policy, policy_grads, policy_rate)
        # A rate of 0 is not enough: moments must not move either.
        policy = _choose(self._is_warm(state.iteration), stepped, state.policy)
        critic = state.critic
        if critic is not None:
            critic = self._advance(critic, critic_grads, critic_rate)
        return state.replace(policy=policy, critic=critic)

    def rates(self, state: TrainState) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Learning rates of the policy, 0 while it waits, and of the critic."""
        iteration = state.iteration
        rate = jnp.where(self._is_warm(iteration), self.policy_rate(iteration), 0.0)
        if state.rate_scale is not None:
            rate = rate * state.rate_scale
        return rate, self.critic_rate(iteration)

    def _is_warm(self, iteration) -> Bool[Array, ""]:
        return iteration >= self.warmup_updates

    def _advance(self, network: Network, grads: Params, rate) -> Network:
        directions, opt_state = self.optimizer.update(
            grads, network.opt_state, network.params
        )
        changes = jax.tree.map(lambda x: -rate * x, directions)
        return Network(optax.apply_updates(network.params, changes), opt_state)


def make_update(
    passes: Passes,
    trainer: Trainer,
    choose: Callable[[Trajectory, Float[Array, "B T"] | None], Choice],
    credit: CreditAssignment,
    shardings: TrainState,
    *,
    num_groups: int,
    group_size: int,
    minibatch_rows: int,
    epochs: int,
    reads_entropies: bool,
) -> Callable[..., tuple[TrainState, Stats]]:
    """Build the compiled `update(frozen, state, trajectory, key) -> (state, stats)`.

    `frozen` are the parameters the policy started with, where adapters stand on them or
    a KL penalty keeps it near them; else None. The state is donated: use the returned
    one. An optimizer step is not taken, and counted, when a gradient is not finite; it
    is not taken, and not counted, when no token of its minibatch is trained on.

    Args:
      passes, trainer, choose, credit: the parts, each documented where it is made.
      shardings: where the state lives, see `state_shardings`.
      num_groups, group_size, minibatch_rows, epochs: see `configs/base.py`.
      reads_entropies: the filter's score needs per-token entropies of all rows.

    Raises:
      ValueError: the sizes do not fit each other or, when called, the trajectory.
    """
    _check_division(minibatch_rows, passes.microbatch_rows)
    kl_penalty = passes.objective.kl_penalty

    def update(frozen, state, trajectory, key):
        _check_rows(trajectory, num_groups, group_size)
        networks, entropies = (weights(state), frozen), None
        if reads_entropies:
            entropies = read_entropies(passes, networks, trajectory)
        choice = choose(trajectory, entropies)
        stats = reply_stats(trajectory)
        stats |= choice_stats(trajectory, choice, group_size=group_size)
        prepared = prepare(
            passes,
            credit,
            networks,
            trajectory,
            choice.kept,
            group_size=group_size,
            loss_scale=choice.loss_scale,
            kl_coeff=state.kl_coeff,
        )
        progress, num_minibatches = _run_minibatches(
            trainer,
            functools.partial(passes.gradient, frozen=frozen, samples=prepared.samples),
            (state, prepared.rows, key),
            minibatch_rows=minibatch_rows,
            epochs=epochs,
        )
        stats |= learning_stats(
            state, progress, num_minibatches, trainer, prepared.reward_kl
        )
        stats |= credit_stats(prepared.mask, prepared.estimate, prepared.readings)
        num_rows = _num_measured(choice, progress)
        kl_coeff = kl_penalty.adapt(state.kl_coeff, stats["actor/ref_kl"], num_rows)
        return progress.state.replace(
            iteration=state.iteration + 1, kl_coeff=kl_coeff
        ), stats

    whole = replicated(passes.mesh)
    return jax.jit(update, donate_argnums=1, out_shardings=(shardings, whole))


def weights(state: TrainState) -> Weights:
    """Parameters of both networks."""
    return state.policy.params, None if state.critic is None else state.critic.params


def _check_division(minibatch_rows: int, microbatch_rows: int) -> None:
    if minibatch_rows % microbatch_rows:
        raise ValueError(
            f"learner.minibatch_rows = {minibatch_rows} is not a multiple of "
            f"learner.microbatch_rows = {microbatch_rows}; change one of them"
        )


def _check_rows(trajectory: Trajectory, num_groups: int, group_size: int) -> None:
    num_rows = trajectory.tokens.shape[0]
    if num_rows != num_groups * group_size:
        raise ValueError(
            f"the trajectory has {num_rows} rows, but this update was made for "
            f"{num_groups} groups of {group_size}; make both from one configuration"
        )


def _num_measured(choice: Choice, progress: Progress) -> Int[Array, ""]:
    """Rows the KL was measured on: none, which is no KL of 0, without any step."""
    return jnp.sum(choice.kept) * (progress.sums.num_tokens > 0)


def _run_minibatches(
    trainer: Trainer,
    gradient: Callable[..., tuple[Weights, TokenSums]],
    start: tuple[TrainState, Bool[Array, " B"], Key[Array, ""]],
    *,
    minibatch_rows: int,
    epochs: int,
) -> tuple[Progress, Int[Array, ""]]:
    """Optimizer steps over the kept rows; also returns how many minibatches ran."""
    state, kept, key = start
    per_epoch = -(-jnp.sum(kept) // minibatch_rows)

    def step(i, progress):
        draws = jax.random.uniform(jax.random.fold_in(key, i // per_epoch), kept.shape)
        order = kept_first(kept, draws, minibatch_rows)
        first = i % per_epoch * minibatch_rows
        rows = jax.lax.dynamic_slice_in_dim(order, first, minibatch_rows)
        now = progress.state
        grads, sums = gradient(weights(now), rows=rows, kl_coeff=now.kl_coeff)
        return _step(trainer, progress, i, grads, sums)

    zero = jnp.zeros((), jnp.float32)
    progress = Progress(state, TokenSums.zero(), TokenSums.zero(), zero, zero)
    num_minibatches = epochs * per_epoch
    return jax.lax.fori_loop(0, num_minibatches, step, progress), num_minibatches


def _step(
    trainer: Trainer, progress: Progress, i, grads: Weights, sums: TokenSums
) -> Progress:
    """Take one optimizer step, unless its gradient is empty or not finite."""
    state = progress.state
    policy_norm = optax.tree.norm(grads[0])
    critic_norm = jnp.float32(0) if grads[1] is None else optax.tree.norm(grads[1])
    is_finite = jnp.isfinite(policy_norm) & jnp.isfinite(critic_norm)
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
    return Progress(
        state=_choose(is_taken, stepped, stayed),
        sums=_choose(is_taken, progress.sums.plus(sums), progress.sums),
        first=_choose(i == 0, sums, progress.first),
        grad_norm=progress.grad_norm + jnp.where(is_taken, policy_norm, 0.0),
        critic_grad_norm=progress.critic_grad_norm
        + jnp.where(is_taken, critic_norm, 0.0),
    )


def _choose(condition, new, old):
    """One of two trees."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)
