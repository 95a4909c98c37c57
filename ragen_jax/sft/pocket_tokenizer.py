"""The tokenizer of a new model: a byte-level BPE with one token per word.

In: the texts of the model's dialogues. Out: a tokenizer in Hugging Face format. It has
the 256 bytes, so that any text encodes; every word of the texts; Qwen's special tokens;
and the tags and the separator of answers. The same texts always give the same file.

A word is a piece that Qwen's pre-tokenizer cuts out. It becomes one token as an added
token, like Qwen's `<tool_call>`: merges that build a word from its bytes would need a
token for every intermediate piece. Only symbols outside ASCII have merges of their
bytes. `transformers` builds its tokenizer for Qwen models from vocabulary, merges and
added tokens only, so nothing else is used here.
"""

import collections
import json
import os
import pathlib
from collections.abc import Iterable, Sequence

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
)

from ragen_jax.runs.writer import write_text_atomically
from ragen_jax.text import chat, pictures
from ragen_jax.text.prompts import SEPARATOR
from ragen_jax.text.tokenizer import byte_alphabet, qwen_cutter

END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = (END_OF_TEXT, chat.START, chat.END)
# Of models that see.
PICTURE_TOKENS = (pictures.BEGIN, pictures.END, "<|image_pad|>", "<|video_pad|>")
# Not special tokens: they are text that the parser reads.
MARKUP = ("<think>", "</think>", "<answer>", "</answer>", f" {SEPARATOR} ")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    f"{{{{ '{chat.START}' + message['role'] + '\\n' + message['content'] }}}}"
    f"{{{{ '{chat.END}\\n' }}}}"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{{{{ '{chat.START}assistant\\n' }}}}{{% endif %}}"
)
TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"


def build_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer in which every word of `texts` is one token.

    The order of ids: the 256 bytes, merges of symbols, words by first appearance,
    special tokens, markup.
    """
    cut, texts = qwen_cutter(), list(texts)
    special = SPECIAL_TOKENS
    if any(pictures.BEGIN in text for text in texts):
        special += PICTURE_TOKENS
    pieces = [word for text in texts for word in _words(cut, text)]
    symbols = dict.fromkeys(word for word in pieces if _is_non_ascii_symbol(word))
    words = dict.fromkeys(_text(word) for word in pieces if word not in symbols)
    merges = [(s[:i], s[i]) for s in symbols for i in range(1, len(s))]
    entries = [*_bytes_in_order(), *dict.fromkeys("".join(pair) for pair in merges)]
    entries += [*words, *special, *MARKUP]
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = cut
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [AddedToken(text, normalized=False) for text in (*words, *MARKUP)]
    )
    tokenizer.add_special_tokens(
        [AddedToken(name, normalized=False, special=True) for name in special]
    )
    return tokenizer


def common_words(texts: Sequence[str], share: float) -> list[str]:
    """Words that occur in at least this share of the texts, in a fixed order.

    Rare names are spelled in bytes, like names that the texts do not contain.
    """
    cut = qwen_cutter()
    counts = collections.Counter(
        word for text in texts for word in sorted(set(_words(cut, text)))
    )
    least = share * len(texts)
    return [_text(word) for word, count in sorted(counts.items()) if count >= least]


def save_tokenizer(tokenizer: Tokenizer, folder: str) -> None:
    """Write the two files that `transformers.AutoTokenizer` loads.

    Raises:
      OSError: the folder cannot be written.
    """
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(os.path.join(folder, TOKENIZER_FILE))
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": chat.END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    # A folder with this file is taken for a whole tokenizer.
    write_text_atomically(pathlib.Path(folder, SETTINGS_FILE), text)


def _words(cut: pre_tokenizers.PreTokenizer, text: str) -> list[str]:
    for name in (*SPECIAL_TOKENS, *PICTURE_TOKENS, *MARKUP):
        text = text.replace(name, "\n")
    pieces = [word for word, _ in cut.pre_tokenize_str(text)]
    return [word for word in pieces if _is_whole_word(word)]


def _is_whole_word(word: str) -> bool:
    """True for words and symbols outside ASCII, not for bytes and punctuation."""
    is_word = len(word) > 1 and any(c.isascii() and c.isalpha() for c in word)
    return is_word or _is_non_ascii_symbol(word)


def _is_non_ascii_symbol(word: str) -> bool:
    """True for one character outside ASCII, which has several bytes."""
    text = _text(word)
    return len(text) == 1 and not text.isascii()


def _text(word: str) -> str:
    alphabet = byte_alphabet()
    return bytes(alphabet[stand_in] for stand_in in word).decode("utf-8")


def _bytes_in_order() -> list[str]:
    """Spelling of bytes 0, 1, ..., 255 in byte-level BPE: the first 256 ids."""
    alphabet = byte_alphabet()
    return sorted(alphabet, key=alphabet.__getitem__)
