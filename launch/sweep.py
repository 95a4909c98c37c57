r"""Train a grid of settings, each with several seeds, and compare them.

python -m launch.sweep --config=configs/sokoban.py --seeds=0:5 --workdir=runs/sweep
python -m launch.sweep --config=configs/sokoban.py --seeds=0:5 \
    --set "optimizer.learning_rate=1e-4,2e-4" --workdir=runs/rates

Every run has its own folder below --workdir, as launch.train would make it. Settings
that differ only in keys of which --help says "Compiled once for all numbers" share what
is compiled. Run the same command again to continue an interrupted sweep. At the end
there are a table (sweep.md, sweep.json) and a report (report.html) of all runs below
--workdir.

Exit status: 0 when all runs are finished, 1 when some failed, 130 or 143 when a signal
stopped them.
"""

from launch import command  # isort: skip, it says what is not installed

import pathlib

from absl import flags

from launch.command import lasting_objects
from ragen_jax.runs.progress import working

_CONFIG = command.define_config()
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of the runs; an interrupted sweep is continued."
)
_SEEDS = flags.DEFINE_string(
    "seeds", "0:5", "Seeds of each setting: 0:5 (0 to 4) or 1,4,9."
)
_SET = flags.DEFINE_multi_string(
    "set",
    [],
    'Values of a key, "KEY=A,B"; with several --set all combinations are trained. '
    "Commas in brackets or quotes belong to a value.",
)


def main(argv: list[str]) -> int:
    with lasting_objects():
        config = command.read_config(_CONFIG, argv)
        if not _WORKDIR.value:
            raise ValueError("no folder given; add e.g. --workdir=runs/sweep")
        with working("loading JAX"):
            command.enable_compilation_cache()
            from ragen_jax.sweeps.grid import make_cells, parse_grid, parse_seeds
            from ragen_jax.sweeps.sweep import sweep

        seeds, grid = parse_seeds(_SEEDS.value), parse_grid(_SET.value)
        cells = make_cells(config, grid)
    overrides = command.overridden_keys(argv)
    return sweep(cells, seeds, pathlib.Path(_WORKDIR.value), overrides)


if __name__ == "__main__":
    command.run(main, config="training")
