"""Decoding a ragged batch: nano-vLLM's own benchmark on random weights, for a GPU.

    python -m benchmarks.decode_ragged --json=FILE
    python -m benchmarks.decode_ragged --model=FOLDER --rows=4   # a look, on a CPU

256 prompts of 100 to 1,024 random tokens, 100 to 1,024 tokens written after each, fixed
seed, in the sizes of Qwen2.5-0.5B (bfloat16); then a whole batch, in which every row
has the longest prompt and writes the most. Messages are read and tokens attend as in a
rollout of that preset. Prints tokens per second and how near that is to reading the
parameters once per step, and each live row's keys and values, at the bandwidth measured
in the same run. It stops with an error if a row did not get its number of tokens.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable

import numpy as np
from absl import flags

from benchmarks import harness, runs
from benchmarks.flops import copy_bandwidth
from benchmarks.writing import has_kernel, read_prompts
from launch import command

_ROWS = flags.DEFINE_integer("rows", 256, "Prompts, all in flight at once.")
_REPEATS = flags.DEFINE_integer("repeats", 3, "Measured calls.")
_MODEL = flags.DEFINE_string("model", None, "Folder; None: random weights of 0.5B.")
_PLAIN = flags.DEFINE_bool("plain", False, runs.PLAIN_HELP)
_TINY = flags.DEFINE_bool("tiny", False, "A tiny random network and a few short rows.")
harness.define_json()

# Fewest and most tokens of a prompt, and of what is written after it.
TOKENS, TINY_TOKENS = (100, 1024), (4, 24)
TINY_ROWS = 4
# Steps between two checks whether all rows are done.
CHUNK_TOKENS = 16
# Tokens of a prompt that a pass reads, as `configs/sizes.py` has it for this model.
READ_TOKENS = 32


def build():
    """The policy and its parameters."""
    import jax

    from ragen_jax.memory.published import PUBLISHED_MODELS
    from ragen_jax.models.hf.weights import load_checkpoint
    from ragen_jax.models.policy import build_policy

    if _MODEL.value:
        config, params = load_checkpoint(pathlib.Path(_MODEL.value))
        return build_policy(config, dtype="bfloat16"), params
    config = PUBLISHED_MODELS["Qwen/Qwen2.5-0.5B-Instruct"]
    if _TINY.value:
        config = dataclasses.replace(config, **runs.TINY_MODEL)
    policy = build_policy(config, dtype="bfloat16")
    # Not compiled as one program, see `runs.set_up`.
    return policy, policy.cast_params(policy.init(jax.random.key(0)))


def measure() -> dict:
    """Seconds of both batches, and how near to the bandwidth that is.

    Raises:
      ValueError: a row did not get the tokens it was to get.
    """
    import jax
    import jax.numpy as jnp

    policy, params = build()
    harness.note("built")
    config, random = policy.config, np.random.default_rng(0)
    rows, (least, most) = (
        (TINY_ROWS, TINY_TOKENS) if _TINY.value else (_ROWS.value, TOKENS)
    )
    lengths, limits = random.integers(least, most + 1, (2, rows))
    width = int(lengths.max())
    prompts = random.integers(0, min(10_000, config.vocab_size), (rows, width))
    kernel = not _PLAIN.value and has_kernel(policy)
    generate = make_ragged(policy, most, kernel)
    batches, first = {}, None
    # One program; the first call, which compiles, is reported separately.
    for name, sizes in {
        "ragged": (lengths, limits),
        "whole": (np.full(rows, width), np.full(rows, most)),
    }.items():
        arrays = [jnp.asarray(x, jnp.int32) for x in (prompts, *sizes)]
        call = functools.partial(generate, params, *arrays)
        seconds, written = harness.take_turns(
            {"": call}, _REPEATS.value + 1, warm_ups=0
        )
        if (np.asarray(written[""]) != sizes[1]).any():
            raise ValueError(f"rows got {written['']}, expected {sizes[1]}")
        first = first or seconds[""][0]
        batches[name] = {
            "tokens": int(sizes[1].sum()),
            "bytes": bytes_moved(config, params, *sizes),
            "seconds": seconds[""][1:],
        }
    return {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "rows": rows,
        "has_kernel": kernel,
        "first_seconds": first,
        "batches": batches,
        "copy_bandwidth": copy_bandwidth(),
    }


def bytes_moved(config, params, lengths, limits) -> float:
    """What the steps must read: parameters, keys and values of live rows (bfloat16)."""
    import jax

    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads
    per_token *= 2 * config.head_dim
    steps = np.arange(limits.max())[:, None]
    live = np.where(steps < limits, lengths + steps, 0).sum()
    weights = 2 * sum(x.size for x in jax.tree.leaves(params))
    return float(weights * limits.max() + live * per_token)


def make_ragged(policy, most: int, kernel: bool) -> Callable:
    """Compiles `(params, prompts, lengths, limits) -> written`, everything per row.

    Rows end at their own limits; finished ones go on writing into their last slot, as
    in a rollout. Returns how many tokens each row got.

    Args:
      policy: who writes.
      most: the largest limit of a row.
      kernel: tokens attend by our kernels.
    """
    import jax
    import jax.numpy as jnp

    from ragen_jax.rollout.decode import Decoding, decode_step
    from ragen_jax.rollout.sampling import sample

    sampler = functools.partial(sample, temperature=1.0, top_k=None, top_p=None)

    @jax.jit
    def generate(params, prompts, lengths, limits):
        rows, width = prompts.shape
        keys = jax.random.split(jax.random.key(0), rows)
        decoding = Decoding(
            sampler=sampler,
            stop_tokens=jnp.array([-1]),
            max_reply_tokens=most,
            chunk_tokens=CHUNK_TOKENS,
            read_chunk_tokens=READ_TOKENS,
            has_kernel=kernel,
        )
        slots = width + most + 1
        context = read_prompts(policy, params, prompts, lengths, slots, decoding)

        def step(_, carry):
            context, written = carry
            context, _, _ = decode_step(
                policy,
                params,
                context,
                lengths + written,
                jax.vmap(jax.random.fold_in)(keys, written),
                sampler=sampler,
            )
            return context, written + (written < limits)

        def go_on(carry):
            return jnp.any(carry[1] < limits)

        def chunk(carry):
            return jax.lax.fori_loop(0, CHUNK_TOKENS, step, carry)

        start = (context, jnp.zeros_like(limits))
        return jax.lax.while_loop(go_on, chunk, start)[1]

    return generate


def print_table(figures: dict) -> None:
    print(
        f"{figures['rows']} prompts on {figures['device']} (jax {figures['jax']}), "
        f"{'our' if figures['has_kernel'] else 'no'} kernels, "
        f"{figures['copy_bandwidth'] / 1e9:,.0f} GB/s; the first call took "
        f"{figures['first_seconds']:.0f} s"
    )
    rows = []
    for name, batch in figures["batches"].items():
        best = min(batch["seconds"])
        limit = batch["bytes"] / figures["copy_bandwidth"]
        rows.append(
            {
                "batch": name,
                "tokens written": f"{batch['tokens']:,}",
                **harness.times(batch["seconds"]),
                "tokens/s": f"{batch['tokens'] / best:,.0f}",
                "of the bandwidth": f"{limit / best:.0%}",
            }
        )
    harness.print_rows(rows)


def main(_: list[str]) -> int:
    figures = measure()
    print_table(figures)
    harness.write_json(figures)
    return 0


if __name__ == "__main__":
    command.run(main)
