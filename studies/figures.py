"""The figure of a study as a PNG file.

In: a study with the records of its arms. Out: curves over the iterations, a column per
game; or a point per run, arm by arm; or gradients by reward spread; or a point per arm,
diagnostic against success; or effects with their intervals. Needs matplotlib, see
`ragen_jax.report.png`.
"""

import pathlib
from collections.abc import Sequence

import numpy as np

from ragen_jax.report.png import drawing, save_figure
from studies.arms import GAMES, Arm
from studies.claims import Correlation, Mean, Study
from studies.measures import FORMS, MEASURES, Measure, bucket_norms
from studies.records import RunRecord
from studies.results import StudyResults

_DPI = 110
_CURVES = {
    "val-env/*/success": ("success in evaluation, %", 100),
    "val-env/*/hallucination_rate": ("false statements, %", 100),
    "rollout/in_group_reward_std": ("reward spread inside groups", 1),
    "actor/entropy": ("entropy, nats a token", 1),
    "train/*/reply_length": ("tokens a reply", 1),
    "train/*/num_actions": ("actions an episode", 1),
}
# More lines or rows than this cannot be told apart, or not be read.
_MAX_LINES, _MAX_ROWS = 6, 20


def write_figure(found: StudyResults, path: pathlib.Path) -> None:
    """Draw what a study has found so far.

    Raises:
      ValueError: matplotlib is not installed.
    """
    with drawing():
        from matplotlib import pyplot

        save_figure(_choose(found.study)(pyplot, found), path, _DPI)


def _choose(study: Study):
    if study.curves:
        return _draw_curves
    if not study.drawn:
        return _draw_buckets
    if all(isinstance(claim.test, Correlation) for claim in study.claims):
        return _draw_correlations
    return _draw_effects if len(study.arms) > _MAX_ROWS else _draw_dots


def _axes(pyplot, rows: int, columns: int, width: float, height: float):
    figure, axes = pyplot.subplots(
        rows,
        columns,
        squeeze=False,
        figsize=(width * columns, height * rows),
        layout="constrained",
    )
    for one in axes.flat:
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _present(found: StudyResults) -> list[Arm]:
    return [arm for arm in found.study.arms if arm.name in found.runs]


def _draw_curves(pyplot, found: StudyResults):
    """A row per metric, a column per game; bands from lowest to highest seed.

    Where there are too many arms to tell apart, a colour is an estimator.
    """
    arms = _present(found)
    games = list(dict.fromkeys(arm.game for arm in arms))
    names = [found.study.label(arm).split(", ", 1)[1] for arm in arms]
    is_crowded = len(set(names)) > _MAX_LINES
    if is_crowded:
        names = [name.split(", ")[0] for name in names]
    colours = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(names))}
    figure, axes = _axes(pyplot, len(found.study.curves), len(games), 4.2, 2.8)
    for row, metric in zip(axes, found.study.curves, strict=True):
        label, scale = _CURVES[metric]
        for one, game in zip(row, games, strict=True):
            for arm, name in zip(arms, names, strict=True):
                x, values = _matrix(found.runs[arm.name], metric)
                if arm.game != game or not len(x):
                    continue
                line = {"label": name, "color": colours[name]}
                if is_crowded:
                    one.plot(x, scale * values.mean(axis=0), lw=0.7, **line)
                else:
                    _draw_band(one, x, scale * values, **line)
            one.set(title=GAMES[game], xlabel="iteration", ylabel=label)
            one.set_ylim(bottom=0)
    _write_legend(figure, axes)
    return figure


def _draw_band(one, x: np.ndarray, values: np.ndarray, **line) -> None:
    """The mean of `values` `[run, x]`, and a band from the lowest to the highest."""
    one.plot(x, values.mean(axis=0), **line)
    low, high = values.min(axis=0), values.max(axis=0)
    one.fill_between(x, low, high, color=line["color"], alpha=0.2, lw=0)


def _write_legend(figure, axes) -> None:
    lines = {line.get_label(): line for one in axes.flat for line in one.lines}
    # What matplotlib names itself begins with "_".
    lines = {name: line for name, line in lines.items() if not name.startswith("_")}
    figure.legend(
        lines.values(),
        lines.keys(),
        loc="outside lower center",
        ncols=max(1, min(len(lines), 4)),
        frameon=False,
    )


def _matrix(runs: Sequence[RunRecord], metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Iterations that all runs have, and values `[run, iteration]`."""
    curves = [curve for run in runs if (curve := run.curve(metric))]
    if not curves:
        return np.zeros(0), np.zeros((0, 0))
    common = [i for i in curves[0] if all(i in curve for curve in curves)]
    return np.array(common), np.array([[c[i] for i in common] for c in curves])


def _draw_buckets(pyplot, found: StudyResults):
    """A column per arm: norms of the gradient by bucket, first and last."""
    arms = _present(found)
    figure, axes = _axes(pyplot, 1, len(arms), 4.6, 3.2)
    for one, arm in zip(axes.flat, arms, strict=True):
        for part, colour in (("task", "C0"), ("regulariser", "C1")):
            for when, style in ((0, "--"), (-1, "-")):
                norms = [bucket_norms(run, part, when) for run in found.runs[arm.name]]
                if not norms or not all(norms):
                    continue
                name = f"{part}, {'first' if when == 0 else 'last'} iteration"
                x = np.arange(1, len(norms[0]) + 1)
                _draw_band(one, x, np.array(norms), label=name, color=colour, ls=style)
                one.set_xticks(x)
        one.set(
            title=found.study.label(arm),
            xlabel="bucket, from least to most reward spread",
            ylabel="norm of the gradient",
        )
        one.set_ylim(bottom=0)
    _write_legend(figure, axes)
    return figure


def _draw_dots(pyplot, found: StudyResults):
    """A row per arm, a point per run, a bar at the mean; a column per measure."""
    arms, names = _present(found), found.study.drawn
    figure, axes = _axes(
        pyplot, 1, len(names), 3.4 + 2.6 / len(names), 1.4 + 0.32 * len(arms)
    )
    shared, labels = _without_common_words([found.study.label(arm) for arm in arms])
    figure.suptitle(shared, fontsize="medium")
    for column, (one, name) in enumerate(zip(axes[0], names, strict=True)):
        measure = MEASURES[name]
        for row, arm in enumerate(arms):
            values = _scaled(found.runs[arm.name], measure)
            one.plot(values, [row] * len(values), "o", color="C0", alpha=0.5, ms=5)
            if values:
                one.plot(np.mean(values), row, "|", color="0.1", ms=16, mew=2)
        one.set_yticks(range(len(arms)), labels if column == 0 else [""] * len(arms))
        one.set(xlabel=_axis_label(measure), ylim=(len(arms) - 0.5, -0.5))
        one.grid(axis="x", alpha=0.3)
    return figure


def _without_common_words(labels: Sequence[str]) -> tuple[str, list[str]]:
    """What all labels begin with, and the rest of each."""
    parts = [label.split(", ") for label in labels]
    shared = 0
    while all(len(words) > shared + 1 for words in parts) and (
        len({words[shared] for words in parts}) == 1
    ):
        shared += 1
    return ", ".join(parts[0][:shared]), [", ".join(words[shared:]) for words in parts]


def _scaled(runs: Sequence[RunRecord], measure: Measure) -> list[float]:
    scale = FORMS[measure.form].scale
    return [scale * x for run in runs if (x := measure.value(run)) is not None]


def _axis_label(measure: Measure) -> str:
    unit = FORMS[measure.form].unit
    return measure.label + (f",{unit}" if unit else "")


def _draw_correlations(pyplot, found: StudyResults):
    """A panel per diagnostic, a point per run, coloured by game."""
    claims = found.study.claims
    columns = 3
    rows = -(-len(claims) // columns)
    figure, axes = _axes(pyplot, rows, columns, 4.0, 3.0)
    for one in axes.flat[len(claims) :]:
        one.set_visible(False)
    for one, claim in zip(axes.flat, claims, strict=False):
        test = claim.test
        scales = [
            FORMS[MEASURES[name].form].scale for name in (test.measure, test.other)
        ]
        for game, label in GAMES.items():
            arms = [arm for arm in _present(found) if arm.game == game]
            pairs = [pair for arm in arms for pair in test.pairs(arm, found.runs)]
            points = np.reshape(pairs, (-1, 2)) * scales
            one.plot(*points.T, "o", ms=3.5, alpha=0.6, label=label)
        verdict = found.verdicts.get(claim.text)
        if verdict is not None and verdict.effect is not None:
            rho = test.sign * verdict.effect.size
            one.set_title(f"Spearman, arms: {rho:+.2f}", fontsize="medium")
        one.set(
            xlabel=_axis_label(MEASURES[test.measure]),
            ylabel=_axis_label(MEASURES[test.other]),
        )
    axes.flat[0].legend(frameon=False, fontsize="small")
    return figure


def _draw_effects(pyplot, found: StudyResults):
    """A row per claim about a mean: the size of the effect and its interval."""
    claims = [claim for claim in found.study.claims if isinstance(claim.test, Mean)]
    figure, axes = _axes(pyplot, 1, 1, 9.0, 1.2 + 0.4 * len(claims))
    one = axes[0, 0]
    one.axvline(0, color="0.7", lw=1)
    for row, claim in enumerate(claims):
        verdict = found.verdicts.get(claim.text)
        if verdict is None:
            continue
        effect = verdict.effect
        if effect is None:
            one.annotate(f"  {verdict.found}", (0, row), va="center", fontsize="small")
            continue
        if effect.interval is not None:
            one.plot(effect.interval, [row, row], color="C0", lw=2)
        one.plot(effect.size, row, "o", color="C0")
        note = f"  {verdict.word}, {effect.num_runs} runs"
        one.annotate(note, (effect.size, row), va="bottom", fontsize="small")
    one.set_yticks(range(len(claims)), [claim.text for claim in claims])
    # The claims of such a study measure one thing.
    form = MEASURES[claims[0].test.measure].form
    one.set(xlabel=f"{form}, positive in the direction of the claim")
    one.set_ylim(len(claims) - 0.5, -0.6)
    return figure
