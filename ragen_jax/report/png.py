"""The figures of a report as PNG files, for papers.

In: the contents of a report. Out: a file per section with figures. Needs matplotlib,
which is imported only here: the page does without it.
"""

import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ragen_jax import install_command
from ragen_jax.report.page import series_colors
from ragen_jax.runs import figures

_DPI = 150
_COLUMNS = 3
_PANEL_SIZE = (4.0, 2.9)
# Parts of the loss: mark and opacity, in the colour of their series.
_BUCKET_LOOKS = {"task": ("o", 1.0), "entropy": ("s", 0.65), "kl": ("^", 0.4)}
# No series has these.
_BAD = "#b3261e"
_REGIME_COLORS = ("0.75", _BAD, "0.5", "0.1")
_DASHES = ("-", "--", ":", "-.", (0, (1, 4)))
_SCALES = {"share": 100.0}

Contents = Mapping[str, Any]


def write_figures(contents: Contents, folder: pathlib.Path) -> list[pathlib.Path]:
    """One PNG file per section; returns their paths.

    Raises:
      ValueError: matplotlib is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with drawing():
        for section in contents["sections"]:
            draws = _drawings(contents, section)
            if draws:
                path = folder / f"{section['key']}.png"
                _save(draws, path, contents)
                written.append(path)
    return written


def drawing() -> AbstractContextManager:
    """Matplotlib set to draw files, in the colours of the series.

    Raises:
      ValueError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError(
            "PNG files need matplotlib, which is not installed; run "
            + install_command("report")
        ) from error
    matplotlib.use("Agg")
    colors = matplotlib.rcsetup.cycler(color=series_colors())
    return matplotlib.rc_context({"axes.prop_cycle": colors})


def _drawings(contents: Contents, section: Contents) -> list[Callable]:
    """Functions that draw a section's panels, each on a pair of axes."""
    draws: list[Callable] = []
    each = range(len(contents["series"]))
    if section["special"] == "plane":
        draws.append(lambda axis: _draw_plane(axis, contents))
    if section["special"] == "alarms":
        draws += [lambda axis, i=i: _draw_alarms(axis, contents, i) for i in each]
    if section["special"] == "buckets":
        means = contents["buckets"]["means"]
        drawn = [i for i in each if means[i]]
        draws += [lambda axis, i=i: _draw_buckets(axis, contents, i) for i in drawn]
    draws += [
        lambda axis, p=p: _draw_lines(axis, contents, p) for p in section["panels"]
    ]
    return draws


def _save(draws: Sequence[Callable], path: pathlib.Path, contents: Contents) -> None:
    from matplotlib import pyplot

    columns = min(_COLUMNS, len(draws))
    rows = math.ceil(len(draws) / columns)
    size = (_PANEL_SIZE[0] * columns, _PANEL_SIZE[1] * rows + 0.4)
    figure, axes = pyplot.subplots(*(rows, columns), figsize=size, squeeze=False)
    for axis, draw in zip(axes.flat, draws, strict=False):
        draw(axis)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    for axis in axes.flat[len(draws) :]:
        axis.set_axis_off()
    names = [series["name"] for series in contents["series"]]
    lines = [
        pyplot.Line2D([], [], color=f"C{i}", label=name) for i, name in enumerate(names)
    ]
    figure.legend(handles=lines, loc="upper center", ncols=2, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    save_figure(figure, path, _DPI)


def save_figure(figure, path: pathlib.Path, dpi: int) -> None:
    """Write a whole PNG file or nothing, and close the figure."""
    from matplotlib import pyplot

    temporary = path.with_name(f".{path.name}.tmp")
    # No date, no version: the same runs give the same file.
    figure.savefig(temporary, dpi=dpi, metadata={"Software": None}, format="png")
    pyplot.close(figure)
    temporary.replace(path)


def _draw_lines(axis, contents: Contents, panel: Contents) -> None:
    """A panel: a line with its band per series, as on the page."""
    scale = _SCALES.get(panel["kind"], 1.0)
    looks = {}
    for line in panel["lines"]:
        look = _look(panel, line)
        for i in line["series"]:
            curve = contents["curves"][line["metric"]][i]
            if curve is None:
                continue
            looks[line["label"]] = look
            mean = [scale * x for x in curve["mean"]]
            is_main = line["style"] == "main"
            color = "0.4" if line["style"] == "reference" else f"C{i}"
            marker = "o" if is_main and len(mean) <= 24 else None
            axis.plot(curve["at"], mean, color=color, marker=marker, ms=3, **look)
            if is_main and "low" in curve:
                low, high = ([scale * x for x in curve[k]] for k in ("low", "high"))
                band = {"color": f"C{i}", "alpha": 0.15, "lw": 0}
                axis.fill_between(curve["at"], low, high, **band)
    unit = panel["unit"] + (", %" if panel["kind"] == "share" else "")
    axis.set_title(panel["title"], fontsize=10)
    axis.set_xlabel("iteration", fontsize=8)
    axis.set_ylabel(unit, fontsize=8)
    if panel["kind"] == "share":
        axis.set_ylim(0, None if axis.get_ylim()[1] < 45 else 104)
    if len(looks) > 1:
        for label, look in looks.items():
            axis.plot([], [], label=label, color="0.4", **look)
        axis.legend(fontsize=7, frameon=False, loc="best")


def _look(panel: Contents, line: Contents) -> dict[str, Any]:
    look = {
        "main": {"lw": 1.4},
        "thin": {"lw": 0.8, "alpha": 0.5},
        "reference": {"lw": 0.8, "ls": "--"},
    }[line["style"]]
    if line["style"] == "main":
        mains = [x["metric"] for x in panel["lines"] if x["style"] == "main"]
        look["ls"] = _DASHES[mains.index(line["metric"]) % len(_DASHES)]
    return look


def _draw_plane(axis, contents: Contents) -> None:
    """Each run's path, darker with time, over the four regimes."""
    plane = contents["plane"]
    for number, way in enumerate(plane["ways"]):
        color = f"C{contents['runs'][number]['series']}"
        axis.plot(
            [p[1] for p in way], [p[2] for p in way], color=color, lw=0.6, alpha=0.4
        )
    for number, way in enumerate(plane["means"]):
        color = f"C{number}"
        axis.plot([p[1] for p in way], [p[2] for p in way], color=color, lw=1.4)
        for rank, (_, x, y) in enumerate(way, start=1):
            shade = 0.25 + 0.75 * rank / len(way)
            axis.plot(x, y, "o", ms=4, color=color, alpha=shade, mec="none")
        for at, x, y in way[-1:]:
            place = {"textcoords": "offset points", "fontsize": 8}
            axis.annotate(str(at), (x, y), (5, 3), color=color, **place)
    axis.margins(0.14)
    if plane["borders"]:
        axis.axvline(plane["borders"]["x"], color="0.4", ls="--", lw=0.8)
        axis.axhline(plane["borders"]["y"], color="0.4", ls="--", lw=0.8)
        axis.set_xlim(left=min(0, axis.get_xlim()[0]))
        axis.set_ylim(bottom=min(0, axis.get_ylim()[0]))
        corners = ((0.98, 0.97), (0.98, 0.03), (0.02, 0.97), (0.02, 0.03))
        for (x, y), name in zip(corners, plane["regimes"], strict=True):
            place = {"ha": "right" if x > 0.5 else "left", "fontsize": 7}
            place |= {"va": "top" if y > 0.5 else "bottom", "color": "0.35"}
            axis.text(x, y, name, transform=axis.transAxes, **place)
    axis.set_title("Information plane", fontsize=10)
    axis.set_xlabel("H(Z|X), nats per token", fontsize=8)
    axis.set_ylabel("I(X;Z), nats per token", fontsize=8)


def _draw_buckets(axis, contents: Contents, series: int) -> None:
    buckets = contents["buckets"]
    for part in buckets["parts"]:
        rows = buckets["means"][series][part]
        points = [(i + 1, *row) for i, row in enumerate(rows) if row and row[0] > 0]
        if not points:
            continue
        at, mean, low, high = zip(*points, strict=True)
        below = [m - x for m, x in zip(mean, low, strict=True)]
        above = [x - m for m, x in zip(mean, high, strict=True)]
        mark, opacity = _BUCKET_LOOKS[part]
        style = {"color": f"C{series}", "alpha": opacity, "capsize": 2, "ms": 4}
        axis.errorbar(at, mean, [below, above], fmt=f"{mark}-", label=part, **style)
    axis.set_yscale("log")
    axis.set_xticks(range(1, len(buckets["names"]) + 1))
    axis.set_title(contents["series"][series]["name"], fontsize=9)
    axis.set_xlabel("bucket, by reward spread", fontsize=8)
    axis.set_ylabel("gradient norm (L2)", fontsize=8)
    axis.legend(fontsize=7, frameon=False)


def _draw_alarms(axis, contents: Contents, series: int) -> None:
    """A lane per indicator, regimes below, and the iteration in which success fell."""
    runs = [contents["alarms"][r] for r in contents["series"][series]["runs"]]
    names = list(dict.fromkeys(name for run in runs for name in run["at"]))
    lanes = [*names, "regime"]
    for rank, run in enumerate(runs):
        shift = 0.6 * ((rank + 0.5) / len(runs) - 0.5)
        for name in names:
            place, first = names.index(name) + shift, run["first"].get(name)
            ticks = run["at"].get(name, [])
            axis.plot(ticks, [place] * len(ticks), "|", color=f"C{series}", ms=4)
            if first is not None:
                axis.plot(first, place, "D", color=f"C{series}", ms=4)
        for at, regime in run["regimes"]:
            place = len(names) + shift
            axis.plot(at, place, "s", color=_REGIME_COLORS[regime], ms=3)
        if run["fell"] is not None:
            axis.axvline(run["fell"], color=_BAD, ls="--", lw=1)
    axis.set_yticks(range(len(lanes)), [lane.replace("_", " ") for lane in lanes])
    axis.set_xlim(0, max(alarm["last"] for alarm in contents["alarms"]))
    for color, name in zip(_REGIME_COLORS, figures.REGIMES, strict=True):
        axis.plot([], [], "s", color=color, ms=4, label=name)
    axis.plot([], [], color=_BAD, ls="--", lw=1, label="success fell")
    # Below the axis and its label: no lane is covered.
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2)}
    axis.legend(fontsize=6, frameon=False, ncols=2, **below)
    axis.set_ylim(len(lanes) - 0.5, -0.5)
    axis.set_title(contents["series"][series]["name"], fontsize=9)
    axis.set_xlabel("iteration", fontsize=8)
