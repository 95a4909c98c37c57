"""Learning curves of finished runs: one table, one figure.

    python -m benchmarks.learning --output=docs/learning.png runs/a runs/b ...

Runs of one game share a panel. Needs matplotlib (`pip install -e ".[report]"`).
"""

import json
import pathlib
import statistics
import sys

from absl import app, flags

from benchmarks import harness
from ragen_jax.runs.reader import read_metrics

_OUTPUT = flags.DEFINE_string("output", None, "PNG file to write. None: table only.")


def read(workdir: pathlib.Path) -> dict:
    """What a run's record says about learning.

    Raises:
      ValueError: the folder holds no run, or one without iterations or evaluations.
    """
    records = read_metrics(workdir)
    trained = [r for r in records if "timing_s/update" in r]
    measured = [r for r in records if any(k.startswith("val-env/") for k in r)]
    if not trained or not measured:
        raise ValueError(
            f"{workdir} holds a record of {len(trained)} iterations and "
            f"{len(measured)} evaluations, and a learning curve needs some of both; "
            "name a run of launch.train with config.evaluation.every set"
        )
    config = json.loads((workdir / "config.json").read_text())
    (env,) = {k.split("/")[1] for k in measured[0] if k.startswith("val-env/")}
    seconds = [r["timing_s/rollout"] + r["timing_s/update"] for r in trained]
    return {
        "name": workdir.name,
        "env": env,
        "seed": config["seed"],
        "label": f"seed {config['seed']}{_shown(config)}",
        "at": [r["iteration"] for r in measured],
        "success": [r[f"val-env/{env}/success"] for r in measured],
        "low": [r[f"val-env/{env}/success_low"] for r in measured],
        "high": [r[f"val-env/{env}/success_high"] for r in measured],
        "ceiling": measured[-1][f"val-env/{env}/ceiling"],
        "train_at": [r["iteration"] for r in trained],
        "train": [r[f"train/{env}/success"] for r in trained],
        "seconds": statistics.median(seconds),
    }


def _shown(config: dict) -> str:
    """What tells the run from those whose messages are text alone."""
    observation = config.get("prompt", {}).get("observation", "text")
    return {"text": "", "image": ", pictures"}.get(observation, ", text and pictures")


def table(runs: list[dict]) -> str:
    """Markdown: one row per run."""
    rows = []
    for run in runs:
        start, end = run["success"][0], run["success"][-1]
        interval = f"{run['low'][-1]:.1%} to {run['high'][-1]:.1%}"
        rows.append(
            {
                "game": run["env"],
                "seed": run["seed"],
                "iterations": run["at"][-1],
                "median s/iteration": f"{run['seconds']:.1f}",
                "held-out success, start": f"{start:.1%}",
                "end (95 % interval)": f"{end:.1%} ({interval})",
                "gain, points": f"{100 * (end - start):+.1f}",
                "best possible": f"{run['ceiling']:.1%}",
            }
        )
    return harness.table(rows)


def draw(runs: list[dict], output: pathlib.Path) -> None:
    """One panel per game, one line per run with its interval."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    games = list(dict.fromkeys(run["env"] for run in runs))
    figure, axes = pyplot.subplots(
        1, len(games), figsize=(4.4 * len(games), 3.4), sharey=True, squeeze=False
    )
    for axis, game in zip(axes[0], games, strict=True):
        of_game = [run for run in runs if run["env"] == game]
        for index, run in enumerate(of_game):
            colour = f"C{index}"
            label = f"held-out, {run['label']}"
            axis.plot(run["at"], run["success"], "o-", color=colour, label=label, ms=3)
            axis.fill_between(
                run["at"], run["low"], run["high"], color=colour, alpha=0.12, lw=0
            )
            axis.plot(run["train_at"], run["train"], color=colour, alpha=0.25, lw=0.8)
        ceiling = statistics.mean(run["ceiling"] for run in of_game)
        axis.axhline(ceiling, color="0.4", ls="--", lw=0.8, label="best possible")
        axis.set(title=game, xlabel="iteration", ylim=(0, 1.02))
        axis.legend(fontsize=7, frameon=False, loc="lower right")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("success (thin: while training, T=1)")
    figure.tight_layout()
    figure.savefig(output, dpi=150)


def main(argv: list[str]) -> None:
    workdirs = [pathlib.Path(word) for word in argv[1:]]
    if not workdirs:
        sys.exit("error: name at least one finished run folder")
    try:
        runs = [read(workdir) for workdir in workdirs]
    except ValueError as error:
        sys.exit(f"error: {error}")
    print(table(runs))
    if _OUTPUT.value:
        draw(runs, pathlib.Path(_OUTPUT.value))


if __name__ == "__main__":
    app.run(main)
