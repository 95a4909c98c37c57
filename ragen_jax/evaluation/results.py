"""Scores side by side: a Markdown table, and a JSON file that a later run resumes.

In: the scores of evaluations, one after the other. Out: files. The same command does
not repeat a measurement of its JSON file, and another command cannot add to it. Knows
no environments and no models.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from ragen_jax import terminal
from ragen_jax.runs import markdown
from ragen_jax.runs.writer import write_text_atomically

_INTERVALS = (
    "Success and pass@k: with 95 % intervals over prompts (Wilson; several samples of "
    "a prompt count for as many as their variance says, at least for one). Best "
    "possible: what exact best play expects on the same levels under the same limits; "
    "where (ref.) stands behind it, what a strong player reaches, since best play "
    "cannot be computed. Regret: best possible minus success."
)


# Below this success of best play an environment is out of reach of any policy.
LOW_CEILING = 0.3
_TABLE_METRICS = ("success", "success_low", "success_high")


class EvalResult(NamedTuple):
    """Result of playing an entry. Axis `P`: prompts.

    Attributes:
      metrics: without their prefix.
      wins: successful samples of each prompt.
      records: makes the records of the episodes.
    """

    metrics: dict[str, float]
    wins: Int[np.ndarray, " P"]
    records: Callable[[], list]


@dataclasses.dataclass(frozen=True)
class Score:
    """A row of the table.

    Attributes:
      name: of the evaluation task.
      played: everything the score depends on, see `EvalTask.settings`.
      note: description.
      metrics: by name, as `ragen_jax.evaluation.evaluate` has them.
      seconds: duration, compiling and solving included.
      wins: successful samples of each prompt, in order, with blanks between them; None
        in files of earlier versions, like `made`.
      made: command, versions and device. A file is continued under other ones.
    """

    name: str
    played: dict[str, Any]
    note: str
    metrics: dict[str, float]
    seconds: float
    wins: str | None = None
    made: dict[str, str] | None = None


class Results:
    """Scores of one policy, in the order of their arrival.

    Args:
      about: policy and settings of all scores, JSON-able.
      path: the JSON file, read if it exists; None: no file.
      made: of the scores that are added.

    Raises:
      ValueError: the file is not one of scores, or of another policy or setting.
    """

    def __init__(
        self,
        about: Mapping[str, Any],
        path: pathlib.Path | None,
        made: dict[str, str] | None = None,
    ):
        self._about, self._path = json.loads(json.dumps(about)), path
        self._made = made
        self.scores: list[Score] = []
        if path is not None and path.exists():
            there, self.scores = read_scores(path, "name another --json")
            self._check_same(self._about, there, "")

    def find(self, name: str, played: Mapping[str, Any]) -> Score | None:
        """The score of an evaluation task; None if it has not been measured.

        Raises:
          ValueError: the score of this name was measured on something else.
        """
        played = json.loads(json.dumps(played))
        for score in self.scores:
            if score.name == name:
                self._check_same(played, score.played, f"{name}: ")
                return score
        return None

    def add(self, score: Score) -> None:
        """Add a score or replace an older one; on disk when this returns."""
        score = dataclasses.replace(score, made=self._made)
        names = [known.name for known in self.scores]
        if score.name in names:
            self.scores[names.index(score.name)] = score
        else:
            self.scores.append(score)
        if self._path is not None:
            rows = [dataclasses.asdict(score) for score in self.scores]
            text = json.dumps({"about": self._about, "scores": rows}, indent=2)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomically(self._path, text + "\n")

    def plain(self, width: float) -> str:
        """`markdown` for a terminal of so many columns, without its marks."""
        draw = functools.partial(terminal.table, width=width)
        return self.markdown(draw).replace("**", "").replace("`", "")

    def markdown(self, draw: Callable[..., str] = markdown.table) -> str:
        """The table, with a heading and an explanation of its columns."""
        settings = ", ".join(
            f"{name} {value}"
            for name, value in self._about["evaluation"].items()
            if name != "pass_at"
        )
        lines = [
            f"**{self._about['policy']}** ({settings}).",
            "",
            score_table(self.scores, draw),
            "",
            _INTERVALS,
        ]
        return "\n".join(lines) + "\n"

    def _check_same(self, here: Any, there: Any, place: str) -> None:
        if changes := differences(there, here):
            raise ValueError(
                f"{self._path} holds scores under other settings ({place}{changes}); "
                "name another --json, or remove the file"
            )


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """How the settings of a file differ from those of this run; "" if they do not."""
    return "; ".join(
        f"{key}: {there.get(key)!r} there, {here.get(key)!r} here"
        for key in sorted(here.keys() | there.keys())
        if here.get(key) != there.get(key)
    )


def read_scores(path: pathlib.Path, cure: str) -> tuple[dict[str, Any], list[Score]]:
    """The contents of a file of scores: what they are of, and the scores.

    Args:
      path: the file.
      cure: what to do about another kind of file.

    Raises:
      ValueError: the file is of another kind.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        scores = [_read_score(row) for row in content["scores"]]
        return dict(content["about"]), scores
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not a file of scores ({error}); {cure}") from error


def _read_score(row: Mapping[str, Any]) -> Score:
    """A score of a file.

    Raises:
      ValueError: a field has another type, or a metric of the table is missing.
      TypeError: there are other fields.
    """
    score = Score(**row)
    unknown = type(None)
    types = (str, dict, str, dict, float, str | unknown, dict | unknown)
    for (name, value), kind in zip(vars(score).items(), types, strict=True):
        if not isinstance(value, kind):
            raise ValueError(f"{name} of a score is {value!r}, of another type")
    metrics = score.metrics
    missing = [name for name in _TABLE_METRICS if name not in metrics]
    wrong = [name for name, x in metrics.items() if not isinstance(x, int | float)]
    if missing or wrong:
        raise ValueError(f"no number for {', '.join(missing + wrong)}")
    return score


def score_table(
    scores: Sequence[Score], draw: Callable[..., str] = markdown.table
) -> str:
    """A table, one row per score; `draw` makes it from its head and rows."""
    ks = sorted(
        {
            int(name[len("pass@") : -len("_low")])
            for score in scores
            for name in score.metrics
            if name.startswith("pass@") and name.endswith("_low")
        }
    )
    names = ["game", "success", "best possible", "regret", *(f"pass@{k}" for k in ks)]
    rows = [
        (
            score.name,
            interval(metrics := score.metrics, "success"),
            best_possible(metrics),
            f"{metrics['regret']:.1%}" if "regret" in metrics else "unknown",
            *(interval(metrics, f"pass@{k}") for k in ks),
            f"{score.note}{_limits(metrics)}",
        )
        for score in scores
    ]
    return draw([*names, "note"], rows)


def _limits(metrics: Mapping[str, float]) -> str:
    """A warning if even best play solves few levels within the limits."""
    if metrics.get("ceiling", 1) >= LOW_CEILING:
        return ""
    return (
        " **Not informative: within these limits (`rollout.max_turns`, "
        "`max_actions_per_turn`, `max_actions_per_episode`) even optimal play solves "
        f"under {LOW_CEILING:.0%} of the levels.**"
    )


def best_possible(metrics: Mapping[str, float]) -> str:
    """Success of best play, or of the reference player, as text."""
    if "ceiling" not in metrics:
        return "unknown"
    mark = "" if metrics.get("exact", 1) else " (ref.)"
    return f"{metrics['ceiling']:.1%}{mark}"


def interval(metrics: Mapping[str, float], name: str) -> str:
    """A share and its confidence interval, as text."""
    low, high = metrics[f"{name}_low"], metrics[f"{name}_high"]
    return f"{metrics[name]:.1%} ({low:.1%} to {high:.1%})"
