"""The journal of an evaluation over an API: episodes, their settings, their totals.

In: finished episodes. Out: a JSONL file that an interrupted evaluation resumes from,
and the metrics, token counts and costs of what it holds.
"""

import collections
import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragen_jax.rollout.host import ChatReply

Place = tuple[str, int]  # a game's name and a row
# Of every line in both files.
_BEGINNING = b'{"environment": '


class Journal:
    """The two files of an evaluation. Use it as a context manager.

    Args:
      path: `OUTPUT`.

    Raises:
      ValueError: another process writes them, or they hold something else.
    """

    def __init__(self, path: pathlib.Path):
        self._path = path
        self._replies_path = path.with_name(f"{path.name}.replies")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.finished: dict[Place, dict[str, Any]] = {}
        self._replies: dict[Place, list[ChatReply]] = collections.defaultdict(list)
        self._settings: dict[str, Any] = {}
        with contextlib.ExitStack() as opened:
            self._output = opened.enter_context(self._open(path))
            self._journal = opened.enter_context(self._open(self._replies_path))
            self._read()
            # All went well: they stay open.
            self._files = opened.pop_all()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_) -> None:
        self._files.close()

    def begin(self, game: str, settings: Mapping[str, Any]) -> None:
        """Say how a game is played from here on.

        Raises:
          ValueError: what is there of it was played in another way.
        """
        settings = json.loads(json.dumps(settings))
        held = self._settings.get(game)
        # What nothing was played under binds nobody: a misspelt model, a server down.
        if held is None or (held != settings and not self._has_any(game)):
            self._settings[game] = settings
            self._write(self._journal, {"environment": game, "settings": settings})
            return
        changes = [
            f"{key}: {held.get(key)!r} there, {settings.get(key)!r} here"
            for key in sorted(held.keys() | settings.keys())
            if held.get(key) != settings.get(key)
        ]
        if changes:
            raise ValueError(
                f"{self._path} holds conversations of {game} under other settings "
                f"({'; '.join(changes)}); name another --output"
            )

    def _has_any(self, game: str) -> bool:
        """A conversation or a reply of the game is there."""
        replied = (place for place, replies in self._replies.items() if replies)
        return any(place[0] == game for place in (*self.finished, *replied))

    def replies(self, place: Place) -> list[ChatReply]:
        """Replies of an unfinished conversation, by turn."""
        return self._replies[place]

    def add_reply(self, place: Place, reply: ChatReply) -> None:
        """Keep a reply; it is on disk when this returns."""
        self._replies[place].append(reply)
        told = {"environment": place[0], "row": place[1]} | dataclasses.asdict(reply)
        self._write(self._journal, told)

    def add_conversation(self, place: Place, record: dict[str, Any]) -> None:
        """Keep a finished conversation."""
        self.finished[place] = record
        self._write(self._output, record)

    def tidy(self) -> None:
        """All is done: conversations in order, and no replies beside them."""
        ordered = sorted(
            self.finished, key=lambda p: (list(self._settings).index(p[0]), p[1])
        )
        text = "".join(_line(self.finished[place]) for place in ordered)
        # In place of a new file: the lock is on this one. What is cut short by a kill
        # is in the journal still, which goes last.
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self._path)
        self._replies_path.unlink()

    @staticmethod
    def _open(path: pathlib.Path):
        """A file to be read and added to, locked."""
        file = path.open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise ValueError(
                f"another process is writing {path}; wait for it or name another "
                "--output"
            ) from None
        return file

    def _read(self) -> None:
        told = _whole_lines(self._output, self._path)
        replies = _whole_lines(self._journal, self._replies_path)
        for record in told:
            place = (record["environment"], record["row"])
            self._settings.setdefault(place[0], record["settings"])
            self.finished[place] = record
        for reply in replies:
            game = reply.pop("environment")
            if "settings" in reply:
                # The last of several: what was played came after it.
                if not any(place[0] == game for place in self.finished):
                    self._settings[game] = reply["settings"]
            else:
                self._replies[game, reply.pop("row")].append(ChatReply(**reply))

    @staticmethod
    def _write(file, told: Mapping[str, Any]) -> None:
        file.write(_line(told).encode())
        file.flush()
        os.fsync(file.fileno())


def _whole_lines(file, path: pathlib.Path) -> list[dict[str, Any]]:
    """The lines of a file; a torn last one is cut off.

    Raises:
      ValueError: it is no file of ours, and is left as it is.
    """
    file.seek(0)
    *lines, torn = file.read().split(b"\n")
    found = []
    for number, line in enumerate(lines, 1):
        try:
            told = json.loads(line)
            is_ours = "environment" in told and ("settings" in told or "text" in told)
        except (ValueError, TypeError):
            is_ours = False
        if not is_ours:
            raise _not_ours(path, number)
        found.append(told)
    if torn and not (torn.startswith(_BEGINNING) or _BEGINNING.startswith(torn)):
        raise _not_ours(path, len(lines) + 1)
    if torn:
        file.truncate(file.tell() - len(torn))
    return found


def _not_ours(path: pathlib.Path, number: int) -> ValueError:
    return ValueError(
        f"line {number} of {path} is no conversation with an endpoint; name another "
        "--output"
    )


def _line(told: Mapping[str, Any]) -> str:
    return json.dumps(told, ensure_ascii=False, allow_nan=False) + "\n"


Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Prices:
    """Per million tokens, in any currency; None: not known (cached: as the input).

    Attributes:
      input, output: tokens read and tokens written.
      cached_input: tokens read from the endpoint's cache.
    """

    input: float | None
    output: float | None
    cached_input: float | None

    def cost(self, tokens: Record) -> float | None:
        """Of `prompt_tokens`, `cached_tokens` and `sampled_tokens`; None: not known."""
        read, written = tokens["prompt_tokens"], tokens["sampled_tokens"]
        if None in (self.input, self.output, read, written):
            return None
        cached = tokens["cached_tokens"] or 0
        cached_price = self.input if self.cached_input is None else self.cached_input
        total = (read - cached) * self.input + cached * cached_price
        return (total + written * self.output) / 1e6


def play_metrics(records: Sequence[Record]) -> dict[str, float]:
    """How the conversations went; 0 where there is nothing to divide by."""
    turns = [turn for record in records for turn in record["turns"]]

    def mean(rows: Sequence[Record], value: Callable[[Record], float]) -> float:
        return sum(value(row) for row in rows) / max(len(rows), 1)

    def total(value: Callable[[Record], float]) -> float:
        return sum(value(turn) for turn in turns)

    executed = total(lambda turn: len(turn["actions"]))
    metrics = {
        "success": mean(records, lambda record: record["success"]),
        "episodic_return": mean(records, lambda record: record["return"]),
        "format_penalty": mean(records, lambda record: record["penalty"]),
        "bonus": mean(records, lambda record: record["bonus"]),
        "num_turns": len(turns) / max(len(records), 1),
        "num_actions": executed / max(len(records), 1),
        "action_is_effective": total(lambda t: t["effective"]) / max(executed, 1),
        "action_is_valid": mean(turns, lambda turn: turn["valid"] > 0),
        "format": mean(turns, lambda turn: turn["has_format"]),
        "reply_is_cut": mean(turns, lambda turn: turn["is_cut"]),
        "is_truncated": mean(records, lambda record: record["truncated"]),
        "pass@1": mean(records, lambda record: record["success"]),
    }
    if all(turn["reply_tokens"] is not None for turn in turns):
        written = total(lambda turn: turn["reply_tokens"])
        metrics["response_length"] = written / max(len(records), 1)
        metrics["reply_length"] = written / max(len(turns), 1)
    return metrics


def token_metrics(records: Sequence[Record], prices: Prices) -> dict[str, float]:
    """Tokens in all and their cost; what the endpoint does not report is left out."""
    totals = {
        name: sum(record[name] for record in records)
        for name in ("prompt_tokens", "cached_tokens", "sampled_tokens")
        if all(record[name] is not None for record in records)
    }
    costs = [prices.cost(record) for record in records]
    if None not in costs:
        totals["cost"] = sum(costs)
    return {f"tokens/{k}" if k != "cost" else k: float(v) for k, v in totals.items()}
