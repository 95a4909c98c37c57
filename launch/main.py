"""The console command `ragen-jax`: all commands of ragen_jax, from any folder.

ragen-jax train --config=sokoban:grpo --workdir=runs/sokoban
ragen-jax report runs/sokoban
ragen-jax train --help
"""

import ast
import pathlib
import runpy
import sys

from launch import end_at_interrupt

COMMANDS = (
    "train",
    "sweep",
    "study",
    "evaluate",
    "play",
    "report",
    "leaderboard",
    "export",
    "plan",
    "fetch",
    "sft",
    "check",
    "serve",
)


def main() -> None:
    """Run the command named by the first argument."""
    words = sys.argv[1:]
    if not words or words[0] in ("help", "--help", "-h"):
        print(f"{__doc__}\nCommands, each with its own --help\n{_listed()}")
        sys.exit(0 if words else 2)
    name, *rest = words
    if name not in COMMANDS:
        print(
            f"error: {name!r} is not a command; choose one of {', '.join(COMMANDS)}",
            file=sys.stderr,
        )
        sys.exit(2)
    end_at_interrupt()
    sys.argv = [f"ragen-jax {name}", *rest]
    runpy.run_module(f"launch.{name}", run_name="__main__")


def _listed() -> str:
    folder = pathlib.Path(__file__).parent
    texts = {
        name: ast.get_docstring(ast.parse((folder / f"{name}.py").read_text("utf-8")))
        for name in COMMANDS
    }
    return "\n".join(f"  {n:<11} {t.splitlines()[0]}" for n, t in texts.items())
