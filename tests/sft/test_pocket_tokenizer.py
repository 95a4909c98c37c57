"""The tokenizer of the shipped model of the first games, and what the model reads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envs
from configs import pocket
from ragen_jax.models.hf.weights import load_checkpoint
from ragen_jax.models.policy import build_policy
from ragen_jax.program.build import POCKET
from ragen_jax.sft.data import build_demo_tasks
from ragen_jax.text.tokenizer import load_tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = ("<think>", "</think>", "<answer>", "</answer>", " || ")


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(POCKET)


@pytest.fixture(scope="module")
def tasks(tokenizer):
    return build_demo_tasks(pocket.get_config(), tokenizer)


def single_tokens(tasks):
    for demo in tasks.values():
        yield from demo.task.env.action_vocabulary
    for name in ("sokoban", "frozen_lake"):
        yield from envs.make(name).symbols
    yield from (*SPECIAL, *MARKUP, *"0123456789", "\n", "Turn", "Reward", "Invalid")


def test_words_of_the_games_are_single_tokens(tokenizer, tasks):
    for text in single_tokens(tasks):
        assert len(tokenizer.encode(text)) == 1, text


def test_symbols_stay_single_tokens_side_by_side(tokenizer):
    text = "#_√√X\n_O√P#\n"
    assert [tokenizer.decode([i]) for i in tokenizer.encode(text)] == list(text)


def test_markup_is_text_and_special_tokens_are_not(tokenizer):
    assert all(tokenizer.token_bytes[tokenizer.id_of(t)] == b"" for t in SPECIAL)
    for text in MARKUP:
        assert tokenizer.token_bytes[tokenizer.id_of(text)] == text.encode()
    assert tokenizer.stop_ids == (tokenizer.id_of("<|im_end|>"),)


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_text_survives(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    if not any(special in text for special in SPECIAL):
        assert b"".join(tokenizer.token_bytes[i] for i in ids) == text.encode()


def test_every_byte_is_a_token(tokenizer):
    assert [tokenizer.token_bytes[i] for i in range(256)] == [
        bytes([i]) for i in range(256)
    ]


def test_transformers_loads_the_same_tokenizer(tokenizer):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(POCKET, local_files_only=True)
    message = [{"role": "user", "content": "Turn 1\n#_√P#\nLeft 10"}]
    chat = theirs.apply_chat_template(
        message, tokenize=False, add_generation_prompt=True
    )
    assert chat == (
        "<|im_start|>user\nTurn 1\n#_√P#\nLeft 10<|im_end|>\n<|im_start|>assistant\n"
    )
    for text in (chat, "<think>P12</think><answer>Up || Down</answer>", "é 日本\n\n x"):
        ids = theirs.encode(text, add_special_tokens=False)
        assert ids == tokenizer.encode(text)
        assert theirs.decode(ids, clean_up_tokenization_spaces=False) == text


@pytest.mark.slow
def test_it_can_read_the_board(tokenizer, tasks):
    """If it thinks, it names player, box and target where they are."""
    config, params = load_checkpoint(POCKET)
    policy = build_policy(config)
    task, facts = tasks["sokoban"].task, tasks["sokoban"].facts
    env, env_params = task.env, task.params
    keys = jax.random.split(jax.random.key(99), 32)
    _, states = jax.vmap(env.reset_env, (0, None))(keys, env_params)
    names = jax.vmap(facts.read, (0, None))(states, env_params)
    fields = jax.device_get(jax.vmap(env.text_fields, (0, None))(states, env_params))
    rows, thoughts = [], []
    for i in range(32):
        state = {k: v[i] for k, v in fields.items()} | {"turn": 1, "actions_left": 10}
        words = zip(facts.words, names[i], strict=True)
        thought = "".join(word.options[int(n)] for word, n in words)
        thoughts.append([tokenizer.encode(letter)[0] for letter in thought])
        prompt = tokenizer.encode(task.dialogue.prompts.opening.render(state))
        rows.append(prompt + thoughts[-1])
    tokens = jnp.array(rows, jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1])[None], tokens.shape)
    hidden, _ = policy.forward(params, tokens, positions, None)
    logits = policy.logits(params, hidden[:, -len(thoughts[0]) - 1 : -1])
    is_right = np.asarray(jnp.argmax(logits, axis=-1)) == np.array(thoughts)
    is_digit = np.array([0, 1, 1] * 3, bool)
    assert is_right[:, is_digit].mean() > 0.8
