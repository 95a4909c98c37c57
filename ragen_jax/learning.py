"""Builds the learner from its sections of the configuration.

In: a validated configuration, networks and the parameters to start from. Out: a
`Learner`: fresh train states, and the compiled update that changes them.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree
from ml_collections import ConfigDict

from ragen_jax import rngs
from ragen_jax.learner.choice import make_choose, needs_entropies
from ragen_jax.learner.credit import CreditAssignment, KLPenalty
from ragen_jax.learner.objective import Objective
from ragen_jax.learner.optimizer import build_optimizer, build_schedule
from ragen_jax.learner.passes import Passes
from ragen_jax.learner.sharding import param_shardings
from ragen_jax.learner.state import (
    TrainState,
    init_network,
    init_state,
    place_params,
    state_shardings,
)
from ragen_jax.learner.trainable import Trainable, adapters, whole
from ragen_jax.learner.update import Trainer, make_update, weights
from ragen_jax.models.critic import Critic
from ragen_jax.models.lora import LoraConfig
from ragen_jax.models.qwen2 import Policy
from ragen_jax.types import Params


@dataclasses.dataclass(frozen=True)
class Learner:
    """What learns.

    Attributes:
      init: a fresh train state, always the same.
      update: `(state, trajectory, key) -> (state, stats)`; donates the state.
      play_params: parameters of the plain policy in a state, to play with.
    """

    init: Callable[[], TrainState]
    update: Callable[..., tuple[TrainState, dict[str, Any]]]
    play_params: Callable[[TrainState], Params]


@dataclasses.dataclass(frozen=True)
class Networks:
    """What there is to train, and from where.

    Attributes:
      policy: the plain policy, which plays.
      params, logical_axes: its parameters to start from, and their axes.
      critic: a critic where the estimator reads values.
      lora: size of the adapters that are trained in the policy's place. None: all of it
        is trained.
    """

    policy: Policy
    params: Params
    logical_axes: PyTree
    critic: Critic | None = None
    lora: LoraConfig | None = None


def build_learner(config: ConfigDict, networks: Networks, mesh: Mesh) -> Learner:
    """Put the learner together; each section of `config` goes to one builder."""
    policy, critic = networks.policy, networks.critic
    key = rngs.stream(rngs.root_key(config.seed), "init")
    adamw = {k: v for k, v in config.optimizer.items() if k != "learning_rate"}
    optimizer = build_optimizer(**adamw)
    trained = _trainable(networks)

    def init() -> TrainState:
        policy_network = init_network(
            trained.init(jax.random.fold_in(key, 0)),
            optimizer,
            mesh,
            trained.logical_axes,
        )
        critic_network = None
        if critic is not None:
            params = critic.init(networks.params, jax.random.fold_in(key, 1))
            critic_network = init_network(params, optimizer, mesh, critic.logical_axes)
        coeff = 0.0 if config.kl.placement is None else config.kl.coeff
        return init_state(policy_network, critic_network, mesh, kl_coeff=coeff)

    shardings, frozen = state_shardings(init()), None
    if networks.lora is not None or config.kl.placement is not None:
        where = param_shardings(networks.params, networks.logical_axes, mesh)
        frozen = policy.cast_params(place_params(networks.params, where))
    passes = Passes(
        policy=trained.policy,
        policy_params=trained.params,
        reference=policy,
        critic=critic,
        mesh=mesh,
        weight_shardings=weights(shardings),
        microbatch_rows=config.learner.microbatch_rows,
        temperature=config.rollout.temperature,
        logprob_chunk_tokens=config.learner.logprob_chunk_tokens,
        objective=Objective(
            **config.loss,
            kl_penalty=KLPenalty(**config.kl),
            clip_value=config.critic.clip_value,
            value_coeff=config.critic.loss_coeff,
        ),
    )
    rates = [
        build_schedule(learning_rate=section.learning_rate, **config.schedule)
        for section in (config.optimizer, config.critic)
    ]
    group_size = config.rollout.group_size
    update = make_update(
        passes,
        Trainer(optimizer, *rates, warmup_updates=config.critic.warmup_updates),
        make_choose(group_size=group_size, **config.filter),
        CreditAssignment(**config.algo),
        shardings,
        num_groups=config.rollout.num_groups,
        group_size=group_size,
        minibatch_rows=config.learner.minibatch_rows,
        epochs=config.learner.epochs,
        reads_entropies=needs_entropies(config.filter.score),
    )
    return Learner(
        init=init,
        update=functools.partial(update, frozen),
        play_params=lambda state: trained.play_params(frozen, state.params),
    )


def _trainable(networks: Networks) -> Trainable:
    if networks.lora is not None:
        return adapters(networks.policy, networks.lora)
    params, logical_axes = networks.params, networks.logical_axes
    return whole(networks.policy, lambda key: params, logical_axes)
