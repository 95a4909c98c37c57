"""Train an agent, or resume the run in `--workdir`.

python -m launch.train --config=configs/sokoban.py --workdir=runs/sokoban
python -m launch.train --reproduce=runs/sokoban

Exit status: 0 when the run is finished, 1 when --reproduce ends with other bits, 130 or
143 when a signal stopped it, 3 when another of its processes is lost.
"""

from launch import command  # isort: skip, it says what is not installed

import pathlib

from absl import flags

from launch.command import lasting_objects
from ragen_jax.devices import cluster
from ragen_jax.runs.progress import working
from ragen_jax.terminal import say

_CONFIG = command.define_config()
_WORKDIR = flags.DEFINE_string("workdir", None, "Run folder; an existing run resumes.")
_REPRODUCE = flags.DEFINE_string(
    "reproduce",
    None,
    "Folder of a finished run: train it again in --workdir (default: its name with "
    "-again) and compare the final parameters bit for bit.",
)
_DISTRIBUTED = flags.DEFINE_string("distributed", "auto", cluster.HELP)


def main(argv: list[str]) -> int:
    if _REPRODUCE.value:
        return _reproduce(command.run_folder(_REPRODUCE.value, flag="reproduce"))
    with lasting_objects():
        config = command.read_config(_CONFIG, argv)
        if not _WORKDIR.value:
            raise ValueError("no run folder given; add e.g. --workdir=runs/sokoban")
        workdir = pathlib.Path(_WORKDIR.value)
        status = cluster.join(_DISTRIBUTED.value, workdir)
        if status is not None:
            return status
        with working("loading JAX"):
            command.enable_compilation_cache()
            from ragen_jax.train import train

    return train(config, workdir, command.overridden_keys(argv))


def _reproduce(run: pathlib.Path) -> int:
    if _CONFIG.value is not None:
        raise ValueError(
            "--reproduce takes the configuration of the run; leave out --config"
        )
    workdir = pathlib.Path(_WORKDIR.value or f"{run}-again")
    if workdir.resolve() == run.resolve():
        raise ValueError("--workdir and --reproduce name the same folder; use another")
    status = cluster.join(_DISTRIBUTED.value, workdir)
    if status is not None:
        return status
    with lasting_objects(), working("loading JAX"):
        command.enable_compilation_cache()
        from ragen_jax.evaluation.load import read_run_config
        from ragen_jax.runs.reproduce import open_original
        from ragen_jax.train import train

        original = open_original(run)
        config = read_run_config(run, command.defaults())
    say(original.describe())
    status = train(config, workdir)
    if status:
        return status
    from ragen_jax.devices import exchange

    compared = exchange.first_does(lambda: original.compare(workdir))
    is_equal, sentence = exchange.gather(compared)[0]
    if exchange.is_first():
        say(sentence)
    return 0 if is_equal else 1


if __name__ == "__main__":
    command.run(main, config="training")
