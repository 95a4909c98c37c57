"""Windows: they start with a state, contain whole past turns, and always fit."""

import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.templates import Choice, Template
from ragen_jax.text.context import CONTEXTS
from ragen_jax.text.prompts import PROMPT_STYLES, build_wording
from ragen_jax.text.token_templates import check_neighbours
from ragen_jax.types import TokenSpan
from tests.text import dialogues
from tests.text.dialogues import BOARD, BUDGET, REPLY_TOKENS

REPLY = " up.</think><answer>Up</answer><|im_end|>"
# The third turn, after a reply that held no valid action.
FIELDS = dialogues.FIELDS | {"turn": 3, "was_invalid": 1}


def build(tokenizer, style="terse", **changes):
    return dialogues.build(tokenizer, style=style, **changes)


def prompt(tokenizer, dialogue, num_past):
    """Text of a window before turn 3 that has seen some turns, all of them alike."""
    templates = dialogue.windows
    fields = {name: jnp.asarray(value) for name, value in FIELDS.items()}
    reply = tokenizer.encode(REPLY)
    padded = jnp.asarray(reply + [0] * (REPLY_TOKENS - len(reply)), jnp.int32)
    said = TokenSpan(padded, jnp.int32(len(reply)))
    turn = templates.past_turn(fields | {"turn": jnp.int32(2)}, said, jnp.int32(1))
    is_past = jnp.arange(templates.num_past) >= templates.num_past - num_past
    tokens = jnp.broadcast_to(turn.tokens, (templates.num_past, *turn.tokens.shape))
    past = TokenSpan(tokens, jnp.where(is_past, turn.length, 0))
    span = templates.prompt(fields, past)
    assert span.tokens.shape[0] + REPLY_TOKENS == dialogue.max_window_tokens
    return tokenizer.decode(np.asarray(span.tokens)[: int(span.length)].tolist())


def test_last_k_is_the_dialogue_without_its_oldest_turns(tokenizer):
    dialogue = build(tokenizer, context="last_k", context_turns=2)
    start = "<|im_start|>system\nfrozenlake<|im_end|>\n<|im_start|>user\n"
    end = "<|im_end|>\n<|im_start|>assistant\n<think>"
    now = f"Turn 3\n{BOARD}Left 5{end}"
    assert prompt(tokenizer, dialogue, 0) == start + now
    assert prompt(tokenizer, dialogue, 1) == (
        f"{start}Turn 2\n{BOARD}Left 5{end}{REPLY}\n"
        f"<|im_start|>user\nReward -0.2\nInvalid\n{now}"
    )


def test_single_turn_tells_the_past_in_one_message(tokenizer):
    dialogue = build(tokenizer, context="single_turn", context_turns=3)
    reply = REPLY.removesuffix("<|im_end|>")
    past = f"Turn 2\n{BOARD}Left 5\n<think>{reply}\nReward -0.2\nInvalid\n"
    start = "<|im_start|>system\nfrozenlake<|im_end|>\n<|im_start|>user\n"
    now = f"Turn 3\n{BOARD}Left 5<|im_end|>\n<|im_start|>assistant\n<think>"
    for num_past in range(3):
        text = prompt(tokenizer, dialogue, num_past)
        assert text == start + past * num_past + now


def test_full_style_marks_the_past_turns(tokenizer):
    dialogue = build(tokenizer, style="full", context="single_turn", context_turns=2)
    opening = dialogue.prompts.opening.render(FIELDS)
    assert prompt(tokenizer, dialogue, 0) == opening
    system, request = opening.split("<|im_start|>user\n")
    reply = REPLY.removesuffix("<|im_end|>")
    assert prompt(tokenizer, dialogue, 1) == (
        f"{system}<|im_start|>user\nYour last turns, the oldest first:\n"
        f"Turn 2\nState:\n{BOARD}Your reply: <think>{reply}\nReward: -0.2\n"
        "That reply held no valid action, so nothing happened.\n"
        f"Your turn now:\n{request}"
    )


@pytest.mark.parametrize("style", PROMPT_STYLES)
@pytest.mark.parametrize("context", ["last_k", "single_turn"])
def test_the_turn_alone_is_the_opening_of_a_dialogue(tokenizer, context, style):
    dialogue = build(tokenizer, style=style, context=context, context_turns=1)
    assert prompt(tokenizer, dialogue, 0) == dialogue.prompts.opening.render(FIELDS)
    opening = dialogue.opening.max_tokens
    assert dialogue.max_window_tokens == opening + REPLY_TOKENS


def test_more_turns_than_there_are_make_no_longer_window(tokenizer):
    whole = build(tokenizer)
    assert whole.windows is None
    assert whole.max_window_tokens == whole.max_trajectory_tokens
    sizes = [
        build(tokenizer, context="last_k", context_turns=k).max_window_tokens
        for k in (1, 2, 4, 9)
    ]
    turn = whole.following.max_tokens + REPLY_TOKENS
    first = whole.opening.max_tokens + REPLY_TOKENS
    assert sizes == [first + n * turn for n in (0, 1, 3, 3)]
    assert sizes[-1] == whole.max_trajectory_tokens


@pytest.mark.parametrize(
    ("context", "turns", "words"),
    [
        ("some", 2, r"context='some' is unknown; choose one of full, last_k, single_"),
        ("full", 2, "context_turns=2 has no effect with context='full'"),
        ("last_k", None, "context_turns=None: context='last_k' needs the number"),
        ("single_turn", 0, "context_turns=0: context='single_turn' needs the number"),
    ],
)
def test_bad_options_are_one_sentence(tokenizer, context, turns, words):
    with pytest.raises(ValueError, match=words):
        build(tokenizer, context=context, context_turns=turns)


@pytest.mark.parametrize("style", PROMPT_STYLES)
@pytest.mark.parametrize("name", envs.ENVIRONMENTS)
@pytest.mark.parametrize("context", CONTEXTS)
def test_every_context_words_every_environment(name, style, context):
    """A turn's own part never speaks of another turn."""
    wording = build_wording(
        envs.make(name), style=style, budget=BUDGET, length_hint_words=60
    )
    pieces = CONTEXTS[context](wording, 2)
    assert (pieces is None) == (context == "full")
    if pieces is not None:
        about_past = {"reward_hundredths", "was_invalid", "was_cut"}
        assert not about_past & {*pieces.ending.fields, *pieces.before_reply.fields}
        assert {"reward_hundredths", "was_invalid"} <= {*pieces.after_reply.fields}
        assert ("was_cut" in pieces.after_reply.fields) == pieces.shows_stop


def test_pieces_that_merge_where_they_meet_are_refused(tokenizer):
    first, second = Template(("Le",)), Template(("ft", Choice("c", ("", "x"))))
    ids = {text: tokenizer.encode(text) for text in ("Le", "ft", "x")}
    assert tokenizer.encode("Left") != ids["Le"] + ids["ft"]
    with pytest.raises(ValueError, match="'Le' and literal 'ft' may touch"):
        check_neighbours(first, second, tokenizer, "rows", ids)
