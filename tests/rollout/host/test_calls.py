"""Calls of a program as turns and segments, against what was read and sampled."""

import functools
import json

import numpy as np
import pytest

from ragen_jax.algo.segments import to_windows
from ragen_jax.host_games.agent.calls import CallRefused, ChatCall
from ragen_jax.host_games.agent.tools import TOOL_FORMATS
from ragen_jax.rollout.host.calls import (
    CallEpisode,
    CallLimits,
    Played,
    to_trajectory,
)
from ragen_jax.rollout.host.row_decoder import SampledTokens
from ragen_jax.text.calls import CallWriter
from ragen_jax.text.tokenizer import load_tokenizer

LIMITS = CallLimits(
    max_calls=6,
    max_reply_tokens=12,
    context_tokens=200,
    episode_tokens=400,
    max_segments=3,
)
QUESTION = {"role": "user", "content": "How many pens are there?"}
TOOL = {"type": "function", "function": {"name": "look"}}


@functools.cache
def tokenizer():
    return load_tokenizer("ragen_jax/pocket_host")


def new_episode(**changes):
    limits = CallLimits(**{**vars(LIMITS), **changes})
    tools = TOOL_FORMATS["hermes"]
    return CallEpisode(CallWriter(tokenizer()), tokenizer(), tools, limits)


def sampled(text, *, stops=True):
    ids = tokenizer().encode(text) + [tokenizer().id_of("<|im_end|>")] * stops
    log_probs = -np.arange(1, len(ids) + 1, dtype=np.float32)
    return SampledTokens(np.array(ids, np.int32), log_probs, stops)


def ask(episode, messages, text, *, stops=True, **options):
    """The answer to a call to which the policy writes a text."""
    call = ChatCall(tuple(messages), **options)
    prompt = episode.prompt(call)
    return episode.answer(call, prompt, sampled(text, stops=stops), len(prompt.ids))


def said(answer):
    calls = {"tool_calls": list(answer.tool_calls)} if answer.tool_calls else {}
    return {"role": "assistant", "content": answer.content, **calls}


def user(text):
    return {"role": "user", "content": text}


def arrays(*episodes, limits=LIMITS):
    played = [Played(x.calls, -0.5, True, True, False) for x in episodes]
    return to_trajectory(played, limits, num_actions=1)


def test_calls_that_extend_the_dialogue_are_one_segment():
    episode = new_episode()
    first = ask(episode, [QUESTION], "There are")
    messages = [QUESTION, said(first), user("How many more?")]
    second = ask(episode, messages, "two")
    assert (first.content, second.content) == ("There are", "two")
    (segment,) = episode.segments
    markup = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer().decode(segment) == (
        markup.format("How many pens are there?")
        + "There are<|im_end|>\n"
        + markup.format("How many more?")
        + "two<|im_end|>"
    )
    row = arrays(episode)
    end = row["lengths"][0]
    np.testing.assert_array_equal(row["tokens"][0, :end], segment)
    trained = row["tokens"][0][row["loss_mask"][0]]
    assert tokenizer().decode(trained) == "There are<|im_end|>two<|im_end|>"
    counts = [len(call.tokens) for call in episode.calls]
    log_probs = row["sample_log_probs"][0][row["loss_mask"][0]]
    assert log_probs.tolist() == [-i for n in counts for i in range(1, n + 1)]
    assert set(row["turn_index"][0, :end]) == {0, 1}
    assert set(row["turn_index"][0, end:]) == {-1}


def test_a_reply_stands_by_its_sampled_ids_however_its_text_is_cut():
    """Letter by letter, which no tokenizer would do."""
    episode = new_episode()
    letters = [x for letter in "Ada" for x in tokenizer().encode(letter)]
    assert letters != tokenizer().encode("Ada")
    call = ChatCall((QUESTION,))
    prompt = episode.prompt(call)
    end = tokenizer().id_of("<|im_end|>")
    tokens = np.array([*letters, end], np.int32)
    written = SampledTokens(tokens, np.zeros(len(tokens), np.float32), True)
    first = episode.answer(call, prompt, written, len(prompt.ids))
    assert first.content == "Ada"
    later = episode.prompt(ChatCall((QUESTION, said(first), user("more"))))
    assert later.segment == 0
    assert later.ids[: later.num_known] == [*prompt.ids, *letters, end]


def test_a_call_that_rewrites_history_begins_a_segment():
    episode = new_episode()
    first = ask(episode, [QUESTION], "There are")
    ask(episode, [QUESTION, said(first), user("more")], "two")
    # Compaction: another text in place of the dialogue.
    ask(episode, [user("All boxes, many pens"), user("more")], "three")
    assert [call.prompt.segment for call in episode.calls] == [0, 0, 1]
    # A changed reply is not the model's.
    changed = {"role": "assistant", "content": "There were"}
    ask(episode, [QUESTION, changed, user("more")], "three")
    assert len(episode.segments) == 3
    row = arrays(episode)
    windows = row["windows"]
    for i, segment in enumerate(episode.segments):
        assert windows.tokens[0, i, : windows.lengths[0, i]].tolist() == segment
    assert windows.of_turn[0].tolist()[:4] == [0, 0, 1, 2]


def test_a_dialogue_that_was_left_can_be_taken_up_again():
    """A sub-agent between two calls of its owner."""
    episode = new_episode()
    first = ask(episode, [QUESTION], "There are")
    ask(episode, [user("Another dialogue")], "two")
    ask(episode, [QUESTION, said(first), user("more")], "three")
    assert [call.prompt.segment for call in episode.calls] == [0, 1, 0]
    row, windows = arrays(episode), arrays(episode)["windows"]
    turns = row["turns"]
    # The dialogue has every message once, in the order of the calls.
    assert row["lengths"][0] == sum(map(len, episode.segments))
    there = to_windows(
        row["tokens"],
        turn_index=row["turn_index"],
        reply_start=turns.reply_start,
        reply_length=turns.reply_length,
        window_of_turn=windows.of_turn,
        window_start=windows.reply_start,
        num_windows=3,
        width=200,
    )
    # Replies stand in their windows where the model wrote them.
    is_reply = np.asarray(there) != 0
    np.testing.assert_array_equal(np.asarray(there)[is_reply], windows.tokens[is_reply])
    assert is_reply.sum() == row["loss_mask"].sum()


def test_a_stop_text_cuts_the_reply_at_a_token():
    episode = new_episode()
    answer = ask(episode, [QUESTION], "two boxes all", stop=(" all", "xe"))
    assert (answer.content, answer.finish_reason) == ("two bo", "stop")
    (call,) = episode.calls
    kept = tokenizer().decode(call.tokens)
    # The token that holds the end of the stop text is the last one.
    assert kept.startswith("two boxe")
    assert not call.is_cut
    ends = len(call.tokens)
    assert "xe" not in tokenizer().decode(call.tokens[: ends - 1])
    # The reply lacks its end: the markup writes it.
    later = episode.prompt(ChatCall((QUESTION, said(answer), user("more"))))
    assert later.num_known == len(episode.segments[0])
    new = tokenizer().decode(later.ids[later.num_known :])
    assert new.startswith("<|im_end|>\n<|im_start|>user\nmore")


def test_limits_of_the_call_and_of_the_context_bound_the_reply():
    episode = new_episode()
    num_tokens = len(episode.prompt(ChatCall((QUESTION,))).ids)
    limits = [
        new_episode(**changes).prompt(ChatCall((QUESTION,), **options)).limit
        for changes, options in (
            ({}, {}),
            ({}, {"max_tokens": 3}),
            ({}, {"max_tokens": 300}),
            ({"context_tokens": num_tokens + 5}, {}),
            ({"episode_tokens": num_tokens + 2}, {}),
        )
    ]
    assert limits == [12, 3, 12, 5, 2]
    cut = ask(episode, [QUESTION], "There are", stops=False)
    assert cut.finish_reason == "length"
    assert episode.calls[0].is_cut


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"max_calls": 1}, "budget_exhausted", "rollout.max_turns"),
        ({"episode_tokens": 40}, "budget_exhausted", "host.episode_tokens"),
        ({"context_tokens": 40}, "context_length_exceeded", "context_tokens"),
        ({"max_segments": 1}, "budget_exhausted", "host.max_segments"),
    ],
)
def test_what_does_not_fit_is_refused(changes, code, words):
    episode = new_episode(**changes)
    ask(episode, [user("a")], "b")
    with pytest.raises(CallRefused, match=words) as refused:
        ask(episode, [QUESTION] * 3, "two")
    assert refused.value.code == code
    assert len(episode.calls) == 1


def test_a_program_that_asks_the_same_too_often_has_used_up_its_calls():
    episode = new_episode(context_tokens=40)
    codes = []
    for _ in range(LIMITS.max_calls + 1):
        with pytest.raises(CallRefused) as refused:
            ask(episode, [QUESTION] * 3, "two")
        codes.append(refused.value.code)
    assert codes == ["context_length_exceeded"] * 6 + ["budget_exhausted"]


def test_calls_of_tools_are_read_and_stand_as_they_were_sampled():
    long = {"context_tokens": 400, "episode_tokens": 800}
    episode = new_episode(**long)
    text = 'So\n<tool_call>\n{"name": "look", "arguments": {"at":  1}}\n</tool_call>'
    first = ask(episode, [QUESTION], text, tools=(TOOL,))
    assert (first.content, first.finish_reason) == ("So", "tool_calls")
    function = first.tool_calls[0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("look", {"at": 1})
    messages = [QUESTION, said(first)]
    messages += [{"role": "tool", "tool_call_id": "call_0", "content": "2 pens"}]
    later = episode.prompt(ChatCall(tuple(messages), tools=(TOOL,)))
    assert later.num_known == len(episode.segments[0])
    broken = ask(episode, [QUESTION], "<tool_call>{", tools=(TOOL,))
    assert broken.content == "<tool_call>{"
    assert [call.has_format for call in episode.calls] == [True, False]
    row = arrays(episode, limits=CallLimits(**{**vars(LIMITS), **long}))
    assert row["turns"].penalty[0, :2].tolist() == [0.0, -0.5]


def test_one_segment_needs_no_windows():
    limits = CallLimits(**{**vars(LIMITS), "max_segments": 1})
    episode = new_episode(max_segments=1)
    ask(episode, [QUESTION], "two")
    row = arrays(episode, limits=limits)
    assert row["windows"] is None
    assert row["tokens"][0, : row["lengths"][0]].tolist() == episode.segments[0]


def test_nothing_is_learned_from_a_lost_row():
    episode = new_episode()
    ask(episode, [QUESTION], "two")
    played = Played(episode.calls, 0.0, False, False, is_lost=True)
    row = to_trajectory([played], LIMITS, num_actions=1)
    assert not row["loss_mask"].any()
    assert row["turns"].played[0, 0]


def test_tokens_and_log_probabilities_come_on_request():
    episode = new_episode()
    plain = ask(episode, [QUESTION], "two")
    assert plain.token_ids is None
    assert plain.logprobs is None
    asked = {"wants_logprobs": True, "wants_token_ids": True}
    answer = ask(new_episode(), [QUESTION], "two pens", **asked)
    assert list(answer.prompt_token_ids) == list(episode.calls[0].prompt.ids)
    assert tokenizer().decode(answer.token_ids) == "two pens<|im_end|>"
    texts, log_probs = zip(*answer.logprobs, strict=True)
    assert "".join(texts) == "two pens<|im_end|>"
    assert log_probs[:2] == (-1.0, -2.0)
