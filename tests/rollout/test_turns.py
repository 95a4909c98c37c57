"""What one turn does, played by a script: every way a turn can end."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.rollout.collect import play_episodes
from ragen_jax.rollout.keys import rollout_keys
from ragen_jax.rollout.metrics import METRICS, rollout_metrics
from ragen_jax.rollout.records import episodes
from ragen_jax.rollout.turns import EpisodeLimits, Responder
from ragen_jax.types import Reply
from tests.rollout import players

BUDGET = players.BUDGET
WIN, EMPTY, CUT, UNKNOWN, SPENT, OTHER_STOP = range(6)
NUM_ROWS = 6


@functools.cache
def _lake():
    """A level without slips, a shortest way to its goal, a move that goes nowhere."""
    env, _ = players.game("frozen_lake")
    params = env.default_params.replace(success_rate=1.0)
    step = jax.jit(env.step_env)
    for seed in range(100):
        keys = rollout_keys(jax.random.key(seed), 1, NUM_ROWS)
        start = env.reset_split(keys.level[0], params, keys.split)
        bump, ways = None, {int(start.position): []}
        queue = [start]
        while queue:
            state = queue.pop(0)
            for action in range(4):
                _, after, _, over, info = step(
                    jax.random.key(0), state, jnp.int32(action), params
                )
                way = [*ways[int(state.position)], action]
                if state is start and not info["effective"]:
                    bump = action
                if over and info["success"] and len(way) == 2 and bump is not None:
                    return env, params, keys, way, bump
                if not over and int(after.position) not in ways:
                    ways[int(after.position)] = way
                    queue.append(after)
    raise AssertionError("no such level")


def _scripts(way, bump, names):
    """What each row says in each turn."""
    win, bump = "||".join(names[a] for a in way), names[bump]

    def answer(text, end="<|im_end|>"):
        return f"</think><answer>{text}</answer>{end}"

    return {
        WIN: [answer(f"{win}||{bump}")] * 3,
        EMPTY: ["<|im_end|>"] * 3,
        CUT: [" go" * 40] * 3,
        UNKNOWN: [answer(f"Fly||{bump}"), answer("Fly"), answer(bump.upper())],
        SPENT: [answer(f"{bump}||{bump}||{bump}")] * 3,
        OTHER_STOP: [answer(bump, "<|endoftext|>")] * 3,
    }


@functools.cache
def _player():
    env, params, keys, way, bump = _lake()
    _, dialogue = players.game("frozen_lake")
    stops = set(np.asarray(dialogue.stop_tokens).tolist())

    @jax.jit
    def play(tokens, lengths, is_cut):
        def reply(carry, starts, states, keys, turn, is_active):
            said = Reply(
                tokens=tokens[:, turn],
                log_probs=jnp.where(tokens[:, turn] > 0, -1.5, 0.0),
                length=jnp.where(is_active, lengths[:, turn], 0),
                is_cut=is_active & is_cut[:, turn],
            )
            return carry, said

        return play_episodes(
            env,
            params,
            dialogue,
            Responder(init=lambda n: (), observe=lambda c, *_: c, reply=reply),
            keys,
            rules=EpisodeLimits(BUDGET, players.REPLY_TOKENS, -0.1),
        )

    def run(scripts):
        shape = (NUM_ROWS, BUDGET.max_turns, players.REPLY_TOKENS)
        tokens, lengths = np.zeros(shape, np.int32), np.zeros(shape[:2], np.int32)
        for row, texts in scripts.items():
            for turn, text in enumerate(texts):
                ids = players.tokenizer().encode(text)[: players.REPLY_TOKENS]
                tokens[row, turn, : len(ids)] = ids
                lengths[row, turn] = len(ids)
        last = np.take_along_axis(tokens, lengths[..., None] - 1, axis=2)[..., 0]
        return jax.device_get(play(tokens, lengths, ~np.isin(last, list(stops))))

    return run, _scripts(way, bump, env.action_vocabulary), (way, bump)


@functools.cache
def _played():
    run, scripts, _ = _player()
    return run(scripts)


def _records():
    _, dialogue = players.game("frozen_lake")
    records = episodes(_played(), players.tokenizer(), dialogue.prompts)
    return players.declared(records)


def test_every_way_a_turn_can_end():
    trajectory = _played()
    turns = trajectory.turns
    _, _, (way, bump) = _player()
    expected = {
        "played": [[1, 0, 0], [1] * 3, [1] * 3, [1] * 3, [1, 1, 0], [1] * 3],
        "num_executed": [[2, 0, 0], [0] * 3, [0] * 3, [1, 0, 1], [3, 2, 0], [1] * 3],
        "num_valid": [[3, 0, 0], [0] * 3, [0] * 3, [1, 0, 1], [3, 3, 0], [1] * 3],
        "num_listed": [[3, 0, 0], [0] * 3, [0] * 3, [2, 1, 1], [3, 3, 0], [1] * 3],
        "num_effective": [[2, 0, 0]] + [[0] * 3] * 5,
        "has_format": [[1, 0, 0], [0] * 3, [0] * 3, [1] * 3, [1, 1, 0], [1] * 3],
        "reply_is_cut": [[0] * 3, [0] * 3, [1] * 3, [0] * 3, [0] * 3, [0] * 3],
        "actions_left": [[5, 0, 0], [5] * 3, [5] * 3, [5, 4, 4], [5, 2, 0], [5, 4, 3]],
        "reward": [[1, 0, 0]] + [[0] * 3] * 5,
        "penalty": -0.1
        * np.float32([[0] * 3, [1] * 3, [1] * 3, [1, 1, 0], [0] * 3, [0] * 3]),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(
            turns.__dict__[name], np.asarray(values), err_msg=name
        )
    np.testing.assert_array_equal(turns.actions[WIN, 0], [*way, -1])
    np.testing.assert_array_equal(turns.actions[SPENT, 1], [bump, bump, -1])
    np.testing.assert_array_equal(turns.actions[UNKNOWN, 1], [-1, -1, -1])
    won = [True, False, False, False, False, False]
    np.testing.assert_array_equal(trajectory.success, won)
    np.testing.assert_array_equal(trajectory.terminated, won)
    np.testing.assert_array_equal(trajectory.truncated, ~np.asarray(won))


def test_tokens_masks_and_turn_borders_are_recorded():
    trajectory, tokenizer = _played(), players.tokenizer()
    _, dialogue = players.game("frozen_lake")
    _, scripts, _ = _player()
    for row in range(NUM_ROWS):
        count = trajectory.lengths[row]
        assert np.all(trajectory.turn_index[row, count:] == -1)
        assert not np.any(trajectory.loss_mask[row, count:])
        assert np.all(np.diff(trajectory.turn_index[row, :count]) >= 0)
        for turn in np.flatnonzero(trajectory.turns.played[row]):
            start = trajectory.turns.reply_start[row, turn]
            reply = slice(start, start + trajectory.turns.reply_length[row, turn])
            said = tokenizer.encode(scripts[row][turn])[: players.REPLY_TOKENS]
            np.testing.assert_array_equal(trajectory.tokens[row, reply], said)
            is_turn = trajectory.turn_index[row] == turn
            expected = np.zeros_like(is_turn)
            expected[reply] = True
            mask = trajectory.loss_mask[row]
            np.testing.assert_array_equal(mask & is_turn, expected)
            np.testing.assert_array_equal(
                trajectory.sample_log_probs[row, is_turn], -1.5 * expected[is_turn]
            )
            # Every reply that is followed by a message ends with the end of turn,
            # sampled and trained, or said by the template and not trained.
            if reply.stop < count:
                is_whole = said[-1] == dialogue.stop_token
                end = reply.stop - 1 if is_whole else reply.stop
                assert trajectory.tokens[row, end] == dialogue.stop_token
                assert mask[end] == is_whole


def test_messages_say_what_happened():
    records = _records()
    assert len(records) == NUM_ROWS
    opening = records[WIN]["turns"][0]["observation"]
    assert opening.startswith("<|im_start|>system\n")
    assert opening.endswith("<|im_start|>assistant\n<think>")
    assert "Turn 1\n" in opening
    assert records[WIN]["return"] == 1
    assert len(records[WIN]["turns"]) == 1
    second = records[EMPTY]["turns"][1]["observation"]
    assert second.startswith("\n<|im_start|>user\nReward 0\nInvalid\nTurn 2\n")
    cut = records[CUT]["turns"][1]["observation"]
    assert cut.startswith("<|im_end|>\n<|im_start|>user\n")
    stopped = records[OTHER_STOP]["turns"][1]
    assert stopped["observation"].startswith("<|im_end|>\n<|im_start|>user\nReward 0\n")
    assert "Invalid" not in stopped["observation"]
    assert "Left 4<|im_end|>" in stopped["observation"]
    unknown = [turn["observation"] for turn in records[UNKNOWN]["turns"]]
    assert ["Invalid" in text for text in unknown] == [False, False, True]
    assert stopped["log_prob"] == pytest.approx(-1.5 * stopped["reply_tokens"])


def test_boards_are_what_the_environment_renders():
    env, params, *_ = _lake()
    states = _played().initial_state
    for row, record in enumerate(_records()):
        state = jax.tree.map(lambda x, row=row: x[row], states)
        board = record["turns"][0]["board"]
        assert board == env.render(state, params).splitlines()
        assert {cell for line in board for cell in line} <= set(record["legend"])
        assert record["legend"][env.symbols[0]] == "you"
        for turn in record["turns"]:
            assert "\n".join(turn["board"]) in turn["observation"]


def test_play_ends_when_every_row_has_finished():
    run, scripts, _ = _player()
    trajectory = run(dict.fromkeys(range(NUM_ROWS), scripts[WIN]))
    assert np.all(trajectory.success)
    assert not np.any(trajectory.turns.played[:, 1:])
    assert np.max(trajectory.turn_index) == 0
    np.testing.assert_array_equal(trajectory.tokens[0], trajectory.tokens[5])


def test_metrics():
    metrics = rollout_metrics(_played(), group_size=3)
    assert set(metrics) == {*(metric.key for metric in METRICS), "pass@3"}
    expected = {
        "success": 1 / 6,
        "pass@3": 1 / 2,
        "episodic_return": 1 / 6,
        "format_penalty": -0.8 / 6,
        "bonus": 0,
        "num_turns": 15 / 6,
        "num_actions": 12 / 6,
        "action_is_effective": 2 / 12,
        "action_is_valid": 8 / 15,
        "format": 9 / 15,
        "reply_is_cut": 3 / 15,
        "is_truncated": 5 / 6,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-6, err_msg=name)
    lengths = _played().turns.reply_length
    np.testing.assert_allclose(metrics["response_length"], lengths.sum() / 6)
    np.testing.assert_allclose(metrics["reply_length"], lengths.sum() / 15)
