"""Sections, panels and lines: what the report and TensorBoard draw.

In: the declarations of metrics. Out: sections with their panels, in the order of the
declarations. `{env}` stands for every environment in turn. A panel without any recorded
metric is left out; a section without any panel says what is missing. Three sections
have a special drawing: see `special`.
"""

import dataclasses
from collections.abc import Collection, Iterable

from ragen_jax.diagnostics import early_warning
from ragen_jax.registry.metrics import Metric

FIRST_TURN = "collapse_first_turn_sample/"
# Axes of the information plane.
PLANE_X = f"{FIRST_TURN}conditional_entropy_est"
PLANE_Y = f"{FIRST_TURN}mi_estimate"
# By the number that `collapse/regime` records.
_REGIMES = sorted(early_warning.REGIMES.values())
REGIMES = tuple(regime.name for regime in _REGIMES)


def _healthy_regimes() -> str:
    """Two sentences that sort the regimes."""
    good = [f"{r.name} ({r.healthy})" for r in _REGIMES if r.healthy]
    bad = [r.name for r in _REGIMES if not r.healthy]
    return f"Healthy: {', '.join(good)}. Not healthy: {', '.join(bad)}."


REGIME = "collapse/regime"
ALARM = "alarm/"
BUCKET = "grad_norm/"
BUCKET_PARTS = ("task", "entropy", "kl")
SUCCESS = "train/{env}/success"
HELD_OUT = "val-env/{env}/success"
CEILING = "val-env/{env}/ceiling"
EXACT = "val-env/{env}/exact"


@dataclasses.dataclass(frozen=True)
class Line:
    """A metric in a panel; see `ragen_jax.registry.metrics.View` for the fields."""

    metric: str
    label: str
    style: str = "main"
    needs: str = ""


@dataclasses.dataclass(frozen=True)
class Panel:
    """One pair of axes over the iterations.

    Attributes:
      title: heading.
      unit: label of the vertical axis.
      lines: what is drawn.
      kind: how numbers read: "number", "share" (in per cent) or "seconds".
    """

    title: str
    unit: str
    lines: tuple[Line, ...]
    kind: str = "number"


@dataclasses.dataclass(frozen=True)
class Section:
    """Panels under one heading.

    Attributes:
      key: name of its anchor and of its PNG file; `Metric.section` and `View.section`.
      title, lead: heading, and what the section shows.
      special: drawing made for it alone: "plane", "buckets", "alarms" or "" (none).
      absent: what was not recorded where nothing can be drawn.
      panels: drawn over the iterations.
    """

    key: str
    title: str
    lead: str
    special: str = ""
    absent: str = ""
    panels: tuple[Panel, ...] = ()


SECTIONS = (
    Section(
        "progress",
        "Progress",
        "Success while training and on fixed held-out levels (where they are played), "
        "next to that of best play, or of a reference player, on the same levels "
        "(where one is known).",
        absent="no run recorded train/<Env>/... or val-env/<Env>/...",
    ),
    Section(
        "plane",
        "Information plane",
        "H(Z|X): variety of thoughts under one prompt. I(X;Z): information of thoughts "
        "about their prompt. Both in nats per token. A run begins as diverse, at the "
        f"upper right. {_healthy_regimes()}",
        special="plane",
        absent=f"no run recorded both {PLANE_X} and {PLANE_Y}; see diagnostics.every, "
        "and whether replies hold thoughts",
    ),
    Section(
        "indicators",
        "Collapse indicators",
        "In a run that collapses these fall, or jump, before success does. The alarms "
        "below say how far is too far.",
        absent="no run recorded rollout/... or actor/...",
    ),
    Section(
        "alarms",
        "Alarms",
        "Iterations in which an indicator alarmed (a tick each, a diamond at a run's "
        "first), and the first iteration in which training success, averaged over a "
        "few iterations, was below a share of its best (warning.success_low, a half "
        "unless set). A run's first iterations are what later ones are compared with "
        "(warning.baseline_iterations), and cannot alarm.",
        special="alarms",
        absent="no run recorded alarm/...; see the section warning of the settings",
    ),
    Section(
        "buckets",
        "Gradient buckets",
        "Groups in order of their reward spread, from bucket 1 (least) on. Where the "
        "gradient of the task is small and the others are not, updates are noise.",
        special="buckets",
        absent=f"no run recorded {BUCKET}<bucket>/...; see diagnostics.gradient_every",
    ),
    Section(
        "update",
        "Update",
        "How far an iteration moved the policy, and how many groups it learned from.",
        absent="no run recorded actor/... or rollout/filter_...",
    ),
    Section(
        "timing",
        "Throughput",
        "Tokens per second, and an iteration's seconds by stage; they depend on the "
        "machine. They leave out iterations in which the stage compiled, as it does in "
        "a run's first.",
        absent="no run recorded timing_s/... of an iteration that compiled nothing",
    ),
)


def make_sections(
    metrics: Iterable[Metric], *, with_special: bool = False
) -> tuple[Section, ...]:
    """`SECTIONS` with the panels that the metrics' views declare.

    `with_special`: those that the report draws in another kind of figure as well.

    Raises:
      ValueError: a view names a section that is not drawn.
    """
    panels: dict[str, dict[str, Panel]] = {section.key: {} for section in SECTIONS}
    for metric in metrics:
        for view in metric.views:
            if view.is_special and not with_special:
                continue
            key = view.section or metric.section
            if key not in panels:
                raise ValueError(
                    f"metric {metric.name} has a view in section {key!r}, which is not "
                    f"drawn; give the view one of {', '.join(panels)}, or add a "
                    "Section to SECTIONS in ragen_jax/runs/figures.py"
                )
            of_section = panels[key]
            name, label = view.name or metric.name, view.label or view.title
            line = Line(name, label, view.style, view.needs)
            panel = of_section.get(view.title)
            if panel is None:
                panel = Panel(view.title, view.unit, (), metric.kind)
            lines = (*panel.lines, line)
            of_section[view.title] = dataclasses.replace(panel, lines=lines)
    return tuple(
        dataclasses.replace(section, panels=tuple(panels[section.key].values()))
        for section in SECTIONS
    )


def expand(panels: Collection[Panel], games: Collection[str]) -> list[Panel]:
    """The panels with every game in the place of `{env}`."""
    expanded = []
    for panel in panels:
        names = games if any("{env}" in line.metric for line in panel.lines) else [""]
        for env in names:
            lines = (
                dataclasses.replace(line, metric=line.metric.replace("{env}", env))
                for line in panel.lines
            )
            title = panel.title.replace("{env}", env)
            expanded.append(dataclasses.replace(panel, title=title, lines=tuple(lines)))
    return expanded
