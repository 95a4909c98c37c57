"""The memory that a run needs, planned before anything is allocated.

In: a validated configuration, the model's shape, a tokenizer. Out: a `Plan`: numbers of
parameters, bytes of all arrays that are kept, and the peak of each program, by formula
or by XLA's count. The programs are those that a run compiles (`build.build_parts`),
lowered for descriptions in place of arrays. All bytes are of one device.
"""

import contextlib
import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import jax
from ml_collections import ConfigDict

from ragen_jax.learner.learner import Learner
from ragen_jax.learner.state import TrainState
from ragen_jax.learner.update import trained_params
from ragen_jax.memory.programs import MemoryUse, compiled_use, estimated_use
from ragen_jax.memory.published import PUBLISHED_MODELS
from ragen_jax.memory.sizes import (
    Activations,
    activations,
    cache_bytes,
    playing,
    tree_bytes,
)
from ragen_jax.models.config import ModelConfig
from ragen_jax.models.hf.files import TOKENIZER_FILES, resolve_checkpoint
from ragen_jax.models.hf.weights import CONFIG_FILE, GENERATION_FILE, load_config
from ragen_jax.program.build import (
    BUILT_IN,
    Parts,
    build_parts,
    num_params,
)
from ragen_jax.program.lowering import PROGRAMS, describe_batch
from ragen_jax.rollout.parts import is_one_cpu
from ragen_jax.text.tokenizer import Tokenizer, load_tokenizer
from ragen_jax.types import Trajectory

# Copies of the state in a computer's memory while a checkpoint is written in the
# background: the one that is written, which the next update cannot overwrite, and what
# the writer makes of it. Measured: `docs/devices.md`. Memory of GPUs and TPUs is not
# touched: their state is copied to the computer's before a save returns.
SAVED_COPIES = 2
# The files of a checkpoint that a plan reads.
_FILES = (CONFIG_FILE, GENERATION_FILE, *TOKENIZER_FILES)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Bytes of a run on each device.

    Attributes:
      counts: network -> number of parameters.
      holdings: purpose -> bytes.
      memory: program -> its use of memory; with several games the largest.
      elsewhere: program -> bytes outside the program while it runs.
      floor: bytes without which no update is possible: state, frozen weights, gradient.
      pictures: game -> pictures that the model sees at once, and tokens of each.
    """

    counts: Mapping[str, int]
    holdings: Mapping[str, int]
    memory: Mapping[str, MemoryUse]
    elsewhere: Mapping[str, int]
    floor: int
    pictures: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)

    def peak_of(self, program: str) -> int:
        """Most bytes held while a program runs."""
        return self.memory[program].peak + self.elsewhere[program]

    @property
    def largest(self) -> str:
        """The program with the highest peak."""
        return max(self.memory, key=self.peak_of)

    @property
    def peak(self) -> int:
        """Most bytes that a device has to hold."""
        return self.peak_of(self.largest)


def make_plan(
    config: ConfigDict,
    model: ModelConfig,
    tokenizer: Tokenizer,
    known: Mapping[str, MemoryUse] | None = None,
    *,
    compiled: bool = False,
    on_cpu: bool = False,
    devices: Sequence[jax.Device] | None = None,
    watch: Callable[[str], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> Plan:
    """Plan of a configuration: everything is described, nothing runs.

    Args:
      config: validated.
      model, tokenizer: of `model.path`, see `read_model`.
      known: program -> its use of memory, for programs that need not be counted.
      compiled: compile the programs for XLA's count; False: estimate them by formula.
      on_cpu: the plan is for a CPU, where a checkpoint that is saved takes the same
        memory, not for an accelerator.
      devices: to compile for, see `build_parts`.
      watch: name of a program -> context in which it is compiled, which takes minutes
        for a large model.

    Raises:
      ValueError: the configuration cannot be built.
    """
    # All rows at once, since playing them in parts needs less.
    config = copy.deepcopy(config)
    config.rollout.part_rows = None
    parts = build_parts(config, model, tokenizer, devices)
    learner, batch = parts.learner, describe_batch(config, parts)
    saved = activations(config, parts, batch)
    memory = dict(known or {})
    is_evaluated = config.evaluation.every is not None
    for name in PROGRAMS:
        if name in memory or (name == "evaluation" and not is_evaluated):
            continue
        if name == "evaluation" and on_cpu and is_one_cpu(parts.players):
            # Played in parts by the same program.
            memory[name] = memory["rollout"]
        elif compiled:
            with watch(name):
                memory[name] = compiled_use(parts, name, batch)
        else:
            memory[name] = estimated_use(
                config, parts, name, batch, saved, on_cpu=on_cpu
            )
    trained = tree_bytes(trained_params(learner.state))
    acting_snapshot = tree_bytes(learner.state.acting_snapshot)
    saving = SAVED_COPIES * tree_bytes(learner.state) if on_cpu else 0
    return Plan(
        counts=_counts(
            parts,
            has_adapters=config.lora.rank is not None,
            has_reference=config.kl.placement is not None,
        ),
        holdings=_weight_bytes(learner)
        | _batch_bytes(config, parts, batch, saved)
        | {"gradients": trained, "a checkpoint while it is saved": saving},
        memory=memory,
        elsewhere={
            name: size + saving
            for name, size in _elsewhere(config, parts, memory, batch).items()
        },
        pictures=_pictures(parts),
        floor=tree_bytes((_on_learners(parts), learner.frozen))
        + trained
        + (0 if _is_split(parts) else acting_snapshot),
    )


def _on_learners(parts: Parts) -> TrainState:
    """The part of the state that is always on the devices that learn."""
    return parts.learner.state.replace(acting_snapshot=None)


def _is_split(parts: Parts) -> bool:
    """Whether other devices play than learn."""
    return parts.players != parts.batch_sharding.mesh


def _elsewhere(
    config: ConfigDict,
    parts: Parts,
    memory: Mapping[str, MemoryUse],
    batch: Trajectory,
) -> dict[str, int]:
    """Bytes outside each program while it runs."""
    learner, is_whole = parts.learner, config.lora.rank is None
    frozen, played = tree_bytes(learner.frozen), tree_bytes(learner.played)
    tables = [tree_bytes(task.dialogue) for task in parts.tasks]
    # A rollout has its game's tables among its arguments; these are the others.
    others = sum(tables) - max(tables)
    beside = tree_bytes(_on_learners(parts)) + frozen
    # The playing policy is an argument of the rollout. Without adapters it is part of
    # the state, with adapters a merged copy.
    beside_play = beside - (played if is_whole else 0) + others
    sizes = {
        "rollout": beside_play,
        "evaluation": beside_play + tree_bytes(batch),
        "update": sum(tables) + (0 if is_whole else played),
    }
    if learner.state.acting_snapshot is None:
        return sizes
    adapters = 0 if is_whole else tree_bytes(learner.state.acting_snapshot)
    if _is_split(parts):
        # Playing devices hold no learner state; adapters are merged into a copy of the
        # frozen weights.
        sizes["rollout"] = others + adapters + (0 if is_whole else played)
        sizes["update"] = sum(tables)
        return sizes
    # With `rollout.ahead` the snapshot plays while the other programs run.
    sizes["rollout"] = beside + others + adapters
    for name in ("update", "evaluation"):
        sizes[name] += memory["rollout"].peak + adapters
    return sizes


def read_model(path: str) -> tuple[ModelConfig, Tokenizer, list[str]]:
    """Shape and tokenizer of a `model.path`; weights are neither read nor fetched.

    Returns:
      Shape, tokenizer, and notes for the user if either is a substitute.

    Raises:
      ValueError: the model does not exist, and its shape is not in `PUBLISHED_MODELS`.
    """
    if path in BUILT_IN:
        return load_config(BUILT_IN[path]), load_tokenizer(BUILT_IN[path]), []
    stand_in = (
        "tokens are counted with the pocket model's tokenizer; a real one has longer "
        "tokens, so real episodes are a little shorter"
    )
    try:
        folder = resolve_checkpoint(path, _FILES)
    except ValueError as error:
        if path not in PUBLISHED_MODELS:
            raise
        # Imported here: it is slow, and not needed for a local folder.
        from huggingface_hub.errors import LocalEntryNotFoundError

        # The hub's client says in a paragraph that it has no connection.
        is_offline = isinstance(error.__cause__, LocalEntryNotFoundError)
        reason = str(error.__cause__ or error).split("\n")[0]
        notes = [
            f"{path} could not be fetched ({'no connection' if is_offline else reason})"
            f": its published shape is used, and {stand_in}"
        ]
        model = PUBLISHED_MODELS[path]
        return model, _stand_in_tokenizer(model), notes
    model = load_config(folder)
    if any((folder / name).is_file() for name in TOKENIZER_FILES):
        return model, load_tokenizer(folder), []
    notes = [f"{path} has no tokenizer: {stand_in}"]
    return model, _stand_in_tokenizer(model), notes


def _stand_in_tokenizer(model: ModelConfig) -> Tokenizer:
    return load_tokenizer(BUILT_IN["pocket_vision" if model.sees else "pocket"])


def _counts(parts: Parts, *, has_adapters: bool, has_reference: bool) -> dict[str, int]:
    """Numbers of parameters, by network."""
    learner = parts.learner
    counts = {"policy": num_params(learner.played)}
    if has_adapters:
        counts["adapters of the policy"] = num_params(learner.state.params)
    if learner.state.critic is not None:
        counts["critic, trained"] = num_params(learner.state.critic.params)
    if has_reference:
        counts["reference"] = num_params(learner.frozen)
    return counts


def _pictures(parts: Parts) -> dict[str, tuple[int, int]]:
    """See `Plan.pictures`."""
    return {
        parts.tasks[shown.kind].name: (shown.most, math.prod(shown.grid))
        for shown in parts.policy.pictures
    }


def _weight_bytes(learner: Learner) -> dict[str, int]:
    """Bytes of weights and moments."""
    state = learner.state
    networks = [n for n in (state.policy, state.critic) if n is not None]
    return {
        "weights that are trained": tree_bytes([n.params for n in networks]),
        "weights that are frozen": tree_bytes(learner.frozen),
        "optimizer moments": tree_bytes([n.opt_state for n in networks]),
        "weights that play the next rollout": tree_bytes(
            None if state.acting_snapshot is None else state.acting_snapshot.params
        ),
    }


def _batch_bytes(
    config: ConfigDict, parts: Parts, batch: Trajectory, saved: Activations
) -> dict[str, int]:
    """Bytes of the arrays that grow with the number of rows."""
    num_rows = config.rollout.num_groups * config.rollout.group_size
    is_evaluated = config.evaluation.every is not None
    num_tested = config.evaluation.num_prompts * len(parts.tasks) * is_evaluated
    return {
        "KV cache of a rollout": cache_bytes(playing(parts), num_rows),
        "KV cache of an evaluation": cache_bytes(parts, num_tested),
        "trajectories": tree_bytes(batch),
        "activations kept for one backward pass": saved.beside
        + parts.model.num_hidden_layers * saved.of_layer,
    }


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
