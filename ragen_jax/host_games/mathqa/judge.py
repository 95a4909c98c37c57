"""Judges of mathematical answers.

In: the true answer and a reply. Out: whether they agree, and for `MathJudge` whether
it could tell. Does not know where questions come from.

Symbolic comparison runs in a child process: hostile expressions hang or eat memory, and
math-verify's own deadline is `signal.alarm`, which raises outside a main thread and,
switched off, leaves nothing. A process can always be killed.
"""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import time

from ragen_jax import install_command
from ragen_jax.host_games.common import child
from ragen_jax.host_games.common.texts import compose

# Longer replies do not count as answers; parsing takes more than linear time.
MAX_CHARACTERS = 500
# Importing SymPy takes about a second on an idle core; `host.start_seconds` is 60.
START_SECONDS = 45.0
MAX_ANSWER = 1_000
VERIFIER = pathlib.Path(__file__).with_name("verifier.py")


# A number and what is counted: math-verify reads some of these words as products of
# letters, and others as nothing.
COUNTED = re.compile(
    r"(-?\$?[\d,]*\.?\d+)(?: us)?(?: [a-z]{3,}\.?){1,4}", re.IGNORECASE
)
# Ends of a plural -> those of its singular.
PLURALS = {"ies": "y", "es": "", "s": "", "feet": "foot", "people": "person"}
PLURALS |= {"children": "child", "men": "man", "teeth": "tooth", "mice": "mouse"}
# A time of day: hours, minutes, perhaps seconds and a half of the day.
CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))? ?(?:([ap])\.?m)?\.?", re.IGNORECASE)
# A number and a short unit or a variable, which math-verify leaves out.
SHORT_UNIT = re.compile(r"-?\$?[\d,]*\.?\d+ ?([a-z]{1,2})", re.IGNORECASE)
# Spelling of a short unit -> the one that it is compared as.
SHORT_SPELLINGS = {"hr": "h", "gm": "g", "lt": "l", "cc": "ml"}
# After a number they change it.
NOT_UNITS = re.compile(
    r"hundreds?|thousands?|millions?|billions?|trillions?|dozens?|percent|half|halves"
    r"|tens|thirds?|quarters?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?"
    r"|tenths?|elevenths?|twelfths?|\w+teenths?|\w+tieths?|hundredths?|thousandths?"
    r"|and|not|over|times|plus|minus|squared|cubed|root|power|base|factorial|choose"
    r"|sqrt|sin|cos|tan|log|exp|mod",
    re.IGNORECASE,
)
# A point that is not part of a number: "p.m." is "pm".
POINT = re.compile(r"\.(?!\d)")


def normalize(answer: str) -> str:
    """Lower case without blanks, as RAGEN compares answers; letters composed (NFC)."""
    return "".join(compose(answer).split()).lower()


def without_units(truth: str, reply: str) -> tuple[str, str]:
    """The numbers of "752 dollars" and 752; as they are where units differ.

    One dollar and dollars are the same unit.
    """
    (number, unit), (other, other_unit) = _split_unit(truth), _split_unit(reply)
    if unit and other_unit and _singulars(unit).isdisjoint(_singulars(other_unit)):
        return truth, reply
    return number, other


def _singulars(unit: str) -> set[str]:
    """What a unit may be the plural of, and itself."""
    return {unit} | {
        unit.removesuffix(end) + singular
        for end, singular in PLURALS.items()
        if unit.endswith(end)
    }


def same_time(truth: str, reply: str) -> bool | None:
    """Whether two times of day are the same, one of which names the half of the day.

    Returns:
      None for other answers, 2:30 and 4:60 among them, which are ratios.
    """
    found = [CLOCK.fullmatch(text.strip()) for text in (truth, reply)]
    if not any(match and match[4] for match in found):
        return None
    return all(found) and not _times(found[0]).isdisjoint(_times(found[1]))


def _times(match: re.Match[str]) -> set[tuple[int, int, int]]:
    """Hours of 24, minutes and seconds; two where the half of the day is not named."""
    hours, minutes, seconds = (int(number or 0) for number in match.groups()[:3])
    if match[4]:
        halves = {hours % 12 + 12 * (match[4] in "pP")}
    else:
        halves = {hours, hours % 12 + 12} if hours <= 12 else {hours}
    return {(hour, minutes, seconds) for hour in halves}


def short_units_differ(truth: str, reply: str) -> bool:
    """Whether both are numbers with short units, and these are not the same: km, m.

    Two spellings of a unit are the same: h, hr.
    """
    found = [SHORT_UNIT.fullmatch(text.strip()) for text in (truth, reply)]
    if not all(found):
        return False
    unit, other = (match[1].lower() for match in found)
    return SHORT_SPELLINGS.get(unit, unit) != SHORT_SPELLINGS.get(other, other)


def _split_unit(answer: str) -> tuple[str, str]:
    """A number and what is counted, which is empty for any other text."""
    text = answer.strip().removesuffix(".")
    counted = COUNTED.fullmatch(text)
    if counted is None or any(map(NOT_UNITS.fullmatch, text.split())):
        return answer, ""
    return counted[1], text.removeprefix(counted[1]).strip().lower()


def strings_agree(truth: str, reply: str) -> bool:
    """True if both are the same text but for case and blanks."""
    return bool(normalize(reply)) and normalize(truth) == normalize(reply)


class MathJudge:
    """Compares by math-verify, in a process that is killed at a deadline.

    The process is started at the first comparison, serves all that follow, and is
    started anew after it has been killed or has died.
    """

    def __init__(self, seconds: float):
        """
        Args:
          seconds: for one comparison, the start of the process not counted.

        Raises:
          ImportError: math-verify is not installed.
        """
        if importlib.util.find_spec("math_verify") is None:
            raise ImportError(
                "judge='math' needs math-verify, which is not installed; "
                f"run {install_command('math')} or use judge='string'."
            )
        self._seconds = seconds
        self._child: child.Child | None = None

    def agree(self, truth: str, reply: str) -> bool | None:
        """Whether a reply is mathematically equal to the truth.

        Returns:
          None where the comparison did not end in time or its process died.
        """
        if strings_agree(*(POINT.sub("", text) for text in (truth, reply))):
            return True
        if not reply.strip() or len(reply) > MAX_CHARACTERS:
            return False
        if (same := same_time(truth, reply)) is not None:
            return same
        if short_units_differ(truth, reply):
            return False
        self.start()
        truth, reply = without_units(truth, reply)
        request = {"truth": truth, "reply": reply}
        line = json.dumps(request).encode() + b"\n"
        deadline = time.monotonic() + self._seconds
        try:
            self._child.write(line)
            answer = self._child.read_line(deadline, MAX_ANSWER)
        except (BrokenPipeError, EOFError, TimeoutError):
            self.close()
            return None
        return json.loads(answer)["equal"]

    def start(self) -> None:
        """Start the process, unless it runs."""
        if self._child is None or self._child.process.poll() is not None:
            self._start()

    def close(self) -> None:
        """Kill the process, if there is one."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _start(self) -> None:
        self.close()
        paths = os.pathsep.join(path for path in sys.path if path)
        self._child = child.Child(
            [sys.executable, str(VERIFIER)],
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": "0"},
        )
        try:
            self._child.read_line(time.monotonic() + START_SECONDS, MAX_ANSWER)
        except (EOFError, TimeoutError) as error:
            self.close()
            raise RuntimeError(
                f"math-verify's process did not start within {START_SECONDS:g} s; "
                f"see what `{sys.executable} {VERIFIER}` prints."
            ) from error
