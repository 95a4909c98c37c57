"""Data sets of reasoning-gym as games of one turn.

In: the name of a data set and its options. Out: a `HostGame` that shows a question and
pays what the data set's own `score_answer` gives the reply.

A data set makes the question of an index from its seed and the index, and knows no
splits. Here the indices are drawn, and the text of the question decides its split by a
hash, half of the hashes for each: many data sets have few different questions at their
easiest, and each split should have as many of them as possible.
"""

import contextlib
import copy
import dataclasses
import datetime
import difflib
import functools
import io
import json
import random
import re
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ragen_jax import install_command
from ragen_jax.host_games.adapters.common import refuse_task, short_name
from ragen_jax.host_games.adapters.reasoning_gym_replies import is_scorable
from ragen_jax.host_games.base import SPLITS, TRAINING, HostGame, Observation, Step
from ragen_jax.host_games.common.options import (
    check_number,
    check_one_of,
    check_whole,
)
from ragen_jax.host_games.common.splits import check_split, text_hash

CORRECT, INCORRECT = "Correct.", "Incorrect."
INSTRUCTION = (
    "Answer the question. Write the result alone, without its derivation, in the form "
    "that the question asks for."
)
# Questions of a data set, from which both splits are dealt.
SIZE = 2**20
# Data sets that make all questions at once, or allow no more.
SIZES = {"acre": 4_000, "word_ladder": 20_000}
# Where a data set has many questions, the probability that none of these draws is of
# the split is 2**-64.
MAX_DRAWS = 64
# Data sets of 0.1.25 that are refused, and why.
REFUSED = {
    "coin_flip": (
        "its scorer compares only as many digits as the shorter number has, so that "
        "0 answers every question below 1"
    ),
    "game_of_life_halting": "its scorer gives every reply full marks",
    "puzzle24": (
        "its scorer does not ask which numbers a reply uses, so that one reply, such "
        "as 6*4*1*1, answers every question"
    ),
}
# Data sets without an answer of their own, only with a scorer.
UNANSWERED = ("boxnet", "rush_hour")
# Where an item's answer is that of no text: the key of one in its metadata.
_ANSWERS = {
    "graph_color": "possible_answer",
    "propositional_logic": "example_answer",
    "rubiks_cube": "example_correct_answer",
}
# How options that JSON cannot hold are read, by the type of their default.
_READERS = {
    tuple: tuple,
    datetime.date: datetime.date.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
}
# What programs of codeio read whose answers differ from day to day.
_CLOCK = re.compile(r"\.now\(|time\.time|today\(|uuid|urandom|secrets")
# What a part of a composite is without more than a name.
_PART = {"name": None, "weight": 1.0, "config": {}}


class ReasoningGym(HostGame):
    """A data set of reasoning-gym: a question, a reply, its score.

    The score, from 0 to 1, is the reward. A reply is invalid, and pays 0, if it is
    empty, if the scorer raises at it, takes too long or gives something else than such
    a number, or if it must not reach the scorer (`reasoning_gym_replies`).

    Time is that of the processor, so that a busy machine does not change a verdict. A
    scorer that hangs in compiled code fails its row, as any game that hangs does.
    """

    def __init__(
        self,
        split: str = TRAINING,
        *,
        data_set: str,
        level: int | Mapping[str, int] | None = None,
        success_score: float = 1.0,
        score_seconds: float = 2.0,
        **options: Any,
    ):
        """Makes the data set, once for all games of a process.

        Args:
          split: one of `SPLITS`; no question is in both.
          data_set: its name in reasoning-gym.
          level: of its curriculum, the easiest is 0: of all attributes, where those
            with fewer levels take their last, or attribute -> level, where the others
            keep the curriculum's. None: the defaults of the data set's configuration.
          success_score: from this score on a reply is a success. Below 1, replies that
            are not the answer are: scorers pay a share for one that only contains it,
            or that only has the right form.
          score_seconds: of the processor, for one reply.
          options: the configuration of the data set, by its own names; `seed` is 0 and
            `size` the number of questions that are drawn from, `SIZE` if it can be.

        Raises:
          ImportError: reasoning-gym is not installed.
          ValueError: an option is wrong, the data set is one of `REFUSED`, or it has
            too few questions.
        """
        check_split(split)
        check_number("success_score", success_score, above=0, most=1)
        check_number("score_seconds", score_seconds, above=0)
        self._split, self._success_score = split, success_score
        self._score_seconds = self.max_step_seconds = score_seconds
        self._name = short_name(data_set)
        # Lists and mappings cannot be compared by a cache, their text can.
        self._key = (data_set, json.dumps([level, options]))
        self._data_set = _open(*self._key)
        for each in SPLITS:
            _draw(*self._key, each, 0)
        self.instruction = INSTRUCTION
        self.is_solvable = not set(UNANSWERED) & set(_parts(self._data_set, data_set))
        self.longest_solution = 1

    @property
    def name(self) -> str:
        return self._name

    def reset(self, seed: int, task: int | None = None) -> Observation:
        """Show a question of the split; there are no tasks."""
        refuse_task(task)
        self._item = _draw(*self._key, self._split, seed)
        return Observation(self._item["question"])

    def step(self, reply: str) -> Step:
        """Score the reply, which ends the episode."""
        score = self._score(reply.strip())
        success = score is not None and score >= self._success_score
        return Step(
            observation=Observation(CORRECT if success else INCORRECT),
            reward=0.0 if score is None else score,
            terminated=True,
            truncated=False,
            info={"success": success, "valid": score is not None},
        )

    def solution(self) -> tuple[str, ...]:
        """The item's own answer, where the scorer agrees with it."""
        answer = self._item["answer"]
        if answer is None and (key := _ANSWERS.get(_source(self._item))):
            answer = self._item["metadata"][key]
        if answer is None:
            return ()
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return (text,) if self._score(text.strip()) == 1 else ()

    def _score(self, reply: str) -> float | None:
        """From 0 to 1; None for a reply that cannot be scored."""
        if not reply or not is_scorable(reply, _source(self._item), self._item):
            return None
        # A scorer may change the item that it gets, and prints what it dislikes.
        item = copy.deepcopy(self._item)
        with _limit_time(self._score_seconds) as is_late:
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    score = float(self._data_set.score_answer(reply, item))
            # Whatever a reply makes a scorer raise, it is no answer.
            except (Exception, _OutOfTimeError):
                return None
        # Some scorers catch everything, the end of their time included.
        return score if 0 <= score <= 1 and not is_late else None


class _OutOfTimeError(BaseException):
    """Not an Exception, which libraries catch."""


@contextlib.contextmanager
def _limit_time(seconds: float) -> Iterator[list[int]]:
    """Raises `_OutOfTimeError` after so many seconds of the processor.

    Yields:
      Signals of the end, none while there is time.
    """
    signals: list[int] = []

    def stop(number: int, frame: object) -> None:
        signals.append(number)
        raise _OutOfTimeError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield signals
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _source(item: Mapping[str, Any]) -> str:
    """The data set that an item is from, which in a composite is not its own."""
    return item["metadata"]["source_dataset"]


def _parts(data_set: Any, name: str) -> list[str]:
    """The names of the data sets that a data set draws from."""
    return data_set.dataset_names if name == "composite" else [name]


@functools.lru_cache(maxsize=4)
def _draw(name: str, settings: str, split: str, seed: int) -> Mapping[str, Any]:
    """A question of a split with its answer; the same seed draws the same one."""
    data_set = _open(name, settings)
    source = random.Random(seed)
    seen = set()
    for _ in range(MAX_DRAWS):
        item = _make_item(data_set, source.randrange(len(data_set)))
        question = " ".join(item["question"].split()).lower()
        is_of_split = SPLITS[text_hash(question) % 2] == split
        if is_of_split and not _is_left_out(item, question):
            return item
        seen.add(question)
    raise ValueError(
        f"reasoning_gym:{name} has no question for {split}: {MAX_DRAWS} draws gave "
        f"{len(seen)} different ones, all of the other split; give it options, or a "
        "level, with more questions"
    )


def _is_left_out(item: Mapping[str, Any], question: str) -> bool:
    """Whether no right answer is known.

    It changes with the day, is an integral that SymPy did not solve, or stands for a
    conclusion that reasoning-gym did not find: a letter, which its scorer refuses.
    """
    match _source(item):
        case "codeio":
            return _CLOCK.search(question) is not None
        case "propositional_logic":
            return len(item["metadata"]["example_answer"]) == 1
    return "Integral(" in str(item["answer"])


def _make_item(data_set: Any, index: int) -> Mapping[str, Any]:
    with _repeatable(index), contextlib.redirect_stdout(io.StringIO()):
        return data_set[index]


@contextlib.contextmanager
def _repeatable(number: int) -> Iterator[None]:
    """The global generators, from which a few data sets draw, begin with a number."""
    states = random.getstate(), np.random.get_state()
    random.seed(number)
    np.random.seed(number)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


@functools.lru_cache(maxsize=4)
def _open(name: str, settings: str) -> Any:
    """A data set; its files are read once for all rows of a process."""
    try:
        from reasoning_gym import factory
    except ModuleNotFoundError as error:
        raise ImportError(
            "data sets of reasoning-gym need the package reasoning-gym: "
            + install_command("reasoning-gym")
        ) from error
    _check_name(name, factory.DATASETS)
    make, configure = factory.DATASETS[name]
    level, options = json.loads(settings)
    options = _read_options(name, configure(), options)
    curriculum = None
    if level is not None:
        curriculum = _set_level(name, level, options, factory.CURRICULA)
    try:
        if curriculum is None:
            config = configure(**options)
        else:
            config = curriculum.generate_configuration(options)
        if hasattr(config, "validate"):
            config.validate()
        with contextlib.redirect_stdout(io.StringIO()):
            return make(config)
    except (AssertionError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"reasoning_gym:{name} does not take level={level!r} with the options "
            f"{options}: {error}; see the source of {configure.__name__}"
        ) from error


def _check_name(name: str, known: Mapping[str, Any]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3) or sorted(known)
        raise ValueError(
            f"data_set is {name!r}, which is none of reasoning-gym's {len(known)}; use "
            f"another name, such as {', '.join(near)}"
        )
    if name in REFUSED:
        raise ValueError(
            f"data_set is {name!r}, which is refused: {REFUSED[name]}; use another one"
        )


def _read_options(name: str, defaults: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration's arguments, of the types that it has; JSON has fewer.

    Args:
      defaults: the configuration as it is without arguments.
    """
    known = [field.name for field in dataclasses.fields(defaults)]
    for option in given:
        if option not in known:
            raise ValueError(
                f"reasoning_gym:{name} has no option {option!r}; use level, "
                f"success_score, score_seconds or one of {', '.join(known)}"
            )
    options = {n: _read(n, getattr(defaults, n), value) for n, value in given.items()}
    size = SIZES.get(name, SIZE)
    if name == "composite":
        sizes = [part.config.get("size", SIZE) for part in options.get("datasets", ())]
        size = min([size, *sizes])
    options = {"seed": 0, "size": size} | options
    check_whole("seed", options["seed"], 0, 2**31 - 1)
    check_whole("size", options["size"], 1, SIZE)
    return options


def _read(option: str, default: Any, value: Any) -> Any:
    if option == "datasets":
        return [_read_part(part) for part in value]
    if dataclasses.is_dataclass(default):
        return dataclasses.replace(default, **value)
    read = _READERS.get(type(default))
    return value if read is None else read(value)


def _read_part(part: Mapping[str, Any]) -> Any:
    """A part of a composite: {"name": ..., "weight": ..., "config": {...}}."""
    from reasoning_gym import composite, factory

    if not isinstance(part, Mapping) or not {"name"} <= set(part) <= set(_PART):
        raise ValueError(
            f"datasets has {part!r}; use a list of mappings with a name and, where "
            "they are needed, weight and config"
        )
    part = _PART | part
    _check_name(part["name"], factory.DATASETS)
    _, configure = factory.DATASETS[part["name"]]
    config = _read_options(part["name"], configure(), part["config"])
    # Without a seed of their own the parts get different ones.
    if "seed" not in part["config"]:
        del config["seed"]
    return composite.DatasetSpec(part["name"], part["weight"], config)


def _set_level(
    name: str,
    level: int | Mapping[str, int],
    options: Mapping[str, Any],
    curricula: Mapping[str, Any],
) -> Any:
    """The curriculum of a data set, at a level."""
    if name not in curricula:
        raise ValueError(
            f"level is {level!r}, but reasoning_gym:{name} has no curriculum; leave "
            "level out"
        )
    curriculum = curricula[name]()
    num_levels = {n: len(each.levels) for n, each in curriculum.attributes.items()}
    if isinstance(level, Mapping):
        for attribute, number in level.items():
            check_one_of("an attribute of level", attribute, num_levels)
            check_whole(f"level.{attribute}", number, 0, num_levels[attribute] - 1)
            curriculum.set_attr_level(attribute, number)
    else:
        check_whole("level", level, 0, max(num_levels.values()) - 1)
        curriculum.set_global_level(level)
    # The curriculum would override them.
    for option in sorted(set(options) & _fields_of(curriculum)):
        raise ValueError(
            f"{option} is {options[option]!r}, but level sets it; leave one of them out"
        )
    return curriculum


def _fields_of(curriculum: Any) -> set[str]:
    """The options that a curriculum sets."""
    names = ("field_name", "lower_field_name", "upper_field_name")
    attributes = curriculum.attributes.values()
    return {getattr(x, n) for x in attributes for n in names if hasattr(x, n)}
