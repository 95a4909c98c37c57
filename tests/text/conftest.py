"""A tokenizer like Qwen's, trained once for all tests of this folder."""

import pytest

from ragen_jax.text.tokenizer import load_tokenizer
from tests.reference import tokenizers


@pytest.fixture(scope="session")
def qwen_folder(tmp_path_factory):
    return tokenizers.train_qwen_style(
        tmp_path_factory.mktemp("qwen"), stop_tokens=["<|im_end|>", "<|endoftext|>"]
    )


@pytest.fixture(scope="session")
def tokenizer(qwen_folder):
    return load_tokenizer(qwen_folder)


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory):
    return tokenizers.train_qwen_style(
        tmp_path_factory.mktemp("llama"),
        stop_tokens=["<|end_of_text|>", "<|eot_id|>"],
        is_llama=True,
    )
