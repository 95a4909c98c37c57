"""What a study keeps of its runs: one JSON file per arm, committed as results come.

In: run folders of `launch.train` and `launch.sft`. Out: `RunRecord`s, and the files
that all tables and figures are made from.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_jax.diagnostics.early_warning import lead_times
from ragen_jax.runs import reader
from ragen_jax.runs.figures import CEILING
from ragen_jax.runs.metrics import STAGES
from ragen_jax.runs.writer import write_text_atomically

Curve = Mapping[int, float]
HELD_OUT, TRAINING = "val-env", "train"
# Metrics that are kept of every iteration that has them; `*` is the game.
KEPT = (
    *(
        f"{split}/*/{name}"
        for split in (HELD_OUT, TRAINING)
        for name in ("success", "reply_length", "format", "hallucination_rate")
    ),
    "train/*/num_actions",
    "rollout/in_group_reward_std",
    "actor/entropy",
    "actor/grad_norm",
    *(
        f"collapse_trajectory_sample/{name}"
        for name in (
            "mi_seq_estimate",
            "mi_zscore_ema",
            "conditional_entropy_est",
            "reasoning_entropy_est",
        )
    ),
)
# Gradients by spread: every bucket's norms, and the spread of its groups.
_BUCKET = "grad_norm/bucket_"
_BUCKET_ENDS = ("/task", "/entropy", "/kl", "/reward_std_mean")
_DIGITS = 4


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """One run.

    Attributes:
      seed: of the run.
      seconds: of all stages of its iterations, compiling included.
      curves: by metric, then by iteration; the game's name is `*`.
      first_alarms: by indicator, the iteration; None: it never alarmed.
      suite: success by entry of the generalisation suite; empty if it was not played.
      ceiling: held-out success of best play.
    """

    seed: int
    seconds: float
    curves: Mapping[str, Curve]
    first_alarms: Mapping[str, int | None] = dataclasses.field(default_factory=dict)
    suite: Mapping[str, float] = dataclasses.field(default_factory=dict)
    ceiling: float | None = None

    def curve(self, metric: str) -> Curve:
        """Values of a metric by iteration; empty if it was not measured."""
        return self.curves.get(metric, {})


@dataclasses.dataclass(frozen=True)
class ArmRecord:
    """The runs of an arm.

    Attributes:
      settings: the configuration as nested objects, without the seed.
      runs: those that were finished, by seed.
      failed: why others could not be, by seed.
    """

    settings: Mapping[str, Any]
    runs: Sequence[RunRecord]
    failed: Mapping[int, str] = dataclasses.field(default_factory=dict)

    @property
    def seeds(self) -> set[int]:
        """Of all runs."""
        return {run.seed for run in self.runs} | set(self.failed)


def read_run(folder: pathlib.Path, game: str, suite: Mapping[str, float]) -> RunRecord:
    """The record of a finished run of `launch.train` on one game.

    Raises:
      ValueError: its files are damaged.
    """
    records = reader.read_metrics(folder)
    curves: dict[str, dict[int, float]] = {}
    for record in records:
        for name, value in record.items():
            plain = name.replace(f"/{game}/", "/*/")
            if isinstance(value, float | int) and _is_kept(plain):
                curves.setdefault(plain, {})[record["iteration"]] = _rounded(value)
    timings = (record.get(f"timing_s/{s}") for record in records for s in STAGES)
    return RunRecord(
        seed=reader.read_config(folder).seed,
        seconds=round(sum(filter(None, timings)), 1),
        curves=curves,
        first_alarms=lead_times(records).first_alarm,
        suite={name: _rounded(value) for name, value in suite.items()},
        ceiling=next(
            (r[key] for r in records if (key := CEILING.replace("{env}", game)) in r),
            None,
        ),
    )


def _is_kept(name: str) -> bool:
    is_bucket = name.startswith(_BUCKET) and name.count("/") == 2
    return name in KEPT or (is_bucket and name.endswith(_BUCKET_ENDS))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def arm_file(folder: pathlib.Path, arm: str) -> pathlib.Path:
    """File of an arm below the folder of the results."""
    return folder / "runs" / f"{arm}.json"


def read_arm(folder: pathlib.Path, arm: str) -> ArmRecord | None:
    """The record of an arm; None before it has one.

    Raises:
      ValueError: the file is damaged.
    """
    path = arm_file(folder, arm)
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text("utf-8"))
        runs = [_read(run) for run in content["runs"]]
        failed = {int(seed): text for seed, text in content["failed"].items()}
        return ArmRecord(content["settings"], runs, failed)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not a record of an arm ({type(error).__name__}: {error}); "
            "restore it from a copy, or delete it to run its seeds again"
        ) from error


def _read(run: Mapping[str, Any]) -> RunRecord:
    curves = {
        name: dict(zip(*columns, strict=True))
        for name, columns in run["curves"].items()
    }
    return RunRecord(**dict(run, curves=curves))


def write_arm(folder: pathlib.Path, arm: str, record: ArmRecord) -> None:
    """Write the record of an arm, a line per run."""
    lines = []
    for run in sorted(record.runs, key=lambda run: run.seed):
        curves = {
            name: [list(curve), list(curve.values())]
            for name, curve in sorted(run.curves.items())
        }
        plain = dataclasses.asdict(dataclasses.replace(run, curves=curves))
        lines.append(json.dumps(plain, separators=(",", ":")))
    settings, failed = (
        json.dumps(value, sort_keys=True, separators=(",", ":"))
        for value in (record.settings, record.failed)
    )
    runs = ",\n".join(lines)
    text = f'{{"settings":{settings},\n"failed":{failed},\n"runs":[\n{runs}\n]}}\n'
    path = arm_file(folder, arm)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, text)
