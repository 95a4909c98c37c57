"""The compiled rollout: equal to the slow loop, row by row its own, compiled once.

Of whole dialogues, and of windows of them, which are honest for the learner.
"""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import sokoban
from ragen_jax.devices.sharding import make_mesh
from ragen_jax.learner.batch import from_rows, to_rows
from ragen_jax.program.build import POCKET
from ragen_jax.rollout import collect
from ragen_jax.rollout.records import episodes
from ragen_jax.tasks.build import build_collect, build_task
from ragen_jax.tasks.specs import env_specs
from ragen_jax.text.endings import find_answer_end
from ragen_jax.text.tokenizer import load_tokenizer
from tests.reference import windows_oracle
from tests.reference.rollout_loop import RolloutLoop
from tests.rollout import players

SOKOBAN, WINDOWS = players.SOKOBAN, players.WINDOWS


def _slow(cases):
    return [pytest.param(case, marks=pytest.mark.slow) for case in cases]


# Each game, tokenizer, style and context, and what `test_loop` compiles too.
BANDIT = ("bandit", "bpe", "terse", "full", None)
WHOLE = [SOKOBAN, *_slow([BANDIT])]
MORE_WINDOWS = [
    ("frozen_lake", "bpe", "full", "single_turn", 9),
    ("sokoban", "pocket", "terse", "last_k", 9),
]
CASES = [WINDOWS, *_slow(MORE_WINDOWS)]
# The slow loop is slow.
CASES_OF_LOOP = [*WHOLE, *_slow([WINDOWS, *MORE_WINDOWS])]


@functools.cache
def _expected(case):
    """The slow loop's trajectory, and the text of every window."""
    loop = _loop(case, players.dialogue_of(case))
    params = players.speaker_params(*case[:2])
    trajectory = loop.collect(params, players.keys_of(case))
    return trajectory, None if case[3] == "full" else loop.window_texts


def _loop(case, dialogue):
    name, words, style, context, turns = case
    env, _ = players.game(name)
    is_whole = context == "full"
    return RolloutLoop(
        env,
        env.default_params,
        players.speaker(),
        dialogue,
        players.tokenizer(words),
        budget=players.BUDGET,
        max_reply_tokens=players.REPLY_TOKENS,
        format_penalty=-0.1,
        temperature=players.TEMPERATURE,
        write_window=None if is_whole else windows_oracle.writer(context, turns, style),
    )


@pytest.mark.parametrize("case", CASES_OF_LOOP, ids=str)
def test_equals_the_slow_loop_bit_by_bit(case):
    trajectory, (expected, _) = players.collected(case), _expected(case)
    players.check_equal_bits(trajectory, expected)
    # The episodes must be worth comparing.
    turns = trajectory.turns
    assert jnp.any(turns.reply_is_cut)
    if case in (SOKOBAN, BANDIT):
        assert jnp.any(turns.num_executed > 0)
        assert jnp.any(turns.played & (turns.num_valid == 0))
    else:
        assert jnp.any(turns.played[:, 2])
        # A valid action ends an episode of the Bandit.
        assert jnp.any(turns.num_executed > 0) or case[0] == "bandit"


@pytest.mark.slow
def test_replies_that_end_at_the_answer_equal_the_slow_loop():
    """Of windows, which are written beside the whole dialogue."""
    case = WINDOWS
    words = players.tokenizer(case[1])
    dialogue = dataclasses.replace(
        players.dialogue_of(case), text_end=find_answer_end(words.token_bytes)
    )
    params, keys = players.speaker_params(*case[:2]), players.keys_of(case)
    trajectory = players.collector(case[0])(params, dialogue, keys)
    expected = _loop(case, dialogue).collect(params, keys)
    players.check_equal_bits(trajectory, expected)
    # Some replies have their form and no stop token; nothing follows the answer.
    turns, ends = trajectory.turns, dialogue.stop_tokens
    whole = np.argwhere(turns.has_format & ~turns.reply_is_cut)
    assert len(whole)
    for row, turn in whole:
        last = turns.reply_start[row, turn] + turns.reply_length[row, turn] - 1
        assert trajectory.tokens[row, last] not in ends


@pytest.mark.parametrize("case", WHOLE, ids=str)
def test_records_are_of_their_boards_and_tokens(case):
    dialogue, has_board = players.dialogue_of(case), case[0] != "bandit"
    trajectory, tokenizer = players.collected(case), players.tokenizer()
    records = episodes(trajectory, tokenizer, dialogue.prompts, 3)
    assert len(records) == 3
    assert json.loads(json.dumps(records)) == records
    for record in records:
        assert ("legend" in record) == has_board
        for turn in record["turns"]:
            assert ("board" in turn) == has_board
            assert "\n".join(turn.get("board", [])) in turn["observation"]
            assert "".join(turn["token_texts"]) == turn["reply"]
            assert len(turn["token_texts"]) == len(turn["token_log_probs"])
            assert len(turn["token_texts"]) == turn["reply_tokens"]
            total = pytest.approx(turn["log_prob"], abs=1e-3 * turn["reply_tokens"])
            assert sum(turn["token_log_probs"]) == total


@pytest.mark.parametrize("case", CASES, ids=str)
def test_windows_decode_to_the_rendered_text(case):
    trajectory, (_, texts) = jax.device_get(players.collected(case)), _expected(case)
    tokenizer, windows = players.tokenizer(case[1]), trajectory.windows
    played = np.argwhere(trajectory.turns.played)
    assert set(texts) == {(int(row), int(turn)) for row, turn in played}
    for place, text in texts.items():
        prompt = windows.tokens[place][: windows.reply_start[place]]
        assert tokenizer.decode(prompt) == text
        assert "Reward" not in text.split("State")[0].split("Turn")[0]
    if case[3] == "single_turn":
        # No reply ends a message it is told in.
        assert all(text.count("<|im_end|>") == 2 for text in texts.values())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_sampled_token_stands_once_on_either_side(case):
    trajectory = players.collected(case)
    windows, mask = trajectory.windows, np.asarray(trajectory.loss_mask)
    flat = windows.tokens.reshape(-1, windows.tokens.shape[-1])
    in_window, in_order = (
        np.asarray(to_rows(x, trajectory)).reshape(windows.tokens.shape)
        for x in (trajectory.loss_mask, trajectory.tokens)
    )
    assert in_window.sum() == mask.sum() == np.sum(trajectory.turns.reply_length)
    sampled = np.where(mask, trajectory.tokens, 0)
    shown = np.where(in_window, windows.tokens, 0)
    np.testing.assert_array_equal(in_order, shown)
    np.testing.assert_array_equal(from_rows(flat, trajectory), sampled)
    ends = windows.reply_start + trajectory.turns.reply_length
    np.testing.assert_array_equal(windows.lengths, ends)
    is_token = np.arange(windows.tokens.shape[2]) < np.asarray(ends)[..., None]
    assert not np.any(np.where(is_token, 0, windows.tokens))


@pytest.mark.parametrize("case", [SOKOBAN, WINDOWS, *_slow(MORE_WINDOWS)], ids=str)
def test_log_probs_are_those_of_the_uncached_network(case):
    """The cache holds exactly the recorded tokens, and the sampler is honest.

    What a learner computes from the windows alone is what the sampler saw.
    """
    trajectory = players.collected(case)
    policy, params = players.speaker(), players.speaker_params(*case[:2])
    rows = (trajectory.windows or trajectory).tokens

    @jax.jit
    def teacher_forced(tokens):
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1])[None, :], tokens.shape)
        hidden, _ = policy.forward(params, tokens, positions, None)
        scaled = policy.logits(params, hidden[:, :-1]) / players.TEMPERATURE
        log_probs = jax.nn.log_softmax(scaled, axis=-1)
        chosen = jnp.take_along_axis(log_probs, tokens[:, 1:, None], axis=-1)[..., 0]
        return jnp.pad(chosen, ((0, 0), (1, 0)))

    found = from_rows(teacher_forced(rows.reshape(-1, rows.shape[-1])), trajectory)
    found = jnp.where(trajectory.loss_mask, found, 0)
    # Relative too: the speaker's logits reach 20, where float32 steps are 2e-6.
    rtol = 1e-7 if trajectory.windows is None else 1e-5
    np.testing.assert_allclose(found, trajectory.sample_log_probs, rtol, 1e-5)
    assert np.std(np.asarray(found)[np.asarray(trajectory.loss_mask)]) > 0.1


@pytest.mark.slow
def test_a_window_of_all_turns_is_the_whole_dialogue():
    """Same tokens, masks and rewards; each window is the transcript up to its reply."""
    shape = ("sokoban", "pocket", "terse")
    windowed, whole = (
        players.collected((*shape, "last_k", 9)),
        players.collected((*shape, "full", None)),
    )
    np.testing.assert_allclose(
        windowed.sample_log_probs, whole.sample_log_probs, atol=1e-5
    )
    zeros = jnp.zeros_like(whole.sample_log_probs)
    windowed, whole = (
        jax.device_get(t.replace(sample_log_probs=zeros)) for t in (windowed, whole)
    )
    windows = windowed.windows
    jax.tree.map(np.testing.assert_array_equal, windowed.replace(windows=None), whole)
    assert windows.tokens.shape[2] == whole.tokens.shape[1]
    np.testing.assert_array_equal(
        windows.reply_start, np.where(whole.turns.played, whole.turns.reply_start, 0)
    )
    for row, turn in np.argwhere(whole.turns.played):
        count = windows.lengths[row, turn]
        np.testing.assert_array_equal(
            windows.tokens[row, turn, :count], whole.tokens[row, :count]
        )


@pytest.mark.parametrize("case", [WINDOWS, *_slow([BANDIT])], ids=str)
def test_compiles_once(case):
    def play(params, seed=None):
        trajectory = collect(params, dialogue, players.keys_of(case, seed=seed))
        return np.asarray((trajectory.windows or trajectory).tokens)

    collect, dialogue = players.collector(case[0]), players.dialogue_of(case)
    params = players.speaker_params(*case[:2])
    first, num_traces = play(params), len(players.TRACES)
    other = jax.tree.map(lambda x: 0.9 * x, params)
    again = [play(p, seed) for p in (params, other) for seed in (None, 1)]
    assert len(players.TRACES) == num_traces
    np.testing.assert_array_equal(again[0], first)
    assert all((tokens != first).any() for tokens in again[1:])


@pytest.mark.slow
def test_a_row_is_the_same_in_other_company():
    """Half the batch, each row on a device of its own: the same tokens."""
    case = WINDOWS
    collect = players.collector(case[0], num_groups=2, data=2, fsdp=2)
    params = players.speaker_params(*case[:2])
    trajectory = collect(params, players.dialogue_of(case), players.keys_of(case, 2))
    count = len(trajectory.lengths)
    expected = jax.tree.map(lambda x: x[:count], players.collected(case))
    np.testing.assert_allclose(
        trajectory.sample_log_probs, expected.sample_log_probs, atol=1e-5
    )
    zeros = jnp.zeros_like(expected.sample_log_probs)
    trajectory = jax.device_get(trajectory.replace(sample_log_probs=zeros))
    expected = jax.device_get(expected.replace(sample_log_probs=zeros))
    jax.tree.map(np.testing.assert_array_equal, trajectory, expected)


def test_episodes_show_what_the_model_read():
    _, texts = _expected(WINDOWS)
    records = players.records_of(WINDOWS)
    for record in records:
        for turn in record["turns"]:
            assert turn["window"] == texts[record["row"], turn["turn"] - 1]
    whole = players.records_of(SOKOBAN)
    assert not any("window" in turn for record in whole for turn in record["turns"])


def test_a_group_shares_its_level_and_nothing_else():
    trajectory = players.collected(SOKOBAN)
    boards = np.asarray(trajectory.tokens[:, :40]).reshape(4, 2, -1)
    for leaf in jax.tree.leaves(trajectory.initial_state):
        pairs = np.asarray(leaf).reshape(4, 2, -1)
        np.testing.assert_array_equal(pairs[:, 0], pairs[:, 1])
    assert np.any(boards[0] != boards[1])
    replies = np.where(trajectory.loss_mask, trajectory.tokens, -1)
    assert np.all(np.any(replies[0::2] != replies[1::2], axis=1))


def test_rows_that_cannot_be_split_are_refused():
    with pytest.raises(ValueError, match=r"6 rows cannot be split over .* = 4 dev"):
        players.collector("bandit", num_groups=3, data=4)


def test_a_dialogue_of_another_size_is_refused():
    collect = players.collector(
        "bandit", rules=dataclasses.replace(players.LIMITS, max_reply_tokens=9)
    )
    with pytest.raises(ValueError, match="up to 9 reply tokens need"):
        collect(
            players.speaker_params("bandit"),
            players.dialogue_of(BANDIT),
            players.keys_of(BANDIT),
        )


def test_a_configuration_s_way_to_decode_reaches_the_responder(monkeypatch):
    config = sokoban.get_config()
    sampling = {"temperature": 0.7, "top_k": 5, "top_p": 0.5}
    told = {
        "compactions": 1,
        "decode_chunk_tokens": 3,
        "read_chunk_tokens": 7,
        "decode_attention": "plain",
    }
    config.rollout.update(told | sampling)
    asked = []
    monkeypatch.setattr(
        collect, "make_responder", lambda *_, **decoding: asked.append(decoding)
    )
    tokenizer = load_tokenizer(POCKET)
    task = build_task(config, env_specs(config)[0], tokenizer)
    mesh = make_mesh(data=1, fsdp=1, tensor=1)
    built = build_collect(config, task, None, mesh, num_groups=2, group_size=2)
    assert asked == [told]
    numbers = vars(built.given.numbers)
    assert {name: numbers[name] for name in sampling} == pytest.approx(sampling)


@pytest.mark.parametrize("stops", [True, False])
def test_the_setting_decides_whether_replies_end_at_the_answer(stops):
    config = sokoban.get_config()
    config.rollout.stop_at_answer = stops
    task = build_task(config, env_specs(config)[0], load_tokenizer(POCKET))
    assert (task.dialogue.text_end is not None) == stops
