"""Sample episodes for the viewer, as many as a page may hold.

In: runs and a number. Out: records as `trajectories/*.jsonl` has them, chosen evenly
over runs and iterations, and how many there are in all. A record that the page cannot
show is left out and counted.
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_jax.report.runs import MAX_NUMBER, RunData, is_drawable
from ragen_jax.report.series import thin
from ragen_jax.rollout.record_fields import EPISODE, TURN, Field, wrong_field

# However many episodes are asked for, a page that browsers open at once.
MAX_CHARACTERS = 24_000_000
# What a browser draws without a pause, of one turn and of one episode.
MAX_CELLS = 10_000
MAX_TOKENS = 20_000
MAX_TURNS = 1_000

_FILE = re.compile(r"iteration_(\d{1,15})\.jsonl")


@dataclasses.dataclass(frozen=True)
class ChosenEpisodes:
    """Episodes for a page.

    Attributes:
      chosen: records with `run`, the number of their run, and `iteration` added.
      total: lines in all files of all runs.
      skipped: malformed records met while choosing, by what is wrong with them.
    """

    chosen: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    total: int = 0
    skipped: dict[str, int] = dataclasses.field(default_factory=dict)


def choose_episodes(runs: Sequence[RunData], max_episodes: int) -> ChosenEpisodes:
    """At most `max_episodes` episodes.

    Every run gets an equal share. Of a run, iterations are taken evenly, the first and
    the last among them, each with its first episodes.
    """
    files = [_files(run.folder) for run in runs]
    sizes = [{i: _count(path) for i, path in paths.items()} for paths in files]
    result = ChosenEpisodes(total=sum(sum(size.values()) for size in sizes))
    for number, (paths, size) in enumerate(zip(files, sizes, strict=True)):
        share = max_episodes // len(runs) + (number < max_episodes % len(runs))
        room = MAX_CHARACTERS / len(runs)
        iterations = thin(list(paths), _num_iterations(size, share))
        for rank, iteration in enumerate(iterations):
            # The rest of the share, evenly over the iterations not read yet.
            left = len(iterations) - rank
            count, space = -(-share // left), room / left
            records = _read_episodes(paths[iteration], count, result.skipped)
            share -= len(records)
            for record in records:
                size_of_record = len(json.dumps(record))
                if size_of_record > space:
                    break
                room, space = room - size_of_record, space - size_of_record
                result.chosen.append({"run": number, "iteration": iteration} | record)
    return result


def _read_episodes(
    path: pathlib.Path, count: int, skipped: dict[str, int]
) -> list[dict[str, Any]]:
    """The first `count` records of a file that the page can show."""
    text = path.read_bytes().decode("utf-8", errors="replace")
    records: list[dict[str, Any]] = []
    # Not splitlines: a reply may hold other line separators than "\n".
    for line in text.split("\n")[:-1]:
        if len(records) == count:
            break
        try:
            record = json.loads(line)
            problem = episode_problem(record)
        except (ValueError, RecursionError):
            problem = "not valid JSON"
        if problem:
            skipped[problem] = skipped.get(problem, 0) + 1
        else:
            records.append(_shown_fields(record))
    return records


def episode_problem(record: Any) -> str | None:
    """Why the page cannot show a record, None if it can."""
    if problem := wrong_field(record, EPISODE, filled=_EPISODE_NEEDS):
        return problem
    turns = record["turns"]
    if not 1 <= len(turns) <= MAX_TURNS:
        return f"not between 1 and {MAX_TURNS} turns"
    for turn in turns:
        if problem := wrong_field(turn, TURN, filled=_TURN_NEEDS):
            return problem.replace("not a JSON object", "a turn is not a JSON object")
        if problem := _wrong_tokens(turn) or _too_large(_known(turn, TURN)):
            return problem
    return _too_large(_known(record, EPISODE))


_EPISODE_NEEDS = (
    *("row", "success", "truncated", "return", "tokens", "sampled_tokens", "turns"),
)
_TURN_NEEDS = (
    *("observation", "reply", "actions", "reward", "penalty", "actions_left"),
    *("listed", "valid", "effective", "reply_tokens", "log_prob"),
    *("has_format", "is_cut"),
)


def _too_large(values: Mapping[str, Any]) -> str | None:
    for name, value in values.items():
        numbers = value if isinstance(value, list) else [value]
        if not all(is_drawable(x) for x in numbers if isinstance(x, float)):
            return f"{name} is beyond {MAX_NUMBER:g}"
    boards = [values[name] for name in ("board",) if name in values]
    boards += values.get("boards_after", [])
    if len(boards) > MAX_TURNS or any(len(b) * len(b[0]) > MAX_CELLS for b in boards):
        return f"more than {MAX_CELLS} cells, or {MAX_TURNS} boards of a turn"
    lists = (values.get(name, []) for name in ("actions", "token_texts"))
    if any(len(entries) > MAX_TOKENS for entries in lists):
        return f"more than {MAX_TOKENS} actions or tokens of a turn"
    return None


def _shown_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are declared; others may hold anything."""
    turns = [_known(turn, TURN) for turn in record["turns"]]
    return _known(record, EPISODE) | {"turns": turns}


def _known(values: Mapping[str, Any], fields: Mapping[str, Field]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k in fields and v is not None}


def _wrong_tokens(turn: Mapping[str, Any]) -> str | None:
    """Tokens are recorded with a log-probability each, or not at all."""
    texts, log_probs = (turn.get(f"token_{name}") for name in ("texts", "log_probs"))
    if (texts is None) != (log_probs is None):
        return "token_texts without token_log_probs, or the reverse"
    if texts is not None and len(texts) != len(log_probs):
        return "token_texts and token_log_probs are of unequal length"
    if None in (log_probs or ()):
        return "token_log_probs is not a list of finite numbers"
    return None


def _num_iterations(sizes: Mapping[int, int], share: int) -> int:
    """Iterations to take from: as few as fill the share, but two at least."""
    largest = max(sizes.values(), default=0)
    return min(share, max(-(-share // largest), 2)) if largest else 0


def _files(folder: pathlib.Path) -> dict[int, pathlib.Path]:
    """Episode files by iteration, oldest first."""
    paths = folder.glob("trajectories/*.jsonl")
    matches = ((_FILE.fullmatch(path.name), path) for path in paths)
    return dict(sorted((int(m.group(1)), path) for m, path in matches if m))


def _count(path: pathlib.Path) -> int:
    return path.read_bytes().count(b"\n")
