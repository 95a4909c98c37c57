"""Replies of very different lengths: moving the rows still written together.

    python -m benchmarks.compaction
    python -m benchmarks.compaction --json=FILE

128 rows of the pocket model read 128 tokens and write up to 384, at a temperature so
high that every token is about as likely, six of them stop tokens: lengths are geometric
with a mean of about 60. Everyone writes the same tokens, which is checked; the time is
that of reading and writing, in turn, with another number of `rollout.compactions` each.
"""

import functools

import numpy as np
from absl import flags

from benchmarks import harness
from benchmarks.writing import make_write
from launch import command

_REPEATS = flags.DEFINE_integer("repeats", 5, "Measured calls of each.")
harness.define_json()

ROWS, PROMPT_TOKENS, MAX_TOKENS, NUM_STOPS = 128, 128, 384, 6
COMPACTIONS = (None, 1, 2, 3, 4)


def compare(repeats: int) -> dict:
    """Seconds of each number of compactions, taking turns.

    Raises:
      ValueError: two of them wrote different tokens.
    """
    import jax

    from ragen_jax.models.hf.weights import load_checkpoint
    from ragen_jax.models.policy import build_policy
    from ragen_jax.program.build import POCKET

    config, params = load_checkpoint(POCKET)
    policy = build_policy(config)
    shape = (ROWS, PROMPT_TOKENS)
    prompts = np.random.default_rng(0).integers(0, 256, shape).astype(np.int32)
    # Every token about as likely, stop tokens too.
    settings = {"temperature": 1e3, "stop_tokens": range(NUM_STOPS), "chunk_tokens": 8}
    writers = {}
    for count in COMPACTIONS:
        write = make_write(policy, MAX_TOKENS, compactions=count, **settings)
        writers[str(count)] = functools.partial(write, params, prompts)
    seconds, replies = harness.take_turns(writers, repeats)
    for name, reply in replies.items():
        if not np.array_equal(reply.tokens, replies["None"].tokens):
            raise ValueError(f"{name} compactions changed the tokens")
    lengths = np.asarray(replies["None"].length)
    return {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "lengths": {"mean": float(lengths.mean()), "max": int(lengths.max())},
        "seconds": seconds,
    }


def main(_: list[str]) -> int:
    figures = compare(_REPEATS.value)
    lengths, base = figures["lengths"], min(figures["seconds"]["None"])
    print(
        f"{ROWS} replies of {lengths['mean']:.0f} tokens on average, at most "
        f"{lengths['max']}, on {figures['device']} (jax {figures['jax']})"
    )
    harness.print_rows(
        {"compactions": name} | harness.times(of) | {"faster": f"{base / min(of):.2f}x"}
        for name, of in figures["seconds"].items()
    )
    harness.write_json(figures)
    return 0


if __name__ == "__main__":
    command.run(main)
