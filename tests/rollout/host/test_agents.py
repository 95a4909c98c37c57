"""Agents played by a policy: whatever programs do, rows have what was sampled."""

import contextlib
import functools
import pathlib
import uuid

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.base import PlayBudget
from ragen_jax.devices.sharding import make_mesh
from ragen_jax.learner.logprobs import hidden_states, token_log_probs
from ragen_jax.rollout.host.agents import AgentCollector, demonstrate
from ragen_jax.rollout.host.env import make_host_game
from ragen_jax.rollout.host.rows import GamesFailed
from ragen_jax.rollout.keys import rollout_keys
from ragen_jax.rollout.turns import EpisodeLimits
from ragen_jax.text.dialogue import build_call_dialogue
from tests.rollout import players
from tests.rollout.host.test_games import SETTINGS

BUDGET = PlayBudget(max_turns=6, max_actions_per_turn=1, max_actions_per_episode=6)
REPLY_TOKENS = 10
LIMITS = EpisodeLimits(BUDGET, REPLY_TOKENS, format_penalty=-0.1)
PROGRAMS: dict = {}
SIZES = {"episode_tokens": 600, "context_tokens": 300, "max_segments": 5}


@functools.cache
def agent(
    name,
    *,
    step_seconds=20.0,
    sizes=(),
    kwargs=(),
    num_workers=None,
    max_failed=0.9,
    **options,
):
    kwargs = {"options": options, **dict(kwargs)}
    settings = SETTINGS | SIZES | dict(sizes) | {"step_seconds": step_seconds}
    settings |= {"num_workers": num_workers, "max_failed_fraction": max_failed}
    return make_host_game(
        f"agent:tests.host_games.agent.programs:{name}", kwargs, **settings
    )


@functools.cache
def dialogue(env):
    limits = env.call_limits(BUDGET, REPLY_TOKENS)
    return build_call_dialogue(
        env,
        players.tokenizer(),
        budget=BUDGET,
        max_reply_tokens=REPLY_TOKENS,
        context_tokens=limits.context_tokens,
        episode_tokens=limits.episode_tokens,
    )


@functools.cache
def params():
    """A network whose replies differ, and end now and then."""
    start = jax.jit(players.speaker().init)(jax.random.key(7))
    end = players.tokenizer().encode("<|im_end|>")[0]
    return start | {"bias": start["bias"].at[:, end].set(3.0)}


def collect(
    env, num_groups=3, group_size=4, data=1, temperature=players.TEMPERATURE, times=1
):
    """The rollout of `env`, the last of several."""
    collector = AgentCollector(
        env,
        env.default_params,
        players.speaker(),
        tokenizer=players.tokenizer(),
        limits=env.call_limits(BUDGET, REPLY_TOKENS),
        mesh=make_mesh(data=data, fsdp=1, tensor=1),
        num_groups=num_groups,
        group_size=group_size,
        rules=LIMITS,
        temperature=temperature,
        decode_chunk_tokens=4,
    )
    # All these agents have the same sizes: their programs are compiled once.
    key = data, env.call_limits(BUDGET, REPLY_TOKENS)
    collector._make_programs = PROGRAMS.setdefault(key, collector._make_programs)
    keys = rollout_keys(jax.random.key(5), num_groups, group_size)
    try:
        for _ in range(times):
            trajectory = collector(params(), dialogue(env), keys)
        return jax.device_get(trajectory)
    finally:
        collector.close()


@functools.cache
def rollout(name, **changes):
    return collect(agent(name, **changes))


def assert_equal(x, y):
    jax.tree.map(np.testing.assert_array_equal, x, y)


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [("chat", ()), ("rewriter", ()), ("parallel", (("is_parallel", True),))],
)
def test_what_is_sampled_does_not_depend_on_who_is_late(name, kwargs):
    """Rows come and go as their tools end: bit for bit the same tokens."""
    late = rollout(name, kwargs=kwargs, delay=0.05)
    assert_equal(late, rollout(name, kwargs=kwargs))
    assert late.turns.played.sum() > 24


def test_rows_have_what_the_policy_sampled():
    """The learner's pass over a segment finds the sampler's log-probabilities."""
    trajectory = rollout("rewriter")
    turns, windows = trajectory.turns, trajectory.windows
    assert turns.played[:, :4].all()
    assert not turns.played[:, 4:].any()
    assert windows.of_turn[:, :4].tolist() == [[0, 0, 1, 0]] * 12
    policy, tokens = players.speaker(), windows.tokens.reshape(-1, 300)
    hidden = hidden_states(policy, params(), jnp.asarray(tokens))
    everywhere = jnp.ones(tokens.shape, bool)
    log_probs, _ = token_log_probs(
        policy,
        params(),
        hidden,
        jnp.asarray(tokens),
        everywhere,
        temperature=players.TEMPERATURE,
        chunk_tokens=300,
    )
    log_probs = np.asarray(log_probs).reshape(windows.tokens.shape)
    num_compared = 0
    for row, turn in np.argwhere(turns.played):
        start, length = turns.reply_start[row, turn], turns.reply_length[row, turn]
        there = windows.reply_start[row, turn]
        seen = log_probs[row, windows.of_turn[row, turn], there : there + length]
        kept = trajectory.sample_log_probs[row, start : start + length]
        np.testing.assert_allclose(kept, seen, atol=2e-5)
        assert trajectory.loss_mask[row, start : start + length].all()
        num_compared += length
    assert num_compared == trajectory.loss_mask.sum() > 100


def test_devices_share_the_rows():
    whole, split = rollout("rewriter"), collect(agent("rewriter"), data=2)
    np.testing.assert_allclose(
        whole.sample_log_probs, split.sample_log_probs, atol=1e-5
    )
    same = [x.replace(sample_log_probs=None) for x in (whole, split)]
    assert_equal(*same)


def test_the_program_s_result_is_the_row_s():
    listed = (("metrics", ("letters",)),)
    trajectory = rollout("chat", kwargs=listed, counts=True)
    letters = trajectory.game_metrics["letters"]
    assert letters.min() > 0
    assert len(set(letters.tolist())) > 3
    rewards = trajectory.turns.reward
    np.testing.assert_allclose(rewards[:, 2], letters / 100, rtol=1e-6)
    assert not rewards[:, :2].any()
    assert trajectory.success.tolist() == (letters % 2 == 0).tolist()
    assert trajectory.terminated.all()
    assert trajectory.game_metrics["segments"].tolist() == [1] * 12


def test_fewer_processes_than_rows_change_nothing():
    """Episodes take the processes in turn."""
    few = collect(agent("chat", num_workers=2, delay=0.02))
    assert_equal(few, rollout("chat", delay=0.02))


@pytest.mark.parametrize("name", ["chat_async", "chat"])
def test_functions_may_be_async(name):
    assert_equal(rollout("chat_async").tokens, rollout(name).tokens)


def test_a_judge_reads_the_transcript():
    judged = rollout(
        "silent",
        kwargs=(("reward", "tests.host_games.agent.programs:transcript_length"),),
    )
    assert judged.turns.reward[:, 0].tolist() == [101.0] * 12


def test_a_dialogue_that_comes_back_is_read_again():
    """Its tokens are in the cache no more: those after the common ones count."""
    reread = rollout("rewriter").game_metrics["reread_tokens"]
    trajectory = rollout("rewriter")
    starts = trajectory.windows.reply_start
    # What the third call's message is does not begin like the first dialogue.
    assert (reread > 0).all()
    assert (reread < starts[:, 3]).all()
    assert not rollout("chat").game_metrics["reread_tokens"].any()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise", "ZeroDivisionError: a tool broke"),
        ("exit", "SystemExit"),
        ("leave", "its process ended with status 3"),
        ("text", "returned 'one'"),
        ("nan", "nan"),
        ("hang", "no answer within 3 s"),
    ],
)
def test_a_program_that_fails_loses_its_row_alone(fault, words, capsys):
    trajectory = collect(agent("faulty", fault=fault, step_seconds=3.0), 8, 1)
    won = trajectory.success
    assert 0 < won.sum() < 8
    assert f"{8 - won.sum()} of 8 games failed" in capsys.readouterr().err
    trained = trajectory.loss_mask.any(axis=1)
    assert trained.tolist() == won.tolist()


def test_too_many_failures_end_the_run_with_the_reason():
    env = make_host_game(
        "agent:tests.host_games.agent.programs:never_calls",
        {},
        **SETTINGS | SIZES | {"max_failed_fraction": 0.1},
    )
    with pytest.raises(GamesFailed, match="without a call of the model"):
        collect(env, 2, 2)


@pytest.mark.parametrize(
    ("fault", "reward", "is_cut"), [("too many", 0.0, True), ("takes no", 0.5, False)]
)
def test_a_budget_ends_the_episode_and_not_the_run(fault, reward, is_cut):
    trajectory = collect(agent("faulty", fault=fault), 8, 1)
    over = trajectory.turns.played.sum(axis=1) == BUDGET.max_turns
    assert 0 < over.sum() < 8
    assert (trajectory.turns.reward[over, 5] == reward).all()
    assert (trajectory.truncated[over] == is_cut).all()
    # What was sampled is learned from all the same.
    assert trajectory.loss_mask.any(axis=1).all()


def test_episodes_without_an_answer_are_lost_with_the_reason(capsys):
    trajectory = collect(agent("says_too_much"), 8, 1)
    answered = trajectory.turns.played[:, 0]
    assert 0 < answered.sum() < 8
    assert trajectory.success.tolist() == answered.tolist()
    said = capsys.readouterr().err
    assert f"{8 - answered.sum()} of 8 games failed" in said
    assert "none of its calls was answered: the call has " in said
    expert = ("expert", "tests.host_games.agent.programs:expert")
    env = agent("says_too_much", kwargs=(expert,))
    limits = env.call_limits(BUDGET, REPLY_TOKENS)
    keys = rollout_keys(jax.random.key(3), 6, 1)
    with pytest.raises(ValueError, match="its program fails: none of its calls was"):
        demonstrate(env, players.tokenizer(), limits, 1, keys, num_rows=4)


def test_most_episodes_refused_are_said_and_all_counted(capsys):
    trajectory = collect(agent("faulty", fault="too many"), 8, 1, times=2)
    counts = trajectory.game_metrics["refused_calls"]
    over = trajectory.turns.played.sum(axis=1) == BUDGET.max_turns
    assert ((counts > 0) == over).all()
    words = f"in {over.sum()} of 8 episodes a call was refused, in {over.sum()} of them"
    assert capsys.readouterr().err.count(words) == 1
    assert not collect(agent("chat"), 2, 2).game_metrics["refused_calls"].any()
    assert "refused" not in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["streams", "after"])
def test_what_is_left_open_harms_no_later_episode(fault):
    env = agent("faulty", fault=fault)
    collector_rows = [collect(env, 2, 2) for _ in range(2)]
    for trajectory in collector_rows:
        assert trajectory.success.all()


def test_what_a_program_leaves_behind_calls_in_no_later_episode():
    """One process plays all of them."""
    trajectory = collect(agent("hangs_on", num_workers=1), 6, 1)
    decode = players.tokenizer().decode
    for row in range(6):
        message = trajectory.tokens[row][trajectory.turn_index[row] == 0]
        assert "another episode" not in decode(message)


def test_an_expert_s_replies_are_demonstrated():
    env = agent("chat", kwargs=(("expert", "tests.host_games.agent.programs:expert"),))
    keys = rollout_keys(jax.random.key(3), 6, 1)
    limits = env.call_limits(BUDGET, REPLY_TOKENS)
    played = demonstrate(env, players.tokenizer(), limits, 1, keys, num_rows=4)
    decode = players.tokenizer().decode
    for row in range(6):
        trained = decode(played.tokens[row][played.loss_mask[row]])
        assert trained == "as 1<|im_end|>as 3<|im_end|>as 5<|im_end|>"


def test_wrappers_do_not_fit_whole_calls():
    with pytest.raises(ValueError, match="wrappers"):
        make_host_game(
            "agent:tests.host_games.agent.programs:chat",
            {},
            **SETTINGS | SIZES | {"wrappers": (("split", 2),)},
        )


def processes_with(mark):
    """Whose environment has a mark: those that a test has started, and theirs."""
    found = set()
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                found.add(int(folder.name))
    return found


@pytest.mark.slow
def test_120_faults_end_no_rollout_and_leave_no_process(monkeypatch):
    """Every kind of `programs.FAULTS` but one that hangs, again and again."""
    # Other tests may run beside this one.
    mark = f"AGENTS_OF_{uuid.uuid4().hex}"
    monkeypatch.setenv(mark, "1")
    env = agent("chaos", step_seconds=10.0, num_workers=16, max_failed=0.99)
    trajectory = collect(env, 120, 1)
    assert trajectory.turns.played[:, 0].all()
    assert 24 < trajectory.success.sum() < 96
    # What failed is not trained on, and all else is.
    kept = trajectory.loss_mask.any(axis=1)
    assert kept[trajectory.success].all()
    assert not kept.all()
    assert not processes_with(mark)
