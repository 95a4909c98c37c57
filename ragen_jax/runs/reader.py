"""Files of a run folder, read and checked.

In: `config.json`, `metrics.jsonl` and `trajectories/*.jsonl`. Out: the configuration,
records of metrics and episodes, or one `ValueError` that names the file, the line and
what is wrong with it. A folder outlives the program that wrote it and may have been
edited, so nothing is taken on trust; checkpoints are `runs.checkpoint`'s.
"""

import dataclasses
import itertools
import json
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from ragen_jax.config import renew
from ragen_jax.rollout.record_fields import (
    EPISODE,
    LARGEST_INTEGER,
    REWARDS,
    TURN,
    is_number,
    wrong_field,
)

# Section of `config.json` that is not a setting: what the run has recorded of itself.
RECORDED = "recorded"
_CURE = "restore the file from a copy, or use another --workdir"


def read_config(workdir: pathlib.Path) -> ConfigDict:
    """The configuration of a run, locked; without the section `recorded`.

    Keys that have another name today are renamed, see `config.renew`.

    Raises:
      ValueError: there is no `config.json`, or it is not a configuration.
    """
    content = _read_config_file(workdir)
    content.pop(RECORDED, None)
    return renew(ConfigDict(content)).lock()


@dataclasses.dataclass(frozen=True)
class Recorded:
    """What a run has recorded of itself. Runs of earlier versions lack parts of it.

    Attributes:
      machines: on which it was trained, see `runs.machine`; oldest first.
      command: command line of its last start.
      run_id: letters and digits under which sinks know it.
      result: `iteration` and `params_sha256` at its end; None before.
    """

    machines: Sequence[Mapping[str, Any]] = ()
    command: str | None = None
    run_id: str | None = None
    result: Mapping[str, Any] | None = None


def read_recorded(workdir: pathlib.Path) -> Recorded:
    """The section `recorded` of a run's `config.json`.

    Raises:
      ValueError: see `read_config`.
    """
    section = _read_config_file(workdir).get(RECORDED, {})
    where = f"{workdir / 'config.json'}: {RECORDED}"
    if not isinstance(section, dict):
        raise ValueError(f"{where} is not an object; {_CURE}")
    recorded = Recorded(
        **{k.name: section[k.name] for k in _RECORDED_PARTS if k.name in section}
    )
    machines, result = recorded.machines, recorded.result
    if not _are_objects(machines):
        raise ValueError(f"{where}.machines is not a list of objects; {_CURE}")
    if not isinstance(recorded.command, str | None):
        raise ValueError(f"{where}.command is not a text; {_CURE}")
    run_id = recorded.run_id
    if run_id is not None and not (isinstance(run_id, str) and run_id.isalnum()):
        raise ValueError(f"{where}.run_id is not letters and digits; {_CURE}")
    is_result = isinstance(result, dict) and (
        type(result.get("iteration")) is int
        and isinstance(result.get("params_sha256"), str)
    )
    if result is not None and not is_result:
        raise ValueError(
            f"{where}.result is not an object of iteration and params_sha256; {_CURE}"
        )
    return recorded


_RECORDED_PARTS = dataclasses.fields(Recorded)


def _are_objects(values: object) -> bool:
    is_list = isinstance(values, list | tuple)
    return is_list and all(isinstance(value, dict) for value in values)


def _read_config_file(workdir: pathlib.Path) -> dict[str, Any]:
    path = workdir / "config.json"
    if not path.is_file():
        raise ValueError(f"{workdir} has no config.json; {_CURE}")
    content = _parse(_read_text(path), f"{path}")
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path} is not a JSON object of settings; {_CURE}")
    _check_sections(path, content)
    return content


def read_metrics(workdir: pathlib.Path) -> list[dict[str, Any]]:
    """Complete lines of `metrics.jsonl`, oldest first; a torn last line is left out.

    Each has a whole number `iteration`, larger than in the line before, and numbers,
    lists of numbers or nulls.

    Raises:
      ValueError: a line holds something else.
    """
    path = workdir / "metrics.jsonl"
    if not path.exists():
        return []
    records = _read_lines(path, _metrics_problem)
    for i, (before, record) in enumerate(itertools.pairwise(records), 2):
        if record["iteration"] <= before["iteration"]:
            raise ValueError(
                f"{path}, line {i}: iteration {record['iteration']} follows iteration "
                f"{before['iteration']}; {_CURE}"
            )
    return records


def read_episodes(path: pathlib.Path) -> list[dict[str, Any]]:
    """Complete lines of a file of sample episodes; a null reward is not-a-number.

    Raises:
      ValueError: a line is not an episode as `rollout.records` writes it.
    """
    episodes = _read_lines(path, _episode_problem)
    for episode in episodes:
        for values in (episode, *episode["turns"]):
            null = [name for name in REWARDS if values.get(name, 0) is None]
            values |= dict.fromkeys(null, math.nan)
    return episodes


def _read_text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}); {_CURE}") from error


def _parse(text: str, where: str) -> object:
    def refuse(constant: str):
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not valid JSON ({error}); {_CURE}") from error


def _read_lines(
    path: pathlib.Path, problem_of: Callable[[dict], str | None]
) -> list[dict[str, Any]]:
    records = []
    # Not splitlines: texts may hold other line separators than "\n".
    for i, line in enumerate(_read_text(path).split("\n")[:-1], 1):
        where = f"{path}, line {i}"
        record = _parse(line, where)
        if not isinstance(record, dict):
            raise ValueError(f"{where} is not a JSON object; {_CURE}")
        if problem := problem_of(record):
            raise ValueError(f"{where}: {problem}; {_CURE}")
        records.append(record)
    return records


def _check_sections(path: pathlib.Path, section: Mapping, prefix: str = "") -> None:
    for name, value in section.items():
        # ConfigDict would read a dot as a path.
        if "." in name or not name:
            raise ValueError(f"{path}: {prefix}{name!r} is not a valid key; {_CURE}")
        if isinstance(value, dict):
            _check_sections(path, value, f"{prefix}{name}.")
        elif type(value) in (int, float) and not is_number(value):
            raise ValueError(
                f"{path}: {prefix}{name} is not a number of this size; {_CURE}"
            )


def _metrics_problem(record: Mapping) -> str | None:
    iteration = record.get("iteration")
    if type(iteration) is not int or not 0 <= iteration <= LARGEST_INTEGER:
        return f"iteration = {_shown(iteration)} is not a whole number from 0"
    if "time" in record and not is_number(record["time"]):
        return f"time = {_shown(record['time'])} is not a number"
    for name, value in record.items():
        is_list = isinstance(value, list) and all(map(is_number, value))
        if value is not None and not is_list and not is_number(value):
            return f"{name} = {_shown(value)} is not a number, list of numbers or null"
    return None


def _episode_problem(episode: Mapping) -> str | None:
    wrong = wrong_field(episode, EPISODE, needed=("turns", "return", "success"))
    if wrong:
        return wrong
    for i, turn in enumerate(episode["turns"], 1):
        if wrong := wrong_field(turn, TURN, needed=_TURN_NEEDS):
            return f"turn {i}: {wrong}"
    return None


_TURN_NEEDS = ("observation", "reply", "reward", "penalty", "bonus")


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
