"""Ways to attend in the learner: time and memory of each, forward and backward.

    python -m benchmarks.attention
    python -m benchmarks.attention --shape=qwen2.5-0.5b --json=FILE

Every entry of `CAUSAL_ATTENTIONS` that runs here: "cudnn" on NVIDIA GPUs alone, where
all compute in bfloat16; elsewhere in float32. Rows are those of a microbatch of the
paper's shape, or of the pocket preset. Outputs and gradients are compared with
"blocks"; they take turns. Temporaries are XLA's count. Exits with 1 if they differ.
"""

from absl import flags

from benchmarks import harness
from launch import command

# Rows, tokens, heads, key/value heads, size of a head.
SHAPES = {
    "pocket": (8, 283, 4, 2, 32),
    "qwen2.5-0.5b": (4, 3600, 14, 2, 64),
}
TINY = (2, 70, 4, 2, 8)

_SHAPE = flags.DEFINE_enum("shape", "pocket", [*SHAPES], "Whose attention.")
_TINY = flags.DEFINE_bool("tiny", False, "Two short rows instead.")
_REPEATS = flags.DEFINE_integer("repeats", 10, "Measured calls of each.", lower_bound=1)
harness.define_json()

# Largest difference, as a share of what is compared (2-norms): a few times the
# format's precision, 6e-8 and 4e-3.
TOLERANCES = {"float32": 1e-5, "bfloat16": 2e-2}


def measure(shape: tuple[int, ...], repeats: int) -> dict:
    """Seconds and bytes of every way to attend, and where two of them differ."""
    import jax
    import jax.numpy as jnp

    from ragen_jax.models.attention import CAUSAL_ATTENTIONS, choose_attention

    platform = jax.default_backend()
    dtype = "bfloat16" if platform == "gpu" else "float32"
    rows, tokens, heads, kv_heads, head_dim = shape
    inputs = [
        jax.random.normal(jax.random.key(i), (rows, tokens, n, head_dim)).astype(dtype)
        for i, n in enumerate((heads, kv_heads, kv_heads, heads))
    ]
    notes, entries = [], dict(CAUSAL_ATTENTIONS)
    for name in CAUSAL_ATTENTIONS:
        try:
            choose_attention(name, jnp.dtype(dtype), head_dim, platform)
        except ValueError as refusal:
            notes.append(f"{name} is left out: {refusal}")
            del entries[name]

    def both_ways(attend, queries, keys, values, grad):
        mixed, pull = jax.vjp(attend, queries, keys, values)
        return mixed, *pull(grad)

    compiled = {
        name: jax.jit(both_ways, static_argnums=0).lower(attend, *inputs).compile()
        for name, attend in entries.items()
    }

    def norm(x):
        return jnp.linalg.norm(x.astype(jnp.float32).ravel())

    seconds, results = harness.take_turns(compiled, repeats, prepare=lambda: inputs)
    apart = {
        name: max(
            float(norm(a - b) / norm(b))
            for a, b in zip(arrays, results["blocks"], strict=True)
        )
        for name, arrays in results.items()
    }
    return {
        "notes": notes,
        "problems": [
            f"{name} differs from blocks by {size:.1e}"
            for name, size in apart.items()
            if not size <= TOLERANCES[dtype]
        ],
        "shape": shape,
        "dtype": dtype,
        "apart": apart,
        "temporary_bytes": {
            name: function.memory_analysis().temp_size_in_bytes
            for name, function in compiled.items()
        },
        "seconds": seconds,
    }


def print_table(figures: dict) -> None:
    rows, tokens, heads, kv_heads, head_dim = figures["shape"]
    print(
        f"{rows} rows of {tokens} tokens, {heads} heads of {head_dim} on {kv_heads}, "
        f"{figures['dtype']}, forward and backward"
    )
    harness.print_rows(
        {
            "model.attention": name,
            **harness.times(seconds, 5),
            "temporaries MB": f"{figures['temporary_bytes'][name] / 1e6:.1f}",
            "differs by": f"{figures['apart'][name]:.1e}",
        }
        for name, seconds in figures["seconds"].items()
    )


def main(_: list[str]) -> int:
    shape = TINY if _TINY.value else SHAPES[_SHAPE.value]
    return harness.report(measure(shape, _REPEATS.value), print_table)


if __name__ == "__main__":
    command.run(main)
