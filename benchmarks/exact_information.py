"""Exact information of replies of a few tokens, by enumerating all of them.

In: parameters, a few prompts, an alphabet of a few tokens. Out: the probability of
every reply under every prompt, and I(X;Z), H(Z|X) and H(Z) without any estimate.

The closed world: one of the prompts, all equally likely. A reply is drawn token by
token from the model's distribution renormalised on the alphabet. It ends with the
alphabet's stop token, which is part of it, or, without one, after `length` tokens. So
the probabilities of all replies add up to 1 under each prompt.

Axis letters: `P` prompts, `Z` replies, `A` tokens of the alphabet.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ragen_jax.diagnostics.scoring import read_prompts
from ragen_jax.models.policy import Policy
from ragen_jax.types import Params

# 32,768 replies at most.
MAX_ALPHABET, MAX_LENGTH = 8, 5
# Rows of the network at a time.
_CHUNK_ROWS = 256


class Information(NamedTuple):
    """Nats per reply.

    Attributes:
      mutual: I(X;Z).
      conditional: H(Z|X).
      entropy: H(Z), the sum of both.
    """

    mutual: float
    conditional: float
    entropy: float


def enumerate_replies(
    alphabet: Sequence[int], length: int, stop: int | None
) -> tuple[Int[np.ndarray, "Z length"], Int[np.ndarray, " Z"]]:
    """All replies, in the order of `reply_log_probs`, and how many tokens count.

    Args:
      alphabet: token ids.
      length: no reply is longer.
      stop: the one of them that ends a reply; None: none does.

    Raises:
      ValueError: see `check_world`.
    """
    check_world(alphabet, length, stop)
    going = [token for token in alphabet if token != stop]
    begun, replies = [()], []
    for depth in range(length):
        last = depth == length - 1
        ends = alphabet if last else [t for t in alphabet if t == stop]
        replies += [(*text, token) for text in begun for token in ends]
        begun = [(*text, token) for text in begun for token in going]
    lengths = np.array([len(reply) for reply in replies], np.int32)
    padded = [reply + (0,) * (length - len(reply)) for reply in replies]
    return np.array(padded, np.int32), lengths


def check_world(alphabet: Sequence[int], length: int, stop: int | None) -> None:
    """Refuse what cannot be enumerated.

    Raises:
      ValueError: the alphabet is too large, names a token twice or lacks the stop
        token; or replies are too long.
    """
    if not 2 <= len(set(alphabet)) == len(alphabet) <= MAX_ALPHABET:
        raise ValueError(
            f"the alphabet {list(alphabet)} must be 2 to {MAX_ALPHABET} different "
            "tokens; leave some out"
        )
    if stop is not None and stop not in alphabet:
        raise ValueError(
            f"the stop token {stop} is not in the alphabet {list(alphabet)}; add it, "
            "or use stop=None for replies of one length"
        )
    if not 1 <= length <= MAX_LENGTH:
        raise ValueError(
            f"length = {length}; all replies of 1 to {MAX_LENGTH} tokens can be "
            "enumerated: use one of these"
        )


def reply_log_probs(
    policy: Policy,
    params: Params,
    prompts: Int[Array, "P C"],
    prompt_lengths: Int[Array, " P"],
    *,
    alphabet: Sequence[int],
    length: int,
    stop: int | None,
    temperature: float,
) -> Float[Array, "P Z"]:
    """Log-probability of every reply under every prompt. Call it in `jit`.

    Args:
      policy, params: the network.
      prompts: what it reads before it replies; padded.
      prompt_lengths: tokens that count, at least 1.
      alphabet, length, stop: see `enumerate_replies`.
      temperature: logits are divided by it.

    Raises:
      ValueError: see `check_world`.
    """
    check_world(alphabet, length, stop)
    params = policy.cast_params(params)
    ids = jnp.asarray(alphabet, jnp.int32)
    goes_on = np.array([token != stop for token in alphabet])
    begun = _strings([t for t in alphabet if t != stop], length - 1)
    num_begun, chunk = len(begun), min(len(begun), _CHUNK_ROWS)
    padded = np.pad(begun, [(0, -num_begun % chunk), (0, 0)])
    num_chunks = len(padded) // chunk
    chunks = jnp.asarray(padded.reshape(num_chunks, chunk, length - 1))

    def of_prompt(prompt_and_length):
        prompt, prompt_length = prompt_and_length
        read = read_prompts(policy, params, prompt[None], prompt_length[None])

        def steps(texts: Int[Array, "m n"]) -> Float[Array, "m n+1 A"]:
            tokens, positions = read.rows(texts)
            hidden, _ = policy.forward(params, tokens, positions, read.cache)
            logits = policy.logits(params, hidden)[..., ids] / temperature
            return jax.nn.log_softmax(logits)

        log_probs = jax.lax.map(steps, chunks).reshape(-1, length, len(alphabet))
        return _join(log_probs[:num_begun], goes_on)

    return jax.lax.map(of_prompt, (prompts, prompt_lengths))


def exact_information(log_probs: Float[np.ndarray, "P Z"]) -> Information:
    """Of prompts that are equally likely, from `reply_log_probs`, in float64."""
    log_probs = np.asarray(log_probs, np.float64)
    probs = np.exp(log_probs)
    log_marginal = np.logaddexp.reduce(log_probs, axis=0) - np.log(len(log_probs))
    conditional = -np.mean(np.sum(probs * log_probs, axis=1))
    entropy = -np.sum(np.mean(probs, axis=0) * log_marginal)
    return Information(entropy - conditional, conditional, entropy)


def _strings(tokens: Sequence[int], length: int) -> Int[np.ndarray, "strings n"]:
    strings = list(itertools.product(tokens, repeat=length))
    return np.array(strings, np.int32).reshape(len(strings), length)


def _join(
    steps: Float[Array, "strings length A"], goes_on: np.ndarray
) -> Float[Array, " Z"]:
    """From the next token's log-probabilities, along all strings, to whole replies.

    Strings that begin alike are adjacent: the first of them speaks for their beginning.
    """
    length, num_going = steps.shape[1], int(goes_on.sum())
    going, ending = np.flatnonzero(goes_on), np.flatnonzero(~goes_on)
    so_far, replies = jnp.zeros(1), []
    for depth in range(length):
        ahead = num_going ** (length - 1 - depth)
        total = so_far[:, None] + steps[::ahead, depth]
        ends = total if depth == length - 1 else total[:, ending]
        replies.append(ends.reshape(-1))
        so_far = total[:, going].reshape(-1)
    return jnp.concatenate(replies)
