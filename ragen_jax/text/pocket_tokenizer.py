"""Builds the pocket model's tokenizer: a byte-level BPE small enough for a laptop.

In: the texts the model will meet. Out: a tokenizer in Hugging Face format. It knows
the 256 bytes, so any text encodes; every word of the given texts; Qwen's special
tokens; and the tags and the separator of answers. The same texts always give the same
file. Refuses to know what the texts are about.

A word is what Qwen's pre-tokenizer cuts out; it becomes one token because the
vocabulary is asked for whole words first (`ignore_merges`), not because merges were
learned. Symbols outside ASCII get the merges of their bytes, so that they stay one
token between any neighbours.
"""

import json
import os
from collections.abc import Iterable

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
)

from envs.templates import Cells, Choice, Grid, Template
from ragen_jax.text import chat
from ragen_jax.text.prompts import SEPARATOR
from ragen_jax.text.tokenizer import byte_alphabet

END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = (END_OF_TEXT, chat.START, chat.END)
# Not special: they are text, and the parser reads them.
MARKUP = ("<think>", "</think>", "<answer>", "</answer>", f" {SEPARATOR} ")
# Of Qwen-2.5: contractions, words with the character before them, single digits,
# punctuation with the line ends after it, line ends, blanks.
WORD_BORDERS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
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

    Ids: the 256 bytes, then the words in order of appearance, then added tokens.
    """
    cut = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_BORDERS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    words = [word for text in texts for word in _words(cut, text)]
    symbols = [w for w in words if _is_foreign_symbol(w)]
    merges = [(s[:i], s[i]) for s in dict.fromkeys(symbols) for i in range(1, len(s))]
    entries = dict.fromkeys(
        [*_bytes_in_order(), *("".join(pair) for pair in merges), *words]
    )
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True)
    )
    tokenizer.pre_tokenizer = cut
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(name, normalized=False, special=True) for name in SPECIAL_TOKENS]
    )
    tokenizer.add_tokens(
        [AddedToken(name, normalized=False, special=False) for name in MARKUP]
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: str) -> None:
    """Writes the two files that `transformers.AutoTokenizer` loads.

    Raises:
      OSError: the folder cannot be written.
    """
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(os.path.join(folder, TOKENIZER_FILE))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
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
    with open(os.path.join(folder, SETTINGS_FILE), "w", encoding="utf-8") as file:
        json.dump(settings, file, indent=2, ensure_ascii=False)
        file.write("\n")


def _words(cut: pre_tokenizers.PreTokenizer, text: str) -> list[str]:
    """Words of a text, markup left out, in the byte-level alphabet."""
    for name in (*SPECIAL_TOKENS, *MARKUP):
        text = text.replace(name, "\n")
    found = [word for word, _ in cut.pre_tokenize_str(text)]
    return [word for word in found if _is_whole_word(word)]


def _is_whole_word(word: str) -> bool:
    """Words proper, foreign symbols; not runs of punctuation or of blanks."""
    return any(c.isascii() and c.isalpha() for c in word) or _is_foreign_symbol(word)


def _is_foreign_symbol(word: str) -> bool:
    """One character outside ASCII: several bytes, none of them a letter's."""
    try:
        character = bytes(byte_alphabet()[c] for c in word).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return len(character) == 1 and not character.isascii()


def _bytes_in_order() -> list[str]:
    """What byte-level BPE writes for byte 0, 1, ..., 255: the first 256 ids."""
    alphabet = byte_alphabet()
    return sorted(alphabet, key=alphabet.__getitem__)


def template_texts(template: Template) -> list[str]:
    """Every string a template can show, for `build_tokenizer`; numbers left out."""
    texts = []
    for part in template.parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Choice):
            texts += part.options
        elif isinstance(part, Grid):
            texts += part.symbols
        elif isinstance(part, Cells):
            texts.append(f"{part.label}: ")
    return texts
