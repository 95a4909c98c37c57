"""Players that read no text: the games' own solver, and one that plays at random.

In: a configuration and the name of a player. Out: evaluation tasks and scores like
those of a policy: same levels, same noise, same limits on turns and actions. There is
no model, no prompt and no reply. A turn is as many actions as it may have, chosen
without seeing where they lead.

    random  every action is drawn uniformly from all of the game, those that change
            nothing included. Host games have no list of actions: they are left out.
    solver  the action that the game's solver values most. Where a turn has several, it
            imagines `NUM_IMAGINED` outcomes of the first ones and takes what is best on
            average. That is best play where nothing is left to chance. Else it is below
            the best possible, since values do not know how many actions are left. A
            host game gives its own solution.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key
from ml_collections import ConfigDict

from envs.base import UNKNOWN, VALIDATION, PlayBudget
from ragen_jax.config import check_kind, pass_at, refuse_unread, validate
from ragen_jax.evaluation.evaluate import level_facts
from ragen_jax.evaluation.harness import describe, playable, suite_configs
from ragen_jax.evaluation.results import EvalResult
from ragen_jax.evaluation.statistics import summarize
from ragen_jax.evaluation.suites import EvalTask
from ragen_jax.rollout.actions import run_plan
from ragen_jax.rollout.host.env import HostGameEnv, MissingRequirement
from ragen_jax.rollout.host.rows import (
    Pool,
    check_failures,
    draw_problems,
    play_solutions,
)
from ragen_jax.rollout.keys import RolloutKeys, fold_turn, validation_keys
from ragen_jax.tasks.build import new_task, play_rules
from ragen_jax.tasks.task import Task
from ragen_jax.types import EnvState

# Keys that an evaluation of these players reads.
READ_KEYS = (
    "env",
    "rollout.max_turns",
    "rollout.max_actions_per_turn",
    "rollout.max_actions_per_episode",
    "rollout.max_failed_fraction",
    "host",
    "evaluation.num_prompts",
    "evaluation.num_samples",
    "evaluation.pass_at",
    "evaluation.seed",
)
# Outcomes of the first actions of a turn that the solver imagines: a mean over them is
# off by at most 0.09 (one standard deviation).
NUM_IMAGINED = 32
# Of values, so that the solver prefers short ways where actions are free.
SOLVER_DISCOUNT = 0.95
_ONE_ACTION = PlayBudget(1, 1, 1)

# `(states, keys) -> actions` of a turn, one row per episode.
Choose = Callable[[EnvState, Key[Array, " B"]], Int[Array, "B A"]]
# `(levels, keys) -> which episodes are won`, one row per level.
Play = Callable[[EnvState, RolloutKeys], Bool[np.ndarray, " B"]]


def prepare(
    config: ConfigDict, changes: Mapping[str, object], overrides: Collection[str]
) -> None:
    """Change a configuration for these players.

    Args:
      config: of the task; changed in place.
      changes: values by dotted key, set on top.
      overrides: dotted paths that the user set.

    Raises:
      ValueError: an override has no effect on them, or a key is invalid.
    """
    check_kind(config)
    refuse_unread([*overrides, *changes], READ_KEYS, "with this --player")
    config.update_from_flattened_dict(changes)
    config.mesh.update(data=1, fsdp=1, tensor=1)
    validate(config, overrides)


def player_evaluations(
    config: ConfigDict, player: str, suite: str | None, overrides: Collection[str] = ()
) -> list[EvalTask]:
    """The evaluation tasks of a player.

    Args:
      config: see `prepare`.
      player: key of `PLAYERS`.
      suite: key of `suites.SUITES`; None: the tasks of the configuration.
      overrides: dotted paths that the user set.

    Raises:
      ValueError: there is no such suite or game, or it cannot be played so.
    """
    entries = suite_configs(config, suite, overrides)
    return playable(entries, lambda changed, entry: _bind(changed, entry, player))


def _bind(config: ConfigDict, entry: EvalTask, player: str) -> EvalTask:
    task = new_task(entry.spec, play_rules(config))
    _check(task, player)
    evaluation = config.evaluation
    num_prompts, num_samples = evaluation.num_prompts, evaluation.num_samples

    def play() -> EvalResult:
        samples = [
            validation_keys(evaluation.seed, num_prompts, i) for i in range(num_samples)
        ]
        levels = draw_levels(task, samples[0])
        play_sample = make_play(task, player)
        won = [play_sample(levels, keys) for keys in samples]
        success = np.stack(won, axis=1)
        metrics = summarize(success, task.ceiling(levels), pass_at(config))
        settings = ("num_prompts", "num_samples", "seed")
        metrics |= {name: float(evaluation[name]) for name in settings}
        metrics |= level_facts(task.env, has_ceiling="ceiling" in metrics)
        return EvalResult(metrics, success.sum(axis=1), list)

    spec = dataclasses.replace(entry.spec, label=task.name)
    settings = describe(config, entry.spec, task.env)
    return dataclasses.replace(entry, spec=spec, settings=settings, play=play)


def _check(task: Task, player: str) -> None:
    """Refuse a game that a player cannot play.

    Raises:
      MissingRequirement: says why.
    """
    if not task.env.lists_actions:
        if player == "random":
            raise MissingRequirement(
                f"{task.name} has no list of actions to draw from; --player=random "
                "plays array games"
            )
    elif player == "solver" and task.env.solves == UNKNOWN:
        raise MissingRequirement(f"{task.name} has no solver; use another --player")


def draw_levels(task: Task, keys: RolloutKeys) -> EnvState:
    """First states, one per prompt."""
    draw = jax.jit(jax.vmap(task.env.draw_level, (0, None, 0)))
    return draw(keys.level, task.params, keys.is_held_out)


def make_play(task: Task, player: str) -> Play:
    """How a player plays a sample of a task; compiled once.

    Args:
      task: the game and its rules.
      player: key of `PLAYERS`.
    """
    if not task.env.lists_actions:
        return lambda levels, keys: _follow_solutions(task, keys)
    return play_arrays(task, PLAYERS[player](task))


def play_arrays(task: Task, choose: Choose) -> Play:
    """Episodes of an array game, whose turns `choose` plans."""
    env, params, budget = task.env, task.params, task.rules.budget

    @jax.jit
    @jax.vmap
    def act(state, key, actions, actions_left, is_active):
        num_allowed = jnp.where(is_active, actions_left, 0)
        state, outcome = run_plan(env, params, state, key, actions, num_allowed)
        is_over = outcome.terminated | outcome.truncated
        return state, actions_left - outcome.num_executed, is_active & ~is_over

    def play(levels: EnvState, keys: RolloutKeys) -> Bool[np.ndarray, " B"]:
        states, is_active = levels, jnp.ones(len(keys.noise), bool)
        left = jnp.full(is_active.shape, budget.max_actions_per_episode, jnp.int32)
        for turn in range(budget.max_turns):
            actions = choose(states, fold_turn(keys.sample, turn))
            noise = fold_turn(keys.noise, turn)
            states, left, is_active = act(states, noise, actions, left, is_active)
            is_active &= left > 0
            if not jnp.any(is_active):
                break
        won = jax.vmap(env.is_success, (0, None))(states, params)
        return np.asarray(jax.device_get(won))

    return play


def _random_player(task: Task) -> Choose:
    draw = functools.partial(
        jax.random.randint,
        shape=(task.rules.budget.max_actions_per_turn,),
        minval=0,
        maxval=task.env.num_actions,
    )
    return jax.jit(lambda states, keys: jax.vmap(draw)(keys))


def _solver(task: Task) -> Choose:
    """Chooses the action of highest value, averaged over sampled earlier outcomes."""
    env, params = task.env, task.params
    # Where actions cost something, values may need to be those without a discount.
    discount = 1.0 if env.hurry_discount == 1.0 else SOLVER_DISCOUNT

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, 0, 0, None))
    def imagine(states, action, key, i):
        """From `n` states to `NUM_IMAGINED` of them."""
        keys = jax.random.split(jax.random.fold_in(key, i), NUM_IMAGINED)
        states = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (NUM_IMAGINED, *x.shape[1:])), states
        )
        step = jax.vmap(env.step_env, (0, 0, None, None))
        return step(keys, states, action, params)[1]

    def choose(states: EnvState, keys: Key[Array, " B"]) -> Int[Array, "B A"]:
        # [B, outcomes]: one while nothing has been left to chance.
        states = jax.tree.map(lambda x: x[:, None], states)
        chosen = []
        for i in range(task.rules.budget.max_actions_per_turn):
            shape = states.time.shape
            flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), states)
            solution = env.solve(flat, params, budget=_ONE_ACTION, discount=discount)
            values = solution.action_values.reshape(*shape, -1).mean(axis=1)
            chosen.append(jnp.argmax(values, axis=1).astype(jnp.int32))
            states = imagine(states, chosen[-1], keys, jnp.int32(i))
            leaves = jax.tree.leaves(jax.device_get(states))
            if all((leaf == leaf[:, :1]).all() for leaf in leaves):
                states = jax.tree.map(lambda x: x[:, :1], states)
        return jnp.stack(chosen, axis=1)

    return choose


def _follow_solutions(task: Task, keys: RolloutKeys) -> Bool[np.ndarray, " B"]:
    """Episodes of a host game, whose replies are its own solutions.

    Raises:
      ValueError: it has none for any level, or too many games fail.
    """
    env: HostGameEnv = task.env
    env.check_sessions(num_prompts=len(keys.level))
    problems = draw_problems(keys, env.num_tasks[VALIDATION])
    games = Pool(env.spec, VALIDATION, len(keys.level), reads_images=True)
    with contextlib.closing(games):
        played = play_solutions(games, *problems, task.rules.budget.max_turns)
    if not any(episode.solution for episode in played):
        raise ValueError(
            f"{task.name} has no replies that win (`solution` is empty); use "
            "another --player"
        )
    reasons = [x.failure for x in played if x.failure is not None]
    check_failures(reasons, len(played), env.max_failed_fraction)
    return np.array([episode.outputs[-1].success for episode in played])


PLAYERS: Mapping[str, Callable[[Task], Choose]] = {
    "solver": _solver,
    "random": _random_player,
}
