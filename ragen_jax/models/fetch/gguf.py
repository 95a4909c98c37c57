"""Models in GGUF files, the format of llama.cpp, as tensors of Hugging Face's names.

In: a GGUF file (version 3) of a Llama in the number formats of `_BLOCKS`. Out: its
metadata, float32 tensors and the text of its `tokenizer.json`. Only files whose digest
is known are read (`packaged.py`): damage is not looked for.

Source: the specification of GGUF and of its quantized blocks in the repository ggml.
"""

import dataclasses
import math
import re
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

# Code of a type of metadata -> its format in `struct`. Strings and lists have lengths.
_SCALARS = dict(enumerate("BbHhIif?", start=0)) | {10: "Q", 11: "q", 12: "d"}
_STRING, _LIST = 8, 9
# Names of a layer's tensors: there -> here.
_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
# Kind of a token that stands for no text.
_CONTROL = 3


@dataclasses.dataclass(frozen=True)
class GGUF:
    """Contents of a file.

    Attributes:
      metadata: sizes, constants and the tokenizer, by the names of the format.
      tensors: float32 arrays by the names of the format.
    """

    metadata: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]


def read_gguf(content: bytes) -> GGUF:
    """The parsed file.

    Raises:
      ValueError: it is not GGUF of version 3, or has a number format that is not read.
    """
    reader = _Reader(content)
    magic, version = reader.take("4s"), reader.take("I")
    if (magic, version) != (b"GGUF", 3):
        raise ValueError(f"not GGUF of version 3: {magic!r}, version {version}")
    num_tensors, num_entries = reader.take("Q"), reader.take("Q")
    metadata = {reader.string(): reader.value() for _ in range(num_entries)}
    described = []
    for _ in range(num_tensors):
        name, num_axes = reader.string(), reader.take("I")
        sizes = [reader.take("Q") for _ in range(num_axes)]
        described.append((name, sizes[::-1], reader.take("I"), reader.take("Q")))
    step = metadata.get("general.alignment", 32)
    start = -(-reader.position // step) * step
    tensors = {}
    for name, shape, kind, offset in described:
        if kind not in _BLOCKS:
            raise ValueError(f"{name} has the number format {kind}, which is not read")
        block, numbers, decode = _BLOCKS[kind]
        count = math.prod(shape) // numbers
        blocks = np.frombuffer(content, block, count, start + offset)
        tensors[name] = decode(blocks).reshape(shape)
    return GGUF(metadata, tensors)


class _Reader:
    """Numbers, strings and lists from the head of a file, one after the other."""

    def __init__(self, content: bytes):
        self.content = content
        self.position = 0

    def take(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self.content, self.position)
        self.position += struct.calcsize(f"<{form}")
        return value

    def string(self) -> str:
        return self.take(f"{self.take('Q')}s").decode("utf-8")

    def value(self, kind: int | None = None) -> Any:
        kind = self.take("I") if kind is None else kind
        if kind == _STRING:
            return self.string()
        if kind == _LIST:
            of, length = self.take("I"), self.take("Q")
            return [self.value(of) for _ in range(length)]
        return self.take(_SCALARS[kind])


def _plain(blocks: np.ndarray) -> np.ndarray:
    return blocks["values"].astype(np.float32)


def _eight_bits(blocks: np.ndarray) -> np.ndarray:
    """`scale * q`: 32 numbers."""
    return blocks["scale"].astype(np.float32) * blocks["values"].astype(np.float32)


def _four_bits(blocks: np.ndarray) -> np.ndarray:
    """`scale * q + least`: 32 numbers, the low halves of the bytes first."""
    values = blocks["values"]
    quants = np.concatenate([values & 15, values >> 4], axis=1).astype(np.float32)
    scale, least = (blocks[name].astype(np.float32) for name in ("scale", "least"))
    return scale * quants + least


# Code of a number format -> layout of a block, numbers in it, its decoder: F32, Q4_1
# and Q8_0.
_HALF = ("<f2", (1,))
_BLOCKS = {
    0: (np.dtype([("values", "<f4", (1,))]), 1, _plain),
    3: (
        np.dtype([("scale", *_HALF), ("least", *_HALF), ("values", "u1", (16,))]),
        32,
        _four_bits,
    ),
    8: (np.dtype([("scale", *_HALF), ("values", "i1", (32,))]), 32, _eight_bits),
}


def llama_config(metadata: Mapping[str, Any], *, is_tied: bool) -> dict[str, Any]:
    """`config.json` of a Llama, as far as a GGUF file knows it."""
    of = {
        key.removeprefix("llama."): value
        for key, value in metadata.items()
        if key.startswith("llama.")
    }
    return {
        "model_type": "llama",
        "vocab_size": of["vocab_size"],
        "hidden_size": of["embedding_length"],
        "intermediate_size": of["feed_forward_length"],
        "num_hidden_layers": of["block_count"],
        "num_attention_heads": of["attention.head_count"],
        "num_key_value_heads": of["attention.head_count_kv"],
        "rope_theta": _shortest(of["rope.freq_base"]),
        "rms_norm_eps": _shortest(of["attention.layer_norm_rms_epsilon"]),
        "max_position_embeddings": of["context_length"],
        "tie_word_embeddings": is_tied,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
    }


def _shortest(value: float) -> float:
    """The shortest decimal that is this float32: 1e-5, not 9.99999974e-06."""
    return float(str(np.float32(value)))


def llama_tensors(gguf: GGUF) -> dict[str, np.ndarray]:
    """The weights of a Llama under Hugging Face's names, in its order of rows."""
    heads = {
        "attn_q": gguf.metadata["llama.attention.head_count"],
        "attn_k": gguf.metadata["llama.attention.head_count_kv"],
    }
    tensors = {}
    for name, tensor in gguf.tensors.items():
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
        if layer is None:
            tensors[_NAMES[name]] = tensor
            continue
        index, part = layer.groups()
        if part in heads:
            tensor = _halves(tensor, heads[part])
        tensors[f"model.layers.{index}.{_LAYER_NAMES[part]}.weight"] = tensor
    return tensors


def _halves(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of each head as (i, i + F/2) pairs; llama.cpp keeps pairs side by side."""
    by_pair = rows.reshape(num_heads, -1, 2, rows.shape[1])
    return np.ascontiguousarray(by_pair.swapaxes(1, 2)).reshape(rows.shape)


def tokenizer_json(
    metadata: Mapping[str, Any], pre_tokenizers: list[dict[str, Any]]
) -> dict[str, Any]:
    """`tokenizer.json` of a byte-level BPE vocabulary.

    Args:
      metadata: of the GGUF file.
      pre_tokenizers: what cuts a text into words before its bytes are merged, in the
        words of the library `tokenizers`; a GGUF file has but a name for it.
    """
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata["tokenizer.ggml.token_type"]
    usual = {"single_word": False, "lstrip": False, "rstrip": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": token, **usual, "normalized": False, "special": True}
            for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == _CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers},
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        },
    }
