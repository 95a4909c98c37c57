"""Settings that are data: every number that is declared so is an argument that is read.

Programs are run with the numbers of other configurations, which changes what they
learn: a number that is a constant of the program again would change nothing. And
configurations that differ in all of their numbers give the same program, to the letter.
"""

import functools

import jax
import numpy as np
import pytest

from configs import base
from ragen_jax.config import validate
from ragen_jax.learner.learner import _READ
from ragen_jax.learner.state import describe
from ragen_jax.registry.numbers import data_keys
from ragen_jax.registry.settings import flatten
from ragen_jax.sweeps.programs import program_key
from tests.learner import tiny
from tests.learner.tiny import rule

KEY, EPISODES = jax.random.key(2), tiny.make_episodes()
# Several steps, so that ratios move, at an update after the first (`ITERATION`).
COMMON = {
    "learner.minibatch_rows": 4,
    "learner.epochs": 2,
    "schedule.shape": "linear",
    "schedule.decay_updates": 9,
    "schedule.warmup_updates": 3,
    "schedule.final_fraction": 0.25,
    "optimizer.learning_rate": 0.05,
}
ITERATION = 4
# Together they read every number; few, since each is compiled.
PROGRAMS = {
    "gae": {
        "algo.advantage": "gae",
        "algo.lam": 0.9,
        "critic.warmup_updates": 3,
        "critic.clip_value": 0.01,
        "kl.placement": "loss",
        # The KL is 6.8: further from it, the weight changes by its most.
        "kl.target": 6.0,
        "kl.horizon": 50,
        "loss.dual_clip": 1.01,
        "loss.old_log_probs": "learner",
        "loss.importance_cap": 1.05,
    },
    "bi_level_gae": {"algo.advantage": "bi_level_gae"} | rule("top_k", top_k=2),
    "gigpo": {"algo.advantage": "gigpo"} | rule("top_p", top_p=0.6),
    "min_p": rule("min_p", min_p=0.9),
    "quantile_band": rule("quantile_band", quantile_low=0.3, quantile_high=0.7),
    "within_group": rule("within_group", rows_per_group=2),
}
# Data that the learner does not read -> the file that tests them.
ELSEWHERE = dict.fromkeys(
    (
        *("rollout.top_k", "rollout.top_p", "rollout.format_penalty"),
        *("bonus.format", "bonus.length", "bonus.facts"),
        *("bonus.min_tokens", "bonus.max_tokens"),
        "evaluation.temperature",
    ),
    "tests/program/test_one_rollout_program.py",
) | {"bonus.prediction": "tests/diagnostics/test_optimality.py"}


@functools.cache
def build(name):
    settings = dotless(COMMON | PROGRAMS[name])
    config = tiny.make_config(**settings)
    validate(config)
    return config, tiny.learner(**settings)


def dotless(settings):
    return {key.replace(".", "__"): value for key, value in settings.items()}


def others(key, value):
    """Values of a key that differ from its value; first those that change a choice."""
    kind = base.SETTINGS[key].kind
    tried = (value + 1, value - 1, value / 2, value * 2, value / 50, value * 0.8)
    tried = dict.fromkeys(map(kind, tried))
    return [x for x in tried if x != value and not base.SETTINGS[key].problem(key, x)]


def changed(config, changes):
    config = config.copy_and_resolve_references()
    config.update_from_flattened_dict(changes)
    return config


def learned(name, learner):
    """What an update with the numbers of `learner` leaves, in the program of `name`."""
    update = build(name)[1].update
    state = learner.init(tiny._init(jax.random.key(0)), 0)
    state = state.replace(iteration=state.iteration + ITERATION)
    frozen = learner.freeze(tiny._init(jax.random.key(1)))
    state, *_ = update(frozen, learner.numbers, state, EPISODES, KEY)
    return jax.device_get((state.policy, state.critic, state.kl_coeff))


def differ(before, after):
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return any(not np.array_equal(a, b) for a, b in pairs)


def read(name, found):
    """Keys of the numbers that a program's results depend on, but for some."""
    config, learner = build(name)
    before, leaves = learned(name, learner), flatten(config)

    def changes_something(key):
        with_others = (
            learner.with_numbers(changed(config, {key: value}))
            for value in others(key, leaves[key])
        )
        return any(differ(before, learned(name, other)) for other in with_others)

    keys = (learner.numbers.keys() & leaves.keys()) - found
    more = {key for key in keys if changes_something(key)}
    assert learner.update._cache_size() == 1
    return more


def test_every_number_that_is_declared_as_data_is_read_as_data():
    found = set()
    for name in PROGRAMS:
        found |= read(name, found)
    assert sorted(found | ELSEWHERE.keys()) == sorted(base.SETTINGS.data)


def test_every_number_of_the_learner_is_declared_as_data():
    read = base.SETTINGS.only(*_READ)
    numbers = [key for key in read.keys_of_values if read[key].kind in (int, float)]
    assert [key for key in numbers if not read[key].is_data] == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_other_numbers_give_the_same_program(name):
    config, learner = build(name)
    leaves = flatten(config)
    keys = [key for key in learner.numbers if key in leaves]
    changes = {key: others(key, leaves[key])[-1] for key in keys}
    settings = dotless(COMMON | PROGRAMS[name] | changes)
    programs = []
    for one in (learner, tiny.learner(**settings)):
        state = describe(one.init(tiny._init(jax.random.key(0)), 0))
        arguments = one.frozen, one.numbers, state, EPISODES, KEY
        programs.append(one.update.lower(*arguments).as_text())
    assert programs[0] == programs[1]


def test_only_a_number_in_place_of_a_number_shares_the_program():
    one = tiny.make_config(dual_clip=3.0)
    assert program_key(one) == program_key(tiny.make_config(dual_clip=2.0))
    assert program_key(one) != program_key(tiny.make_config(dual_clip=None))
    assert "loss.dual_clip" not in data_keys(flatten(tiny.make_config(dual_clip=None)))


def test_a_function_of_the_user_s_reads_numbers_of_python():
    """As they are in the configuration, so that another is another program."""
    users = {"algo__advantage": "tests.launch.users_functions:discounted"}
    learned = []
    for gamma in (1.0, 0.5):
        config = tiny.make_config(**users, gamma=gamma)
        assert "algo.gamma" not in data_keys(flatten(config))
        state, update = tiny.build(**users, gamma=gamma)
        learned.append(tiny.host(update(state, EPISODES, KEY)[0]))
    assert differ(*learned)
    ours, theirs = (
        program_key(tiny.make_config(**way, gamma=0.9))
        == program_key(tiny.make_config(**way, gamma=1.0))
        for way in ({}, users)
    )
    assert ours
    assert not theirs
