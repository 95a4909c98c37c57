"""The smallest causal policy there is, and updates built on it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from ragen_jax.learner import sharding
from ragen_jax.learner.optimizer import build_optimizer
from ragen_jax.learner.state import TrainState, init_state, state_shardings
from ragen_jax.learner.update import make_update
from ragen_jax.models.qwen2 import Policy

VOCAB_SIZE, WIDTH = 16, 8
AXES = {
    "embed": ("vocab", "embed"),
    "mix": ("embed", "mlp"),
    "head": ("vocab", "embed"),
    "scale": ("norm",),
}
OPTIMIZER = {
    "learning_rate": 1e-2,
    "beta1": 0.9,
    "beta2": 0.999,
    "weight_decay": 0.01,
    "max_grad_norm": 0.5,
}
SETTINGS = {
    "num_groups": 4,
    "group_size": 4,
    "temperature": 0.7,
    "learning_rate": OPTIMIZER["learning_rate"],
    "minibatch_rows": 8,
    "microbatch_rows": 4,
    "epochs": 1,
    "logprob_chunk_tokens": 16,
    "advantage": "grpo",
    "clip_low": 0.2,
    "clip_high": 0.28,
    "entropy_coeff": 0.01,
    "importance_cap": None,
    "keep_fraction": 0.5,
}


def _init(key):
    shapes = {"embed": (VOCAB_SIZE, WIDTH), "mix": (WIDTH, WIDTH)}
    shapes |= {"head": (VOCAB_SIZE, WIDTH), "scale": (WIDTH,)}
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(k, shape)
        for (name, shape), k in zip(shapes.items(), keys, strict=True)
    }


def _forward(params, tokens, positions, cache):
    """Each token sees the mean embedding of the tokens up to itself."""
    total = jnp.cumsum(params["embed"][tokens], axis=1)
    mean = total / (positions[..., None] + 1.0)
    hidden = jnp.tanh(2.0 * mean @ params["mix"]) * params["scale"][None, None]
    return hidden, cache


def _logits(params, hidden):
    return hidden @ params["head"].T


POLICY = Policy(
    config=None,
    dtype=jnp.dtype("float32"),
    init=_init,
    forward=_forward,
    logits=_logits,
    cast_params=lambda params: params,
)


def make_state(mesh=(1, 1, 1), **optimizer) -> TrainState:
    """A fresh state of the tiny policy, always of the same parameters."""
    data, fsdp, tensor = mesh
    where = sharding.make_mesh(data=data, fsdp=fsdp, tensor=tensor)
    made = build_optimizer(**OPTIMIZER | optimizer)
    return init_state(_init(jax.random.key(0)), made, where, AXES)


def build(mesh=(1, 1, 1), *, policy=POLICY, weight_decay=0.01, **settings):
    """A fresh state, and an update with these settings in place of the usual ones.

    Updates are compiled once per process and settings: a test that replaces an entry of
    a table passes a policy of its own.
    """
    state = make_state(mesh, weight_decay=weight_decay)
    return state, _build(mesh, policy, weight_decay, **settings)


@functools.cache
def _build(mesh, policy, weight_decay, **settings):
    optimizer = build_optimizer(**OPTIMIZER | {"weight_decay": weight_decay})
    shardings = state_shardings(make_state(mesh, weight_decay=weight_decay))
    return make_update(policy, optimizer, shardings, **SETTINGS | settings)


def host(state: TrainState) -> TrainState:
    """A copy that no donation can take away."""
    return jax.tree.map(np.array, jax.device_get(state))
