"""Scores side by side: one Markdown table and one JSON file that can be gone on with.

In: the scores of contests, one after the other. Out: files. What a JSON file holds is
not measured again by the same command, and never mixed with anything measured
otherwise. Knows no games and no models.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_jax.runs.writer import write_text_atomically

_INTERVALS = (
    "Success and pass@k: with 95 % intervals over prompts (Wilson; several samples of "
    "a prompt count for as many as their variance says, at least for one). Best "
    "possible: what exact best play expects on the same levels under the same limits. "
    "Regret: what is missing to it."
)


# Of best play: below it a game is out of the policy's reach, whatever it learned.
LOW_CEILING = 0.3


@dataclasses.dataclass(frozen=True)
class Score:
    """A row.

    Attributes:
      name: of the game.
      played: what exactly was played.
      note: for people.
      metrics: by name, as `ragen_jax.evaluate` has them.
      seconds: it took, compiling and solving included.
    """

    name: str
    played: dict[str, Any]
    note: str
    metrics: dict[str, float]
    seconds: float


class Scorecard:
    """Scores of one policy, in the order they came.

    Args:
      about: what all scores have in common: the policy, the settings. JSON-able.
      path: the JSON file; scores that it holds already are taken over. None: no file.

    Raises:
      ValueError: the file holds something else, or scores of something else.
    """

    def __init__(self, about: Mapping[str, Any], path: pathlib.Path | None):
        self._about, self._path = json.loads(json.dumps(about)), path
        self.scores: list[Score] = []
        if path is not None and path.exists():
            self.scores = self._read(path)

    def find(self, name: str, played: Mapping[str, Any]) -> Score | None:
        """The score of a game that has been measured already.

        Raises:
          ValueError: another game was measured under this name.
        """
        played = json.loads(json.dumps(played))
        for score in self.scores:
            if score.name == name:
                self._check_same(played, score.played, f"{name}: ")
                return score
        return None

    def add(self, score: Score) -> None:
        """Enter a score, in place of an older one; kept when this returns."""
        names = [held.name for held in self.scores]
        if score.name in names:
            self.scores[names.index(score.name)] = score
        else:
            self.scores.append(score)
        if self._path is not None:
            rows = [dataclasses.asdict(score) for score in self.scores]
            text = json.dumps({"about": self._about, "scores": rows}, indent=2)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomically(self._path, text + "\n")

    def markdown(self) -> str:
        """The table, with what one needs to read it."""
        settings = ", ".join(
            f"{name} {value}"
            for name, value in self._about["evaluation"].items()
            if name != "pass_at"
        )
        lines = [
            f"**{self._about['policy']}** ({settings}).",
            "",
            *table(self.scores),
            "",
            _INTERVALS,
        ]
        return "\n".join(lines) + "\n"

    def _read(self, path: pathlib.Path) -> list[Score]:
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            about, scores = held["about"], [Score(**row) for row in held["scores"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is no file of scores ({error}); name another --json"
            ) from error
        self._check_same(self._about, about, "")
        return scores

    def _check_same(self, here: Any, there: Any, place: str) -> None:
        changes = [
            f"{key}: {there.get(key)!r} there, {here.get(key)!r} here"
            for key in sorted(here.keys() | there.keys())
            if here.get(key) != there.get(key)
        ]
        if changes:
            raise ValueError(
                f"{self._path} holds scores of something else ({place}"
                f"{'; '.join(changes)}); name another --json, or remove it"
            )


def table(scores: Sequence[Score]) -> list[str]:
    """Lines of a Markdown table, one row per score."""
    ks = sorted(
        {
            int(name[len("pass@") : -len("_low")])
            for score in scores
            for name in score.metrics
            if name.startswith("pass@") and name.endswith("_low")
        }
    )
    names = ["game", "success", "best possible", "regret", *(f"pass@{k}" for k in ks)]
    lines = [_line([*names, "note"]), _line(["---"] * (len(names) + 1))]
    for score in scores:
        metrics = score.metrics
        cells = [
            score.name,
            interval(metrics, "success"),
            f"{metrics['ceiling']:.1%}",
            f"{metrics['regret']:.1%}",
            *(interval(metrics, f"pass@{k}") for k in ks),
            f"{score.note}{_limits(metrics['ceiling'])}",
        ]
        lines.append(_line(cells))
    return lines


def _limits(ceiling: float) -> str:
    """A warning where not even best play could show much."""
    if ceiling >= LOW_CEILING:
        return ""
    return (
        " **Says little: the policy's limits (`rollout.max_turns`, "
        "`max_actions_per_turn`, `max_actions_per_episode`) leave best play hardly any "
        "of these levels.**"
    )


def interval(metrics: Mapping[str, float], name: str) -> str:
    """A share and its interval."""
    low, high = metrics[f"{name}_low"], metrics[f"{name}_high"]
    return f"{metrics[name]:.1%} ({low:.1%} to {high:.1%})"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
