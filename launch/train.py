"""Train an agent, or resume the run in `--workdir`.

python -m launch.train --config=configs/sokoban.py --workdir=runs/sokoban
"""

import pathlib

from absl import flags

from launch import command
from launch.command import lasting_objects
from ragen_jax.runs.progress import working

_CONFIG = command.define_config()
_WORKDIR = flags.DEFINE_string("workdir", None, "Run folder; an existing run resumes.")


def main(argv: list[str]) -> int:
    with lasting_objects():
        config = command.read_config(_CONFIG, argv)
        if not _WORKDIR.value:
            raise ValueError("no run folder given; add e.g. --workdir=runs/sokoban")
        with working("loading JAX"):
            command.enable_compilation_cache()
            from ragen_jax.train import train

    return train(config, pathlib.Path(_WORKDIR.value), command.overridden_keys(argv))


if __name__ == "__main__":
    command.run(main, config="training")
