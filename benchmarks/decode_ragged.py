"""Decoding a ragged batch: nano-vLLM's own benchmark on random weights, for a GPU.

    python -m benchmarks.decode_ragged --json=FILE
    python -m benchmarks.decode_ragged --model=FOLDER --rows=4   # a look, on a CPU

256 prompts of 100 to 1,024 random tokens, 100 to 1,024 tokens written after each, fixed
seed, in the sizes of Qwen2.5-0.5B (bfloat16). Prints tokens per second and how near
that is to reading the parameters once per step, and each live row's keys and values, at
the bandwidth measured in the same run. It stops with an error if a row did not get its
number of tokens.
"""

import functools
import pathlib
from collections.abc import Callable

import numpy as np
from absl import flags

from benchmarks import harness
from benchmarks.flops import copy_bandwidth
from benchmarks.writing import read_prompts
from launch import command

_ROWS = flags.DEFINE_integer("rows", 256, "Prompts, all in flight at once.")
_REPEATS = flags.DEFINE_integer("repeats", 3, "Measured calls.")
_MODEL = flags.DEFINE_string("model", None, "Folder; None: random weights of 0.5B.")
harness.define_json()

MIN_TOKENS, MAX_TOKENS = 100, 1024
# Steps between two checks whether all rows are done.
CHUNK_TOKENS = 16


def ragged(folder: pathlib.Path | None, rows: int, repeats: int) -> dict:
    """Seconds of the ragged workload, and how near to the bandwidth that is.

    Args:
      folder: of the model; None: random weights in the sizes of Qwen2.5-0.5B.
      rows: prompts, all in flight at once.
      repeats: measured calls.

    Raises:
      ValueError: a row did not get the tokens it was to get.
    """
    import jax
    import jax.numpy as jnp

    from ragen_jax.memory.published import PUBLISHED_MODELS
    from ragen_jax.models.hf.weights import load_checkpoint
    from ragen_jax.models.policy import build_policy

    if folder:
        config, params = load_checkpoint(folder)
        policy = build_policy(config, dtype="bfloat16")
    else:
        config = PUBLISHED_MODELS["Qwen/Qwen2.5-0.5B-Instruct"]
        policy = build_policy(config, dtype="bfloat16")
        params = jax.jit(lambda key: policy.cast_params(policy.init(key)))(
            jax.random.key(0)
        )
    random = np.random.default_rng(0)
    prompt_lengths, limits = random.integers(MIN_TOKENS, MAX_TOKENS + 1, (2, rows))
    shape = (rows, int(prompt_lengths.max()))
    prompts = random.integers(0, min(10_000, config.vocab_size), shape)
    generate = make_ragged(policy)
    arrays = [jnp.asarray(x, jnp.int32) for x in (prompts, prompt_lengths, limits)]
    call = functools.partial(generate, params, *arrays)
    # The first call, which compiles, is reported separately.
    seconds, written = harness.take_turns({"": call}, repeats + 1, warm_ups=0)
    if (np.asarray(written[""]) != limits).any():
        raise ValueError(f"rows got {written['']}, expected {limits}")
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads
    per_token *= 2 * config.head_dim
    steps = np.arange(limits.max())[:, None]
    live = np.where(steps < limits, prompt_lengths + steps, 0).sum()
    weights = 2 * sum(x.size for x in jax.tree.leaves(params))
    moved = float(weights * limits.max() + live * per_token)
    return {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "rows": rows,
        "tokens": int(limits.sum()),
        "first_seconds": seconds[""][0],
        "seconds": seconds[""][1:],
        "bytes": moved,
        "copy_bandwidth": copy_bandwidth(),
    }


def make_ragged(policy) -> Callable:
    """Compiles `(params, prompts, lengths, limits) -> written`, everything per row.

    Rows end at their own limits; finished ones go on writing into their last slot, as
    in a rollout. Returns how many tokens each row got.
    """
    import jax
    import jax.numpy as jnp

    from ragen_jax.rollout.decode import decode_step
    from ragen_jax.rollout.sampling import sample

    sampler = functools.partial(sample, temperature=1.0, top_k=None, top_p=None)

    @jax.jit
    def generate(params, prompts, lengths, limits):
        rows, width = prompts.shape
        keys = jax.random.split(jax.random.key(0), rows)
        slots = width + MAX_TOKENS + 1
        context = read_prompts(policy, params, prompts, lengths, slots)

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


def print_ragged(figures: dict) -> None:
    best = min(figures["seconds"])
    limit = figures["bytes"] / figures["copy_bandwidth"]
    print(
        f"{figures['rows']} prompts, {figures['tokens']:,} tokens written on "
        f"{figures['device']} (jax {figures['jax']}): {best:.2f} s, "
        f"{figures['tokens'] / best:,.0f} tokens/s, {limit / best:.0%} of what "
        f"{figures['copy_bandwidth'] / 1e9:,.0f} GB/s allow; the first call took "
        f"{figures['first_seconds']:.0f} s"
    )


def main(_: list[str]) -> int:
    folder = pathlib.Path(_MODEL.value) if _MODEL.value else None
    figures = ragged(folder, _ROWS.value, _REPEATS.value)
    print_ragged(figures)
    harness.write_json(figures)
    return 0


if __name__ == "__main__":
    command.run(main)
