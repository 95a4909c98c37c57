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

from ragen_jax.report.runs import RunData, is_drawable
from ragen_jax.report.series import thin
from ragen_jax.runs.reader import is_board

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
    room = MAX_CHARACTERS
    for number, (paths, size) in enumerate(zip(files, sizes, strict=True)):
        share = max_episodes // len(runs) + (number < max_episodes % len(runs))
        iterations = thin(list(paths), _num_iterations(size, share))
        for rank, iteration in enumerate(iterations):
            # The rest of the share, evenly over the iterations not read yet.
            count = -(-share // (len(iterations) - rank))
            records = _read_episodes(paths[iteration], count, result.skipped)
            share -= len(records)
            for record in records:
                room -= len(json.dumps(record))
                if room < 0:
                    return result
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
    if not isinstance(record, dict):
        return "not a JSON object"
    if problem := _wrong_field(record, _EPISODE_FIELDS):
        return problem
    turns = record["turns"]
    if not 1 <= len(turns) <= MAX_TURNS:
        return f"not between 1 and {MAX_TURNS} turns"
    for turn in turns:
        if not isinstance(turn, dict):
            return "a turn is not a JSON object"
        problem = _wrong_field(turn, _TURN_FIELDS)
        if problem := problem or _wrong_tokens(turn):
            return problem
    return None


def _wrong_field(record: Mapping[str, Any], fields: Mapping[str, tuple]) -> str | None:
    for name, (is_required, what, is_right) in fields.items():
        value = record.get(name)
        if value is None and is_required:
            return f"{name} is missing or null"
        if value is not None and not is_right(value):
            return f"{name} is not {what}"
    return None


def _shown_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the page reads; others may hold anything."""
    turns = [_known(turn, _TURN_FIELDS) for turn in record["turns"]]
    return _known(record, _EPISODE_FIELDS) | {"turns": turns}


def _known(record: Mapping[str, Any], fields: Mapping[str, tuple]) -> dict[str, Any]:
    return {k: v for k, v in record.items() if k in fields and v is not None}


def _wrong_tokens(turn: Mapping[str, Any]) -> str | None:
    """Tokens are recorded with a log-probability each, or not at all."""
    texts, log_probs = (turn.get(f"token_{name}") for name in ("texts", "log_probs"))
    if (texts is None) != (log_probs is None):
        return "token_texts without token_log_probs, or the reverse"
    if texts is not None and len(texts) != len(log_probs):
        return "token_texts and token_log_probs are of unequal length"
    return None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return type(value) is int and is_drawable(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_board(value: Any) -> bool:
    return is_board(value) and len(value) * len(value[0]) <= MAX_CELLS


def _are_boards(value: Any) -> bool:
    return _is_list(value) and len(value) <= MAX_TURNS and all(map(_is_board, value))


def _is_legend(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _are_texts(value: Any) -> bool:
    return _is_list(value) and len(value) <= MAX_TOKENS and all(map(_is_text, value))


def _are_numbers(value: Any) -> bool:
    return _is_list(value) and len(value) <= MAX_TOKENS and all(map(is_drawable, value))


_TEXT = ("a text", _is_text)
_NUMBER = ("a finite number", is_drawable)
_FLAG = ("true or false", _is_flag)
# Field of a record -> (it must be there, what it is, test). Those that need not be
# there are missing in runs of earlier versions, or of games without a board.
_EPISODE_FIELDS = {
    "row": (True, *_NUMBER),
    "success": (True, *_FLAG),
    "truncated": (True, *_FLAG),
    "return": (True, *_NUMBER),
    "tokens": (True, *_NUMBER),
    "sampled_tokens": (True, *_NUMBER),
    "turns": (True, "a list", _is_list),
    "environment": (False, *_TEXT),
    "legend": (False, "an object of texts", _is_legend),
    # Of training's episodes: what the update made of them.
    "group": (False, "a whole number", _is_whole),
    "kept": (False, *_FLAG),
}
_TURN_FIELDS = {
    **dict.fromkeys(("observation", "reply"), (True, *_TEXT)),
    **dict.fromkeys(
        ("reward", "penalty", "actions_left", "listed", "valid", "effective"),
        (True, *_NUMBER),
    ),
    **dict.fromkeys(("reply_tokens", "log_prob"), (True, *_NUMBER)),
    **dict.fromkeys(("has_format", "is_cut"), (True, *_FLAG)),
    "actions": (True, f"a list of at most {MAX_TOKENS} numbers", _are_numbers),
    "bonus": (False, *_NUMBER),
    "advantage": (False, *_NUMBER),
    "window": (False, *_TEXT),
    "board": (False, f"rows of equal length with at most {MAX_CELLS} cells", _is_board),
    "boards_after": (False, f"at most {MAX_TURNS} boards", _are_boards),
    "token_texts": (False, f"a list of at most {MAX_TOKENS} texts", _are_texts),
    "token_log_probs": (False, f"a list of at most {MAX_TOKENS} numbers", _are_numbers),
}


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
