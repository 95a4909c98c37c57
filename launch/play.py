"""Play an environment in the terminal, or watch the policy or the exact solver.

python -m launch.play --config=configs/sokoban.py
python -m launch.play --run=runs/sokoban --player=policy --level=3
python -m launch.play --run=runs/sokoban --player=policy --gif=episode.gif
python -m launch.play --run=runs/mix --env=FrozenLake
"""

import pathlib

from absl import flags

from launch import command
from ragen_jax.runs.progress import working

_CONFIG = command.define_config()
_RUN = flags.DEFINE_string("run", None, "Run folder, or a folder in its checkpoints/.")
_PLAYER = flags.DEFINE_enum("player", "human", ["human", "policy", "solver"], "Player.")
_ENV = flags.DEFINE_string(
    "env", None, "Environment of a mix, e.g. FrozenLake; default: the first."
)
_GIF = flags.DEFINE_string(
    "gif", None, "Also write the episode of a policy or the solver as a GIF file."
)
_LEVEL = flags.DEFINE_integer("level", 0, "Number of the validation level, from 0.")


def main(argv: list[str]) -> int:
    config = command.read_optional_config(_CONFIG, argv)
    if _LEVEL.value < 0:
        raise ValueError(f"--level={_LEVEL.value}; it must be at least 0")
    if _GIF.value and _PLAYER.value == "human":
        raise ValueError("--gif shows --player=policy or --player=solver; add one")
    run = command.run_folder(_RUN.value)
    with working("loading JAX, the model and the game"):
        command.enable_compilation_cache()
        from ragen_jax.evaluation import play
        from ragen_jax.evaluation.load import open_trained

        trained = open_trained(
            run,
            config,
            overrides=command.overridden_keys(argv),
            defaults=command.defaults(),
        )
    if _ENV.value:
        trained = trained.only(_ENV.value)
    try:
        PLAYERS[_PLAYER.value](play, trained, _LEVEL.value)
    except (EOFError, KeyboardInterrupt):
        print("\nleft the game")
    return 0


def _human(play, trained, level: int) -> None:
    from ragen_jax.text import chat

    task = trained.program.task
    prefix = chat.forced_prefix(task.dialogue.thinking)

    def read_line() -> str:
        return input("\n> ")

    print(
        'Reply with actions, e.g. "Up || Left", or with the full tags. Ctrl-D leaves.'
    )
    play.play(
        task,
        play.level_keys(trained, level),
        read_line=read_line,
        say=lambda text: print(text, end="" if text.endswith(prefix) else "\n"),
    )


def _policy(play, trained, level: int) -> None:
    with working("playing; the first time compiles it, about 20 seconds"):
        episode = play.watch_policy(trained, level)
    _show(episode)


def _solver(play, trained, level: int) -> None:
    with working("solving; the first time compiles it, about 20 seconds"):
        episode = play.watch_solver(trained, level)
    _show(episode)


def _show(episode: dict) -> None:
    for turn in episode["turns"]:
        print(turn["observation"], end="")
        print(turn["reply"])
        print(
            f"[{len(turn['actions'])} actions run, reward {turn['reward']:g}, "
            f"penalty {turn['penalty']:g}]"
        )
    outcome = "won" if episode["success"] else "not won"
    print(f"{outcome}, return {episode['return'] + episode['penalty']:g}")
    if _GIF.value:
        _write_gif(episode, pathlib.Path(_GIF.value))


def _write_gif(episode: dict, path: pathlib.Path) -> None:
    """The board after every action.

    Raises:
      ValueError: the game shows no board.
    """
    from ragen_jax.runs.boards import gif

    turns = episode["turns"]
    if "board" not in turns[0]:
        raise ValueError("--gif: this game shows no board")
    after = [board for turn in turns for board in turn["boards_after"]]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gif([turns[0]["board"], *after], episode["legend"]))
    print(f"{path} written: {len(after)} actions")


PLAYERS = {"human": _human, "policy": _policy, "solver": _solver}

if __name__ == "__main__":
    command.run(main, config="training")
