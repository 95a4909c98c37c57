"""Evaluations of a policy on this machine: of its own tasks, or of a suite.

In: a trained policy and, if any, the name of a suite. Out: evaluation tasks with the
policy bound, all checked before the first is played; and their scores.
"""

import concurrent.futures
import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from envs.base import TextGame
from ragen_jax import terminal
from ragen_jax.devices.sharding import make_mesh
from ragen_jax.evaluation.evaluate import evaluate
from ragen_jax.evaluation.load import Trained
from ragen_jax.evaluation.results import EvalResult, Results, Score
from ragen_jax.evaluation.suites import EvalTask, configure, find_suite
from ragen_jax.program.build import BUILT_IN, bind_policy
from ragen_jax.rollout.host.env import MissingRequirement
from ragen_jax.runs.progress import working
from ragen_jax.tasks.build import build_task, check_fit, play_rules, show_to
from ragen_jax.tasks.specs import EnvSpec, env_specs
from ragen_jax.tasks.task import Task
from ragen_jax.text.pictures import NoBoard
from ragen_jax.types import Params

Records = list[dict[str, Any]]


def policy_evaluations(
    trained: Trained, suite: str | None, overrides: Collection[str] = ()
) -> list[EvalTask]:
    """The evaluation tasks of a policy.

    Args:
      trained: the policy.
      suite: key of `suites.SUITES`; None: the tasks of its configuration.
      overrides: dotted paths that the user set.

    Raises:
      ValueError: there is no such suite, or a task does not fit the model.
    """
    entries = suite_configs(trained.config, suite, overrides)
    if suite is not None:
        return playable(
            entries,
            lambda changed, entry: _evaluation(
                trained, _bind(trained, suite, changed, entry), changed, entry
            ),
        )
    return [
        _evaluation(trained, task, config, entry)
        for task, (config, entry) in zip(trained.program.tasks, entries, strict=True)
    ]


def run_evaluations(
    evaluations: Sequence[EvalTask],
    results: Results,
    *,
    say: Callable[[str], None],
    keep_episodes: bool,
    run_concurrently: int = 1,
) -> Records:
    """Run every evaluation that has no result yet, and print its scores.

    Args:
      evaluations: in this order.
      results: receives the scores.
      say: prints a line.
      keep_episodes: return the episodes of all evaluations; those with a result are
        played again for that.
      run_concurrently: evaluations that run at the same time.
    """
    records: Records = []
    total = len(evaluations)
    known = [results.find(x.name, x.settings) for x in evaluations]
    is_due = [score is None or keep_episodes for score in known]
    due = [x for x, is_one in zip(evaluations, is_due, strict=True) if is_one]
    scores = _scores(due, keep_episodes, run_concurrently)
    for number, (evaluation, score) in enumerate(
        zip(evaluations, known, strict=True), 1
    ):
        if is_due[number - 1]:
            # Between half a minute and a minute on two cores, for the pocket model.
            doing = f"playing {evaluation.name}; the first time about a minute"
            with working(doing):
                score, episodes = next(scores)
            results.add(score)
            label = {"environment": evaluation.name} if total > 1 else {}
            records += [label | episode for episode in episodes]
            ending = f" ({score.seconds:.1f} s)"
        else:
            ending = " (measured before)"
        place = f"{number}/{total} {score.name}: " if total > 1 else ""
        say(place + format_score(score.metrics) + ending)
        if _is_one_sample(score):
            terminal.say(
                f"note: greedy samples of a prompt ended alike in {score.name}, so "
                "that pass@k is pass@1; raise --temperature, or play one sample",
                sys.stderr,
            )
    return records


def _is_one_sample(score: Score) -> bool:
    """Several greedy samples of a prompt were one, as far as success tells."""
    num_samples = score.metrics.get("num_samples", 1)
    is_greedy = score.metrics.get("temperature") == 0
    wins = {int(word) for word in (score.wins or "").split()}
    return is_greedy and num_samples > 1 and wins <= {0, num_samples}


def evaluations_at_once(trained: Trained) -> int:
    """Evaluations of a policy that this machine can run at the same time.

    A built-in model's time goes into compiling, most of it on one core. Larger models
    use all cores, and programs split over devices must not overlap.
    """
    is_small = trained.config.model.path in BUILT_IN
    is_one_cpu = jax.device_count() == 1 and jax.default_backend() == "cpu"
    return 2 if is_small and is_one_cpu else 1


def _scores(
    evaluations: Sequence[EvalTask], keep_episodes: bool, run_concurrently: int
) -> Iterator[tuple[Score, Records]]:
    score = functools.partial(_score, keep_episodes=keep_episodes)
    if run_concurrently == 1:
        yield from map(score, evaluations)
        return
    pool = concurrent.futures.ThreadPoolExecutor(run_concurrently)
    try:
        yield from pool.map(score, evaluations)
    finally:
        pool.shutdown(cancel_futures=True)


def _score(evaluation: EvalTask, *, keep_episodes: bool) -> tuple[Score, Records]:
    began = time.perf_counter()
    result = evaluation.play()
    episodes = result.records() if keep_episodes else []
    score = Score(
        evaluation.name,
        evaluation.settings,
        evaluation.note,
        result.metrics,
        seconds=time.perf_counter() - began,
        wins=" ".join(str(int(count)) for count in result.wins),
    )
    return score, episodes


def format_score(metrics: Mapping[str, float]) -> str:
    """Success with its interval, the ceiling and the regret, in words."""
    success, low, high = (
        metrics[name] for name in ("success", "success_low", "success_high")
    )
    text = f"success {success:.1%} (95 % interval {low:.1%} to {high:.1%}), "
    if "ceiling" not in metrics:
        return f"{text}best play unknown"
    best = "best possible" if metrics.get("exact", 1) else "reference play"
    return f"{text}{best} {metrics['ceiling']:.1%}, regret {metrics['regret']:.1%}"


def suite_configs(
    config: ConfigDict, suite: str | None, overrides: Collection[str]
) -> list[tuple[ConfigDict, EvalTask]]:
    """The entries of a suite, each with its configuration.

    Without a suite: the tasks of the configuration itself.
    """
    if suite is None:
        return [(config, EvalTask(spec)) for spec in env_specs(config)]
    for key in overrides:
        if key.startswith("env."):
            raise ValueError(
                f"--config.{key} has no effect with --suite={suite}, whose entries "
                "name their games and arguments; leave it out"
            )
    pairs = []
    for entry in find_suite(suite):
        changed = configure(config, entry, overrides)
        if entry.spec.host is not None:
            (spec,) = env_specs(changed)
            spec = dataclasses.replace(entry.spec, host=spec.host)
            entry = dataclasses.replace(entry, spec=spec)
        pairs.append((changed, entry))
    return pairs


def warn_skipped(entry: EvalTask, reason: object) -> None:
    """Say on standard error that a suite is played without an entry."""
    terminal.say(f"note: {entry.name} is left out: {reason}", sys.stderr)


def describe(config: ConfigDict, spec: EnvSpec, env: TextGame) -> dict[str, Any]:
    """Environment, levels, budget and reply length of an evaluation, JSON-able."""
    rules = play_rules(config)
    # Files from before levels were held out by content lack this key: their scores
    # must not be resumed.
    levels = {"levels": "held out by content"} if env.holds_out_levels else {}
    names = () if spec.host is None else ("wrappers", "max_observation_tokens")
    host = {name: spec.host[name] for name in names}
    return {
        "environment": spec.name,
        "kwargs": _plain(spec.kwargs),
        "params": _plain(spec.params),
        **levels,
        **host,
        **vars(rules.budget),
        "max_reply_tokens": rules.max_reply_tokens,
    }


def playable(
    entries: Sequence[tuple[ConfigDict, EvalTask]],
    bind: Callable[[ConfigDict, EvalTask], EvalTask],
) -> list[EvalTask]:
    """Binds a player to each entry; of several, those it cannot play are skipped.

    Raises:
      ValueError: of `bind`, for another reason than what this machine lacks, or a board
        that is to be shown as a picture.
    """
    bound = []
    for config, entry in entries:
        try:
            bound.append(bind(config, entry))
        except ValueError as error:
            if len(entries) == 1 or not _is_missing_requirement(error):
                raise
            warn_skipped(entry, error)
    return bound


def _is_missing_requirement(error: BaseException | None) -> bool:
    kinds = ImportError | MissingRequirement | NoBoard
    while error is not None and not isinstance(error, kinds):
        error = error.__cause__
    return error is not None


def _bind(trained: Trained, suite: str, config: ConfigDict, entry: EvalTask) -> Task:
    """The task of a suite's entry with the policy bound, checked."""
    program = trained.program
    try:
        task = build_task(config, entry.spec, program.task.tokenizer)
        check_fit(config, task, program.model)
        policy = show_to(program.policy, [task])
    except ValueError as error:
        raise ValueError(f"suite {suite!r}, {entry.name}: {error}") from error
    return bind_policy(
        config,
        task,
        policy,
        make_mesh(**config.mesh),
        index=0,
        num_groups=config.rollout.num_groups,
    )


def _evaluation(
    trained: Trained, task: Task, config: ConfigDict, entry: EvalTask
) -> EvalTask:
    program = dataclasses.replace(trained.program, tasks=(task,))

    def play(params: Params = trained.params) -> EvalResult:
        metrics, rollouts = evaluate(program, params)
        prefix = f"val-env/{task.name}/"
        plain = {key.removeprefix(prefix): value for key, value in metrics.items()}
        success = np.asarray(jax.device_get(rollouts[0].success))
        wins = success.reshape(program.validation["num_prompts"], -1).sum(axis=1)
        return EvalResult(plain, wins, lambda: program.episodes(rollouts))

    is_pocket = trained.config.model.path == "pocket"
    notes = [entry.note, entry.pocket_note if is_pocket else ""]
    if task.dialogue.picture is not None and "symbols" in entry.spec.kwargs:
        notes.append("Pictures do not show symbols.")
    return dataclasses.replace(
        entry,
        spec=dataclasses.replace(entry.spec, label=task.name),
        note=" ".join(filter(None, notes)),
        settings=describe(config, entry.spec, task.env),
        play=play,
    )


def _plain(values: Mapping[str, object]) -> dict[str, Any]:
    """Values as JSON reads them back: lists for tuples."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in values.items()
    }
