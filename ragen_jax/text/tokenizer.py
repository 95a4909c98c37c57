"""Tokenizer of a checkpoint: text to ids at start-up, ids to text for people to read.

In: a folder in Hugging Face layout. Out: a `Tokenizer`. Nothing here runs during a
rollout; the device works on tables of ids and bytes made from it once.

Only byte-level BPE tokenizers (GPT-2, Qwen, Llama 3) are accepted: answers are read as
bytes, so every id must stand for a fixed string of bytes.
"""

import codecs
import dataclasses
import functools
import itertools
import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence

import tokenizers
from tokenizers import pre_tokenizers

from ragen_jax.text.chat import Markup, markup_of
from ragen_jax.types import PICTURE_IDS

# Far above any real vocabulary: tables have a row for every id.
MAX_IDS = PICTURE_IDS
# Characters of another library's error that a sentence repeats.
MAX_REASON = 300
# Read by every tokenizer in its way: contractions, numbers, blanks, line ends, symbols,
# other alphabets, and words that tokenizers of code cut.
PROBE = (
    "It's 2024-10-31, don't: they'LL pay $1,234.50 for 16x9 boards!\n\n  #P_O√ 10 007"
    "\n\tx += 0xFF;  // naïve façade, Größe 10 cm, 東京 2020 年, привет 🙂🙂   end  \n"
    "<think>go up</think><answer>Up || Down</answer>"
)
# Types of models whose tokenizer transformers cuts like Qwen's, whatever its file says.
QWEN_TYPES = ("qwen2", "qwen3", "qwen2_5_vl")
# Qwen-2.5's cuts, from its released tokenizer.json: contractions, words with the
# character before them, single digits, punctuation with the line ends after it, line
# ends, blanks.
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def qwen_cutter() -> pre_tokenizers.PreTokenizer:
    """Cuts a text into words as Qwen's tokenizers do, and spells them in bytes."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(QWEN_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Tokenizer:
    """A byte-level BPE tokenizer.

    Attributes:
      backend: the tokenizer of the library `tokenizers`.
      token_bytes: bytes of each id; `b""` for special tokens and unused ids.
      stop_ids: `eos_token_id` of the checkpoint's generation config, or None.
      chat_template: the checkpoint's Jinja template, or None.
      folder: where it was read from.
      picture_texts: text of ids that stand for cells of pictures, beyond the
        vocabulary; see `ragen_jax.text.pictures`.
    """

    backend: tokenizers.Tokenizer
    token_bytes: list[bytes]
    stop_ids: tuple[int, ...] | None
    chat_template: str | None
    folder: pathlib.Path
    picture_texts: Mapping[int, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def plain(self) -> tokenizers.Tokenizer:
        """A copy of the backend that encodes special tokens and tags as ordinary text.

        A tag need not be special, such as Qwen3's `</think>`; one that a game shows
        must not end a thought. Other added tokens are words.
        """
        description = json.loads(self.backend.to_str())
        for token in description["added_tokens"]:
            token["special"] |= re.fullmatch("<.*>", token["content"]) is not None
        copied = tokenizers.Tokenizer.from_str(json.dumps(description))
        copied.encode_special_tokens = True
        return copied

    @functools.cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """Those that the checkpoint declares, such as the ends of turns."""
        added = self.backend.get_added_tokens_decoder().values()
        return tuple(token.content for token in added if token.special)

    @functools.cached_property
    def markup(self) -> Markup:
        """The markup of its chats; ValueError if it has none that is known."""
        return markup_of(
            lambda token: self.backend.token_to_id(token) is not None, self.folder
        )

    @property
    def vocab_size(self) -> int:
        """Ids are below this; the model's (padded) vocabulary may be larger."""
        return len(self.token_bytes)

    def encode(self, text: str) -> list[int]:
        """Ids of a text. Special tokens in it are recognised, none are added."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of every text."""
        encode = self.backend.encode_batch_fast  # fast: leaves out offsets in the text
        return [e.ids for e in encode(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included, exactly as they spell it."""
        return self.decode_batch([[int(i) for i in ids]])[0]

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """`decode` of every row of ids."""
        if self.picture_texts:
            return ["".join(self._decode_runs(row)) for row in rows]
        return self.backend.decode_batch(list(rows), skip_special_tokens=False)

    def _decode_runs(self, ids: Sequence[int]) -> Iterator[str]:
        """Texts of runs of ids, of words and of pictures by turns."""
        for is_text, run in itertools.groupby(ids, lambda i: i < PICTURE_IDS):
            if is_text:
                yield self.backend.decode(list(run), skip_special_tokens=False)
            else:
                yield "".join(self.picture_texts[i] for i in run)

    def spell(self, ids: Sequence[int]) -> list[str]:
        """Text of each id; joined they are `decode(ids)`.

        A character spelled by several tokens belongs to the last of them; the others
        have an empty text. Bytes that are not a character become U+FFFD.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        texts = [decoder.decode(self._bytes_of(int(i))) for i in ids]
        rest = decoder.decode(b"", final=True)
        return [*texts[:-1], texts[-1] + rest] if texts else []

    def _bytes_of(self, token_id: int) -> bytes:
        """Bytes of an id, special tokens included; none for unused ids."""
        if token_id < self.vocab_size and self.token_bytes[token_id]:
            return self.token_bytes[token_id]
        if token_id >= PICTURE_IDS:
            return self.picture_texts[token_id].encode("utf-8")
        return (self.backend.id_to_token(token_id) or "").encode("utf-8")

    def id_of(self, special: str) -> int:
        """Id of a token by its text, `<|im_end|>` for example.

        Raises:
          ValueError: the vocabulary has no such token.
        """
        token_id = self.backend.token_to_id(special)
        if token_id is None:
            raise ValueError(
                f"the tokenizer in {self.folder} has no token {special!r}; "
                "use a checkpoint that has it"
            )
        return token_id


def check_vocabulary(path: str, tokenizer: Tokenizer, num_ids: int) -> None:
    """Refuse a tokenizer with more ids than a model of `num_ids` ids.

    Raises:
      ValueError: it has more; `path` is named in the message.
    """
    if tokenizer.vocab_size > num_ids:
        raise ValueError(
            f"the tokenizer in {path} has {tokenizer.vocab_size} ids, but the model's "
            f"vocabulary has {num_ids}; use the tokenizer of this model"
        )


def load_tokenizer(folder: str | pathlib.Path) -> Tokenizer:
    """Reads the tokenizer of a checkpoint folder.

    `tokenizer.json` is read if there is one; else `transformers` builds the tokenizer
    from the older files (`vocab.json`, `merges.txt`).

    Raises:
      ValueError: the folder or its files are missing, broken, or not byte-level BPE, or
        transformers reads the tokenizer of this model in another way.
    """
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        raise ValueError(
            f"no tokenizer folder {str(folder)!r}; give a folder in Hugging Face "
            "layout (tokenizer.json, tokenizer_config.json)"
        )
    if (folder / "tokenizer.json").is_file():
        backend = _read_backend(folder / "tokenizer.json")
    else:
        backend = _build_backend(folder)
    _check_agreement(backend, folder)
    backend.no_truncation()
    backend.no_padding()
    settings = _read_json(folder / "tokenizer_config.json") or {}
    _check_added_tokens(backend, settings, folder)
    return Tokenizer(
        backend=backend,
        token_bytes=_token_bytes(backend, folder),
        stop_ids=_stop_ids(folder),
        chat_template=_chat_template(folder, settings),
        folder=folder,
    )


def _read_backend(path: pathlib.Path) -> tokenizers.Tokenizer:
    _check_backend(path, _read_json(path))
    # The library raises bare `Exception` for every kind of bad file.
    try:
        return tokenizers.Tokenizer.from_buffer(path.read_bytes())
    except Exception as error:
        raise ValueError(f"{path} is not a tokenizer file: {error}") from error


def _check_backend(path: pathlib.Path, content: dict) -> None:
    """Raises ValueError for values with which the library would abort the process."""
    model = content.get("model")
    if not isinstance(model, dict):
        raise ValueError(f"{path} is not a tokenizer file: it has no model")
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name) not in (None, ""):
            raise ValueError(
                f"{path}: model.{name} = {model[name]!r}; byte-level BPE tokenizers, "
                "the only kind that works, have none"
            )


def _build_backend(folder: pathlib.Path) -> tokenizers.Tokenizer:
    if not any((folder / name).is_file() for name in ("vocab.json", "merges.txt")):
        raise ValueError(
            f"{folder} has neither tokenizer.json nor vocab.json and merges.txt; "
            "copy the checkpoint's tokenizer files there"
        )
    return _as_transformers_reads(folder)


def _as_transformers_reads(folder: pathlib.Path) -> tokenizers.Tokenizer:
    # Imported here: it takes seconds, and most folders do not need it.
    import transformers

    # The library does not check the files' shapes: any exception of its code may come.
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True
        )
        return tokenizer.backend_tokenizer
    except Exception as error:
        # Values of the files, whatever they are, may stand in its words.
        reason = ascii(str(error))[1:-1][:MAX_REASON]
        raise ValueError(
            f"transformers cannot build a fast tokenizer from {folder} (config.json, "
            f"tokenizer_config.json, tokenizer.json): {reason}; copy these files again"
        ) from error


def _check_agreement(backend: tokenizers.Tokenizer, folder: pathlib.Path) -> None:
    """Refuse a model whose tokenizer transformers would read in another way.

    Its exports would answer other prompts than those that they were trained on.
    """
    model = _read_json(folder / "config.json")
    if model is None or not (folder / "tokenizer.json").is_file():
        return  # no model, or built by transformers
    family = model.get("model_type")
    if not isinstance(family, str) or not family.isidentifier():
        return  # no family of models, which is refused where the model is read
    if family in QWEN_TYPES and _is_same(backend.pre_tokenizer, qwen_cutter()):
        return
    theirs = _as_transformers_reads(folder)
    found, expected = (
        tokenizer.encode(PROBE, add_special_tokens=False)
        for tokenizer in (theirs, backend)
    )
    if found.ids == expected.ids:
        return
    pairs = itertools.zip_longest(found.tokens, expected.tokens, fillvalue="(end)")
    their_token, our_token = next((a, b) for a, b in pairs if a != b)
    raise ValueError(
        f"transformers does not read {folder / 'tokenizer.json'} as it is under "
        f"model_type = {family!r}: {len(found.ids)} ids of a text for "
        f"{len(expected.ids)}, first {their_token!r} for {our_token!r}; use the "
        "model_type of the family whose tokenizer this is (a Llama is 'llama')"
    )


def _is_same(one: pre_tokenizers.PreTokenizer | None, other) -> bool:
    # The library has no comparison; a pickled one is its part of tokenizer.json.
    return one is not None and one.__getstate__() == other.__getstate__()


def _read_json(path: pathlib.Path) -> dict | None:
    """A JSON object, or None if the file does not exist."""
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(
            f"{path} is not a JSON object but a {type(value).__name__}; copy it again"
        )
    return value


def _check_added_tokens(
    backend: tokenizers.Tokenizer, settings: dict, folder: pathlib.Path
) -> None:
    listed = settings.get("added_tokens_decoder") or {}
    is_table = isinstance(listed, dict) and all(
        token_id.isascii() and token_id.isdecimal() and isinstance(token, dict)
        for token_id, token in listed.items()
    )
    if not is_table:
        raise ValueError(
            f"{folder / 'tokenizer_config.json'}: added_tokens_decoder must map token "
            "ids to objects; save the tokenizer again with transformers"
        )
    for token_id, token in listed.items():
        content = token.get("content")
        known = backend.id_to_token(int(token_id)) if int(token_id) < MAX_IDS else None
        if content is None or known != content:
            raise ValueError(
                f"{folder}: tokenizer_config.json gives id {token_id} to "
                f"{content!r}, tokenizer.json does not; save the tokenizer "
                "again with transformers so that the two agree"
            )


def _chat_template(folder: pathlib.Path, settings: dict) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text: {error}") from error
    template = settings.get("chat_template")
    return template if isinstance(template, str) else None


def _stop_ids(folder: pathlib.Path) -> tuple[int, ...] | None:
    path = folder / "generation_config.json"
    stop = (_read_json(path) or {}).get("eos_token_id")
    if stop is None:
        return None
    ids = stop if isinstance(stop, list) else [stop]
    is_id = (isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids)
    if not ids or not all(is_id):
        raise ValueError(
            f"{path}: eos_token_id is {stop!r}; it must be a token id or a list of them"
        )
    return tuple(ids)


@functools.cache
def byte_alphabet() -> dict[str, int]:
    """Byte by the character that byte-level BPE writes for it.

    Printable characters of Latin-1 stand for the byte of their code; those from U+0100
    on for the other bytes, in order. Source: GPT-2's released encoder.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return alphabet


def _vocabulary_file(folder: pathlib.Path) -> pathlib.Path:
    path = folder / "tokenizer.json"
    return path if path.is_file() else folder / "vocab.json"


def _token_bytes(backend: tokenizers.Tokenizer, folder: pathlib.Path) -> list[bytes]:
    alphabet = byte_alphabet()
    added = backend.get_added_tokens_decoder()
    vocabulary = backend.get_vocab(with_added_tokens=True)
    last = max(vocabulary.values(), default=-1)
    if not 0 <= last < MAX_IDS:
        raise ValueError(
            f"{_vocabulary_file(folder)} has {len(vocabulary)} tokens with ids up to "
            f"{last}; there must be tokens, with ids below {MAX_IDS}"
        )
    spelled = [b""] * (last + 1)
    for token, token_id in vocabulary.items():
        if token_id in added:
            is_special = added[token_id].special
            spelled[token_id] = b"" if is_special else token.encode("utf-8")
        elif all(character in alphabet for character in token):
            spelled[token_id] = bytes(alphabet[character] for character in token)
        else:
            raise ValueError(
                f"token {token_id} ({token!r}) of {_vocabulary_file(folder)} is not "
                "spelled in bytes; only byte-level BPE tokenizers work (Qwen, Llama 3)"
            )
    return spelled
