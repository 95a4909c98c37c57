"""Builds the learner from its sections of the configuration.

In: a validated configuration and descriptions of networks. Out: a `Learner`: what makes
train states from parameters, and the compiled update that changes them. No array of the
size of a network is made here, so that a run's memory can be planned without it.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Key, PyTree
from ml_collections import ConfigDict

from ragen_jax import rngs
from ragen_jax.algo.credit import CreditAssignment, KLPenalty
from ragen_jax.algo.selection import FilterConfig
from ragen_jax.learner.loss import Objective
from ragen_jax.learner.passes import Passes, TrainedParams
from ragen_jax.learner.prompts import SharedPrompts
from ragen_jax.learner.state import (
    Network,
    PeakRates,
    Snapshot,
    TrainState,
    abstract_network,
    build_optimizer,
    build_schedule,
    describe,
    init_network,
    init_state,
    place_params,
    state_shardings,
    take_snapshot,
)
from ragen_jax.learner.update import (
    BatchShape,
    Trainer,
    make_update,
    trained_params,
)
from ragen_jax.models.critic import Critic
from ragen_jax.models.lora import LoraConfig
from ragen_jax.models.policy import Policy
from ragen_jax.models.trainable import Trainable, adapters, whole
from ragen_jax.registry.functions import from_section
from ragen_jax.sharding import gather_vocab_tables, param_shardings
from ragen_jax.types import Params


@dataclasses.dataclass(frozen=True)
class Learner:
    """The compiled update, and functions that make and read its train state.

    Descriptions are `jax.ShapeDtypeStruct`s with their shardings. Programs that hold
    these functions pass them `frozen`, or they would hold a copy.

    Attributes:
      state: description of a train state.
      frozen: description of the parameters that stay as they are beside it; None if
        unused.
      played: description of what `play_params` returns.
      init: (parameters of a checkpoint, seed of the run) -> a fresh train state.
      freeze: parameters of a checkpoint -> those that stay, on their devices.
      update: `(frozen, peaks, state, trajectory, key) -> (state, stats, credit)`,
        jitted; donates the state, whose `acting_snapshot` is None.
      peaks: the highest learning rates of the configuration.
      play_params: `(frozen, state)` -> parameters of the plain policy, to play with,
        of a state or of a snapshot.
      policy: the plain policy, which plays.
      passes, credit: parts of `update`, for diagnostics.
    """

    state: TrainState
    frozen: Params | None
    played: Params
    init: Callable[[Params, int], TrainState]
    freeze: Callable[[Params], Params | None]
    update: Callable[..., tuple[TrainState, dict[str, Any]]]
    peaks: PeakRates
    play_params: Callable[[Params | None, TrainState | Snapshot], Params]
    policy: Policy
    passes: Passes
    credit: CreditAssignment


@dataclasses.dataclass(frozen=True)
class Networks:
    """The networks of a learner.

    Attributes:
      policy: the plain policy, which plays.
      critic: a critic where the estimator reads values.
      lora: size of the adapters that are trained in place of the policy's parameters;
        None: those are trained.
    """

    policy: Policy
    critic: Critic | None = None
    lora: LoraConfig | None = None


def build_learner(
    config: ConfigDict,
    networks: Networks,
    mesh: Mesh,
    players: Mesh | None = None,
    prompts: SharedPrompts | None = None,
) -> Learner:
    """Put the learner together; each section of `config` goes to one builder.

    Args:
      mesh: devices that learn.
      players: devices that play, if `rollout.ahead`; None: the same.
      prompts: sizes of the messages to be shared; None: none are.
    """
    adamw = {k: v for k, v in config.optimizer.items() if k != "learning_rate"}
    optimizer = build_optimizer(**adamw)
    trained = _trainable(networks)
    has_kl = config.kl.placement is not None
    states = _state_factory(config, networks, optimizer, mesh, players)
    policy, frozen_tables = networks.policy, None
    state, frozen, freeze = states.describe(policy.shapes), None, lambda _: None
    if networks.lora is not None or has_kl:
        where = param_shardings(policy.shapes, policy.logical_axes, mesh)
        frozen, freeze = _frozen(networks, where)
        frozen_tables = gather_vocab_tables(where, policy.logical_axes)
    shardings = state_shardings(state.replace(acting_snapshot=None))
    critic_axes = None if networks.critic is None else networks.critic.logical_axes
    axes = (trained.logical_axes, critic_axes)
    passes = Passes(
        policy=trained.policy,
        policy_params=trained.params,
        reference=networks.policy,
        critic=networks.critic,
        mesh=mesh,
        trained_shardings=trained_params(shardings),
        table_shardings=(
            gather_vocab_tables(trained_params(shardings), axes),
            frozen_tables,
        ),
        microbatch_rows=config.learner.microbatch_rows,
        num_widths=config.learner.num_widths,
        temperature=config.rollout.temperature,
        logprob_chunk_tokens=config.learner.logprob_chunk_tokens,
        objective=_objective(config),
        prompts=prompts,
    )
    credit = from_section(CreditAssignment, config.algo)
    update = make_update(
        passes,
        _trainer(config, optimizer),
        from_section(FilterConfig, config.filter),
        credit,
        shardings,
        _batch_shape(config, prompts),
    )
    return Learner(
        state=state,
        frozen=frozen,
        played=state.params if networks.lora is None else frozen,
        init=states.make,
        freeze=freeze,
        update=update,
        peaks=peak_rates(config),
        play_params=lambda frozen, state: trained.play_params(frozen, state.params),
        policy=networks.policy,
        passes=passes,
        credit=credit,
    )


def _trainer(
    config: ConfigDict, optimizer: optax.GradientTransformation
) -> Callable[[PeakRates], Trainer]:
    """A trainer but for the peak rates: they are data of the update."""
    schedule = build_schedule(**config.schedule)
    warmup_updates = config.critic.warmup_updates
    return functools.partial(Trainer, optimizer, schedule, warmup_updates)


def peak_rates(config: ConfigDict) -> PeakRates:
    sections = config.optimizer, config.critic
    return PeakRates(*(np.float32(section.learning_rate) for section in sections))


def _state_factory(
    config: ConfigDict,
    networks: Networks,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    players: Mesh | None,
) -> "_StateFactory":
    return _StateFactory(
        trained=_trainable(networks),
        critic=networks.critic,
        optimizer=optimizer,
        mesh=mesh,
        players=(players or mesh) if config.rollout.ahead else None,
        kl_coeff=config.kl.coeff if config.kl.placement is not None else 0.0,
        has_rate_scale=config.warning.action == "cut_learning_rate",
    )


def _batch_shape(config: ConfigDict, prompts: SharedPrompts | None) -> BatchShape:
    return BatchShape(
        num_groups=config.rollout.num_groups,
        group_size=config.rollout.group_size,
        minibatch_rows=config.learner.minibatch_rows,
        epochs=config.learner.epochs,
        rows_together=1 if prompts is None else prompts.group_size,
    )


def _objective(config: ConfigDict) -> Objective:
    return from_section(
        Objective,
        config.loss,
        kl_penalty=KLPenalty(**config.kl),
        clip_value=config.critic.clip_value,
        value_coeff=config.critic.loss_coeff,
    )


def _frozen(networks: Networks, where: PyTree) -> tuple[Params, Callable]:
    policy = networks.policy

    def freeze(params: Params) -> Params:
        return policy.cast_params(place_params(params, where))

    cast = jax.eval_shape(policy.cast_params, policy.shapes)
    return describe(cast, where), freeze


@dataclasses.dataclass(frozen=True)
class _StateFactory:
    """Train states from the parameters of a checkpoint, or their description.

    Attributes:
      trained, critic: the trained part of the policy, and the critic.
      optimizer, mesh: see `init_network`.
      players: devices that play one iteration ahead; None: no rollout is ahead.
      kl_coeff, has_rate_scale: see `init_state`.
    """

    trained: Trainable
    critic: Critic | None
    optimizer: optax.GradientTransformation
    mesh: Mesh
    players: Mesh | None
    kl_coeff: float
    has_rate_scale: bool

    def make(self, params: Params, seed: int) -> TrainState:
        return self._state(init_network, self._first(params, _init_key(seed)))

    def describe(self, params: Params) -> TrainState:
        """Shapes, dtypes and shardings of `make(params, seed)`."""
        first = jax.eval_shape(self._first, params, _init_key(0))
        return describe(self._state(abstract_network, first))

    def _first(self, params: Params, key: Key[Array, ""]) -> TrainedParams:
        critic_params = None
        if self.critic is not None:
            critic_params = self.critic.init(params, jax.random.fold_in(key, 1))
        return self.trained.init(params, jax.random.fold_in(key, 0)), critic_params

    def _state(
        self, network: Callable[..., Network], first: TrainedParams
    ) -> TrainState:
        shared = self.optimizer, self.mesh
        policy, critic = network(first[0], *shared, self.trained.logical_axes), None
        if self.critic is not None:
            critic = network(first[1], *shared, self.critic.logical_axes)
        state = init_state(
            policy,
            critic,
            self.mesh,
            kl_coeff=self.kl_coeff,
            has_rate_scale=self.has_rate_scale,
        )
        if self.players is None:
            return state
        return state.replace(acting_snapshot=take_snapshot(state, self.players))


def _init_key(seed: int) -> Key[Array, ""]:
    return rngs.stream(rngs.root_key(seed), "init")


def _trainable(networks: Networks) -> Trainable:
    if networks.lora is None:
        return whole(networks.policy)
    return adapters(networks.policy, networks.lora)
