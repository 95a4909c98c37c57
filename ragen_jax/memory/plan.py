"""The memory that a run needs, planned before anything is allocated.

In: a validated configuration, the model's shape, a tokenizer. Out: a `Plan`: numbers of
parameters, bytes of everything that is kept, and the peak of each compiled program by
XLA's own count. The programs are those that a run compiles (`program.build_parts`),
lowered for descriptions in place of arrays. All bytes are of one device.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Collection, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import PyTree
from ml_collections import ConfigDict

from ragen_jax.learner.learner import Learner
from ragen_jax.learner.state import describe
from ragen_jax.memory.published import PUBLISHED_MODELS
from ragen_jax.models.config import ModelConfig
from ragen_jax.models.hf_files import TOKENIZER_FILES, resolve_checkpoint
from ragen_jax.models.hf_weights import CONFIG_FILE, GENERATION_FILE, load_config
from ragen_jax.models.kv_cache import init_cache
from ragen_jax.program import POCKET, Parts, build_parts, num_params
from ragen_jax.text.tokenizer import Tokenizer, load_tokenizer
from ragen_jax.types import Params, Trajectory

# The files of a checkpoint that a plan reads.
_FILES = (CONFIG_FILE, GENERATION_FILE, *TOKENIZER_FILES)
# Machine code is as long, and buffers are the same, however hard LLVM tries.
_FAST_ON_CPU = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
PROGRAMS = ("rollout", "evaluation", "update")


@dataclasses.dataclass(frozen=True)
class MemoryUse:
    """Bytes of a compiled program, by XLA's memory analysis.

    Attributes:
      arguments, outputs, temporaries: see `CompiledMemoryStats`.
      aliased: outputs that take the place of donated arguments.
    """

    arguments: int
    outputs: int
    temporaries: int
    aliased: int

    @property
    def peak(self) -> int:
        """Most bytes the program itself needs at a time."""
        return self.arguments + self.outputs + self.temporaries - self.aliased


@dataclasses.dataclass(frozen=True)
class Plan:
    """Bytes of a run on each device.

    Attributes:
      counts: network -> number of parameters.
      holdings: purpose -> bytes.
      memory: program -> its use of memory; the largest where there are several games.
      elsewhere: program -> bytes that are held beside it while it runs.
      floor: bytes without which no update is possible: state, frozen weights, gradient.
    """

    counts: Mapping[str, int]
    holdings: Mapping[str, int]
    memory: Mapping[str, MemoryUse]
    elsewhere: Mapping[str, int]
    floor: int

    def peak_of(self, program: str) -> int:
        """Bytes held while a program runs, at most."""
        return self.memory[program].peak + self.elsewhere[program]

    @property
    def largest(self) -> str:
        """The program with the highest peak."""
        return max(self.memory, key=self.peak_of)

    @property
    def peak(self) -> int:
        """Most bytes a device has to hold."""
        return self.peak_of(self.largest)


def make_plan(
    config: ConfigDict,
    model: ModelConfig,
    tokenizer: Tokenizer,
    known: Mapping[str, MemoryUse] | None = None,
    *,
    watch: Callable[[str], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> Plan:
    """Plan of a configuration: everything is described and compiled, nothing runs.

    Args:
      config: validated.
      model, tokenizer: of `model.path`, see `read_model`.
      known: program -> its use of memory, for programs that need not be compiled.
      watch: name of a program -> context in which it is compiled, which takes minutes
        for a large model.

    Raises:
      ValueError: the configuration cannot be built.
    """
    parts = build_parts(config, model, tokenizer)
    learner = parts.learner
    key = jax.eval_shape(lambda: jax.random.key(0))
    batch = _batch(parts, key)
    memory = dict(known or {})
    is_evaluated = config.evaluation.every is not None
    for name in PROGRAMS:
        if name not in memory and (is_evaluated or name != "evaluation"):
            with watch(name):
                memory[name] = _compile(parts, name, batch, key)
    trained = tree_bytes((learner.state.policy.params, _critic_params(learner)))
    state, frozen = tree_bytes(learner.state), tree_bytes(learner.frozen)
    tables = tree_bytes([task.dialogue for task in parts.tasks])
    is_whole = config.lora.rank is None
    # The plain policy that plays is part of the state, or a copy of its own.
    played = tree_bytes(learner.played)
    beside_play = state + frozen + tables - (played if is_whole else 0)
    rollout, num_prompts = config.rollout, config.evaluation.num_prompts
    return Plan(
        counts=_counts(
            parts,
            has_adapters=not is_whole,
            has_reference=config.kl.placement is not None,
        ),
        holdings=_weight_bytes(learner)
        | {
            "KV cache of a rollout": _cache_bytes(
                parts, rollout.num_groups * rollout.group_size
            ),
            "KV cache of an evaluation": _cache_bytes(
                parts, num_prompts * len(parts.tasks) * is_evaluated
            ),
            "trajectories": tree_bytes(batch),
            "activations kept for one backward pass": _activation_bytes(
                parts, batch, config.learner.microbatch_rows
            ),
            "gradients": trained,
        },
        memory=memory,
        elsewhere={
            "rollout": beside_play,
            "evaluation": beside_play + tree_bytes(batch),
            "update": tables + (0 if is_whole else played),
        },
        floor=state + frozen + trained,
    )


def read_model(path: str) -> tuple[ModelConfig, Tokenizer, list[str]]:
    """Shape and tokenizer of a `model.path`; weights are neither read nor fetched.

    Returns:
      Shape, tokenizer, and notes for the user where either is a substitute.

    Raises:
      ValueError: there is no such model, and its shape is not in `PUBLISHED_MODELS`.
    """
    if path == "pocket":
        return load_config(POCKET), load_tokenizer(POCKET), []
    stand_in = (
        "tokens are counted with the pocket model's tokenizer; a real one has longer "
        "tokens, so real episodes are a little shorter"
    )
    try:
        folder = resolve_checkpoint(path, _FILES)
    except ValueError as error:
        if path not in PUBLISHED_MODELS:
            raise
        reason = f"{path} is not here ({error.__cause__ or error})".split("\n")[0]
        notes = [f"{reason}: its published shape is used, and {stand_in}"]
        return PUBLISHED_MODELS[path], load_tokenizer(POCKET), notes
    model = load_config(folder)
    if any((folder / name).is_file() for name in TOKENIZER_FILES):
        return model, load_tokenizer(folder), []
    return model, load_tokenizer(POCKET), [f"{path} holds no tokenizer: {stand_in}"]


def tree_bytes(tree: PyTree) -> int:
    """Bytes of a tree of arrays or descriptions on one device."""
    return sum(_leaf_bytes(leaf) for leaf in jax.tree.leaves(tree))


def _leaf_bytes(leaf) -> int:
    # A description made by `eval_shape` alone has no sharding.
    is_whole = leaf.sharding is None
    shape = leaf.shape if is_whole else leaf.sharding.shard_shape(leaf.shape)
    return math.prod(shape) * jnp.dtype(leaf.dtype).itemsize


def _batch(parts: Parts, key) -> Trajectory:
    """Description of the batch that an update learns from."""
    played = parts.learner.played
    rollouts = [jax.eval_shape(task.collect, played, key) for task in parts.tasks]
    batch = jax.eval_shape(parts.join, rollouts)
    return describe(batch, jax.tree.map(lambda _: parts.batch_sharding, batch))


def _compile(parts: Parts, name: str, batch: Trajectory, key) -> MemoryUse:
    """Memory of a program; of several rollouts, that of the largest."""
    learner = parts.learner
    if name == "update":
        lowered = [learner.update.lower(learner.frozen, learner.state, batch, key)]
    elif name == "rollout":
        lowered = [
            jax.jit(task.collect).lower(learner.played, key) for task in parts.tasks
        ]
    else:
        lowered = [
            jax.jit(task.collect_validation).lower(learner.played)
            for task in parts.tasks
        ]
    return max(map(_memory_of, lowered), key=lambda memory: memory.peak)


def _memory_of(lowered: jax.stages.Lowered) -> MemoryUse:
    is_cpu = jax.default_backend() == "cpu"
    compiled = lowered.compile(compiler_options=_FAST_ON_CPU if is_cpu else None)
    analysis = compiled.memory_analysis()
    return MemoryUse(
        arguments=analysis.argument_size_in_bytes,
        outputs=analysis.output_size_in_bytes,
        temporaries=analysis.temp_size_in_bytes,
        aliased=analysis.alias_size_in_bytes,
    )


def _critic_params(learner: Learner) -> Params | None:
    return None if learner.state.critic is None else learner.state.critic.params


def _counts(parts: Parts, *, has_adapters: bool, has_reference: bool) -> dict[str, int]:
    """Numbers of parameters, by network."""
    learner = parts.learner
    counts = {"policy": num_params(learner.played)}
    if has_adapters:
        counts["adapters of the policy"] = num_params(learner.state.params)
    if learner.state.critic is not None:
        counts["critic, trained"] = num_params(_critic_params(learner))
    if has_reference:
        counts["reference"] = num_params(learner.frozen)
    return counts


def _weight_bytes(learner: Learner) -> dict[str, int]:
    """Bytes of weights and moments."""
    state = learner.state
    networks = [n for n in (state.policy, state.critic) if n is not None]
    return {
        "weights that are trained": tree_bytes([n.params for n in networks]),
        "weights that are frozen": tree_bytes(learner.frozen),
        "optimizer moments": tree_bytes([n.opt_state for n in networks]),
    }


def _cache_bytes(parts: Parts, num_rows: int) -> int:
    """Keys and values of `num_rows` rows of the longest game, over all devices."""
    shape = parts.batch_sharding.shard_shape((num_rows,))
    slots = max(task.dialogue.max_window_tokens for task in parts.tasks) + 1
    cache = jax.eval_shape(
        lambda: init_cache(parts.model, *shape, slots, parts.policy.dtype)
    )
    return tree_bytes(cache)


def _activation_bytes(parts: Parts, batch: Trajectory, microbatch_rows: int) -> int:
    """Bytes that a forward pass of a microbatch keeps of the plain network's layers."""
    rows = batch if batch.windows is None else batch.windows
    shape = parts.batch_sharding.shard_shape((microbatch_rows, rows.tokens.shape[-1]))
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32)

    def kept(params, tokens, positions):
        def forward(params):
            return parts.policy.forward(params, tokens, positions, None)[0]

        return jax.vjp(forward, params)[1]

    params = parts.learner.played
    residuals = jax.eval_shape(kept, params, tokens, tokens)
    # Copies of the weights are no activations; neither are stacks of them, which a loop
    # over the layers makes.
    weights = {leaf.shape for leaf in jax.tree.leaves(params)}
    weights |= {(parts.model.num_hidden_layers, *shape) for shape in weights}
    leaves = jax.tree.leaves(residuals)
    return sum(_leaf_bytes(leaf) for leaf in leaves if leaf.shape not in weights)


def changed(config: ConfigDict, changes: Mapping[str, object]) -> ConfigDict:
    """A locked copy of a configuration with other values, by dotted key."""
    copy = ConfigDict(config.to_dict())
    for path, value in changes.items():
        *sections, name = path.split(".")
        section = copy
        for part in sections:
            section = section[part]
        with section.ignore_type():
            section[name] = value
    return copy.lock()


def memory_without(programs: Collection[str], plan: Plan) -> dict[str, MemoryUse]:
    """Memory of a plan's programs, without those that a change affects."""
    return {name: m for name, m in plan.memory.items() if name not in programs}
