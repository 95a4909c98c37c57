"""A leaderboard: files of scores, one row each, if they are of the same measurement.

In: JSON files of `launch.evaluate --json`. Out: a `Board`, and its page in Markdown
(`launch.leaderboard_page` has the one in HTML). The same files give the same bytes.

Must be equal in all files: what is asked, and how often. That is the suite, the number
of prompts and samples, the seed, and per entry the game, its arguments, the part of its
levels, and the limits on turns and actions (`played`). Belongs to the policy, is shown
and may differ: how it is asked and how it answers. That is the wording of prompts, the
context, the temperature and the length of replies.

The mean of a row is over its entries, each with the same weight. Its interval is over
prompts, like all others: prompt `i` of all entries together is one observation (entries
of one game share its level `i`), the mean of its successes over the entries.
"""

import collections
import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ragen_jax.evaluation.results import Score, best_possible, interval, read_scores
from ragen_jax.evaluation.statistics import prompt_interval
from ragen_jax.runs.markdown import escape, table

# Of `about["evaluation"]`.
MEASUREMENT = ("num_prompts", "num_samples", "seed")
# Of `played`: a reply may be as long as the policy's own limit.
OWN = "max_reply_tokens"
UNKNOWN = "unknown"
# Between numbers that are equal but for the order of a sum.
ROUNDING = 1e-6
_SHARES = ("success", "success_low", "success_high", "ceiling")
# A difference of two shares: chance may win more often than best play expects to.
_REGRET = "regret"
_RESTORE = "restore the file as launch.evaluate wrote it"


@dataclasses.dataclass(frozen=True)
class Row:
    """A file of scores.

    Attributes:
      path: of the file, whose name is that of the row.
      about: policy and settings.
      scores: by entry.
    """

    path: pathlib.Path
    about: Mapping[str, Any]
    scores: Mapping[str, Score]

    @property
    def name(self) -> str:
        """Name in the table."""
        return self.path.stem

    @property
    def is_reference(self) -> bool:
        """A player that reads no text, and may lack games that it cannot play."""
        return "player" in self.about

    @property
    def measured(self) -> dict[tuple[str, str], Any]:
        """What must be equal in all files, by entry ("" for all of them) and name."""
        evaluation = self.about["evaluation"]
        settings = {("", "suite"): self.about.get("suite")}
        settings |= {("", f"evaluation.{n}"): evaluation[n] for n in MEASUREMENT}
        for entry, score in self.scores.items():
            settings |= {(entry, k): x for k, x in score.played.items() if k != OWN}
        return settings

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What belongs to the policy, and what made the scores: name and text."""
        about, facts = self.about, [("policy", self.about["policy"])]
        if not self.is_reference:
            temperature = about["evaluation"].get("temperature", UNKNOWN)
            greedy = "greedy" if temperature == 0 else f"sampled at {temperature}"
            lengths = sorted({s.played.get(OWN, 0) for s in self.scores.values()})
            longest = " to ".join(map(str, dict.fromkeys((lengths[0], lengths[-1]))))
            context, *turns = about["context"]
            last = f", the last {turns[0]} turns" if turns and turns[0] else ""
            facts += [
                ("replies", f"{greedy}, up to {longest} tokens"),
                ("prompt", ", ".join(f"{k} {v}" for k, v in about["prompt"].items())),
                ("context", f"{context}{last}"),
                ("weights", str(about.get("weights", UNKNOWN))),
            ]
        if about.get("extra_body"):
            facts.append(("request", str(about["extra_body"])))
        versions = [
            ", ".join(f"{name} {x}" for name, x in one.items() if name != "command")
            for one in self._made
        ]
        return [*facts, ("versions", "; ".join(dict.fromkeys(versions)) or UNKNOWN)]

    @property
    def commands(self) -> list[str]:
        """The commands that made the scores, each once; empty where unknown."""
        words = [str(one["command"]) for one in self._made if "command" in one]
        return list(dict.fromkeys(words))

    @property
    def _made(self) -> list[dict[str, str]]:
        return [s.made for s in self.scores.values() if s.made is not None]

    @property
    def identity(self) -> str:
        """Equal for equal policies under equal settings."""
        names = ("weights", "player", "policy")
        who = next(self.about[name] for name in names if name in self.about)
        about = {k: v for k, v in self.about.items() if k not in (*names, "evaluation")}
        temperature = self.about["evaluation"].get("temperature")
        lengths = {name: score.played.get(OWN) for name, score in self.scores.items()}
        return json.dumps([who, about, temperature, lengths], sort_keys=True)


class Mean(NamedTuple):
    """Mean success over the entries of a row; no interval where prompts are unknown."""

    success: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.low is None:
            return f"{self.success:.1%} (interval {UNKNOWN})"
        return f"{self.success:.1%} ({self.low:.1%} to {self.high:.1%})"


@dataclasses.dataclass(frozen=True)
class Board:
    """Rows in order, policies before reference players, the best first.

    Attributes:
      rows, means: one mean per row.
      entries: names of all entries, in the order of the suite.
    """

    rows: Sequence[Row]
    means: Sequence[Mean]
    entries: Sequence[str]

    def places(self) -> Iterator[tuple[int | None, Row, Mean]]:
        """Rank, row and mean; reference players have no rank."""
        for i, (row, mean) in enumerate(zip(self.rows, self.means, strict=True), 1):
            yield (None if row.is_reference else i), row, mean

    def best(self, entry: str) -> str:
        """Best possible success of an entry, as text."""
        known = (row.scores[entry].metrics for row in self.rows if entry in row.scores)
        return best_possible(next(known))


def read_board(paths: Sequence[pathlib.Path]) -> Board:
    """The leaderboard of some files, or of all `*.json` in folders.

    Raises:
      ValueError: no file was named, or one is not a file of scores, was played under
        other settings, lacks an entry, or is there twice.
    """
    rows = [_read_row(path) for path in _files(paths)]
    _check_different(rows, "name", "have the same name; rename one of them")
    _check_measurement(rows)
    same = "are of the same policy under the same settings; leave one of them out"
    _check_different(rows, "identity", same)
    # In the order of the row that has most, then what other rows have besides.
    fullest = max((row.scores for row in rows), key=len)
    entries = list(
        dict.fromkeys(itertools.chain(fullest, *(row.scores for row in rows)))
    )
    for row in rows:
        missing = [name for name in entries if name not in row.scores]
        if missing and not row.is_reference:
            raise ValueError(
                f"{row.path} lacks {', '.join(missing)}, which other files have; run "
                "its command again, which plays what is missing and says what this "
                "machine lacks for it"
            )
    means = {row.name: mean_success(row) for row in rows}
    rows = sorted(rows, key=lambda r: (r.is_reference, -means[r.name].success, r.name))
    return Board(rows, [means[row.name] for row in rows], entries)


def mean_success(row: Row) -> Mean:
    """Mean success over entries, and its interval over prompts (see the module)."""
    success = float(np.mean([s.metrics["success"] for s in row.scores.values()]))
    shares = [_shares(row, score) for score in row.scores.values()]
    if any(share is None for share in shares):
        return Mean(success, None, None)
    trials = len(shares) * row.about["evaluation"]["num_samples"]
    return Mean(success, *prompt_interval(np.mean(shares, axis=0), trials))


def _shares(row: Row, score: Score) -> Float[np.ndarray, " P"] | None:
    """Share of won samples of each prompt; None where they were not recorded.

    Raises:
      ValueError: they are not those of the score.
    """
    if score.wins is None:
        return None
    num_prompts, most = (row.about["evaluation"][name] for name in MEASUREMENT[:2])
    words, success = score.wins.split(), score.metrics["success"]
    # Without long words, of which `int` refuses some and takes long for others.
    is_count = all(w.isdecimal() and len(w) <= len(str(most)) for w in words)
    if is_count and len(words) == num_prompts:
        shares = np.array([int(word) for word in words]) / most
        if shares.max() <= 1 and np.isclose(shares.mean(), success, 0, ROUNDING):
            return shares
    raise ValueError(
        f"{row.path}: the wins of {score.name} are not those of {num_prompts} prompts "
        f"with a mean of {success:g}; {_RESTORE}"
    )


def _files(paths: Sequence[pathlib.Path]) -> list[pathlib.Path]:
    files: set[pathlib.Path] = set()
    for path in paths:
        matches = [path] if path.is_file() else list(path.glob("*.json"))
        if not matches:
            reason = "holds no *.json" if path.is_dir() else "does not exist"
            raise ValueError(
                f"{path} {reason}; name files of launch.evaluate --json, or a folder "
                "of them"
            )
        files.update(matches)
    return sorted(files)


def _read_row(path: pathlib.Path) -> Row:
    about, scores = read_scores(path, "leave it out")
    kinds = {"policy": str, "evaluation": dict}
    if "player" not in about:
        kinds |= {"prompt": dict, "context": list}
    for name, kind in kinds.items():
        if not isinstance(about.get(name), kind) or not about[name]:
            raise ValueError(
                f"{path} is not a file of launch.evaluate --json: its {name} is "
                f"{about.get(name)!r}; leave it out"
            )
    numbers = [about["evaluation"].get(name) for name in MEASUREMENT]
    if not scores or not all(type(x) is int for x in numbers) or min(numbers[:2]) < 1:
        raise ValueError(
            f"{path} has no scores, or lacks one of {', '.join(MEASUREMENT)}; let "
            "launch.evaluate write it again"
        )
    for score in scores:
        shares = {name: score.metrics.get(name, 0) for name in _SHARES}
        wrong = [n for n, x in shares.items() if not -ROUNDING <= x <= 1 + ROUNDING]
        success, low, high = (shares[name] for name in _SHARES[:3])
        shares[_REGRET] = score.metrics.get(_REGRET, 0)
        if not abs(shares[_REGRET]) <= 1 + ROUNDING:
            wrong.append(_REGRET)
        if not wrong and not low - ROUNDING <= success <= high + ROUNDING:
            wrong.append("success")
        if type(score.played.get(OWN, 0)) is not int:
            wrong.append(OWN)
        if wrong:
            value = (shares | score.played)[wrong[0]]
            raise ValueError(
                f"{path}: {wrong[0]} of {score.name} is {value!r}: not a share, not "
                f"a whole number, or outside its interval; {_RESTORE}"
            )
    by_name = {score.name: score for score in scores}
    if len(by_name) < len(scores):
        raise ValueError(
            f"{path} has an entry twice; let launch.evaluate write the file again"
        )
    return Row(path, about, by_name)


def _check_different(rows: Sequence[Row], kind: str, problem: str) -> None:
    seen: dict[str, Row] = {}
    for row in rows:
        other = seen.setdefault(getattr(row, kind), row)
        if other is not row:
            raise ValueError(f"{other.path} and {row.path} {problem}")


def _check_measurement(rows: Sequence[Row]) -> None:
    """Refuse rows that were played under other settings than most."""
    texts = {
        row.path: {key: json.dumps(value) for key, value in row.measured.items()}
        for row in rows
    }
    for entry, name in dict.fromkeys(itertools.chain(*texts.values())):
        # An entry that a file lacks is another matter.
        values = {
            row.path: texts[row.path].get((entry, name), "nothing")
            for row in rows
            if not entry or entry in row.scores
        }
        usual = collections.Counter(values.values()).most_common(1)[0][0]
        for path, value in values.items():
            if value != usual:
                place = f"{entry}: {name}" if entry else name
                raise ValueError(
                    f"{path} was played with {place} = {value}, other files with "
                    f"{usual}; a table has one measurement: play it under the same "
                    "settings, or leave the file out"
                )


def markdown(board: Board) -> str:
    """The board as a page of Markdown."""
    heads = ("rank", "policy", "mean success", "entries", "versions")
    ranks = [
        (
            "–" if rank is None else rank,
            escape(row.name),
            escape(str(mean)),
            f"{len(row.scores)} of {len(board.entries)}",
            escape(dict(row.facts)["versions"]),
        )
        for rank, row, mean in board.places()
    ]
    scores = [
        (
            escape(entry),
            escape(board.best(entry)),
            *(
                escape(interval(row.scores[entry].metrics, "success"))
                if entry in row.scores
                else "n/a"
                for row in board.rows
            ),
        )
        for entry in board.entries
    ]
    names = [escape(row.name) for row in board.rows]
    lines = [
        "# Leaderboard",
        "",
        f"{escape(describe(board))} Made by `python -m launch.leaderboard`.",
        "",
        table(heads, ranks),
        "",
        table(("entry", "best possible", *names), scores),
    ]
    for row in board.rows:
        lines += ["", f"## {escape(row.name)}", ""]
        lines += [f"* {name}: {escape(text)}" for name, text in row.facts]
        lines += ["", *(f"    {part}" for part in "\n".join(row.commands).split("\n"))]
        if not row.commands:
            lines[-1] = f"Command: {UNKNOWN}."
    return "\n".join(lines) + "\n"


def describe(board: Board) -> str:
    """What the numbers mean, in sentences."""
    about = board.rows[0].about
    suite = about.get("suite")
    what = "tasks of a configuration" if suite is None else f"suite {suite}"
    num_prompts, num_samples, seed = (about["evaluation"][n] for n in MEASUREMENT)
    return (
        f"Entries of the {what}: {num_prompts} held-out prompts each, {num_samples} "
        f"episode{'s' * (num_samples > 1)} of a prompt, seed {seed}. Shares of "
        "episodes that succeed, with 95 % intervals over prompts. The mean gives every "
        "entry the same weight; its interval takes prompt i of all entries for one "
        "observation. Levels and limits are the same in all rows; wording, context "
        "and temperature are the policy's own. (ref.) marks a strong player where best "
        "play cannot be computed. Reference players have no rank; their mean is over "
        "what they can play."
    )
