"""The smallest causal policy there is, and updates built on it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from configs import base
from ragen_jax.devices import sharding
from ragen_jax.learner.learner import Networks, build_learner
from ragen_jax.learner.rules import needs_critic
from ragen_jax.learner.state import TrainState
from ragen_jax.models.critic import Critic
from ragen_jax.models.policy import Policy
from ragen_jax.registry.settings import flatten
from ragen_jax.types import Trajectory
from tests.reference.tiny_network import Reading
from tests.trajectories import make_dialogues

VOCAB_SIZE, WIDTH, TEMPERATURE = 16, 8, 0.7
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
# Keys of the configuration in which the tiny learner differs from the defaults.
SETTINGS = {
    "rollout.num_groups": 4,
    "rollout.group_size": 4,
    "rollout.temperature": TEMPERATURE,
    "learner.minibatch_rows": 8,
    "learner.microbatch_rows": 4,
    "learner.logprob_chunk_tokens": 16,
    "loss.entropy_coeff": 0.01,
    "filter.keep_fraction": 0.5,
    "critic.learning_rate": 2e-2,
    **{f"optimizer.{name}": value for name, value in OPTIMIZER.items()},
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
    mean = total / (positions[..., None] + 1).astype(total.dtype)
    hidden = jnp.tanh(2.0 * mean @ params["mix"]) * params["scale"][None, None]
    return hidden, cache


def _logits(params, hidden):
    return hidden @ params["head"].T


POLICY = Policy(
    config=None,
    dtype=jnp.dtype("float32"),
    remat=None,
    attention="blocks",
    num_ids=None,
    pictures=(),
    freeze_tower=False,
    look=lambda params, tokens: None,
    shapes=jax.eval_shape(_init, jax.random.key(0)),
    logical_axes=AXES,
    init=_init,
    forward=_forward,
    see=None,
    logits=_logits,
    cast_params=lambda params: params,
)


def _trunk(own: bool) -> Critic:
    """A critic on its own copy of the policy's trunk, or on the policy's."""

    def init(params, key):
        del key
        head = {"kernel": jnp.linspace(-1, 1, WIDTH), "bias": jnp.ones(1)}
        trunk = {name: x + 0.1 for name, x in params.items()}
        return {"head": head, "trunk": trunk} if own else {"head": head}

    axes = {"head": {"kernel": ("norm",), "bias": ("norm",)}}
    if own:
        axes["trunk"] = AXES
    return Critic(
        trunk=POLICY if own else None,
        init=init,
        trunk_params=lambda params, frozen: params["trunk"],
        logical_axes=axes,
    )


CRITICS = {"separate": _trunk(True), "shared": _trunk(False)}


def make_config(**settings) -> ConfigDict:
    """The defaults with `SETTINGS` and these changes.

    A key is the last part of its dotted path where only one ends so, else the whole
    path with `__` for the dots.
    """
    config = base.get_config()
    config.update_from_flattened_dict(SETTINGS)
    paths = list(flatten(config))
    for name, value in settings.items():
        dotted = name.replace("__", ".")
        (path,) = [p for p in paths if p == dotted or p.endswith(f".{dotted}")]
        config.update_from_flattened_dict({path: value})
    return config


def rule(name: str, **options) -> dict[str, object]:
    """Keys of a filter that chooses by a rule with these options."""
    options = {f"filter.{key}": value for key, value in options.items()}
    return {"filter.rule": name, "filter.keep_fraction": None} | options


def build(mesh=(1, 1, 1), *, policy=POLICY, **settings):
    """A fresh state, and an update with these settings in place of the usual ones.

    Updates are compiled once per process and settings: a test that replaces an entry of
    a table passes a policy of its own. The state is always of the same parameters.
    """
    made = learner(mesh, policy, **settings)
    params = _init(jax.random.key(0))
    frozen = made.freeze(params)
    update = functools.partial(made.update, frozen, made.numbers)
    return made.init(params, 0), update


@functools.cache
def learner(mesh=(1, 1, 1), policy=POLICY, **settings):
    """A learner with these settings in place of the usual ones."""
    config = make_config(**settings)
    data, fsdp, tensor = mesh
    where = sharding.make_mesh(data=data, fsdp=fsdp, tensor=tensor)
    critic = None
    if needs_critic(flatten(config)):
        critic = CRITICS[config.critic.trunk]
    return build_learner(config, Networks(policy, critic), where)


def make_state(mesh=(1, 1, 1), **settings) -> TrainState:
    return build(mesh, **settings)[0]


def host(state: TrainState) -> TrainState:
    """A copy that no donation can take away."""
    return jax.tree.map(np.array, jax.device_get(state))


def make_episodes(seed: int = 3) -> Trajectory:
    """Multi-turn episodes for 4 groups of 4, sampled by a slightly different policy.

    Group 2's rewards do not spread; some turns of a group begin in the same state. Off
    the mask the sampler's log-probabilities are not numbers.
    """
    episodes = make_dialogues(16, seed=seed)
    random = np.random.default_rng(seed)
    log_probs = Reading(
        {
            name: np.asarray(x, np.float64)
            for name, x in _init(jax.random.key(0)).items()
        },
        np.asarray(episodes.tokens),
        TEMPERATURE,
    ).log_probs
    log_probs = log_probs + 0.2 * random.normal(size=log_probs.shape)
    reward = np.array(episodes.turns.reward)
    reward[8:12] = np.where(np.arange(reward.shape[1]) == 0, 0.25, 0.0)
    played = np.asarray(episodes.turns.played)
    hashes = random.integers(0, 2, (*played.shape, 2))
    turns = episodes.turns.replace(
        reward=jnp.asarray(np.where(played, reward, np.nan), jnp.float32),
        state_hash=jnp.asarray(hashes, jnp.uint32),
    )
    mask = np.asarray(episodes.loss_mask)
    sampled = jnp.asarray(np.where(mask, log_probs, np.nan), jnp.float32)
    return episodes.replace(turns=turns, sample_log_probs=sampled)
