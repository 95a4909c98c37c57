"""Log-probability of every thought under every prompt.

In: parameters and `Pairs`. Out: a matrix of log-probabilities. A prompt is read once,
and all thoughts attend to its keys and values. Prompts go through the network a few at
a time. The number of passes follows the number of prompts and thoughts, not the size of
the padded arrays; if all thoughts are short, only the first half of their columns is
read.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from ragen_jax.diagnostics.pairs import Pairs
from ragen_jax.models.kv_cache import SharedCache, init_cache
from ragen_jax.models.policy import Policy
from ragen_jax.types import Params


@struct.dataclass
class ReadPrompts:
    """Prompts that the network has read except for their last token.

    Attributes:
      cache: keys and values of the tokens before the last.
      last: the last token.
    """

    cache: SharedCache
    last: Int[Array, " p"]

    def rows(
        self, texts: Int[Array, "m n"]
    ) -> tuple[Int[Array, "rows n+1"], Int[Array, "rows n+1"]]:
        """Tokens and positions of all texts after all prompts, prompts first.

        A row begins with the prompt's last token, where the network predicts the first
        token of the text.
        """
        num_prompts, (num_texts, size) = self.last.shape[0], texts.shape
        shape = (num_prompts, num_texts, size)
        last = jnp.broadcast_to(self.last[:, None, None], (*shape[:2], 1))
        tokens = jnp.concatenate([last, jnp.broadcast_to(texts[None], shape)], axis=-1)
        order = jnp.arange(size + 1, dtype=jnp.int32)[None, None]
        positions = self.cache.lengths[:, None, None] + order
        positions = jnp.broadcast_to(positions, tokens.shape)
        return tokens.reshape(-1, size + 1), positions.reshape(-1, size + 1)


def read_prompts(
    policy: Policy,
    params: Params,
    prompts: Int[Array, "p C"],
    lengths: Int[Array, " p"],
) -> ReadPrompts:
    """Run the network over prompts, once for all texts that follow them."""
    order = jnp.arange(prompts.shape[1], dtype=jnp.int32)[None]
    positions = jnp.broadcast_to(order, prompts.shape)
    cache = init_cache(policy.config, *prompts.shape, policy.dtype)
    _, cache = policy.forward(params, prompts, positions, cache)
    before = jnp.maximum(lengths - 1, 0)
    last = jnp.take_along_axis(prompts, before[:, None], axis=1)[:, 0]
    return ReadPrompts(SharedCache(cache, before), last)


@dataclasses.dataclass(frozen=True)
class Scorer:
    """Settings of the scoring.

    Attributes:
      policy: the network.
      log_probs: (params, hidden[b, n, D], tokens[b, n]) -> float32[b, n]: of each token
        given those before it, computed as the sampler does (`learner.logprobs`).
      split: shards the leading axis of arrays, whose size is a multiple of
        `num_shards`, over the mesh.
      num_shards: number of shards.
      chunk_rows: rows (a thought under a prompt) of one pass, at most; at least one per
        shard.
    """

    policy: Policy
    log_probs: Callable[..., Float[Array, "b n"]]
    split: Callable[[Any], Any]
    num_shards: int
    chunk_rows: int

    def score(self, params: Params, pairs: Pairs) -> Float[Array, "M P"]:
        """Log-probability (nats, float32) of each thought under each prompt.

        Entries beyond the number of pairs and of prompts are undefined.
        """
        params = self.policy.cast_params(params)
        # Thoughts are nearly always much shorter than replies may be.
        width = pairs.thoughts.shape[1]
        widths = [-(-width // 2), width]

        def score(width: int, params: Params, pairs: Pairs) -> Float[Array, "M P"]:
            cut = pairs.replace(thoughts=pairs.thoughts[:, :width])
            return self._score(params, cut)

        is_long = jnp.max(pairs.thought_lengths) > widths[0]
        branches = [functools.partial(score, width) for width in widths]
        return jax.lax.switch(is_long.astype(jnp.int32), branches, params, pairs)

    def _score(self, params: Params, pairs: Pairs) -> Float[Array, "M P"]:
        (num_thoughts, _), (num_prompts, _) = pairs.thoughts.shape, pairs.prompts.shape
        prompts_at_once, thoughts_at_once = self._sizes(num_thoughts)
        pairs = _pad(pairs, prompts_at_once, thoughts_at_once)

        def take(x: Array, i, size: int) -> Array:
            return jax.lax.dynamic_slice_in_dim(x, i * size, size)

        def prompt_pass(i, scores):
            prompts = self.split(take(pairs.prompts, i, prompts_at_once))
            lengths = self.split(take(pairs.prompt_lengths, i, prompts_at_once))
            read = read_prompts(self.policy, params, prompts, lengths)

            def thought_pass(j, scores):
                thoughts = take(pairs.thoughts, j, thoughts_at_once)
                by_token = self._continue(params, read, thoughts)
                sizes = take(pairs.thought_lengths, j, thoughts_at_once)
                counts = jnp.arange(thoughts.shape[1])[None] < sizes[:, None]
                sums = jnp.sum(jnp.where(counts[None], by_token, 0.0), axis=-1)
                at = (j * thoughts_at_once, i * prompts_at_once)
                return jax.lax.dynamic_update_slice(scores, sums.T, at)

            count = -(-pairs.num_pairs // thoughts_at_once)
            return jax.lax.fori_loop(0, count, thought_pass, scores)

        shape = (pairs.thoughts.shape[0], pairs.prompts.shape[0])
        count = -(-pairs.num_prompts // prompts_at_once)
        scores = jax.lax.fori_loop(0, count, prompt_pass, jnp.zeros(shape, jnp.float32))
        return scores[:num_thoughts, :num_prompts]

    def _sizes(self, num_thoughts: int) -> tuple[int, int]:
        rows_per_shard = max(1, self.chunk_rows // self.num_shards)
        prompts = self.num_shards * max(1, rows_per_shard // num_thoughts)
        return prompts, min(rows_per_shard, num_thoughts)

    def _continue(
        self, params: Params, read: ReadPrompts, thoughts: Int[Array, "m R"]
    ) -> Float[Array, "p m R"]:
        tokens, positions = self.split(read.rows(thoughts))
        hidden, _ = self.policy.forward(params, tokens, positions, read.cache)
        log_probs = self.log_probs(params, hidden, tokens)[:, 1:]
        return log_probs.reshape(-1, *thoughts.shape)


def _pad(pairs: Pairs, prompts_at_once: int, thoughts_at_once: int) -> Pairs:
    def pad(x: Array, multiple: int) -> Array:
        return jnp.pad(x, [(0, -x.shape[0] % multiple)] + [(0, 0)] * (x.ndim - 1))

    return pairs.replace(
        prompts=pad(pairs.prompts, prompts_at_once),
        prompt_lengths=pad(pairs.prompt_lengths, prompts_at_once),
        thoughts=pad(pairs.thoughts, thoughts_at_once),
        thought_lengths=pad(pairs.thought_lengths, thoughts_at_once),
    )
