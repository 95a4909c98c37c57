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
from typing import Any, BinaryIO

from ragen_jax.evaluation.results import differences
from ragen_jax.rollout.host.text import ChatReply
from ragen_jax.rollout.record_fields import EPISODE, TURN, wrong_field
from ragen_jax.runs.writer import write_text_atomically

Place = tuple[str, int]  # name of a task, and a row
# Beginning of every line in both files.
_BEGINNING = b'{"environment": '


class Journal:
    """Finished conversations and replies on disk; a context manager.

    Args:
      path: of the conversations; the replies are in `<path>.replies`.

    Raises:
      ValueError: another process writes the files, or a line cannot be read.
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
            # No error: the files stay open.
            self._files = opened.pop_all()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_) -> None:
        self._files.close()

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        """Record the settings of a task's conversations from here on.

        Raises:
          ValueError: the task has conversations under other settings.
        """
        settings = json.loads(json.dumps(settings))
        known = self._settings.get(name)
        # Settings may still change while no episode has been recorded under them (e.g.
        # after a misspelled model name).
        if known is None or (known != settings and not self._has_any(name)):
            self._settings[name] = settings
            self._write(self._journal, {"environment": name, "settings": settings})
            return
        if changes := differences(known, settings):
            raise ValueError(
                f"{self._path} holds conversations of {name} under other settings "
                f"({changes}); name another --output"
            )

    def _has_any(self, name: str) -> bool:
        replied = (place for place, replies in self._replies.items() if replies)
        return any(place[0] == name for place in (*self.finished, *replied))

    def replies(self, place: Place) -> list[ChatReply]:
        """Replies of an unfinished conversation, by turn."""
        return self._replies[place]

    def add_reply(self, place: Place, reply: ChatReply) -> None:
        """Add a reply; on disk when this returns."""
        self._replies[place].append(reply)
        line = {"environment": place[0], "row": place[1]} | dataclasses.asdict(reply)
        self._write(self._journal, line)

    def add_conversation(self, place: Place, record: dict[str, Any]) -> None:
        """Add a finished conversation; on disk when this returns."""
        self.finished[place] = record
        self._write(self._output, record)

    def tidy(self) -> None:
        """After the last conversation: put them in order, and remove their replies.

        Replies of others stay, such as of rows that only a larger evaluation has.
        """
        ordered = sorted(
            self.finished, key=lambda p: (list(self._settings).index(p[0]), p[1])
        )
        text = "".join(_line(self.finished[place]) for place in ordered)
        # The replies go last: after a kill in between they restore every conversation.
        write_text_atomically(self._path, text)
        begun = {p: x for p, x in self._replies.items() if x and p not in self.finished}
        if not begun:
            self._replies_path.unlink()
            return
        names = dict.fromkeys(name for name, _ in begun)
        lines = [{"environment": n, "settings": self._settings[n]} for n in names]
        lines += [
            {"environment": name, "row": row} | dataclasses.asdict(reply)
            for (name, row), replies in begun.items()
            for reply in replies
        ]
        write_text_atomically(self._replies_path, "".join(map(_line, lines)))

    @staticmethod
    def _open(path: pathlib.Path):
        """A file to read and append to, locked."""
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
        conversations = _whole_lines(self._output, self._path, _is_conversation)
        journal = _whole_lines(self._journal, self._replies_path, _is_settings_or_reply)
        for record in conversations:
            place = (record["environment"], record["row"])
            self._settings.setdefault(place[0], record["settings"])
            self.finished[place] = record
        for line in journal:
            name = line.pop("environment")
            if "settings" not in line:
                self._replies[name, line.pop("row")].append(ChatReply(**line))
            elif not any(place[0] == name for place in self.finished):
                # The last of several lines counts: replies came after it.
                self._settings[name] = line["settings"]

    @staticmethod
    def _write(file: BinaryIO, line: Mapping[str, Any]) -> None:
        file.write(_line(line).encode())
        file.flush()
        os.fsync(file.fileno())


# Fields that are read again: there, or there and not null.
_COUNTS = ("prompt_tokens", "cached_tokens", "sampled_tokens")
_CONVERSATION = (
    *("environment", "row", "settings", "success", "truncated"),
    *("return", "penalty", "bonus", "turns"),
)
_TURN = ("actions", "effective", "valid", "has_format", "is_cut")
# Types of the fields of the lines beside the conversations.
_COUNT_OR_NONE = (int, type(None))
_SETTINGS = {"environment": (str,), "settings": (dict,)}
_REPLY = {
    "environment": (str,),
    "row": (int,),
    "text": (str,),
    "finish_reason": (str,),
    "prompt_tokens": _COUNT_OR_NONE,
    "cached_tokens": _COUNT_OR_NONE,
    "reply_tokens": _COUNT_OR_NONE,
    "model": (str,),
}


def _is_conversation(content: object) -> bool:
    if wrong_field(content, EPISODE, needed=_COUNTS, filled=_CONVERSATION):
        return False
    return len(content["turns"]) > 0 and not any(
        wrong_field(turn, TURN, needed=("reply_tokens",), filled=_TURN)
        for turn in content["turns"]
    )


def _is_settings_or_reply(content: object) -> bool:
    is_reply = _has_fields(content, _REPLY) and len(content) == len(_REPLY)
    return is_reply or _has_fields(content, _SETTINGS)


def _whole_lines(
    file: BinaryIO, path: pathlib.Path, is_right: Callable[[object], bool]
) -> list[dict[str, Any]]:
    """The lines of a file without a torn last one, which is removed from the file.

    Raises:
      ValueError: a line is not right; the file is left as it is.
    """
    file.seek(0)
    *lines, torn = file.read().split(b"\n")
    contents = []
    for number, line in enumerate(lines, 1):
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            raise _foreign_line(path, number) from None
        if not is_right(content):
            raise _foreign_line(path, number)
        contents.append(content)
    if torn and not (torn.startswith(_BEGINNING) or _BEGINNING.startswith(torn)):
        raise _foreign_line(path, len(lines) + 1)
    if torn:
        file.truncate(file.tell() - len(torn))
    return contents


def _has_fields(content: object, fields: Mapping[str, tuple[type, ...]]) -> bool:
    # By exact type: True is not a count.
    return isinstance(content, dict) and all(
        name in content and type(content[name]) in kinds
        for name, kinds in fields.items()
    )


def _foreign_line(path: pathlib.Path, number: int) -> ValueError:
    return ValueError(
        f"line {number} of {path} is not a record of an evaluation over an API; name "
        "another --output"
    )


def _line(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n"


Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Prices:
    """Prices per million tokens, in any currency; None: unknown.

    Attributes:
      input, output: of tokens read and tokens written.
      cached_input: of tokens read from the API's cache; None: as `input`.
    """

    input: float | None
    output: float | None
    cached_input: float | None

    def cost(self, tokens: Record) -> float | None:
        """Cost of the tokens of a record; None: unknown."""
        read, written = tokens["prompt_tokens"], tokens["sampled_tokens"]
        if None in (self.input, self.output, read, written):
            return None
        cached = tokens["cached_tokens"] or 0
        cached_price = self.input if self.cached_input is None else self.cached_input
        total = (read - cached) * self.input + cached * cached_price
        return (total + written * self.output) / 1e6


def play_metrics(records: Sequence[Record]) -> dict[str, float]:
    """Metrics of conversations, those of `rollout.metrics`; 0 for an empty mean."""
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
    """Total tokens and their cost, without the counts that the API does not report."""
    totals = {
        name: sum(record[name] for record in records)
        for name in ("prompt_tokens", "cached_tokens", "sampled_tokens")
        if all(record[name] is not None for record in records)
    }
    costs = [prices.cost(record) for record in records]
    if None not in costs:
        totals["cost"] = sum(costs)
    return {f"tokens/{k}" if k != "cost" else k: float(v) for k, v in totals.items()}
