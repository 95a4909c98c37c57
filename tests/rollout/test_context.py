"""Windows of the dialogue: equal to the slow loop's, and honest for the learner."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.learner.batch import from_rows, to_rows
from ragen_jax.rollout.keys import rollout_keys
from ragen_jax.rollout.records import episodes
from tests.reference import windows_oracle
from tests.reference.rollout_loop import RolloutLoop
from tests.rollout import players

# Tokenizer -> a seed with replies of every kind.
SEEDS = {"bpe": 36, "pocket": 4}
# Game, tokenizer, style, context, its turns.
FAST = [
    ("sokoban", "bpe", "terse", "last_k", 2),
]
SLOW = [
    ("frozen_lake", "pocket", "terse", "single_turn", 2),
    ("bandit", "pocket", "full", "last_k", 2),
    ("frozen_lake", "bpe", "full", "single_turn", 9),
    ("sokoban", "pocket", "full", "single_turn", 2),
    ("sokoban", "pocket", "terse", "last_k", 9),
    ("frozen_lake", "bpe", "full", "last_k", 1),
    ("bandit", "bpe", "terse", "single_turn", 1),
]
CASES = [*FAST, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)]


def _keys(seed, num_groups=4, group_size=2):
    return rollout_keys(jax.random.key(seed), num_groups, group_size)


def _dialogue(name, words, style, context, turns):
    _, dialogue = players.game(
        name, words=words, style=style, context=context, context_turns=turns
    )
    return dialogue


@functools.cache
def _collected(case):
    name, words, *_ = case
    params = players.speaker_params(name, words)
    return players.collector(name)(params, _dialogue(*case), _keys(SEEDS[words]))


def _records(case):
    return episodes(_collected(case), players.tokenizer(), _dialogue(*case).prompts)


@functools.cache
def _expected(case):
    """The slow loop's trajectory, and the text of every window."""
    name, words, style, context, turns = case
    env, _ = players.game(name)
    loop = RolloutLoop(
        env,
        env.default_params,
        players.speaker(),
        _dialogue(*case),
        players.tokenizer(words),
        budget=players.BUDGET,
        max_reply_tokens=players.REPLY_TOKENS,
        format_penalty=-0.1,
        temperature=players.TEMPERATURE,
        write_window=windows_oracle.writer(context, turns, style),
    )
    params = players.speaker_params(name, words)
    trajectory = loop.collect(params, _keys(SEEDS[words]))
    return trajectory, loop.window_texts


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_slow_loop_bit_by_bit(case):
    trajectory, (expected, _) = _collected(case), _expected(case)
    flat, _ = jax.tree.flatten_with_path(trajectory)
    for (path, leaf), oracle in zip(flat, jax.tree.leaves(expected), strict=True):
        place = jax.tree_util.keystr(path)
        assert leaf.dtype == oracle.dtype, place
        np.testing.assert_array_equal(leaf, oracle, err_msg=place)
    # The episodes must be worth comparing.
    turns = trajectory.turns
    assert jnp.any(turns.played[:, 2])
    assert jnp.any(turns.reply_is_cut)
    # A valid action ends an episode of the Bandit.
    assert jnp.any(turns.num_executed > 0) or case[0] == "bandit"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_windows_decode_to_the_rendered_text(case):
    trajectory, (_, texts) = jax.device_get(_collected(case)), _expected(case)
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
    trajectory = _collected(case)
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


@pytest.mark.parametrize("case", CASES[:5], ids=str)
def test_log_probs_are_those_of_the_uncached_network(case):
    """What a learner computes from the windows alone is what the sampler saw."""
    trajectory = _collected(case)
    policy, params = players.speaker(), players.speaker_params(*case[:2])
    windows = trajectory.windows.tokens

    @jax.jit
    def teacher_forced(tokens):
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1])[None, :], tokens.shape)
        hidden, _ = policy.forward(params, tokens, positions, None)
        scaled = policy.logits(params, hidden[:, :-1]) / players.TEMPERATURE
        log_probs = jax.nn.log_softmax(scaled, axis=-1)
        chosen = jnp.take_along_axis(log_probs, tokens[:, 1:, None], axis=-1)[..., 0]
        return jnp.pad(chosen, ((0, 0), (1, 0)))

    flat = teacher_forced(windows.reshape(-1, windows.shape[-1]))
    found = from_rows(flat, trajectory)
    # Relative too: the speaker's logits reach 20, where float32 steps are 2e-6.
    np.testing.assert_allclose(found, trajectory.sample_log_probs, rtol=1e-5, atol=1e-5)
    assert np.std(np.asarray(found)[np.asarray(trajectory.loss_mask)]) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("words", players.WORDS)
def test_a_window_of_all_turns_is_the_whole_dialogue(words):
    """Same tokens, masks and rewards; each window is the transcript up to its reply."""
    shape = ("sokoban", words, "terse")
    windowed, whole = (
        _collected((*shape, "last_k", 9)),
        _collected((*shape, "full", None)),
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


def test_compiles_once():
    case = FAST[0]
    collect, params = players.collector("sokoban"), players.speaker_params("sokoban")
    first = _collected(case)
    num_traces = len(players.TRACES)
    seeds = (SEEDS["bpe"], 1)
    again = [collect(params, _dialogue(*case), _keys(seed)) for seed in seeds]
    assert len(players.TRACES) == num_traces
    np.testing.assert_array_equal(again[0].windows.tokens, first.windows.tokens)
    assert jnp.any(again[1].windows.tokens != first.windows.tokens)


@pytest.mark.slow
@pytest.mark.parametrize("case", [FAST[0], SLOW[0]], ids=str)
def test_a_row_is_the_same_in_other_company(case):
    """Half the batch, each row on a device of its own: the same tokens."""
    collect = players.collector(case[0], num_groups=2, data=2, fsdp=2)
    params = players.speaker_params(*case[:2])
    trajectory = collect(params, _dialogue(*case), _keys(SEEDS[case[1]], 2))
    count = len(trajectory.lengths)
    expected = jax.tree.map(lambda x: x[:count], _collected(case))
    np.testing.assert_allclose(
        trajectory.sample_log_probs, expected.sample_log_probs, atol=1e-5
    )
    zeros = jnp.zeros_like(expected.sample_log_probs)
    trajectory = jax.device_get(trajectory.replace(sample_log_probs=zeros))
    expected = jax.device_get(expected.replace(sample_log_probs=zeros))
    jax.tree.map(np.testing.assert_array_equal, trajectory, expected)


def test_episodes_show_what_the_model_read():
    case = FAST[0]
    _, texts = _expected(case)
    records = _records(case)
    for record in records:
        for turn in record["turns"]:
            assert turn["window"] == texts[record["row"], turn["turn"] - 1]
    whole = _records(("sokoban", "bpe", "terse", "full", None))
    assert not any("window" in turn for record in whole for turn in record["turns"])
