"""Play a game in the terminal, or watch the policy or the exact solver.

python -m launch.play --config=configs/sokoban.py
python -m launch.play --run=runs/sokoban --player=policy --level=3
python -m launch.play --run=runs/sokoban --player=policy --gif=episode.gif
python -m launch.play --run=runs/mix --env=FrozenLake

On a terminal arrow keys, W A S D, numbers and first letters act at once; q, Ctrl-D or
Ctrl-C leaves. On Windows, and where input or output is not a terminal, type one action
per line. Unknown keys and words cost nothing. The level, the rewards and the number of
actions are those of the policy. A host game gets every line as a reply, which may cost
something.
"""

from launch import command  # isort: skip, it says what is not installed

import pathlib
from collections.abc import Sequence

from absl import flags

from launch import written
from ragen_jax.runs.progress import open_console, working
from ragen_jax.terminal import say

_CONFIG = command.define_config()
_RUN = flags.DEFINE_string("run", None, "Run folder, or a folder in its checkpoints/.")
_CHECKPOINT = command.define_checkpoint()
_PLAYER = flags.DEFINE_enum("player", "human", ["human", "policy", "solver"], "Player.")
_ENV = flags.DEFINE_string(
    "env", None, "Environment of a mix, e.g. FrozenLake; default: the first."
)
_GIF = flags.DEFINE_string("gif", None, "Also write the episode as a GIF file.")
_LEVEL = flags.DEFINE_integer("level", 0, "Number of the validation level, from 0.")
_RAW = flags.DEFINE_bool(
    "raw", False, "Show the text that the model reads, and read replies as it writes."
)


def main(argv: list[str]) -> int:
    config = command.read_optional_config(_CONFIG, argv)
    if _GIF.value and not _GIF.value.lower().endswith(".gif"):
        raise ValueError(f"--gif={_GIF.value}; the file's name must end with .gif")
    if not 0 <= _LEVEL.value < 2**32:
        raise ValueError(f"--level={_LEVEL.value}; use a number from 0 to {2**32 - 1}")
    run = command.run_folder(_RUN.value)
    written.check_files(_GIF)
    with working("loading JAX, the model and the game"):
        command.enable_compilation_cache()
        from ragen_jax.evaluation.load import open_trained
        from ragen_jax.evaluation.terminal.scenes import describe_level
        from ragen_jax.rollout.replay import grid_of

        trained = open_trained(
            run,
            config,
            overrides=command.overridden_keys(argv),
            defaults=command.defaults(),
            checkpoint=_CHECKPOINT.value,
        )
    if _ENV.value:
        trained = trained.only(_ENV.value)
    if _GIF.value and grid_of(trained.program.task.env) is None:
        raise ValueError("--gif: this game shows no board; leave it out")
    is_array = trained.program.task.env.lists_actions
    players = ARRAY_PLAYERS if is_array else HOST_PLAYERS
    if _RAW.value and not is_array:
        raise ValueError("--raw: a host game is always shown as it is; leave it out")
    if not _RAW.value and is_array:
        solver = f"the {trained.program.task.env.solves} solver"
        names = {"human": "you", "solver": solver}
        player = names.get(_PLAYER.value, f"the weights of {trained.name}")
        print(describe_level(trained.program.task, _LEVEL.value, player), end="\n\n")
    try:
        players[_PLAYER.value](trained, _LEVEL.value)
    except (EOFError, KeyboardInterrupt):
        print("\nleft the game")
    return 0


def _human(trained, level: int) -> None:
    if _RAW.value:
        _write_replies(trained, level)
        return
    from ragen_jax.evaluation.terminal import by_hand, scenes
    from ragen_jax.evaluation.terminal import episodes as play
    from ragen_jax.evaluation.terminal.keyboard import can_read_keys

    task, console = trained.program.task, open_console()
    # Before the game, since keys are for the game alone.
    with working("making the level and solving it"):
        episode = by_hand.HandEpisode(task, play.level_keys(trained, level))
        best = scenes.describe_best(task, episode.level, episode.budget)
    has_keys = bool(episode.names) and all(by_hand.bind_keys(episode.names))
    if can_read_keys() and has_keys:
        by_hand.play_with_keys(episode, console)
    else:
        by_hand.play_with_lines(episode, console)
    played = episode.is_won, episode.num_actions, episode.total
    print(scenes.describe_end(*played, is_over=episode.is_over))
    print(best)
    if _GIF.value:
        _write_gif(episode.boards, task.env)


def _write_replies(trained, level: int) -> None:
    from ragen_jax.evaluation.terminal import episodes as play
    from ragen_jax.text import chat

    task = trained.program.task
    prefix = chat.forced_prefix(task.dialogue.thinking)
    print(
        'Reply with actions, e.g. "Up || Left", or with the full tags. Ctrl-D leaves.'
    )
    trajectory = play.play(
        task,
        play.level_keys(trained, level),
        read_line=lambda: input("\n> "),
        say=lambda text: print(text, end="" if text.endswith(prefix) else "\n"),
    )
    _finish(task, trajectory)


def _policy(trained, level: int) -> None:
    from ragen_jax.evaluation.terminal import episodes as play

    with working("playing; the first time compiles it, about 20 seconds"):
        trajectory = play.watch_policy(trained, level)
    _show(trained.program.task, trajectory)


def _solver(trained, level: int) -> None:
    from ragen_jax.evaluation.terminal import episodes as play

    with working("solving; the first time compiles it, about 20 seconds"):
        trajectory = play.watch_solver(trained, level)
    _show(trained.program.task, trajectory)


def _show(task, trajectory) -> None:
    if _RAW.value:
        for turn in task.records(trajectory)[0]["turns"]:
            print(turn["observation"], end="")
            print(turn["reply"])
            print(
                f"[{len(turn['actions'])} actions run, reward {turn['reward']:g}, "
                f"penalty {turn['penalty']:g}]"
            )
    else:
        from ragen_jax.evaluation.terminal.scenes import describe_episode

        console = open_console()
        text = describe_episode(task, trajectory, console.width)
        console.print(text, end="\n\n", soft_wrap=not console.is_terminal)
    _finish(task, trajectory)


def _finish(task, trajectory) -> None:
    import jax

    from ragen_jax.evaluation.terminal.scenes import describe_best, describe_end

    record = task.records(trajectory)[0]
    count = sum(len(turn["actions"]) for turn in record["turns"])
    total = record["return"] + record["penalty"]
    print(describe_end(record["success"], count, total))
    level = jax.tree.map(lambda x: x[0], jax.device_get(trajectory.initial_state))
    print(describe_best(task, level, task.rules.budget))
    if _GIF.value:
        turns = record["turns"]
        after = [board for turn in turns for board in turn["boards_after"]]
        _write_gif([turns[0]["board"], *after], task.env)


def _write_gif(boards: Sequence, env) -> None:
    from ragen_jax.rollout.replay import grid_of
    from ragen_jax.runs.boards import gif

    grid, path = grid_of(env), pathlib.Path(_GIF.value)
    legend = dict(zip(grid.symbols, grid.meanings, strict=False))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gif(boards, legend))
    say(f"{path} written: {len(boards)} boards")


def _host_human(trained, level: int) -> None:
    from ragen_jax.evaluation.terminal.episodes import play_host_game

    def read_line(rows, output) -> str:
        # As in rollouts, an empty reply does not reach the game.
        while not (line := input("> ").strip()):
            pass
        return line

    play_host_game(trained, level, read_line, print)


def _host_policy(trained, level: int) -> None:
    from ragen_jax.evaluation.terminal.episodes import say_policy_episode

    with working("playing; the first time compiles it, about 20 seconds"):
        lines: list[str] = []
        say_policy_episode(trained, level, lines.append)
    print("\n".join(lines))


def _host_solver(trained, level: int) -> None:
    from ragen_jax.evaluation.terminal.episodes import play_host_game, solver_of

    play_host_game(trained, level, solver_of(trained, print), print)


ARRAY_PLAYERS = {"human": _human, "policy": _policy, "solver": _solver}
HOST_PLAYERS = {"human": _host_human, "policy": _host_policy, "solver": _host_solver}

if __name__ == "__main__":
    command.run(main, config="training")
