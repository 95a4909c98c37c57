"""Trained policies, opened for evaluation, play and export.

In: a run folder, one of its checkpoint folders, or a configuration whose `model.path`
names the weights. Out: a program and its parameters, on one device unless the user sets
`mesh.*`: the devices of a run are those it needs to learn.
"""

import dataclasses
import pathlib
from collections.abc import Collection, Mapping
from types import MappingProxyType

from ml_collections import ConfigDict

from ragen_jax.config import check_kind, declared
from ragen_jax.learner.state import Snapshot, place_params, state_shardings
from ragen_jax.models.attention import AUTO
from ragen_jax.program.build import Program, open_program
from ragen_jax.runs import reader
from ragen_jax.runs.best import best_iteration
from ragen_jax.runs.checkpoint import Checkpointer
from ragen_jax.types import Params

# Sections about the environment and the devices. All others (model, prompt, training)
# belong to the weights.
PLAY_SECTIONS = ("env", "rollout", "evaluation", "mesh")


@dataclasses.dataclass(frozen=True)
class Trained:
    """A policy ready to play.

    Attributes:
      program, params: the program and the policy's weights.
      config: the configuration the program was built from.
      name: origin of the weights, for display.
      adapters: adapters of a run that trained them; `params` are merged. None: the
        whole network was trained.
      workdir, iteration: run folder and iteration of the weights; None for those of a
        `model.path`.
    """

    program: Program
    params: Params
    config: ConfigDict
    name: str
    adapters: Params | None = None
    workdir: pathlib.Path | None = None
    iteration: int | None = None

    def only(self, env_name: str) -> "Trained":
        """The policy with one of its environments, named as FrozenLake or frozen_lake.

        Raises:
          ValueError: there is no such environment.
        """
        names = [_plain(name) for name in self.program.names]
        if _plain(env_name) not in names:
            raise ValueError(
                f"{self.name} has no environment {env_name!r}; it has "
                f"{', '.join(self.program.names)}"
            )
        task = self.program.tasks[names.index(_plain(env_name))]
        program = dataclasses.replace(self.program, tasks=(task,))
        return dataclasses.replace(self, program=program)


def _plain(env_name: str) -> str:
    return env_name.replace("_", "").lower()


def open_trained(
    run: pathlib.Path | None,
    config: ConfigDict | None,
    *,
    changes: Mapping[str, object] = MappingProxyType({}),
    overrides: Collection[str] = (),
    defaults: ConfigDict | None = None,
    checkpoint: str | None = None,
) -> Trained:
    """Open a policy.

    Args:
      run: a run folder, a folder in its `checkpoints/`, or None to use the weights of
        `model.path`.
      config: what to play; None takes the run's configuration. With a run, only its
        `PLAY_SECTIONS` count.
      changes: values by dotted key, set on top of either.
      overrides: dotted paths the user set in `config`.
      defaults: values of the keys that a run's configuration lacks because it is older,
        and the types of all others; None: it must be complete.
      checkpoint: of a run folder: "last" (also None), "best" (by
        `checkpoint.keep_best`), or its iteration.

    Raises:
      ValueError: neither is given, the folder holds no run or no such checkpoint, or
        an override has no place.
    """
    if run is None:
        if checkpoint is not None:
            raise ValueError(
                f"--checkpoint={checkpoint} is one of a run; add --run=RUN_FOLDER or "
                "leave it out"
            )
        if config is None:
            raise ValueError(
                "nothing to open; add --run=RUN_FOLDER or --config=FILE (with "
                "--config.model.path=FOLDER for weights in Hugging Face layout)"
            )
        program, params = _open(config, changes, overrides)
        params = place_params(params, state_shardings(program.learner.played))
        return Trained(program, params, config, config.model.path)
    workdir, iteration = _locate(run, checkpoint)
    trained_with = read_run_config(workdir, defaults)
    if config is None:
        config = trained_with
        # A kernel that was asked for may not run here.
        config.rollout.decode_attention = AUTO
    else:
        check_kind(config)
        _refuse_model_keys(overrides, workdir)
        for section in trained_with:
            if section not in PLAY_SECTIONS:
                config[section] = trained_with[section]
    _forget_training(config)
    # The weights that the run started from are not kept beside its own.
    program = _open(config, changes, overrides)[0]
    iteration, policy = restore_policy(program, workdir, iteration)
    name = f"{workdir} at iteration {iteration}"
    adapters = None if config.lora.rank is None else policy.params
    params = program.play_params(policy)
    return Trained(program, params, config, name, adapters, workdir, iteration)


def restore_policy(
    program: Program, workdir: pathlib.Path, iteration: int | None = None
) -> tuple[int, Snapshot]:
    """The policy in a checkpoint of a run; moments and critic are not read.

    Args:
      program: that the run was trained with, or one like it.
      workdir: the run folder.
      iteration: of the checkpoint; None: the newest.

    Raises:
      ValueError: the run has no checkpoint.
    """
    checkpointer = Checkpointer(workdir, keep=None)
    iteration = checkpointer.latest if iteration is None else iteration
    if iteration is None:
        raise ValueError(f"{workdir} holds no checkpoint yet; let it train longer")
    described = program.learner.state
    policy = checkpointer.restore_policy(iteration, described, program.identity)
    checkpointer.close()
    return iteration, policy


def _open(
    config: ConfigDict, changes: Mapping[str, object], overrides: Collection[str]
) -> tuple[Program, Params]:
    """`open_program`, on one device unless an override asks for more."""
    check_kind(config)
    config.update_from_flattened_dict(changes)
    if not any(f"{key}.".startswith("mesh.") for key in overrides):
        config.mesh.update(data=1, fsdp=1, tensor=1)
    # A policy that is trained plays with the parameters that it has.
    config.rollout.ahead = 0
    return open_program(config, overrides)


def read_run_config(workdir: pathlib.Path, defaults: ConfigDict | None) -> ConfigDict:
    """The configuration of a run, see `open_trained`.

    Raises:
      ValueError: the folder is a warm start's, or a value has another type than its
        default.
    """
    config = reader.read_config(workdir)
    if "demonstrators" in config:
        raise ValueError(
            f"{workdir} is the folder of a warm start, not of a run of launch.train. "
            f"Its weights are in Hugging Face layout in {workdir / 'model'}: "
            "launch.serve takes them as --policy, launch.evaluate and launch.play as "
            "--config=FILE --config.model.path=FOLDER in place of --run, and nothing "
            "is left to export"
        )
    if defaults is not None:
        with config.unlocked():
            _complete(config, defaults, f"{workdir / 'config.json'}: ")
    return config


def _complete(config: ConfigDict, defaults: ConfigDict, where: str) -> None:
    """Add the keys that a configuration lacks; refuse values of another type."""
    for name, default in defaults.items():
        if name not in config:
            config[name] = default
        elif isinstance(default, ConfigDict) and isinstance(config[name], ConfigDict):
            _complete(config[name], default, f"{where}{name}.")
        elif not _has_type_of(config[name], default):
            raise ValueError(
                f"{where}{name} = {_shown(config[name])} must be of the type of "
                f"{_shown(default)}; restore the file from a copy"
            )


def _shown(value: object) -> str:
    return "a section" if isinstance(value, ConfigDict) else repr(value)


def _has_type_of(value: object, default: object) -> bool:
    """Whether a JSON value has the type of the default; None is left to the rules."""
    if value is None or default is None:
        return not isinstance(value, ConfigDict)
    if isinstance(default, tuple | list):
        return isinstance(value, tuple | list)
    if isinstance(default, float):
        return type(value) in (int, float)
    return type(value) is type(default)


def _forget_training(config: ConfigDict) -> None:
    """Unset options of learning that the environment to play may not allow."""
    # Of the learner, over whole rows; one that was asked for may need a GPU.
    config.model.attention = AUTO
    config.learner.share_prompts = False
    with config.ignore_type():
        names = [name for name in config.bonus if f"bonus.{name}" in declared()]
        config.bonus.update(dict.fromkeys(names))


def _refuse_model_keys(overrides: Collection[str], workdir: pathlib.Path) -> None:
    for key in overrides:
        if key.split(".")[0] not in PLAY_SECTIONS:
            raise ValueError(
                f"--config.{key} cannot be used with --run: only "
                f"{', '.join(f'{name}.*' for name in PLAY_SECTIONS)} can, the rest is "
                f"what {workdir} was trained with; leave it out, or leave out --run to "
                "play other weights"
            )


def _locate(
    run: pathlib.Path, checkpoint: str | None
) -> tuple[pathlib.Path, int | None]:
    """Run folder, and the iteration of the checkpoint; None: of the newest one."""
    if (run / "checkpoints").is_dir():
        return run, _iteration(run, checkpoint)
    if run.parent.name == "checkpoints" and run.name.isdigit() and run.is_dir():
        if checkpoint is not None:
            raise ValueError(
                f"{run} is a checkpoint already; leave out --checkpoint={checkpoint}, "
                f"or use --run={run.parent.parent}"
            )
        return run.parent.parent, int(run.name)
    raise ValueError(
        f"{run} is neither a run folder nor one of its checkpoints; weights in Hugging "
        "Face layout are --policy=FOLDER of launch.serve, and --config=FILE "
        "--config.model.path=FOLDER of launch.evaluate and launch.play"
    )


def _iteration(workdir: pathlib.Path, checkpoint: str | None) -> int | None:
    """Iteration of a checkpoint by its name, see `open_trained`; None: the newest."""
    if checkpoint in (None, "last"):
        return None
    if checkpoint == "best":
        return _best_iteration(workdir)
    if checkpoint.isdecimal() and checkpoint.isascii():
        return int(checkpoint)
    raise ValueError(
        f"--checkpoint={checkpoint} must be last, best or the iteration of a checkpoint"
    )


def _best_iteration(workdir: pathlib.Path) -> int:
    latest = Checkpointer(workdir, keep=None).latest
    # The record is ahead of the checkpoints: of a run that goes on, or was killed.
    records = [
        record
        for record in reader.read_metrics(workdir)
        if latest is not None and record["iteration"] <= latest
    ]
    iteration = best_iteration(records)
    if iteration is None:
        raise ValueError(
            f"{workdir} has no best checkpoint: none was saved after an evaluation "
            "under checkpoint.keep_best; use --checkpoint=last, or train with e.g. "
            "--config.checkpoint.keep_best=success"
        )
    return iteration
