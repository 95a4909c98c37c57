"""A GGUF file of a tiny random Llama, written by the format's specification, slowly."""

import struct

import numpy as np

from ragen_jax.text.tokenizer import byte_alphabet

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOKENS = (*CONTROL, *byte_alphabet(), "th")
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
WIDTH, INNER, LAYERS, HEADS, KV_HEADS = 64, 96, 2, 4, 2
# Name in llama.cpp, name here, shape.
LAYER = (
    ("attn_q", "self_attn.q_proj", (WIDTH, WIDTH)),
    ("attn_k", "self_attn.k_proj", (WIDTH // 2, WIDTH)),
    ("attn_v", "self_attn.v_proj", (WIDTH // 2, WIDTH)),
    ("attn_output", "self_attn.o_proj", (WIDTH, WIDTH)),
    ("ffn_gate", "mlp.gate_proj", (INNER, WIDTH)),
    ("ffn_up", "mlp.up_proj", (INNER, WIDTH)),
    ("ffn_down", "mlp.down_proj", (WIDTH, INNER)),
    ("attn_norm", "input_layernorm", (WIDTH,)),
    ("ffn_norm", "post_attention_layernorm", (WIDTH,)),
)


def metadata() -> dict[str, object]:
    """Numbers of Python's int are written as uint32, floats as float32."""
    return {
        "general.architecture": "llama",
        "llama.vocab_size": len(TOKENS),
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": INNER,
        "llama.block_count": LAYERS,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.freq_base": 100_000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.context_length": 256,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.tokens": list(TOKENS),
        "tokenizer.ggml.token_type": [3] * len(CONTROL)
        + [1] * (len(TOKENS) - len(CONTROL)),
        "tokenizer.ggml.merges": ["t h"],
        "tokenizer.chat_template": TEMPLATE,
    }


def tiny_llama(seed: int = 0) -> tuple[bytes, dict[str, np.ndarray]]:
    """A file, and what its tensors are by Hugging Face's names."""
    random = np.random.RandomState(seed)
    parts = [
        ("token_embd", "embed_tokens", (len(TOKENS), WIDTH)),
        ("output_norm", "norm", (WIDTH,)),
    ]
    for i in range(LAYERS):
        parts += [(f"blk.{i}.{a}", f"layers.{i}.{b}", c) for a, b, c in LAYER]
    written, expected = {}, {}
    for there, here, shape in parts:
        write = _plain if len(shape) == 1 else _q8_0 if "embd" in there else _q4_1
        kind, content, values = write(random, shape)
        written[f"{there}.weight"] = (shape, kind, content)
        expected[f"model.{here}.weight"] = _unpaired(there, values)
    return _file(metadata(), written), expected


def _unpaired(name: str, values: np.ndarray) -> np.ndarray:
    """Rows `i` and `i + F/2` of a head of q and k are written at `2 i`, `2 i + 1`."""
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.rpartition(".")[2])
    if heads is None:
        return values
    out, size = np.empty_like(values), len(values) // heads
    for head in range(heads):
        for i in range(size // 2):
            for half in (0, 1):
                row = head * size + i + half * size // 2
                out[row] = values[head * size + 2 * i + half]
    return out


def _plain(random, shape):
    values = random.standard_normal(shape).astype(np.float32)
    return 0, values.tobytes(), values


def _q8_0(random, shape):
    values, content = [], b""
    for _ in range(np.prod(shape) // 32):
        scale = np.float16(random.rand() / 100)
        numbers = random.randint(-128, 128, 32)
        content += scale.tobytes() + bytes(int(n) % 256 for n in numbers)
        values += [np.float32(scale) * np.float32(n) for n in numbers]
    return 8, content, np.array(values, np.float32).reshape(shape)


def _q4_1(random, shape):
    values, content = [], b""
    for _ in range(np.prod(shape) // 32):
        scale, least = np.float16(random.rand() / 50), np.float16(-random.rand() / 5)
        numbers = random.randint(0, 16, 32)
        halves = [int(numbers[i]) + 16 * int(numbers[i + 16]) for i in range(16)]
        content += scale.tobytes() + least.tobytes() + bytes(halves)
        values += [
            np.float32(scale) * np.float32(n) + np.float32(least) for n in numbers
        ]
    return 3, content, np.array(values, np.float32).reshape(shape)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value) -> bytes:
    """Code of the type and the value."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    items = [_value(item) for item in value]
    head = struct.pack("<I", 9) + items[0][:4] + struct.pack("<Q", len(items))
    return head + b"".join(item[4:] for item in items)


def _file(entries, tensors) -> bytes:
    content = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries))
    for name, value in entries.items():
        content += _string(name) + _value(value)
    data = b""
    for name, (shape, kind, stored) in tensors.items():
        sizes = struct.pack(f"<{len(shape)}Q", *shape[::-1])
        where = struct.pack("<IQ", kind, len(data))
        content += _string(name) + struct.pack("<I", len(shape)) + sizes + where
        data += stored + bytes(-len(stored) % 32)
    return content + bytes(-len(content) % 32) + data
