"""An episode played by a person, one action at a time.

In: a task, the random keys of a level, and words: keys pressed or lines typed. Out: the
game on the screen, and its boards. The actions run as in a rollout, with its limit on
actions and the noise of a player whose replies hold one action each. There is no limit
on turns, since a turn is one key here. A word that names no action costs nothing.
"""

import string
import sys
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from envs.base import PlayBudget
from ragen_jax.evaluation.terminal.keyboard import open_keyboard
from ragen_jax.evaluation.terminal.scenes import draw_state
from ragen_jax.registry.functions import did_you_mean
from ragen_jax.rollout.actions import run_plan
from ragen_jax.rollout.keys import RolloutKeys
from ragen_jax.rollout.replay import grid_of
from ragen_jax.tasks.task import Task

LEAVE = "q"
# Characters of a word that its hint repeats.
MAX_SHOWN = 40
# Keys of actions of these names: the arrow, and its place on the left hand.
_DIRECTIONS = {"up": "↑w", "down": "↓s", "left": "←a", "right": "→d"}


class HandEpisode:
    """An episode in progress; its programs are compiled when it is made.

    Args:
      task: the game and its rules.
      keys: of one row.

    Attributes:
      budget: limits of the episode.
      level, state: the first state and the present one.
      num_actions: run so far.
      total: sum of their rewards.
      is_over: no more actions can be run.
    """

    def __init__(self, task: Task, keys: RolloutKeys):
        env, params, budget = task.env, task.params, task.rules.budget
        self.budget = PlayBudget(budget.num_actions, 1, budget.num_actions)
        self.task = task
        draw = jax.jit(env.draw_level)
        self.level = self.state = draw(keys.level[0], params, keys.is_held_out[0])
        self.num_actions, self.total, self.is_over = 0, 0.0, False

        @jax.jit
        def step(turn, state, action, num_allowed):
            noise_key = jax.random.fold_in(keys.noise[0], turn)
            return run_plan(env, params, state, noise_key, action[None], num_allowed)

        step(jnp.int32(0), self.state, jnp.int32(0), jnp.int32(0))  # compiles
        self._step = step
        self.boards = [] if grid_of(env) is None else [self._board()]

    @property
    def names(self) -> list[str]:
        """The name of each action; none where the game reads what is typed."""
        env = self.task.env
        if env.answer_bytes:
            return []
        indices = env.action_names(self.state, self.task.params)
        return [env.action_vocabulary[int(i)] for i in indices]

    @property
    def is_won(self) -> bool:
        """Whether the goal of the game is reached."""
        return bool(self.task.env.is_success(self.state, self.task.params))

    def find(self, word: str) -> int | None:
        """The action of a key, a name or a text, None if there is none."""
        if self.task.env.answer_bytes:
            return self._read(word)
        names = self.names
        words = {key: i for i, keys in enumerate(bind_keys(names)) for key in keys}
        words |= {name.lower(): i for i, name in enumerate(names)}
        return words.get(word.lower())

    def act(self, action: int) -> str:
        """Run an action; returns what it did."""
        env, turn = self.task.env, jnp.int32(self.num_actions)
        name = env.action_text(action, self.state, self.task.params)
        self.state, outcome = self._step(
            turn, self.state, jnp.int32(action), jnp.int32(1)
        )
        self.num_actions += 1
        self.total += float(outcome.reward)
        is_spent = self.num_actions == self.budget.max_actions_per_episode
        self.is_over = bool(outcome.terminated | outcome.truncated) or is_spent
        if self.boards:
            self.boards.append(self._board())
        effect = "" if outcome.num_effective else ", nothing changed"
        return f"{name}: reward {outcome.reward:g}{effect}"

    def hint(self, word: str) -> str:
        """What to do about a word that is not an action."""
        short = word if len(word) <= MAX_SHOWN else f"{word[:MAX_SHOWN]}..."
        unseen = "This key" if len(word) == 1 else "This line"
        typed = repr(short) if word.isprintable() else unseen
        if self.task.env.action_hint is not None:
            return f"{typed} is not an action in this game. {self.task.env.action_hint}"
        near = did_you_mean(word.lower(), [name.lower() for name in self.names])
        cure = near or f" Choose one of {', '.join(self.names)}."
        return f"{typed} is not an action in this game.{cure}"

    def frame(self, width: int) -> Text:
        """The game and the score."""
        left = self.budget.max_actions_per_episode - self.num_actions
        text = draw_state(self.task, self.state, width)
        text.append(f"\n\nactions left: {left}   return: {self.total:g}")
        return text

    def _read(self, word: str) -> int | None:
        env = self.task.env
        # A terminal's bytes that are not UTF-8 come as lone surrogates.
        text = word.strip().encode(errors="replace")
        if not 0 < len(text) <= env.answer_bytes:
            return None
        padded = np.frombuffer(text.ljust(env.answer_bytes, b"\0"), np.uint8)
        size, params = jnp.int32(len(text)), self.task.params
        action = int(env.read_action(jnp.asarray(padded), size, self.state, params))
        return action if action >= 0 else None

    def _board(self) -> list[list[str]]:
        grid = grid_of(self.task.env)
        fields = self.task.env.text_fields(self.state, self.task.params)
        ids = jax.device_get(fields[grid.name])
        return [[grid.symbols[i] for i in row] for row in ids]


def bind_keys(names: Sequence[str]) -> list[str]:
    """The keys of each action: an arrow or a letter of its name, and its number.

    An action named by a single character has that key. Of very many actions the last
    have none.
    """
    taken = {LEAVE, *(name.lower() for name in names if len(name) == 1)}
    bound = []
    for number, name in enumerate(map(str.lower, names), 1):
        if len(name) == 1:
            bound.append(name)
            continue
        letters = [c for c in name + string.ascii_lowercase if c.isalpha()]
        letter = next((c for c in letters if c not in taken), "")
        wanted = _DIRECTIONS.get(name, letter) + (str(number) if number < 10 else "")
        keys = "".join(key for key in wanted if key not in taken)
        taken.update(keys)
        bound.append(keys)
    return bound


def play_with_keys(episode: HandEpisode, console: Console) -> None:
    """Play on a terminal, where every key acts at once."""

    def screen(note: str) -> Group:
        choices = "" if episode.is_over else _choices(episode)
        return Group(episode.frame(console.width), choices, note)

    live = Live(
        screen(""),
        console=console,
        auto_refresh=False,
        # A board higher than the terminal scrolls.
        vertical_overflow="visible",
    )
    with open_keyboard() as keys, live:
        _play(episode, keys, lambda note: live.update(screen(note), refresh=True))


def play_with_lines(episode: HandEpisode, console: Console) -> None:
    """Play by lines of standard input, each the name of an action."""
    shown_after = -1

    def show(note: str) -> None:
        nonlocal shown_after
        console.print(note)
        # A hint needs no second picture of the same state.
        if shown_after != episode.num_actions:
            frame = episode.frame(console.width)
            console.print(frame, end="\n\n", soft_wrap=True)
        shown_after = episode.num_actions

    actions = episode.task.env.action_hint or f"{', '.join(episode.names)};"
    show(f"Type one action per line: {actions} {LEAVE} leaves.\n")
    _play(episode, _read_lines(), show)


def _play(
    episode: HandEpisode, words: Iterator[str], show: Callable[[str], None]
) -> None:
    """Play until the game is over, the words end, or one of them is `LEAVE`."""
    for word in words:
        action = episode.find(word)
        if action is None and word.lower() == LEAVE:
            break
        show(episode.hint(word) if action is None else episode.act(action))
        if episode.is_over:
            break


def _read_lines() -> Iterator[str]:
    while True:
        try:
            yield input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return


def _choices(episode: HandEpisode) -> str:
    """The actions with their keys, each never broken across lines."""
    names = episode.names
    leave = LEAVE if episode.find(LEAVE) is None else "Ctrl-D"
    keyed = [*zip(bind_keys(names), names, strict=True)]
    entries = [" ".join([*keys, name]) for keys, name in keyed] + [f"{leave} leave"]
    return "   ".join(entry.replace(" ", "\N{NO-BREAK SPACE}") for entry in entries)
