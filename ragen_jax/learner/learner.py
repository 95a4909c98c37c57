"""Builds the learner from its sections of the configuration.

In: a validated configuration and descriptions of networks. Out: a `Learner`: what makes
train states from parameters, and the compiled update that changes them. No array of the
size of a network is made here, so that a run's memory can be planned without it.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
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
from ragen_jax.devices.sharding import gather_vocab_tables, param_shardings
from ragen_jax.learner.loss import Objective
from ragen_jax.learner.passes import Passes, TrainedParams
from ragen_jax.learner.prompts import SharedPrompts
from ragen_jax.learner.state import (
    Network,
    Snapshot,
    TrainState,
    abstract_network,
    all_but_tower,
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
    Stages,
    Trainer,
    make_update,
    trained_params,
)
from ragen_jax.models.critic import Critic
from ragen_jax.models.lora import LoraConfig
from ragen_jax.models.policy import Policy
from ragen_jax.models.trainable import Trainable, adapters, whole
from ragen_jax.registry.functions import from_section
from ragen_jax.registry.numbers import Number, Numbers, fill_in, read_numbers
from ragen_jax.types import Params

# Sections and keys whose numbers the compiled update and the diagnostics read.
_READ = (
    "algo",
    "critic",
    "filter",
    "kl",
    "loss",
    "optimizer",
    "rollout.temperature",
    "schedule",
)


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
      make_state: (parameters of a checkpoint, seed of the run, weight of the KL
        penalty) -> a fresh train state, see `init`.
      freeze: parameters of a checkpoint -> those that stay, on their devices.
      update: `(frozen, numbers, state, trajectory, key) -> (state, stats, credit)`,
        jitted; donates the state, whose `acting_snapshot` is None.
      numbers: data of the update and of the diagnostics, see `learner_numbers`.
      make_stages: numbers, traced or not -> the parts of the update.
      play_params: `(frozen, state)` -> parameters of the plain policy, to play with,
        of a state or of a snapshot.
      policy: the plain policy, which plays.
    """

    state: TrainState
    frozen: Params | None
    played: Params
    make_state: Callable[[Params, int, Number], TrainState]
    freeze: Callable[[Params], Params | None]
    update: Callable[..., tuple[TrainState, dict[str, Any]]]
    numbers: Numbers
    make_stages: Callable[[Numbers], Stages]
    play_params: Callable[[Params | None, TrainState | Snapshot], Params]
    policy: Policy

    @property
    def stages(self) -> Stages:
        """The parts of the update with the numbers of the configuration."""
        return self.make_stages(self.numbers)

    def init(self, params: Params, seed: int) -> TrainState:
        """A fresh train state.

        Args:
          params: of a checkpoint.
          seed: of the run.
        """
        penalty = self.stages.passes.objective.kl_penalty
        has_kl = penalty.placement is not None
        return self.make_state(params, seed, penalty.coeff if has_kl else 0.0)

    def with_numbers(self, config: ConfigDict) -> "Learner":
        """The same compiled functions with the numbers of another configuration."""
        return dataclasses.replace(self, numbers=learner_numbers(config))


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
    trained = _trainable(networks)
    has_kl = config.kl.placement is not None
    states = _state_factory(config, networks, mesh, players)
    policy, frozen_tables = networks.policy, None
    state, frozen, freeze = states.describe(policy.shapes), None, lambda _: None
    if networks.lora is not None or has_kl:
        where = param_shardings(policy.shapes, policy.logical_axes, mesh)
        frozen, freeze = _frozen(networks, where)
        frozen_tables = gather_vocab_tables(where, policy.logical_axes)
    shardings = state_shardings(state.replace(acting_snapshot=None))
    critic_axes = None if networks.critic is None else networks.critic.logical_axes
    axes = (trained.logical_axes, critic_axes)
    make_passes = functools.partial(
        Passes,
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
        logprob_chunk_tokens=config.learner.logprob_chunk_tokens,
        prompts=prompts,
    )
    # A copy: the update is traced later, when the caller may have changed it.
    settings = config.copy_and_resolve_references()
    make_stages = functools.partial(_make_stages, settings, make_passes)
    return Learner(
        state=state,
        frozen=frozen,
        played=state.params if networks.lora is None else frozen,
        make_state=states.make,
        freeze=freeze,
        update=make_update(make_stages, shardings, _batch_shape(config, prompts), mesh),
        numbers=learner_numbers(config),
        make_stages=make_stages,
        play_params=lambda frozen, state: trained.play_params(frozen, state.params),
        policy=networks.policy,
    )


def learner_numbers(config: ConfigDict) -> Numbers:
    """Numbers of a configuration that the update and the diagnostics take as data."""
    numbers = dict(read_numbers(config, _READ))
    for name in ("beta1", "beta2"):
        if f"optimizer.{name}" in numbers:
            # In float32 1 - 0.999 is wrong in the fifth digit.
            complement = np.float32(1 - config.optimizer[name])
            numbers[f"optimizer.{name}_complement"] = complement
    return numbers


def _make_stages(
    config: ConfigDict, make_passes: Callable[..., Passes], numbers: Numbers
) -> Stages:
    """The parts of the update; each section goes to one of them."""
    sections = fill_in(config, numbers)
    critic = sections["critic"]
    objective = from_section(
        Objective,
        sections["loss"],
        kl_penalty=KLPenalty(**sections["kl"]),
        clip_value=critic["clip_value"],
        value_coeff=critic["loss_coeff"],
    )
    return Stages(
        passes=make_passes(
            objective=objective, temperature=sections["rollout"]["temperature"]
        ),
        trainer=Trainer(
            optimizer=_optimizer(config, sections["optimizer"]),
            schedule=build_schedule(**sections["schedule"]),
            warmup_updates=critic["warmup_updates"],
            peak=sections["optimizer"]["learning_rate"],
            critic_peak=critic["learning_rate"],
        ),
        filter_config=from_section(
            FilterConfig, sections["filter"], rows_fail=config.env.host is not None
        ),
        credit=from_section(CreditAssignment, sections["algo"]),
    )


def _optimizer(
    config: ConfigDict, section: Mapping[str, Number]
) -> optax.GradientTransformation:
    # The learning rate is the trainer's.
    adamw = {name: x for name, x in section.items() if name != "learning_rate"}
    decays = all_but_tower if config.model.freeze_tower else None
    return build_optimizer(**adamw, decays=decays)


def _state_factory(
    config: ConfigDict,
    networks: Networks,
    mesh: Mesh,
    players: Mesh | None,
) -> "_StateFactory":
    return _StateFactory(
        trained=_trainable(networks),
        critic=networks.critic,
        # Only its fresh state is used.
        optimizer=_optimizer(config, config.optimizer),
        mesh=mesh,
        players=(players or mesh) if config.rollout.ahead else None,
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
      has_rate_scale: see `init_state`.
    """

    trained: Trainable
    critic: Critic | None
    optimizer: optax.GradientTransformation
    mesh: Mesh
    players: Mesh | None
    has_rate_scale: bool

    def make(self, params: Params, seed: int, kl_coeff: Number) -> TrainState:
        first = self._first(params, _init_key(seed))
        return self._state(init_network, first, kl_coeff)

    def describe(self, params: Params) -> TrainState:
        """Shapes, dtypes and shardings of what `make` returns."""
        first = jax.eval_shape(self._first, params, _init_key(0))
        return describe(self._state(abstract_network, first, 0.0))

    def _first(self, params: Params, key: Key[Array, ""]) -> TrainedParams:
        critic_params = None
        if self.critic is not None:
            critic_params = self.critic.init(params, jax.random.fold_in(key, 1))
        return self.trained.init(params, jax.random.fold_in(key, 0)), critic_params

    def _state(
        self,
        network: Callable[..., Network],
        first: TrainedParams,
        kl_coeff: Number,
    ) -> TrainState:
        shared = self.optimizer, self.mesh
        policy, critic = network(first[0], *shared, self.trained.logical_axes), None
        if self.critic is not None:
            critic = network(first[1], *shared, self.critic.logical_axes)
        state = init_state(
            policy,
            critic,
            self.mesh,
            kl_coeff=kl_coeff,
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
