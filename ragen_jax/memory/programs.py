"""Memory of one compiled program, by the compiler's count or by formula.

In: the `Parts` of a run. Out: the `MemoryUse` of its rollout, evaluation or update.
`compiled_use` asks XLA, which takes minutes for a large model. `estimated_use` adds up
the largest parts, in a second. Arguments and outputs are exact either way; only the
temporaries are estimated, with constants from programs that were compiled for CPUs and
for an H100 (docs/devices.md has both counts side by side).
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import PyTree
from ml_collections import ConfigDict

from ragen_jax.devices.sharding import num_row_shards, platform_of
from ragen_jax.learner.update import trained_params
from ragen_jax.memory.sizes import (
    Activations,
    activations,
    cache_bytes,
    local_rows,
    playing,
    read_tokens,
    tree_bytes,
)
from ragen_jax.models.attention import choose_attention
from ragen_jax.models.kernels.decode import uses_kernel
from ragen_jax.program.build import Parts
from ragen_jax.program.lowering import lower
from ragen_jax.rollout.parts import is_one_cpu
from ragen_jax.tasks.specs import env_specs
from ragen_jax.tasks.task import Task
from ragen_jax.types import Trajectory

# LLVM's optimizations take time and change neither the buffers nor the code's size.
_FAST_ON_CPU = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
_FLOAT32 = 4


@dataclasses.dataclass(frozen=True)
class MemoryUse:
    """Bytes of a compiled program by XLA's memory analysis.

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


def compiled_use(parts: Parts, name: str, batch: Trajectory) -> MemoryUse:
    """Memory of a program by XLA's count; of several rollouts, that of the largest."""
    is_cpu = platform_of(parts.batch_sharding.mesh) == "cpu"
    options = _FAST_ON_CPU if is_cpu else None
    compiled = (one.compile(options) for one in lower(parts, name, batch))
    return max(map(memory_of, compiled), key=lambda memory: memory.peak)


def memory_of(compiled: jax.stages.Compiled) -> MemoryUse:
    """Bytes of a compiled program by XLA's count."""
    analysis = compiled.memory_analysis()
    return MemoryUse(
        arguments=analysis.argument_size_in_bytes,
        outputs=analysis.output_size_in_bytes,
        temporaries=analysis.temp_size_in_bytes,
        aliased=analysis.alias_size_in_bytes,
    )


def estimated_use(
    config: ConfigDict,
    parts: Parts,
    name: str,
    batch: Trajectory,
    saved: Activations,
    *,
    on_cpu: bool,
) -> MemoryUse:
    """Memory of a program by formula, for a CPU or for an accelerator.

    Args:
      saved: of a microbatch of the batch.
    """
    if name == "update":
        return _estimate_update(config, parts, batch, saved, on_cpu)
    if name == "evaluation":
        num_prompts = config.evaluation.num_prompts
        sizes = [(num_prompts, num_prompts)] * len(parts.tasks)
    else:
        groups = [spec.num_groups for spec in env_specs(config)]
        sizes = [(n * config.rollout.group_size, n) for n in groups]
    batch_rows = config.rollout.num_groups * config.rollout.group_size
    row_bytes = tree_bytes(batch) // local_rows(parts, batch_rows)
    parts = playing(parts) if name == "rollout" else parts
    estimates = []
    for task, (rows, prompts) in zip(parts.tasks, sizes, strict=True):
        temporaries = _rollout_temporaries(config, parts, task, rows, prompts, on_cpu)
        outputs = row_bytes * local_rows(parts, rows)
        arguments = tree_bytes((parts.learner.played, task.dialogue))
        estimates.append(MemoryUse(arguments, outputs, temporaries, aliased=0))
    return max(estimates, key=lambda memory: memory.peak)


def _rollout_temporaries(
    config: ConfigDict, parts: Parts, task: Task, rows: int, prompts: int, on_cpu: bool
) -> int:
    """Bytes of the cache, of copies of weights and of reading the longest message."""
    dialogue, reply = task.dialogue, config.rollout.max_reply_tokens
    slots, opening = dialogue.max_window_tokens + 1, dialogue.opening.max_tokens
    # Most tokens that are read in one pass.
    most = config.rollout.read_chunk_tokens or slots
    how = on_cpu, not on_cpu and _has_kernel(config, parts)
    reading = [_reading(parts, prompts, min(most, opening), opening, *how)]
    if on_cpu:
        # The first messages are read into a cache of their size, which then grows; a
        # single CPU has it for every row. On a GPU it grows layer by layer, and the
        # small one is freed.
        first = rows if is_one_cpu(parts.batch_sharding.mesh) else prompts
        reading[0] += cache_bytes(parts, first, opening)
    if dialogue.windows is not None:
        seen = slots - reply
        reading.append(_reading(parts, rows, min(most, seen), seen, *how))
    elif config.rollout.max_turns > 1:
        following = dialogue.following.max_tokens
        seen = slots if most < following else slots - reply
        following = min(most, following)
        reading.append(_reading(parts, rows, following, seen, *how))
    cache = cache_bytes(parts, rows, slots)
    # Each compaction continues with half of the rows, in a new cache.
    halves = sum(0.5**i for i in range(1, (config.rollout.compactions or 0) + 1))
    copies = _weight_copies(parts, on_cpu)
    if on_cpu and parts.policy.dtype != jnp.float32:
        # Keys and values in float32, of one layer at a time.
        copies += 2 * cache // parts.model.num_hidden_layers
    return cache + copies + max(*reading, int(halves * cache))


def _weight_copies(parts: Parts, on_cpu: bool) -> int:
    """Bytes of weights in the computation's dtype; a CPU widens those twice.

    Devices that split them read whole ones: a rollout gathers each once.
    """
    played, dtype = parts.learner.played, parts.policy.dtype
    mesh = parts.batch_sharding.mesh
    is_split, is_cast = mesh.shape["fsdp"] > 1, dtype != jnp.float32
    if not is_split and not is_cast:
        return 0
    weights = _whole_bytes(played, mesh) if is_split else tree_bytes(played)
    return weights * dtype.itemsize // _FLOAT32 + 2 * weights * (on_cpu and is_cast)


def _whole_bytes(tree: PyTree, mesh: Mesh) -> int:
    """Bytes of weights on one device, gathered over all axes but `tensor`."""
    leaves = jax.tree.leaves(tree)
    return sum(x.size * x.dtype.itemsize for x in leaves) // mesh.shape["tensor"]


def _reading(
    parts: Parts, rows: int, tokens: int, slots: int, on_cpu: bool, has_kernel: bool
) -> int:
    """Bytes at the widest point of a layer that reads `tokens` tokens of each row.

    That is the inner layer of the MLP with its inputs, or, without our attention
    kernel, which float32 goes without, the scores of attention, their softmax and its
    copy in the computation's dtype.
    """
    model, dtype = parts.model, parts.policy.dtype
    tensor = parts.batch_sharding.mesh.shape["tensor"]
    rows, item = local_rows(parts, rows), _FLOAT32 if on_cpu else dtype.itemsize
    width, inner = model.hidden_size, model.intermediate_size // tensor
    mlp = rows * tokens * (4 * width + 3 * inner) * item
    if has_kernel and dtype != jnp.float32:
        return mlp
    heads = model.num_attention_heads // tensor
    scores = rows * tokens * heads * slots * _FLOAT32
    # XLA's CPU programs keep one array of them in float32, more in bfloat16; programs
    # for an H100 scores in float32 and the weights in the dtype of the computation.
    copies = 1.0 if dtype == jnp.float32 else 1.5
    if not on_cpu:
        copies = 1 + dtype.itemsize / _FLOAT32
    return max(mlp, int(copies * scores) + rows * tokens * 4 * width * item)


def _estimate_update(
    config: ConfigDict,
    parts: Parts,
    batch: Trajectory,
    saved: Activations,
    on_cpu: bool,
) -> MemoryUse:
    """Bytes of gradient, activations, one layer's work, logits, stacks of weights."""
    learner, layer = parts.learner, saved.of_layer
    if config.model.remat is not None:
        layer = activations(config, parts, batch, remat=None).of_layer
    has_trunk = config.critic.trunk == "separate" and learner.state.critic is not None
    # The backward pass of a layer, and its forward pass if that is computed again, as
    # shares of its activations.
    at_work = 0.5 if config.model.remat is None else 1.1
    network = parts.model.num_hidden_layers * saved.of_layer + saved.beside
    if not on_cpu and config.model.remat is not None and _is_flash(config, parts):
        network += _layer_without_scores(config, parts, batch) // 2
    else:
        network += int(at_work * layer)
    vocabulary = parts.model.vocab_size // parts.batch_sharding.mesh.shape["tensor"]
    # Devices that split the rows also split the tokens of a chunk.
    chunk = config.learner.logprob_chunk_tokens // num_row_shards(
        parts.batch_sharding.mesh
    )
    logits = 3 * chunk * vocabulary * _FLOAT32
    if config.model.remat is not None:
        # The loop over layers reads stacked weights and makes a stacked gradient.
        item = _FLOAT32 if on_cpu else parts.policy.dtype.itemsize
        stack = tree_bytes(learner.played["layers"]) * item // _FLOAT32
        network += 2 * stack + tree_bytes(learner.played["embed_tokens"])
    of_policy, of_critic = map(tree_bytes, trained_params(learner.state))
    network += _gathered(parts, is_trained=config.lora.rank is None)
    temporaries = of_policy + network + logits
    if has_trunk:
        # The critic's gradient comes after the policy's; its network has no logits.
        temporaries = max(temporaries, of_policy + of_critic + network)
    else:
        temporaries += of_critic
    temporaries += tree_bytes(batch)
    state = tree_bytes(learner.state.replace(acting_snapshot=None))
    arguments = tree_bytes(learner.frozen) + state + tree_bytes(batch)
    return MemoryUse(arguments, outputs=state, temporaries=temporaries, aliased=state)


def _gathered(parts: Parts, *, is_trained: bool) -> int:
    """Bytes of whole parameters, where devices split them, while a pass reads them.

    The vocabulary's tables are gathered for a pass, layers one after the other; with
    each its copy in the computation's dtype and, if it is trained, its gradient before
    that is summed over devices: of the tables one as input and one as output.
    """
    mesh, dtype = parts.batch_sharding.mesh, parts.policy.dtype
    if mesh.shape["fsdp"] == 1:
        return 0
    played, names = parts.learner.played, ("embed_tokens", "lm_head")
    tables = [_whole_bytes(played[name], mesh) for name in names if name in played]
    layer = _whole_bytes(played["layers"]["0"], mesh)
    read = sum(tables) + layer
    copies = read * dtype.itemsize // _FLOAT32 if dtype != jnp.float32 else 0
    return read + copies + (2 * tables[0] + layer if is_trained else 0)


def _has_kernel(config: ConfigDict, parts: Parts) -> bool:
    """Whether our kernel attends to the cache on the GPU of the estimate."""
    tensor = parts.batch_sharding.mesh.shape["tensor"]
    name, head_dim = config.rollout.decode_attention, parts.model.head_dim
    return uses_kernel(name, head_dim, "gpu", tensor)


def _is_flash(config: ConfigDict, parts: Parts) -> bool:
    """Whether cuDNN attends on the GPU of the estimate."""
    how = parts.policy.dtype, parts.model.head_dim, "gpu"
    return choose_attention(config.model.attention, *how) == "cudnn"


def _layer_without_scores(config: ConfigDict, parts: Parts, batch: Trajectory) -> int:
    """Bytes that a layer computes for a microbatch, without attention's scores."""
    model, tensor = parts.model, parts.batch_sharding.mesh.shape["tensor"]
    tokens = sum(x.size for x in jax.tree.leaves(read_tokens(config, parts, batch)))
    numbers = 6 * model.hidden_size + 3 * model.intermediate_size // tensor
    return tokens * numbers * parts.policy.dtype.itemsize
