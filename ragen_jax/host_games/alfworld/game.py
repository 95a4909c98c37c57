"""ALFWorld: tasks in a household, by commands.

In: replies, a command each. Out: what the player sees. Houses are invented (`houses`)
or ALFWorld's own files (`files`); one interpreter (`story`) plays both.

Source: RAGEN's ALFWorld (ragen/env/alfworld). It differs where the original harms:
games are in alphabetical order, not in that of the file system; commands may be in any
case and with any blanks; validation has other goals and houses.
"""

from collections.abc import Sequence

from ragen_jax.host_games.alfworld.files import find_games, read_game
from ragen_jax.host_games.alfworld.houses import TASKS, invent, solve
from ragen_jax.host_games.alfworld.logic import State
from ragen_jax.host_games.alfworld.story import Story, plain
from ragen_jax.host_games.base import TRAINING, HostGame, Observation, Step
from ragen_jax.host_games.common.options import check_bool, check_task, check_whole
from ragen_jax.host_games.common.splits import check_split

REWARD = 10.0
NOTHING = "Nothing happens."
_FORM = "Do the task in the house. Each answer is one command, such as: "
INVENTED_RULES = (
    f"{_FORM}go to desk, open drawer, take mug from desk, move mug to desk, clean mug "
    "with sink, heat mug with microwave, cool mug with fridge, use lamp, look."
)
FILE_RULES = (
    f"{_FORM}go to desk 1, open drawer 2, take mug 1 from desk 1, move mug 1 to shelf "
    "3, clean mug 1 with sinkbasin 1, heat mug 1 with microwave 1, cool mug 1 with "
    "fridge 1, use desklamp 1, examine mug 1, inventory, look, help."
)


class Alfworld(HostGame):
    """Tasks in a household.

    A reply is a command; one that is not possible changes nothing and is not valid. The
    reply that reaches the goal pays 10 and ends the game, all others pay 0; after
    `max_steps` replies the game truncates.

    The solution of an invented house is a shortest plan, from any state. That of a file
    is the rest of its walkthrough while the player follows it, and else empty.
    """

    def __init__(
        self,
        split: str = TRAINING,
        *,
        max_steps: int = 50,
        show_actions: bool = True,
        tasks: Sequence[str] | None = None,
        data: str | None = None,
    ):
        """Choose houses and the form of observations.

        Args:
          split: one of `SPLITS`; they share no game.
          max_steps: replies, after which the game is truncated.
          show_actions: list the possible commands, as RAGEN does.
          tasks: of invented houses, some of `TASKS`; None: all.
          data: folder with games of ALFWorld's; None: invented houses.

        Raises:
          ValueError: an option is out of range, or the folder has no games.
        """
        check_split(split)
        check_whole("max_steps", max_steps)
        check_bool("show_actions", show_actions)
        self._split, self._max_steps, self._show = split, max_steps, show_actions
        self._tasks = _check_tasks(tasks, data)
        self._files = None if data is None else find_games(data, split)
        self.num_tasks = None if self._files is None else len(self._files)
        self.is_solvable = self._files is None
        self.instruction = INVENTED_RULES if data is None else FILE_RULES

    def reset(self, seed: int, task: int | None = None) -> Observation:
        """See `HostGame`.

        Without a task, seeds go through all files in turn. Invented houses are as many
        as seeds; `task` is one.

        Raises:
          ValueError: there is no such task, or its file cannot be played.
        """
        number = seed if task is None else task
        if self._files is None:
            self._story = Story(invent(number, self._tasks, self._split))
        else:
            check_task(task, len(self._files))
            path = self._files[number % len(self._files)]
            try:
                self._story = Story(read_game(path))
            except ValueError as error:
                raise ValueError(f"{path} cannot be played: {error}") from error
        self._ahead: Sequence[str] = self._story.walkthrough
        self._steps, self._is_won = 0, False
        self._go_to(self._story.world.start)
        return self._say(self._story.intro())

    def step(self, reply: str) -> Step:
        self._steps += 1
        command = plain(reply)
        move = self._commands.get(command)
        text = NOTHING
        if self._ahead[:1] == (command,):
            self._ahead = self._ahead[1:]
        elif move is not None:
            self._ahead = ()
        if move is not None:
            self._go_to(self._story.world.apply(self._state, move))
            text = self._story.answer(self._state, move)
            self._is_won = self._story.world.is_won(self._state)
        return Step(
            observation=self._say(text),
            reward=REWARD * self._is_won,
            terminated=self._is_won,
            truncated=not self._is_won and self._steps >= self._max_steps,
            info={"success": self._is_won, "valid": move is not None},
        )

    def solution(self) -> Sequence[str]:
        """See the class; empty too where it takes more replies than are left."""
        if self._is_won:
            return ()
        ahead = self._ahead
        if not ahead and self._files is None:
            ahead = solve(self._story, self._state)
        return ahead if len(ahead) <= self._max_steps - self._steps else ()

    def _go_to(self, state: State) -> None:
        self._state = state
        self._commands = self._story.commands(state)

    def _say(self, text: str) -> Observation:
        text = text.strip()
        if self._show and not self._is_won:
            text += f"\nAdmissible actions: [{', '.join(self._commands)}]"
        return Observation(text)


def _check_tasks(tasks: Sequence[str] | None, data: str | None) -> tuple[str, ...]:
    if tasks is None:
        return TASKS
    if data is not None:
        raise ValueError(
            f"tasks is {tasks!r} and data {data!r}, whose games are fixed; leave "
            "out one of the two"
        )
    chosen = (tasks,) if isinstance(tasks, str) else tasks
    is_list = isinstance(chosen, list | tuple) and len(chosen) > 0
    if not is_list or any(task not in TASKS for task in chosen):
        raise ValueError(f"tasks is {tasks!r}; use some of {', '.join(TASKS)}")
    return tuple(chosen)
