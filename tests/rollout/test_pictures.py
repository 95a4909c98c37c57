"""Rollouts and updates of a network that sees, in every context."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from configs import sokoban
from ragen_jax.evaluation.harness import playable
from ragen_jax.evaluation.suites import EvalTask
from ragen_jax.learner.batch import row_tokens, to_rows
from ragen_jax.learner.logprobs import hidden_states, token_log_probs
from ragen_jax.memory.plan import make_plan
from ragen_jax.models.hf.weights import load_config
from ragen_jax.program.build import build_program
from ragen_jax.serve.build import open_policy
from ragen_jax.tasks.specs import EnvSpec
from ragen_jax.text.pictures import show_boards
from ragen_jax.text.tokenizer import load_tokenizer
from ragen_jax.types import IDS_PER_PICTURE, PICTURE_IDS
from tests.text.sighted import write_model

CONTEXTS = [(None, "full", None), (24, "last_k", 2), (None, "single_turn", 2)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("sighted") / "model")


def tiny_config(model, observation="image", **changes):
    config = sokoban.get_config()
    config.model.path = str(model)
    config.prompt.observation = observation
    config.rollout.num_groups, config.rollout.group_size = 2, 2
    config.rollout.max_turns, config.rollout.max_actions_per_turn = 3, 2
    config.rollout.max_actions_per_episode = 6
    config.rollout.max_reply_tokens = 8
    config.learner.minibatch_rows = config.learner.microbatch_rows = 4
    config.filter.keep_fraction = 1.0
    config.filter.keep_zero = True
    config.evaluation.every = None
    with config.unlocked():
        for key, value in changes.items():
            section, name = key.split("__")
            config[section][name] = value
    return config


def play(program, seed=0):
    params = program.play_params(program.state)
    return program.task.training.play(
        params, program.task.dialogue, jax.random.key(seed)
    )


def sampler_gap(program, rollout, policy=None):
    """Largest difference of log-probabilities between the sampler and the learner."""
    policy = policy or program.policy
    params = program.play_params(program.state)
    tokens, mask = row_tokens(rollout), to_rows(rollout.loss_mask, rollout)

    @jax.jit
    def learner(params):
        hidden = hidden_states(policy, params, tokens)
        how = {"temperature": 1.0, "chunk_tokens": 64}
        return token_log_probs(policy, params, hidden, tokens, mask, **how)[0]

    log_probs = learner(params)
    sampled = to_rows(
        jnp.where(rollout.loss_mask, rollout.sample_log_probs, 0.0), rollout
    )
    return float(jnp.max(jnp.abs(log_probs - sampled)))


@pytest.mark.parametrize(("chunk", "context", "turns"), CONTEXTS)
def test_the_learner_sees_what_the_sampler_saw(model, context, turns, chunk):
    window = {"rollout__context": context, "rollout__context_turns": turns}
    config = tiny_config(model, **window, rollout__read_chunk_tokens=chunk)
    program = build_program(config)
    assert [x.most for x in program.policy.pictures] == [turns or 3]
    rollout = play(program)
    cells = np.asarray(rollout.tokens) >= PICTURE_IDS
    played = np.asarray(rollout.turns.played).sum(axis=1)
    np.testing.assert_array_equal(cells.sum(axis=1), 36 * played)
    assert played.max() == 3
    assert not (cells & np.asarray(rollout.loss_mask)).any()
    assert sampler_gap(program, rollout) < 1e-4
    # Other boards: other probabilities of the same replies.
    tokens = np.asarray(rollout.tokens)
    first = PICTURE_IDS + tokens % 256 * 0 + (tokens - PICTURE_IDS) // 256 * 256
    blank = rollout.replace(tokens=jnp.asarray(np.where(cells, first, tokens)))
    if rollout.windows is not None:
        seen = np.asarray(rollout.windows.tokens)
        first = PICTURE_IDS + (seen - PICTURE_IDS) // 256 * 256
        seen = jnp.asarray(np.where(seen >= PICTURE_IDS, first, seen))
        blank = rollout.replace(windows=rollout.windows.replace(tokens=seen))
    assert sampler_gap(program, blank) > 0.01


def updated(program, rollout):
    state, _ = program.update(program.state, rollout, jax.random.key(1))[:2]
    return jax.device_get(state.params)


def test_an_update_learns_from_pictures(model):
    plain = tiny_config(model)
    plain.loss.entropy_coeff = 0.1
    program = build_program(plain)
    rollout = play(program)
    before = jax.tree.map(np.array, program.state.params)
    after = updated(program, rollout)
    moved = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), after, before)
    assert min(jax.tree.leaves(moved["visual"])) > 0
    shared = tiny_config(model, learner__share_prompts=True)
    shared.loss.entropy_coeff = 0.1
    with_prompts = updated(build_program(shared), rollout)
    for x, y in zip(jax.tree.leaves(after), jax.tree.leaves(with_prompts), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_games_of_two_sizes_play_and_learn_in_one_run(model):
    config = tiny_config(model)
    with config.env.ignore_type():
        config.env.mix = (("sokoban", 1), ("frozen_lake", 1))
    program = build_program(config)
    assert [x.grid for x in program.policy.pictures] == [(6, 6), (4, 4)]
    params = program.play_params(program.state)
    rollouts = [
        task.training.play(params, task.dialogue, jax.random.key(0))
        for task in program.tasks
    ]
    for rollout in rollouts:
        assert sampler_gap(program, rollout) < 1e-4
    # FrozenLake's pictures in a policy that knows no other.
    alone = tiny_config(model)
    alone.env.name = "frozen_lake"
    policy = build_program(alone).policy
    ours, theirs = (
        jax.jit(functools.partial(hidden_states, one))(params, tokens)
        for one, tokens in (
            (program.policy, row_tokens(rollouts[1])),
            (policy, to_first_kind(row_tokens(rollouts[1]))),
        )
    )
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    batch = program.join(rollouts)
    after = updated(program, batch)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(after))


def to_first_kind(tokens):
    return jnp.where(tokens >= PICTURE_IDS, tokens - IDS_PER_PICTURE, tokens)


def test_a_record_shows_the_board(model):
    program = build_program(tiny_config(model))
    record = program.task.records(play(program), 1)[0]
    turn = record["turns"][0]
    lines = turn["observation"].split("<|vision_start|>")[1].split("\n")[:6]
    assert turn["board"] == lines
    assert set("".join(lines)) <= set(program.task.env.symbols)


def test_what_does_not_see_is_refused(model, tmp_path):
    config = tiny_config("pocket")
    with pytest.raises(ValueError, match="a 'qwen2', which reads text alone"):
        build_program(config)
    config = tiny_config(model)
    config.env.name = "bandit"
    with pytest.raises(ValueError, match="Bandit has no board"):
        build_program(config)
    with pytest.raises(ValueError, match="which clients cannot send here"):
        open_policy(model, sokoban.get_config())


def test_suites_leave_out_games_without_a_board(capsys):
    names = ("sokoban", "bandit")
    entries = [(None, EvalTask(EnvSpec(name, label=name))) for name in names]

    def bind(config, entry):
        show_boards(envs.make(entry.name), "image", 0)
        return entry

    assert [entry.name for entry in playable(entries, bind)] == ["sokoban"]
    assert "bandit is left out: prompt.observation" in capsys.readouterr().err


@pytest.mark.parametrize("rank", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_a_frozen_tower_stays_as_it_is(model, rank):
    config = tiny_config(model, lora__rank=rank, optimizer__weight_decay=0.5)
    config.model.freeze_tower, config.loss.entropy_coeff = True, 0.1
    program = build_program(config)
    rollout = play(program)
    before = jax.tree.map(np.array, program.state.params)
    after = updated(program, rollout)
    moved = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), after, before)
    assert max(jax.tree.leaves(moved["visual"])) == 0
    assert max(jax.tree.leaves(moved["layers"])) > 0
    with pytest.raises(ValueError, match="a 'qwen2' has no vision tower"):
        build_program(tiny_config("pocket", "text", model__freeze_tower=True))


def test_the_plan_says_how_many_pictures_are_seen(model):
    config = tiny_config(model, rollout__context="last_k", rollout__context_turns=2)
    plan = make_plan(config, load_config(model), load_tokenizer(model))
    assert plan.pictures == {"Sokoban": (2, 36)}
