"""Decoding: milliseconds per step and tokens per second, next to peers and the limit.

    python -m benchmarks.decode               # pocket model, 128 rows
    python -m benchmarks.decode --json=FILE
    python -m benchmarks.decode --model=models/smollm2-135m --dtype=bfloat16 --rows=16 \
        --part_rows=16 --cpu_seconds

128 prompts of 236 tokens, 64 tokens written after each, sampled at T=1; the time per
step is that of 65 tokens less that of one, so that reading the prompt does not count.
On a CPU ours takes the rows in parts, as rollouts do (`rollout.part_rows`).
Peers decode the same model from the same prompts in turn with us: transformers'
`generate` (needs torch) and Tunix's sampler (needs google-tunix); one that is not
installed is left out and named. The limit: parameters, and keys and values of the live
tokens, read once per step at the bandwidth measured in the same run. With
`--cpu_seconds` the CPU seconds of all threads are counted in place of time on the wall:
they depend less on what else the machine does.
"""

import functools
import importlib.util
import pathlib
import statistics
import time
from collections.abc import Callable

import numpy as np
from absl import flags

from benchmarks import harness
from benchmarks.flops import copy_bandwidth
from benchmarks.writing import make_write
from launch import command

_ROWS = flags.DEFINE_integer("rows", 128, "Prompts.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Measured calls of each length.")
_PART_ROWS = flags.DEFINE_integer(
    "part_rows", None, "Rows of a part; default: that of configs/base.py on a CPU."
)
_MODEL = flags.DEFINE_string("model", None, "Folder; None: the pocket model.")
_DTYPE = flags.DEFINE_enum(
    "dtype", "float32", ["float32", "bfloat16"], "Of ours and transformers' numbers."
)
_CPU_SECONDS = flags.DEFINE_bool("cpu_seconds", False, "Count those of all threads.")
harness.define_json()

PROMPT_TOKENS, WRITTEN_TOKENS = 236, 64
# Steps between two checks whether all rows are done.
CHUNK_TOKENS = 16

# `(prompts[B, T], num_tokens) -> tokens[B, num_tokens]`, finished.
Generate = Callable[[np.ndarray, int], np.ndarray]


def ours(folder: pathlib.Path, part_rows: int) -> Generate:
    """The rollout's own reading and writing, without a game."""
    import jax
    import jax.numpy as jnp

    from ragen_jax.models.hf.weights import load_checkpoint
    from ragen_jax.models.policy import build_policy
    from ragen_jax.rollout.parts import run_parts

    config, params = load_checkpoint(folder)
    policy = build_policy(config, dtype=_DTYPE.value)
    params = jax.jit(policy.cast_params)(params)

    @functools.cache
    def writer(num_tokens: int) -> Callable:
        chunk = min(CHUNK_TOKENS, num_tokens)
        settings = {"temperature": 1.0, "stop_tokens": [-1], "chunk_tokens": chunk}
        return make_write(policy, num_tokens, **settings)

    def generate(prompts, num_tokens):
        write = functools.partial(writer(num_tokens), params)
        parts = np.split(prompts, range(part_rows, len(prompts), part_rows))
        parts = [jnp.asarray(part, jnp.int32) for part in parts]
        written = run_parts(write, parts, concurrently=True)
        return np.concatenate([np.asarray(reply.tokens) for reply in written])

    return generate


def transformers_generate(folder: pathlib.Path) -> Generate:
    """`generate` with its cache, sampling at T=1, stop tokens off."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, _DTYPE.value)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()

    def generate(prompts, num_tokens):
        ids = torch.as_tensor(prompts, dtype=torch.long)
        with torch.no_grad():
            whole = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                min_new_tokens=num_tokens,
                max_new_tokens=num_tokens,
                pad_token_id=0,
            )
        return whole[:, ids.shape[1] :].numpy()

    return generate


def tunix_sampler(folder: pathlib.Path) -> Generate:
    """Its sampler, greedy, on a model of the same shape with no more cache than needed.

    Its weights are random: what they are does not change the work.
    """
    import jax
    from flax import nnx
    from tunix.generate.sampler import CacheConfig, Sampler
    from tunix.models.qwen2.model import ModelConfig, Qwen2

    from ragen_jax.models.hf.weights import load_checkpoint

    config, _ = load_checkpoint(folder)
    model = Qwen2(
        ModelConfig(
            num_layers=config.num_hidden_layers,
            vocab_size=config.vocab_size,
            embed_dim=config.hidden_size,
            hidden_dim=config.intermediate_size,
            num_heads=config.num_attention_heads,
            head_dim=config.head_dim,
            num_kv_heads=config.num_key_value_heads,
            rope_theta=int(config.rope_theta),
            norm_eps=config.rms_norm_eps,
            use_tied_embedding=config.tie_word_embeddings,
        ),
        rngs=nnx.Rngs(jax.random.key(0)),
    )

    class Numbers:
        """Prompts are given as numbers in words; nothing is a stop token."""

        def encode(self, text):
            return [int(word) for word in text.split()]

        def decode(self, ids):
            del ids
            return ""

        def bos_id(self):
            return 0

        def eos_id(self):
            return -1

        def pad_id(self):
            return config.vocab_size - 1

    # It puts a token before every prompt.
    num_prompt = PROMPT_TOKENS + 1
    sampler = Sampler(
        model,
        Numbers(),
        CacheConfig(
            cache_size=num_prompt + WRITTEN_TOKENS + 1,
            num_layers=config.num_hidden_layers,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
        ),
    )

    def generate(prompts, num_tokens):
        texts = [" ".join(map(str, row)) for row in prompts]
        done = sampler(
            texts, max_generation_steps=num_tokens, max_prompt_length=num_prompt
        )
        return np.stack([np.asarray(row) for row in done.tokens])

    return generate


# Name -> package it needs, builder.
PEERS = {
    "transformers": ("torch", transformers_generate),
    "tunix": ("tunix", tunix_sampler),
}


def bytes_per_step(folder: pathlib.Path, rows: int, live_tokens: float) -> float:
    """What a step must read: parameters, keys and values."""
    import jax.numpy as jnp

    from ragen_jax.models.hf.weights import load_checkpoint
    from ragen_jax.program.build import num_params

    config, params = load_checkpoint(folder)
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads
    size = jnp.dtype(_DTYPE.value).itemsize
    return size * (
        num_params(params) + rows * live_tokens * per_token * config.head_dim
    )


def compare(folder: pathlib.Path, rows: int, repeats: int, part_rows: int) -> dict:
    """Seconds per step of everyone, taking turns; minima of whole calls."""
    prompts = np.random.default_rng(0).integers(0, 256, (rows, PROMPT_TOKENS))
    contestants = {"ours": ours(folder, part_rows)}
    for name, (package, build) in PEERS.items():
        if importlib.util.find_spec(package) is None:
            print(f"{name} is left out: {package} is not installed")
            continue
        contestants[name] = build(folder)
    lengths = (1, 1 + WRITTEN_TOKENS)
    calls = {
        (name, num_tokens): functools.partial(generate, prompts, num_tokens)
        for name, generate in contestants.items()
        for num_tokens in lengths
    }
    clock = time.process_time if _CPU_SECONDS.value else time.perf_counter
    seconds, written = harness.take_turns(calls, repeats, clock=clock)
    for (name, num_tokens), tokens in written.items():
        if tokens.shape != (rows, num_tokens):
            raise ValueError(f"{name} wrote {tokens.shape}")
    steps = {}
    for name in contestants:
        short, long = (seconds[name, num_tokens] for num_tokens in lengths)
        steps[name] = {
            kind: (of(long) - of(short)) / WRITTEN_TOKENS
            for kind, of in (("min", min), ("median", statistics.median))
        }
    live = PROMPT_TOKENS + WRITTEN_TOKENS / 2
    moved, bandwidth = bytes_per_step(folder, rows, live), copy_bandwidth()
    return {
        "rows": rows,
        "dtype": _DTYPE.value,
        "clock": clock.__name__,
        "part_rows": part_rows,
        "seconds_per_step": steps,
        "bytes_per_step": moved,
        "copy_bandwidth": bandwidth,
        "limit_seconds_per_step": moved / bandwidth,
    }


def print_comparison(figures: dict) -> None:
    limit, steps = figures["limit_seconds_per_step"], figures["seconds_per_step"]
    best = steps["ours"]["min"]
    print(
        f"{figures['rows']} rows, context {PROMPT_TOKENS} to "
        f"{PROMPT_TOKENS + WRITTEN_TOKENS}: {figures['bytes_per_step'] / 1e6:.0f} MB "
        f"a step at {figures['copy_bandwidth'] / 1e9:.1f} GB/s: {1e3 * limit:.2f} ms"
    )
    harness.print_rows(
        {
            "who": name,
            "min ms/step": f"{1e3 * of['min']:.2f}",
            "median ms/step": f"{1e3 * of['median']:.2f}",
            "tokens/s": f"{figures['rows'] / of['min']:,.0f}",
            "of the limit": f"{limit / of['min']:.0%}",
            "ours is": f"{of['min'] / best:.2f}x",
        }
        for name, of in steps.items()
    )


def rows_of_a_part() -> int:
    """Rows that ours decodes together."""
    import jax

    from configs import base

    if _PART_ROWS.value is not None:
        return _PART_ROWS.value
    is_cpu = jax.default_backend() == "cpu"
    return base.get_config().rollout.part_rows if is_cpu else _ROWS.value


def main(_: list[str]) -> int:
    from ragen_jax.program.build import POCKET

    folder = pathlib.Path(_MODEL.value) if _MODEL.value else POCKET
    figures = compare(folder, _ROWS.value, _REPEATS.value, rows_of_a_part())
    print_comparison(figures)
    harness.write_json(figures)
    return 0


if __name__ == "__main__":
    command.run(main)
