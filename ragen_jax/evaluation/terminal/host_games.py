"""One episode of a game in Python: by a person, by the policy, or by its solution.

In: a policy whose task is a `World`, and the number of a level. Out: the episode as
text. A line that a person types is a reply, without blanks around it.
"""

from collections.abc import Callable

from ragen_jax.evaluation.load import Trained
from ragen_jax.evaluation.terminal.episodes import level_keys, watch_policy
from ragen_jax.evaluation.terminal.scenes import describe_end
from ragen_jax.host_games.base import HostGame, Observation, Step
from ragen_jax.rollout.host.env import World, build_game
from ragen_jax.rollout.host.games import draw_problems

Say = Callable[[str], None]


def by_hand(trained: Trained, level: int, read_line: Callable[[], str], say: Say):
    """A person writes the replies; raises EOFError where the person leaves."""
    _play(trained, level, lambda game: read_line(), say)


def by_solution(trained: Trained, level: int, say: Say) -> None:
    """The replies are those of the game's own solution.

    Raises:
      ValueError: it has none here.
    """

    def solve(game: HostGame) -> str:
        replies = game.solution()
        if not replies:
            raise ValueError(
                f"{game.name} knows no replies that win from here (`solution` is empty)"
            )
        say(f"> {replies[0]}")
        return replies[0]

    _play(trained, level, solve, say)


def by_policy(trained: Trained, level: int, say: Say) -> None:
    """The replies are the policy's; with the text that it reads."""
    trajectory = watch_policy(trained, level)
    (record,) = trained.program.task.records(trajectory)
    for turn in record["turns"]:
        say(f"{turn['observation']}{turn['reply']}")
        say(f"[reward {turn['reward']:g}, penalty {turn['penalty']:g}]")
    total = record["return"] + record["penalty"]
    say(describe_end(record["success"], len(record["turns"]), total))


def _play(
    trained: Trained, level: int, reply: Callable[[HostGame], str], say: Say
) -> None:
    """An episode in this process, within the limit on turns of the rollout."""
    task = trained.program.task
    world: World = task.env
    keys = level_keys(trained, level)
    (seed,), (problem,) = draw_problems(keys, world.num_tasks[keys.split])
    game = build_game(world.spec, keys.split)
    try:
        say(f"{world.name}, level {level}\n{world.instruction}\n")
        shown: Observation = game.reset(seed, problem)
        total, step, count = 0.0, None, 0
        while not _is_over(step) and count < task.rules.budget.max_turns:
            say(_as_text(shown))
            step = game.step(reply(game))
            shown, count, total = step.observation, count + 1, total + step.reward
            say(f"[reward {step.reward:g}]")
        say(_as_text(shown))
        is_won = step is not None and bool(step.info.get("success", False))
        say(describe_end(is_won, count, total))
    finally:
        game.close()


def _as_text(shown: Observation) -> str:
    """What is shown, images by their size."""
    sizes = (f"\n[image, {x.shape[1]} x {x.shape[0]}]" for x in shown.images)
    return shown.text + "".join(sizes)


def _is_over(step: Step | None) -> bool:
    return step is not None and (step.terminated or step.truncated)
