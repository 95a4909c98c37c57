"""Serve a game over OpenEnv's protocol, a policy over OpenAI's API, or a retriever.

python -m launch.serve --env=sokoban --port=8000
python -m launch.serve --env=sokoban --env.kwargs.num_boxes=2 --max_sessions=256
python -m launch.serve --env=search --host=0.0.0.0
python -m launch.serve --config=configs/frozen_lake.py --config.rollout.max_turns=8
python -m launch.serve --retriever=embedded --port=8001
python -m launch.serve --policy=runs/sokoban --port=8002
python -m launch.serve --policy=models/smollm2-135m --max_calls=4

--env names an array game or a host game, or is package.module:Class. The
page at http://127.0.0.1:8000/ says how to connect. --policy is a run, one of its
checkpoints, or a model's folder, for programs that call a model (docs/agents.md).
There are no passwords and no
encryption: only this machine can connect, unless --host says otherwise.
"""

from launch import command  # isort: skip, it says what is not installed

import contextlib
import math
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from absl import flags
from ml_collections import ConfigDict

import configs
from ragen_jax.host_games.common.http import is_loopback
from ragen_jax.host_games.common.http_server import LOCAL_HOST
from ragen_jax.runs.progress import working
from ragen_jax.runs.stop import stop_when_clean
from ragen_jax.terminal import say

if TYPE_CHECKING:
    from ragen_jax.serve.policy import PolicyServer
    from ragen_jax.serve.retriever import RetrievalServer
    from ragen_jax.serve.server import GameServer


def _as_config(words: Sequence[str]) -> list[str]:
    """The command line with the configuration that `--env` stands for.

    `--env=sokoban` adds `--config=configs/sokoban.py`, with its limits and options; a
    game without such a file has the defaults. `--env.KEY=VALUE` is
    `--config.env.KEY=VALUE`.
    """
    matches = [re.fullmatch(r"--?env=(.*)", word, re.DOTALL) for word in words]
    names = [match.group(1) for match in matches if match]
    words = [re.sub(r"^--?env\.", "--config.env.", word) for word in words]
    has_config = any(re.match(r"--?config(=|$)", word) for word in words)
    if not names or has_config:
        return words
    task = configs.TASK_FILES.get(names[-1], "base")
    path = pathlib.Path(configs.__path__[0]) / f"{task}.py"
    return [words[0], f"--config={path}", *words[1:]]


_CONFIG = command.define_config()
_ENV = flags.DEFINE_string(
    "env", None, "Game to serve; --env.kwargs.NAME=VALUE sets an option of it."
)
_RETRIEVER = flags.DEFINE_string(
    "retriever",
    None,
    "In place of a game, the search engine of the search game: a file of HotpotQA's, "
    "or embedded for the passages of the game's own questions.",
)
_POLICY = flags.DEFINE_string(
    "policy", None, "In place of a game, the policy of a run, or a model's folder."
)
_MAX_CALLS = flags.DEFINE_integer(
    "max_calls", 8, "Calls of a policy that are answered at once; others wait."
)
_CONTEXT_TOKENS = flags.DEFINE_integer(
    "context_tokens", 2048, "Tokens of a call of a policy and its reply."
)
_MAX_REPLY_TOKENS = flags.DEFINE_integer(
    "max_reply_tokens", 512, "Tokens of a policy's reply."
)
_HOST = flags.DEFINE_string(
    "host", LOCAL_HOST, "Address to listen at; 0.0.0.0: other machines can connect."
)
_PORT = flags.DEFINE_integer("port", 8000, "Port to listen at; 0: any free one.")
_MAX_SESSIONS = flags.DEFINE_integer(
    "max_sessions", 64, "Clients that play at once; a trainer has one per row."
)
_IDLE_SECONDS = flags.DEFINE_float(
    "idle_seconds", 900.0, "Seconds without a message after which a session ends."
)

# Flags that some of what is served does not read.
_READ_BY = {
    **dict.fromkeys(("max_sessions", "idle_seconds"), ("a game",)),
    **dict.fromkeys(("max_calls", "context_tokens", "max_reply_tokens"), ("--policy",)),
}


def main(argv: list[str]) -> int:
    config = command.read_optional_config(_CONFIG, argv)
    _check_flags(config, argv)
    if _POLICY.value is not None:
        return _serve(_open_policy(), lambda: "stopped")
    if _RETRIEVER.value is not None:
        # A search is over once it is answered: there are no sessions to close.
        return _serve(_open_retriever(), lambda: "stopped")
    server = _open_game(config, command.overridden_keys(argv))
    return _serve(
        server, lambda: f"stopped; {server.close_sessions()} sessions were open"
    )


def _check_flags(config: ConfigDict | None, argv: Sequence[str]) -> None:
    if not 0 <= _PORT.value <= 65_535:
        raise ValueError(f"--port={_PORT.value}; it must be from 0 to 65535")
    if _MAX_SESSIONS.value < 1:
        raise ValueError(f"--max_sessions={_MAX_SESSIONS.value}; it must be at least 1")
    if not 0 < _IDLE_SECONDS.value < math.inf:
        raise ValueError(f"--idle_seconds={_IDLE_SECONDS.value}; it must be above 0")
    if config is None and _ENV.value is not None:
        raise ValueError(f"write --env={_ENV.value}, with an equals sign")
    others = {"retriever": _RETRIEVER.value, "policy": _POLICY.value}
    given = [f"--{name}" for name, value in others.items() if value is not None]
    if config is None and not given:
        raise ValueError(
            "nothing to serve: add --env=NAME, --config=FILE, --policy=RUN or "
            "--retriever=embedded"
        )
    if len(given) + (config is not None) > 1:
        raise ValueError(
            f"{' and '.join(given)} serves no game, and nothing else; leave it out, or "
            "the others"
        )
    served = given[0] if given else "a game"
    for word in argv:
        match = re.match(r"--?(\w+)", word)
        if match and served not in _READ_BY.get(match[1], (served,)):
            raise ValueError(f"{word} has no effect with {served}; leave it out")


def _open_game(config: ConfigDict, overrides: Sequence[str]) -> "GameServer":
    with _as_sentences(), working("loading JAX and the game"):
        command.enable_compilation_cache()
        from ragen_jax.serve.build import build_game, choose_game
        from ragen_jax.serve.server import GameServer, check_installed

        check_installed()
        if _ENV.value is not None:
            choose_game(config, _ENV.value)
        game = build_game(config, overrides)
    with _listening():
        server = GameServer(
            game,
            host=_HOST.value,
            port=_PORT.value,
            max_sessions=_MAX_SESSIONS.value,
            idle_seconds=_IDLE_SECONDS.value,
        )
    address = server.url.removeprefix("http://")
    say(f"{game.name} at ws://{address}, up to {_MAX_SESSIONS.value} sessions")
    say(f"{server.url}/ says how to connect")
    return server


def _open_policy() -> "PolicyServer":
    for flag in (_MAX_CALLS, _CONTEXT_TOKENS, _MAX_REPLY_TOKENS):
        if flag.value < 1:
            raise ValueError(f"--{flag.name}={flag.value}; it must be at least 1")
    with _as_sentences(), working("loading JAX and the policy"):
        command.enable_compilation_cache()
        from ragen_jax.serve.build import open_policy
        from ragen_jax.serve.policy import PolicyServer

        served = open_policy(pathlib.Path(_POLICY.value), command.defaults())
    most = served.policy.config.max_position_embeddings
    with _listening():
        server = PolicyServer(
            served,
            host=_HOST.value,
            port=_PORT.value,
            max_calls=_MAX_CALLS.value,
            context_tokens=min(_CONTEXT_TOKENS.value, most),
            max_reply_tokens=_MAX_REPLY_TOKENS.value,
        )
    say(f"{served.name} at {server.url}, {_MAX_CALLS.value} calls at once")
    return server


def _open_retriever() -> "RetrievalServer":
    with _as_sentences(), working("reading the passages"):
        from ragen_jax.serve.retriever import RetrievalServer, build_retriever

        retriever = build_retriever(_RETRIEVER.value)
    with _listening():
        server = RetrievalServer(retriever, host=_HOST.value, port=_PORT.value)
    say(f"search at {server.url}/retrieve")
    return server


@contextlib.contextmanager
def _as_sentences() -> Iterator[None]:
    """Report a missing package as an error of the user, without a traceback."""
    try:
        yield
    except ImportError as error:
        if "pip install" not in str(error):
            raise
        raise ValueError(str(error)) from error


@contextlib.contextmanager
def _listening() -> Iterator[None]:
    """Report an address that cannot be used as an error of the user."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"cannot listen at {_HOST.value}:{_PORT.value}: {error}; choose another "
            "--port or --host"
        ) from error


def _serve(
    server: "GameServer | PolicyServer | RetrievalServer", end: Callable[[], str]
) -> int:
    say(_reach(_HOST.value))
    try:
        with stop_when_clean():
            server.serve_forever()
    except (KeyboardInterrupt, SystemExit):
        # The first signal asks for this end: not a failure.
        said = end()
        server.server_close()
        say(said)
    return 0


def _reach(host: str) -> str:
    if is_loopback(host):
        return "Only this machine can connect; --host=0.0.0.0 opens it to others"
    return (
        "Every machine that reaches this one can connect: there are no passwords and "
        "no encryption"
    )


if __name__ == "__main__":
    command.run(main, config="training", rewrite=_as_config)
