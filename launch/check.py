"""Check your class or function before it trains.

python -m launch.check my_games:Walk
python -m launch.check my_games:Riddle    # a host game, docs/host_games.md
python -m launch.check textarena:Nim-v0   # another library's, by its adapter
python -m launch.check my_algorithms:my_estimator strength=0.5
python -m launch.check my_metrics:MySink
python -m launch.check sokoban --kind=environment

A class is checked as an environment, or as a host game if it is a `HostGame`: the
contract that the built-in games pass, and an environment's words under the pocket
model's tokenizer. The arguments of its constructor are further words, and of a host
game also the keys of the section `host`, such as host.step_seconds=40. A `Sink` is
shown a run that stops and resumes. A function is tried on random episodes, with its
options as further words; --kind names its place where the parameters do not.

Exit status: 0 when every check holds, 1 when one does not, 2 when there is nothing to
check.
"""

from launch import command  # isort: skip, it says what is not installed

import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from ragen_jax.registry.functions import read_literal
from ragen_jax.runs.progress import working
from ragen_jax.terminal import say

# What an error is and where it comes from, at the end of a problem; which episode broke
# a rule.
_ERROR = re.compile(r"(?:^|: )([A-Za-z_]\w*: .*\(([^()]+, line \d+)\))$", re.DOTALL)
_EPISODE = re.compile(r"^\w+, seed \d+")
_KIND = flags.DEFINE_enum(
    "kind",
    None,
    [
        "environment",
        "advantage",
        "filter",
        "score",
        "placement",
        "reward",
        "bonus",
        "metrics",
    ],
    "What it is; default: what its parameters say.",
)


def main(words: list[str]) -> int:
    if not words:
        raise ValueError(
            "name what to check, e.g. launch.check my_games:Walk, or sokoban"
        )
    name, *settings = words
    options = dict(map(_setting, settings))
    with working("loading JAX"):
        import envs
        from ragen_jax.host_games import ADAPTERS, HOST_GAMES
        from ragen_jax.host_games.base import HostGame
        from ragen_jax.registry.functions import is_reference, load_reference
        from ragen_jax.runs.sinks.base import Sink

        prefix, _, rest = name.partition(":")
        if rest and prefix in ADAPTERS:
            subject = load_reference(ADAPTERS[prefix][0])
        elif is_reference(name):
            subject = load_reference(name)
        elif name in HOST_GAMES:
            subject = load_reference(HOST_GAMES[name])
        elif name in envs.ENVIRONMENTS:
            subject = envs.ENVIRONMENTS[name]
        else:
            raise ValueError(
                f"{name} is neither package.module:Name nor one of "
                f"{', '.join((*envs.ENVIRONMENTS, *HOST_GAMES))}, nor begins with "
                f"{' or '.join(f'{prefix}:' for prefix in ADAPTERS)}"
            )
    is_environment = inspect.isclass(subject) or _KIND.value == "environment"
    look = _environment if is_environment else _function
    if inspect.isclass(subject) and issubclass(subject, HostGame):
        look = _host_game
    elif inspect.isclass(subject) and issubclass(subject, Sink):
        look = _sink
    num_broken, told = 0, set()
    for what, problems in look(name, subject, options):
        say(f"{'FAILED' if problems else 'ok    '}  {what}")
        for problem in _untold(problems, told):
            say(f"        {problem}")
        num_broken += bool(problems)
    say(f"{num_broken} broken" if num_broken else f"{name} keeps the contract")
    return 1 if num_broken else 0


def _untold(problems: Sequence[str], told: set[str]) -> Iterator[str]:
    """Each problem once, though several episodes or checks meet it; adds to `told`."""
    before = set(told)
    for problem in problems:
        error = _ERROR.search(problem)
        key = error[1] if error else _EPISODE.sub("", problem)
        if key not in told:
            yield problem
        elif key in before:
            yield f"the error above ({error[2]})" if error else "the problem above"
            before.remove(key)
        told.add(key)


def _setting(word: str) -> tuple[str, object]:
    name, sign, text = word.partition("=")
    if not sign:
        raise ValueError(f"{word} has no value; options are written name=value")
    return name, read_literal(text)


def _outcomes(
    checks: Iterable[Callable], problems_of: Callable[[Callable], Iterable[str]]
) -> Iterator[tuple[str, list[str]]]:
    for check in checks:
        with working(inspect.getdoc(check)):
            # One shows what is wrong, and takes no more episodes than it needs.
            problems = list(itertools.islice(problems_of(check), 1))
        yield inspect.getdoc(check), problems


def _environment(
    name: str, subject: type, options: Mapping[str, Any]
) -> Iterator[tuple[str, list[str]]]:
    import envs
    from envs.contract.checks import CHECKS
    from envs.contract.subject import Subject, problem
    from ragen_jax.registry.functions import constructing

    with constructing(name):
        built = Subject(envs.make(subject, **options))
    yield from _outcomes(CHECKS, lambda check: filter(None, [problem(check, built)]))
    with working("its words under the pocket model's tokenizer"):
        problem = _words_problem(built.env)
    yield "The tokenizer covers all states and actions.", [problem] if problem else []
    _say_unread_words(built.env)


def _host_game(
    name: str, subject: type, options: Mapping[str, Any]
) -> Iterator[tuple[str, list[str]]]:
    from configs import base
    from ragen_jax.host_games.base import SPLITS, TRAINING
    from ragen_jax.host_games.contract import AGENT_CHECKS, CHECKS, Subject
    from ragen_jax.registry.functions import constructing
    from ragen_jax.rollout.host.env import build_game, make_host_game

    del subject
    settings = base.get_config().host.to_dict()
    given = dict(options)
    for key in [key for key in options if "." in key]:
        section, _, rest = key.partition(".")
        if section != "host" or rest not in settings:
            raise ValueError(f"there is no {key}; use host. and {', '.join(settings)}")
        value = settings[rest] = given.pop(key)
        if problem := base.SETTINGS[key].problem(key, value):
            raise ValueError(problem)
    with constructing(name):
        env = make_host_game(name, given, max_failed_fraction=1.0, **settings)
        spec = env.spec
        games = {split: build_game(spec, split) for split in SPLITS}
    built = Subject(spec, games)
    checks = AGENT_CHECKS if games[TRAINING].makes_calls else CHECKS
    yield from _outcomes(checks, lambda check: check(built))
    _say_unread_words(env)


def _say_unread_words(env) -> None:
    """A note where no built-in model can read the game, which may still be right."""
    from ragen_jax.program.build import BUILT_IN
    from ragen_jax.program.reading import CURE, unread_note
    from ragen_jax.text.tokenizer import load_tokenizer

    if note := unread_note(env, [load_tokenizer(x) for x in BUILT_IN.values()], CURE):
        say(f"note    {note}")


def _sink(
    name: str, subject: type, options: Mapping[str, Any]
) -> Iterator[tuple[str, list[str]]]:
    from launch.sink_check import outcomes

    if options:
        raise ValueError(f"{name} is a sink, which has no options: leave them out")
    yield from outcomes(subject)


def _words_problem(env) -> str | None:
    """Why the pocket model cannot read and answer the game; None if it can."""
    from envs.base import PlayBudget
    from ragen_jax.program.build import POCKET
    from ragen_jax.text.dialogue import build_dialogue
    from ragen_jax.text.tokenizer import load_tokenizer

    try:
        build_dialogue(
            env,
            load_tokenizer(POCKET),
            budget=PlayBudget(3, 4, 10),
            max_reply_tokens=24,
            style="terse",
            tokenization="symbols",
            length_hint_words=100,
            thinking=True,
        )
    except ValueError as error:
        return str(error)
    return None


def _function(
    name: str, entry: Callable, options: Mapping[str, Any]
) -> Iterator[tuple[str, list[str]]]:
    from launch.function_checks import KINDS, find_kind, problems
    from ragen_jax.registry.functions import option_names, resolve
    from ragen_jax.registry.settings import option_value

    if not callable(entry):
        raise ValueError(
            f"{name} is {type(entry).__name__}, neither class nor function"
        )
    kind_name = _KIND.value or find_kind(entry)
    if kind_name is None:
        raise ValueError(
            f"the parameters of {name} do not say what it is; add "
            "--kind=reward, metrics, score or placement (functions under other keys "
            "are tried by training with them)"
        )
    kind = KINDS[kind_name]
    try:
        entry = resolve(kind.table, name)
    except ValueError as error:
        yield f"It is called as {kind.key} is.", [str(error)]
        return
    yield f"It is called as {kind.key} is.", []
    parameters = inspect.signature(entry).parameters
    values = {n: parameters[n].default for n in option_names(entry)} | options
    empty = inspect.Parameter.empty
    lacking = [n for n in option_names(entry) if values[n] is empty]
    unknown = [n for n in options if n not in option_names(entry)]
    if lacking or unknown:
        raise ValueError(
            f"{name} reads the options {', '.join(option_names(entry)) or 'none'}; "
            f"give {', '.join(f'{n}=VALUE' for n in lacking) or 'no other'}"
        )
    values = {n: option_value(n, parameters[n].default, values, name) for n in values}
    with working("trying it on random episodes"):
        found = list(problems(kind, entry, values))
    yield "It keeps its promises on random episodes.", found


if __name__ == "__main__":
    command.run_on_words(main)
