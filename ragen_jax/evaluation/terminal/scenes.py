"""Episodes for people at a terminal: the game in colour, and how it ended.

In: states and episodes. Out: rich text, whose symbols say everything without colours.
"""

import functools
import re

import jax
from rich.text import Text

from envs.base import EXACT, NEVER, PlayBudget, ask_solver, host_text_fields
from envs.templates import Grid
from ragen_jax.rollout.replay import replay
from ragen_jax.runs.boards import color_board
from ragen_jax.tasks.task import Task
from ragen_jax.terminal import fold
from ragen_jax.types import EnvState, Trajectory

_COLUMNS = 80
_TO_ANSWER = re.compile(r"\s*</think>\s*<answer>")
_MARKUP = re.compile(r"</?(?:think|answer)>|<\|im_\w+\|>")


def describe_level(task: Task, level: int, player: str) -> str:
    """What is played, by whom, and the rules of the game."""
    head = f"{task.name}, level {level}, played by {player}"
    return fold(f"{head}\n{task.env.instruction}", _COLUMNS)


def draw_state(task: Task, state: EnvState, width: int) -> Text:
    """A state as its game describes it, with boards in colour.

    Args:
      state: of one row.
      width: of the terminal, in columns.
    """
    fields = host_text_fields(task.env, state, task.params)
    text = Text()
    for part in task.env.template.parts:
        if isinstance(part, str):
            text.append(part)
        elif isinstance(part, Grid):
            board = [[part.symbols[i] for i in row] for row in fields[part.name]]
            legend = dict(zip(part.symbols, part.meanings, strict=False))
            text.append_text(color_board(board, legend, width))
        else:
            text.append(part.render(fields[part.name]))
    text.right_crop(1)  # the newline that ends every template
    return text


def describe_episode(task: Task, trajectory: Trajectory, width: int) -> Text:
    """The first row's episode: the game before every turn, the reply, the outcome."""
    (record, *_) = task.records(trajectory, 1)
    row = jax.tree.map(lambda x: x[:1], jax.device_get(trajectory))
    replay_row = jax.jit(lambda row: replay(task.env, task.params, row))
    before, last = jax.device_get(replay_row(row))
    text = Text()
    for i, turn in enumerate(record["turns"]):
        states = [
            jax.tree.map(lambda x, i=i, j=j: x[0, i, j], before)
            for j in range(task.rules.budget.max_actions_per_turn)
        ]
        text.append_text(draw_state(task, states[0], width))
        pairs = zip(turn["actions"], states, strict=False)
        done = [task.env.action_text(a, state, task.params) for a, state in pairs]
        said = _MARKUP.sub(" ", _TO_ANSWER.sub(" -> ", turn["reply"]))
        said = " ".join(said.split())
        text.append(f"\n\nturn {turn['turn']} says: {said}\n")
        text.append(f"runs: {', '.join(done)}; " if done else "ran no action; ")
        text.append(f"reward {turn['reward']:g}")
        if turn["penalty"]:
            text.append(f", format penalty {turn['penalty']:g}")
        text.append("\n\n")
    text.append_text(draw_state(task, jax.tree.map(lambda x: x[0], last), width))
    return text


def describe_end(
    is_won: bool, num_actions: int, total: float, *, is_over: bool = True
) -> str:
    """The outcome in a sentence.

    Args:
      is_won: the goal of the game was reached.
      num_actions: run in all.
      total: sum of rewards and penalties.
      is_over: False: the player left.
    """
    outcome = "won in" if is_won else "not won after" if is_over else "you quit after"
    return f"{outcome} {_actions(num_actions)}, return {total:g}"


def describe_best(task: Task, level: EnvState, budget: PlayBudget) -> str:
    """What the solver reaches from a level, one row without its axis."""
    env, states = task.env, jax.tree.map(lambda x: x[None], jax.device_get(level))
    ask = functools.partial(ask_solver, env, states=states, params=task.params)
    solve = functools.partial(ask, env.solve, discount=1.0)
    try:
        solution = solve(budget=budget)
        fewest = int(ask(env.fewest_actions)[0])
    except ValueError as error:  # the level is too large to search
        return f"best play is not known: {error}"
    share = float(solution.best_success[0])
    if env.solves != EXACT:
        return f"reference play: won {share:.0%} of the time"
    if share == 1:
        in_fewest = PlayBudget(fewest, 1, fewest)
        luckless = solve(budget=in_fewest)
        needs_luck = float(luckless.best_success[0]) < 1
        won = "won; with luck in" if needs_luck else "won in"
        return f"best play: {won} {_actions(fewest)}"
    if share == 0 and fewest < NEVER:
        return f"the budget is too small: the shortest way takes {_actions(fewest)}"
    best = f"best play: won {share:.0%} of the time"
    return best if fewest >= NEVER else f"{best}; with luck in {_actions(fewest)}"


def _actions(count: int) -> str:
    return f"{count} action" if count == 1 else f"{count} actions"
