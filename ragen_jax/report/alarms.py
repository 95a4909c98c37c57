"""Alarms next to the fall of success, and the borders of the regimes.

In: runs. Out: iterations and borders. Definitions and defaults are those of the early
warning (section `warning` of the configuration), so that page and training agree.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from ragen_jax.diagnostics.early_warning import first_fall, regime_start
from ragen_jax.report.runs import RunData, is_drawable
from ragen_jax.report.series import Series
from ragen_jax.runs.figures import ALARM, REGIME, REGIMES, SUCCESS

# Defaults for runs without these settings: iterations averaged, share of the best.
_WINDOW, _SHARE = 5, 0.5


def alarms(run: RunData) -> dict[str, Any]:
    """Iterations in which a run's indicators alarmed.

    `at` and `first` by indicator (None: never), `fell` (None: success did not) and
    `is_judged` (it could have), `regimes` as pairs (iteration, number in
    `figures.REGIMES`).
    """
    names = [name for name in run.metrics if name.startswith(ALARM)]
    curves = {name.removeprefix(ALARM): run.curve(name) for name in names}
    at = {name: [i for i, x in c.items() if x > 0] for name, c in curves.items()}
    fell, is_judged = success_fell(run)
    return {
        "at": at,
        "first": {name: min(steps, default=None) for name, steps in at.items()},
        "fell": fell,
        "is_judged": is_judged,
        "regimes": [
            [i, round(x)]
            for i, x in run.curve(REGIME).items()
            if 0 <= round(x) < len(REGIMES)
        ],
        "last": run.records[-1]["iteration"],
    }


def success_fell(run: RunData) -> tuple[int | None, bool]:
    """First iteration with training's mean success below a share of its best.

    None: it did not fall. Also whether it could have: see `first_fall`.
    """
    curves = [run.curve(SUCCESS.replace("{env}", env)) for env in run.games]
    shared = sorted(set.intersection(*map(set, curves))) if curves else []
    successes = {at: sum(c[at] for c in curves) / len(curves) for at in shared}
    window = _setting(run, "warning.success_window", _WINDOW)
    share = _setting(run, "warning.success_low", _SHARE)
    return first_fall(successes, window=max(round(window), 1), share=share)


def regime_borders(series: Sequence[Series]) -> dict[str, float] | None:
    """Entropy `x` and information `y` below which a policy has left "diverse".

    A share of where a run's regimes start, averaged over the runs. None where none of
    them has a start: see `regime_start`.
    """
    borders = []
    for run in (run for group in series for run in group.runs):
        start = regime_start(run.records)
        if start is not None:
            low_y = _setting(run, "warning.information_regime_low", _SHARE)
            low_x = _setting(run, "warning.entropy_regime_low", _SHARE)
            borders.append((low_x * start[1], low_y * start[0]))
    if not borders:
        return None
    x, y = map(statistics.fmean, zip(*borders, strict=True))
    return {"x": x, "y": y}


def _setting(run: RunData, key: str, default: float) -> float:
    """A number from the run's settings; the default in runs that have none."""
    value = run.settings.get(key)
    return value if is_drawable(value) else default
