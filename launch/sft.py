"""Supervised fine-tuning on demonstrations.

Fine-tune a checkpoint on solved episodes:

    python -m launch.sft --config=configs/sft.py --workdir=runs/sft

Make the pocket model:

    python -m launch.sft --config=configs/pocket.py --workdir=runs/pocket
"""

from launch import command  # isort: skip, it says what is not installed

import pathlib

from absl import flags

from ragen_jax.runs.progress import working

_CONFIG = command.define_config()
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Run folder; an existing run is resumed."
)


def main(argv: list[str]) -> int:
    config = command.read_config(_CONFIG, argv)
    if not _WORKDIR.value:
        raise ValueError("no run folder given; add e.g. --workdir=runs/sft")
    with working("loading JAX"):
        command.enable_compilation_cache()
        from ragen_jax.sft.train import train

    return train(config, pathlib.Path(_WORKDIR.value))


if __name__ == "__main__":
    command.run(main, config="fine-tuning")
