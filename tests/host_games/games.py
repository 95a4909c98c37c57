"""Games that do to their worker what a reply tells them, and one with tasks."""

import contextlib
import copy
import dataclasses
import functools
import importlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np

from ragen_jax.host_games.base import HostGame, Observation, Step
from ragen_jax.host_games.common import shared


class Faulty(HostGame):
    """Counts its replies; those of `FAULTS` break it."""

    instruction = "Do not break."
    metrics = ("letters",)

    def __init__(
        self, split: str, start_fault: str | None = None, broken_word: str | None = None
    ):
        self.start_fault, self.broken_word = start_fault, broken_word

    def reset(self, seed: int, task: int | None = None) -> Observation:
        if self.start_fault is not None:
            FAULTS[self.start_fault]()
        self.seed, self.count = seed, 0
        return Observation(f"seed {seed}")

    def step(self, reply: str) -> Step:
        reward = 1.0
        if reply == self.broken_word:
            _die()
        if reply in FAULTS:
            reward = FAULTS[reply]() or reward
        self.count += 1
        shown = Observation(f"seed {self.seed} count {self.count} {reply}")
        info = {"success": self.count == 3, "valid": True, "letters": len(reply)}
        return Step(shown, reward, self.count == 3, False, info)


class Deaf(Faulty):
    """Can read no reply."""

    def step(self, reply: str) -> Step:
        step = super().step(reply)
        return dataclasses.replace(step, info=step.info | {"valid": False})


class Pictured(Faulty):
    """Shows an image with every observation but the last, and two at the start."""

    @staticmethod
    def picture(seed: int, count: int) -> np.ndarray:
        """The image after so many replies."""
        return np.random.default_rng([seed, count]).integers(
            0, 256, (3 + count, 5, 3), dtype=np.uint8
        )

    def reset(self, seed: int, task: int | None = None) -> Observation:
        text = super().reset(seed, task).text
        return Observation(text, (self.picture(seed, 0), self.picture(seed, 1)))

    def step(self, reply: str) -> Step:
        step = super().step(reply)
        images = () if step.terminated else (self.picture(self.seed, self.count),)
        shown = dataclasses.replace(step.observation, images=images)
        return dataclasses.replace(step, observation=shown)


class Corners(HostGame):
    """A bright side of a dark image; the reply names it, three times."""

    instruction = "Where is it bright?"
    is_solvable, longest_solution = True, 3
    sides = ("Left", "Right", "Up", "Down")

    def __init__(self, split: str, size: int = 16, text: str = "Look."):
        self.size, self.text = size, text

    def reset(self, seed: int, task: int | None = None) -> Observation:
        self.draws, self.count = np.random.default_rng(seed), 0
        return self._show()

    def step(self, reply: str) -> Step:
        is_right = reply == self.sides[self.side]
        self.count += 1
        info = {"success": is_right, "valid": reply in self.sides}
        return Step(self._show(), float(is_right), self.count == 3, False, info)

    def solution(self) -> list[str]:
        later = copy.deepcopy(self)
        sides = [self.sides[self.side]]
        for _ in range(2 - self.count):
            later._show()
            sides.append(self.sides[later.side])
        return sides

    def _show(self) -> Observation:
        self.side = int(self.draws.integers(4))
        return Observation(self.text, (self.image(self.side, self.size),))

    @staticmethod
    def image(side: int, size: int) -> np.ndarray:
        """The image of a side."""
        pixels = np.full((size, size, 3), 20, np.uint8)
        half = size // 2
        where = np.s_[:, :half], np.s_[:, half:], np.s_[:half], np.s_[half:]
        pixels[where[side]] = 230
        return pixels


class Huge(Faulty):
    """Shows more than an answer may hold."""

    def reset(self, seed: int, task: int | None = None) -> Observation:
        noise = np.random.default_rng(seed).integers(0, 256, (1800, 1800, 3), np.uint8)
        return Observation("", (noise,))


class Imports(Faulty):
    """Imports a module when it is made."""

    def __init__(self, split: str, module: str):
        super().__init__(split)
        importlib.import_module(module)


class Late(Faulty):
    """Cannot be made the first time, for a reason that passes."""

    def __init__(self, split: str, path: str):
        super().__init__(split)
        if not pathlib.Path(path).exists():
            pathlib.Path(path).touch()
            raise ConnectionError("busy")


class FirstFails(Faulty):
    """Cannot begin a problem for the first row that asks, ever."""

    def __init__(self, split: str, folder: str):
        super().__init__(split)
        self.folder = pathlib.Path(folder)

    def reset(self, seed: int, task: int | None = None) -> Observation:
        mark = self.folder / str(seed)
        if not mark.exists():
            mark.touch()
            raise ConnectionError("busy")
        return super().reset(seed, task)


class Shares(Faulty):
    """Shows what one process worked out for all, and wrote a letter into a file."""

    def __init__(self, split: str, path: str):
        super().__init__(split)
        self.shared = shared.once(f"Shares {path}", functools.partial(self.make, path))

    @staticmethod
    def make(path: str) -> int:
        with open(path, "a") as file:
            file.write("x")
        return 7

    def reset(self, seed: int, task: int | None = None) -> Observation:
        return Observation(f"{super().reset(seed, task).text} and {self.shared}")


class Forks(Faulty):
    """Its steps fork, and both processes come back."""

    def step(self, reply: str) -> Step:
        step = super().step(reply)
        os.fork()
        return step


class LeavesOrphans(Faulty):
    """Its steps start a process with a session of its own, and lose it."""

    def __init__(self, split: str, mark: str):
        super().__init__(split)
        self.command = [sys.executable, "-c", "import time; time.sleep(999)", mark]

    def step(self, reply: str) -> Step:
        if os.fork() == 0:
            subprocess.Popen(self.command, start_new_session=True)
            os._exit(0)
        os.wait()
        return super().step(reply)


class LeavesStrangers(LeavesOrphans):
    """Its steps start a process with a session and an environment of its own."""

    def step(self, reply: str) -> Step:
        subprocess.Popen(self.command, start_new_session=True, env={})
        return Faulty.step(self, reply)


class HalfLetters(Faulty):
    """Shows half a surrogate pair, which UTF-8 cannot hold."""

    def reset(self, seed: int, task: int | None = None) -> Observation:
        return Observation(super().reset(seed).text + " \ud83d é 🎲")


class Waits(Faulty):
    waits = True


class OddNumber(Faulty):
    """Reports a number whose name cannot be part of a metric's."""

    metrics = ("F 1",)


class FewerForValidation(Faulty):
    """Has another number of problems in each split."""

    def __init__(self, split):
        super().__init__(split)
        self.num_tasks = {"training": 50, "validation": 2}[split]

    def reset(self, seed, task=None):
        shown = super().reset(seed)
        assert task < self.num_tasks
        return dataclasses.replace(shown, text=f"task {task}")


def _raise():
    raise RuntimeError("broken on purpose")


def _hang():
    time.sleep(1000)


def _leave():
    sys.exit(3)


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def _fill():
    return len(bytearray(2**40))


def _write(data):
    # To where answers go, past the redirection.
    for descriptor in range(3, 20):
        with contextlib.suppress(OSError):
            os.write(descriptor, data)


def _pay_nan():
    return float("nan")


def _leave_a_child():
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)


FAULTS = {
    "raise": _raise,
    "hang": _hang,
    "leave": _leave,
    "die": _die,
    "fill": _fill,
    "write": lambda: _write(b"nonsense\n"),
    "pay nan": _pay_nan,
    "answer too much": lambda: _write(b"x" * 10_000_000),
    "leave a child": _leave_a_child,
}
