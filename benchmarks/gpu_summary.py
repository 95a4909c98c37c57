"""Success over wall time of learning runs, from their metrics: a table each.

The standard library alone, as `benchmarks/on_gpu.py` shows it while the runs go on.
"""

import json
import pathlib
import statistics
from collections.abc import Mapping, Sequence

COLUMNS = {
    "wall s": "{:.0f}",
    "iteration": "{:.0f}",
    "held-out success": "{:.1%}",
    "low": "{:.1%}",
    "high": "{:.1%}",
    "training success": "{:.1%}",
    "form": "{:.1%}",
    "sampled tokens/s": "{:,.0f}",
    "trained tokens/s": "{:,.0f}",
}


def summary(work: pathlib.Path, began: Mapping[str, float]) -> str:
    """A table for each run that has recorded something.

    Args:
      work: folder of the run folders.
      began: name of a run folder -> when its command was started, as `time.time()`.
    """
    parts = []
    for name, start in began.items():
        file = work / name / "metrics.jsonl"
        if file.is_file():
            lines = file.read_text().splitlines(keepends=True)
            # The last one may still be being written.
            records = [json.loads(line) for line in lines if line.endswith("\n")]
            parts.append(f"{name}\n{table(records, start)}")
    return "\n".join(parts)


def table(records: Sequence[Mapping], start: float) -> str:
    """A row for each evaluation, and one for the iterations after the last.

    Training success, form and tokens/s are means and medians over the iterations since
    the row before; rates leave out iterations that compiled.
    """
    rows, since = [], []
    for record in records:
        since.append(record)
        if _value(record, "val-env", "success") is not None:
            rows.append(_row(since, start))
            since = []
    if since:
        rows.append(_row(since, start))
    texts = [
        [
            "" if row[name] is None else form.format(row[name])
            for name, form in COLUMNS.items()
        ]
        for row in rows
    ]
    lines = [list(COLUMNS), ["---"] * len(COLUMNS), *texts]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _row(records: Sequence[Mapping], start: float) -> dict[str, float | None]:
    last = records[-1]

    def over(summarise, *name: str) -> float | None:
        values = [_value(record, *name) for record in records]
        values = [value for value in values if value is not None]
        return summarise(values) if values else None

    rate = "{}_tokens_per_second"
    values = (
        last["time"] - start,
        last["iteration"],
        *(_value(last, "val-env", f"success{end}") for end in ("", "_low", "_high")),
        over(statistics.mean, "train", "success"),
        over(statistics.mean, "train", "format"),
        over(statistics.median, "perf", rate.format("sampled")),
        over(statistics.median, "perf", rate.format("trained")),
    )
    return dict(zip(COLUMNS, values, strict=True))


def _value(record: Mapping, section: str, name: str) -> float | None:
    """A metric of the one game that is played; None where it is not recorded."""
    return next(
        (
            value
            for key, value in record.items()
            if key.startswith(f"{section}/") and key.rsplit("/", 1)[1] == name
        ),
        None,
    )
