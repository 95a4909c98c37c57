"""Opens a trained policy for use: evaluation, play, export.

In: a run folder, one of its checkpoint folders, or just a configuration whose
`model.path` names the weights. Out: a program and the parameters to use with it.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from types import MappingProxyType

from ml_collections import ConfigDict

from ragen_jax import checkpoint
from ragen_jax.config import from_json
from ragen_jax.program import Program, build_program
from ragen_jax.types import Params


@dataclasses.dataclass(frozen=True)
class Trained:
    """A policy ready to play.

    Attributes:
      program, params: what plays, with which weights.
      config: the configuration the program was built from.
      name: where the weights came from, for people.
    """

    program: Program
    params: Params
    config: ConfigDict
    name: str


def open_trained(
    run: pathlib.Path | None,
    config: ConfigDict | None,
    changes: Mapping[str, object] = MappingProxyType({}),
) -> Trained:
    """Open a policy.

    Args:
      run: a run folder (its newest checkpoint is used), a folder in its `checkpoints/`,
        or None to use the weights of `model.path`.
      config: what to play; None takes the run's own configuration.
      changes: values by dotted key, set on top of either.

    Raises:
      ValueError: neither is given, or the folder holds no run or no checkpoint.
    """
    if run is None:
        if config is None:
            raise ValueError(
                "nothing to open; add --run=RUN_FOLDER or --config=FILE (with "
                "--config.model.path=FOLDER for weights in Hugging Face layout)"
            )
        config.update_from_flattened_dict(changes)
        program = build_program(config)
        return Trained(program, program.state.params, config, config.model.path)
    workdir, iteration = _locate(run)
    own = from_json((workdir / "config.json").read_text())
    if config is None:
        config = own
    else:
        # The weights' shapes come from the model the run started from.
        config.model.path = own.model.path
    config.update_from_flattened_dict(changes)
    program = build_program(config)
    checkpointer = checkpoint.Checkpointer(workdir, keep=None)
    iteration = checkpointer.latest if iteration is None else iteration
    if iteration is None:
        raise ValueError(f"{workdir} holds no checkpoint yet; let it train longer")
    state = checkpointer.restore(
        iteration, checkpoint.abstract_state(program.state), program.model.to_hf()
    )
    checkpointer.close()
    name = f"{workdir} at iteration {iteration}"
    return Trained(program, state.params, config, name)


def _locate(run: pathlib.Path) -> tuple[pathlib.Path, int | None]:
    """Run folder and, when a checkpoint folder was named, its iteration."""
    if (run / "config.json").exists() and (run / "checkpoints").is_dir():
        return run, None
    if run.parent.name == "checkpoints" and run.name.isdigit() and run.is_dir():
        return run.parent.parent, int(run.name)
    raise ValueError(
        f"{run} is neither a run folder nor one of its checkpoints; for weights in "
        "Hugging Face layout use --config=FILE --config.model.path=FOLDER"
    )
