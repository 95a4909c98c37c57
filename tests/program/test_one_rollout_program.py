"""Training, validation, suites and single episodes are played by one program."""

import jax
import numpy as np

from configs import frozen_lake, sokoban, world
from ragen_jax.evaluation import harness
from ragen_jax.evaluation.load import Trained
from ragen_jax.evaluation.terminal.episodes import watch_policy
from ragen_jax.program.build import build_program, renumber
from ragen_jax.sweeps.programs import program_key
from tests import commands

# Neither is a multiple of a part's rows.
SIZES = {"evaluation__num_prompts": 5, "rollout__part_rows": 2}


def lowered(task, played):
    """Texts of the programs of a task's training and validation."""
    ways = (task.training, jax.random.key(0)), (task.validation, 0)
    texts = []
    for rollouts, which in ways:
        keys = rollouts.keys(which)
        inputs = jax.eval_shape(lambda keys=keys: (task.dialogue, keys))
        texts.append(rollouts.collect.lower(played, *inputs).as_text())
    return texts


def test_training_validation_and_a_single_episode(model, compiled_names):
    changes = SIZES | {"rollout__top_k": 5, "loss__importance_cap": 2.0}
    changes |= {"loss__old_log_probs": "learner", "evaluation__temperature": 0.0}
    config = commands.tiny_config(sokoban, model, **changes)
    program = build_program(config)
    params = program.play_params(program.state)
    first = program.collect(params, jax.random.key(0))
    (prompts,) = program.collect_validation(params)
    again = program.collect(params, jax.random.key(0))
    trained = Trained(program, params, config, "tested")
    episode = watch_policy(trained, 3)
    assert compiled_names().count("rollout") == 1
    assert len(prompts.lengths) == 5
    jax.tree.map(np.testing.assert_array_equal, first, again)
    row = jax.tree.map(lambda x: x[3:4], prompts)
    jax.tree.map(np.testing.assert_array_equal, episode, row)


def test_an_entry_of_a_suite_and_other_numbers_are_the_same_text(model):
    config = commands.tiny_config(frozen_lake, model, **SIZES)
    program = build_program(config)
    played, trained = program.learner.played, Trained(program, None, config, "tested")
    text, of_validation = lowered(program.task, played)
    assert of_validation == text
    suite = "frozen_lake"
    of_suite = [
        lowered(harness._bind(trained, suite, changed, entry), played)[1]
        for changed, entry in harness.suite_configs(config, suite, ())
    ]
    # How much it slips is a parameter; another board is another program.
    assert [one == text for one in of_suite[:5]] == [True] * 4 + [False]
    with config.unlocked():
        config.rollout.temperature, config.rollout.format_penalty = 0.5, -0.3
        config.env.params.success_rate = 0.1
    assert lowered(build_program(config).task, played)[0] == text


# Read by rollouts of this configuration -> another value.
NUMBERS = {
    "rollout.temperature": 3.0,
    "rollout.top_k": 2,
    "rollout.top_p": 0.1,
    "rollout.format_penalty": -0.7,
    "bonus.format": 0.9,
    "bonus.length": 0.9,
    "bonus.facts": -2.0,
    "bonus.min_tokens": 15,
    "bonus.max_tokens": 5,
}


def test_every_number_of_a_rollout_is_an_argument_that_is_read(compiled_names):
    """Of the pocket model, whose thoughts state facts."""
    given = {"rollout.temperature": 1.3, "rollout.top_k": 300, "rollout.top_p": 0.99}
    given |= {"bonus.format": 0.2, "bonus.length": 0.3, "bonus.facts": 0.4}
    given |= {"bonus.min_tokens": 1, "bonus.max_tokens": 20}
    given |= {"loss.old_log_probs": "learner", "loss.importance_cap": 2.0}
    config = commands.tiny_config(sokoban, rollout__max_reply_tokens=24)
    with config.ignore_type():
        config.update_from_flattened_dict(given)
    program = build_program(config)
    params, vocab_size = program.play_params(program.state), program.model.vocab_size

    def play(config):
        task = renumber(config, program.task, vocab_size)
        rollout = task.collect(params, jax.random.key(3))
        return jax.device_get((rollout.tokens, rollout.turns)), task

    before, _ = play(config)
    for key, value in NUMBERS.items():
        other = config.copy_and_resolve_references()
        other.update_from_flattened_dict({key: value})
        assert program_key(other) == program_key(config)
        after, _ = play(other)
        pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
        assert not all(np.array_equal(a, b) for a, b in pairs), key
    greedy = config.copy_and_resolve_references()
    greedy.evaluation.temperature = 0.0
    _, task = play(greedy)
    samples = [jax.device_get(task.collect_validation(params, i)) for i in (0, 1)]
    np.testing.assert_array_equal(*(x.tokens for x in samples))
    first, second = (program.task.collect_validation(params, i) for i in (0, 1))
    assert not np.array_equal(first.tokens, second.tokens)
    assert compiled_names().count("rollout") == 1


def test_games_in_python_share_their_programs(compiled_names):
    config = commands.tiny_config(world, rollout__num_groups=2, rollout__group_size=2)
    with config.unlocked():
        config.evaluation.num_prompts = 4
    program = build_program(config)
    params = program.play_params(program.state)
    program.collect(params, jax.random.key(0))
    steps = {"start", "reply", "act_", "finish"}
    count = len(compiled_names())
    assert steps <= set(compiled_names())
    program.collect_validation(params)
    assert not steps & set(compiled_names()[count:])
