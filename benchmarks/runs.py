"""Runs to be measured: a task with some presets, on weights that are there or random.

The weights of published models are not downloaded: their shapes are known, and their
values do not change the work. Random weights never win a game, so that every
episode has all of its turns.
"""

import dataclasses
from collections.abc import Mapping

from ml_collections import ConfigDict

# Settings of the tiny form of a benchmark: all of the code in seconds on a CPU.
TINY_MODEL = {
    "vocab_size": 512,
    "eos_token_ids": (511,),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
# Name of a metric in the torch peer -> our name.
OWN_STATS = {
    "policy_loss": "actor/pg_loss",
    "entropy": "actor/entropy",
    "grad_norm": "actor/grad_norm",
}
TINY_BATCH = {
    "rollout.num_groups": 4,
    "rollout.group_size": 2,
    "rollout.max_turns": 2,
    "learner.minibatch_rows": 4,
    "learner.microbatch_rows": 2,
}
# Settings without what is written for GPUs: our kernels, and cuDNN's attention.
PLAIN = {"rollout.decode_attention": "plain", "model.attention": "blocks"}
PLAIN_HELP = "Without our kernels and cuDNN's attention, on a GPU."
# The batch of the pocket model; a real model has that of its preset.
POCKET_BATCH = {"rollout.num_groups": 16, "rollout.group_size": 8}


def batch_config(
    presets: str,
    changes: Mapping[str, object],
    *,
    tiny: bool = False,
    plain: bool = False,
) -> ConfigDict:
    """`task_config` with the pocket model's batch, or the tiny one; see `PLAIN`."""
    batch = POCKET_BATCH if is_pocket(presets) else {}
    batch = (TINY_BATCH if tiny else batch) | (PLAIN if plain else {})
    return task_config(presets, batch | dict(changes))


def task_config(presets: str, changes: Mapping[str, object]) -> ConfigDict:
    """Sokoban with these presets and changes, checked."""
    from configs import sokoban
    from ragen_jax.config import validate

    config = sokoban.get_config(presets)
    config.update_from_flattened_dict(dict(changes))
    validate(config)
    return config


def is_pocket(presets: str) -> bool:
    """Whether these presets train the pocket model."""
    from configs import sizes

    names = presets.split(",")
    return "pocket" in names or not any(name in sizes.SIZES for name in names)


@dataclasses.dataclass(frozen=True)
class Setup:
    """What is measured.

    Attributes:
      parts: see `ragen_jax.program.build.Parts`.
      params: parameters of the policy, on the device.
      notes: what people should know of the model.
    """

    parts: object
    params: object
    notes: list[str]


def set_up(config: ConfigDict, *, tiny: bool = False) -> Setup:
    """Build a run: on random weights where the model is a published one.

    Args:
      config: of `task_config`.
      tiny: on a random network of two narrow layers in place of the configured one.
    """
    import jax

    from ragen_jax.memory.plan import read_model
    from ragen_jax.memory.published import PUBLISHED_MODELS
    from ragen_jax.models.hf.weights import load_checkpoint
    from ragen_jax.program.build import build_parts, model_folder

    model, tokenizer, notes = read_model(config.model.path)
    if tiny:
        model = dataclasses.replace(model, **TINY_MODEL)
    parts = build_parts(config, model, tokenizer)
    if config.model.path not in PUBLISHED_MODELS and not tiny:
        return Setup(parts, load_checkpoint(model_folder(config.model.path))[1], notes)
    # Not compiled as one program: for a GPU XLA takes 75 s for all kernels of 0.5B, and
    # below a second for each shape of a matrix.
    params = parts.policy.init(jax.random.key(0))
    return Setup(parts, params, [*notes, "weights are random"])


def describe(config: ConfigDict, target, topology: str, *, tiny: bool = False):
    """`Parts` and batch of a run on described GPUs; nothing is allocated.

    Args:
      config: checked after `prepare_devices`.
      target, topology: see `ragen_jax.memory.targets`.
      tiny: as in `set_up`.
    """
    from ragen_jax.memory.plan import read_model
    from ragen_jax.memory.targets import describe_devices
    from ragen_jax.program.build import build_parts
    from ragen_jax.program.lowering import describe_batch

    model, tokenizer, _ = read_model(config.model.path)
    if tiny:
        model = dataclasses.replace(model, **TINY_MODEL)
    parts = build_parts(config, model, tokenizer, describe_devices(target, topology))
    return parts, describe_batch(config, parts)


def prepare_devices(target, num_devices: int) -> None:
    """Make JAX ready to compile for described GPUs, before it is used.

    Raises:
      ValueError: XLA's compiler for them is not installed.
    """
    from ragen_jax.memory import targets

    targets.require_compiler(target)
    targets.prepare_compiler()
    import jax

    # The configuration's check counts JAX's own devices.
    jax.config.update("jax_num_cpu_devices", num_devices)


def full_rows(setup: Setup, config: ConfigDict):
    """Episodes of random ids without padding, half of each trained on.

    Returns:
      A `Trajectory` with the sampler's log-probabilities near the policy's, and those
      of the policy.
    """
    import jax
    import jax.numpy as jnp

    from ragen_jax.program.lowering import describe_batch

    (task,) = setup.parts.tasks
    policy = setup.parts.policy
    batch = describe_batch(config, setup.parts)
    batch = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), batch)
    rows, width = batch.tokens.shape
    keys = jax.random.split(jax.random.key(1), 3)
    vocabulary = min(policy.config.vocab_size, task.tokenizer.vocab_size)
    tokens = jax.random.randint(keys[0], (rows, width), 0, vocabulary)

    log_probs = policy_log_probs(setup, config, setup.params, tokens)
    mask = jnp.broadcast_to(jnp.arange(width)[None] >= width // 2, tokens.shape)
    noise = 0.05 * jax.random.normal(keys[1], tokens.shape)
    played = jnp.ones(batch.turns.played.shape, bool)
    reward = jax.random.normal(keys[2], played.shape)
    filled = batch.replace(
        tokens=tokens,
        lengths=jnp.full(rows, width, jnp.int32),
        loss_mask=mask,
        sample_log_probs=jnp.where(mask, log_probs + noise, 0.0),
        turn_index=jnp.zeros(tokens.shape, jnp.int32),
        turns=batch.turns.replace(played=played, reward=reward),
    )
    return filled, log_probs


def policy_log_probs(setup: Setup, config: ConfigDict, params, tokens):
    """What parameters of the policy say of every token of these rows."""
    import jax

    from ragen_jax.learner.logprobs import hidden_states, token_log_probs

    policy = setup.parts.policy

    @jax.jit
    def read(params, tokens):
        def of_rows(part):
            return token_log_probs(
                policy,
                params,
                hidden_states(policy, params, part),
                part,
                temperature=config.rollout.temperature,
                chunk_tokens=config.learner.logprob_chunk_tokens,
            )[0]

        rows, width = tokens.shape
        parts = tokens.reshape(-1, config.learner.microbatch_rows, width)
        return jax.lax.map(of_rows, parts).reshape(rows, width)

    return read(params, tokens)


def disagreements(stats: dict[str, dict[str, float]]) -> list[str]:
    """What two learners say differently of their first updates."""
    ours, theirs = stats.values()
    return [
        f"{name}: {ours[name]:.6g} and {theirs[name]:.6g}"
        for name in ours
        if abs(ours[name] - theirs[name]) > 0.01 * max(1e-3, abs(theirs[name]))
    ]


def row_order(key, num_rows: int):
    """The order in which our update with this key takes its rows."""
    import jax
    import numpy as np

    draws = jax.random.uniform(jax.random.fold_in(key, 0), (num_rows,))
    return np.argsort(np.asarray(draws), kind="stable")
