"""Alarms next to the fall of success, and the borders of the regimes.

In: runs. Out: iterations and borders. Definitions and defaults are those of the early
warning (section `warning` of the configuration), so that page and training agree.
"""

from collections.abc import Sequence
from typing import Any

from ragen_jax.diagnostics.early_warning import first_fall
from ragen_jax.report.runs import RunData, is_drawable
from ragen_jax.report.series import Series
from ragen_jax.runs.figures import ALARM, PLANE_X, PLANE_Y, REGIME, REGIMES, SUCCESS

# Defaults for runs without these settings: iterations averaged, share of the best.
_WINDOW, _SHARE = 5, 0.5


def alarms(run: RunData) -> dict[str, Any]:
    """Iterations in which a run's indicators alarmed.

    `at` and `first` by indicator (None: never), `fell` (None: success did not),
    `regimes` as pairs (iteration, number in `figures.REGIMES`).
    """
    names = [name for name in run.metrics if name.startswith(ALARM)]
    curves = {name.removeprefix(ALARM): run.curve(name) for name in names}
    at = {name: [i for i, x in c.items() if x > 0] for name, c in curves.items()}
    return {
        "at": at,
        "first": {name: min(steps, default=None) for name, steps in at.items()},
        "fell": success_fell(run),
        "regimes": [
            [i, round(x)]
            for i, x in run.curve(REGIME).items()
            if 0 <= round(x) < len(REGIMES)
        ],
        "last": run.records[-1]["iteration"],
    }


def success_fell(run: RunData) -> int | None:
    """First iteration with training's mean success below a share of its best."""
    curves = [run.curve(SUCCESS.replace("{env}", env)) for env in run.games]
    shared = sorted(set.intersection(*map(set, curves))) if curves else []
    successes = {at: sum(c[at] for c in curves) / len(curves) for at in shared}
    window = _setting(run, "warning.success_window", _WINDOW)
    share = _setting(run, "warning.success_low", _SHARE)
    return first_fall(successes, window=max(round(window), 1), share=share)[0]


def regime_borders(series: Sequence[Series]) -> dict[str, float] | None:
    """Entropy `x` and information `y` below which a policy has left "diverse".

    A share of the first measurement, averaged over the runs; the regime of a run is
    relative to its first measurement. None where that average is not positive.
    """
    borders = {}
    for name, metric, key in (
        ("x", PLANE_X, "warning.entropy_regime_low"),
        ("y", PLANE_Y, "warning.information_regime_low"),
    ):
        firsts = [
            _setting(run, key, _SHARE) * next(iter(run.curve(metric).values()))
            for group in series
            for run in group.runs
            if run.curve(metric)
        ]
        if not firsts or sum(firsts) <= 0:
            return None
        borders[name] = sum(firsts) / len(firsts)
    return borders


def _setting(run: RunData, key: str, default: float) -> float:
    """A number from the run's settings; the default in runs that have none."""
    value = run.settings.get(key)
    return value if is_drawable(value) else default
