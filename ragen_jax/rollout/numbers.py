"""The settings of a rollout that are numbers: data of its compiled program.

In: sampling options, and the rules of an episode. Out: a `RolloutNumbers`. Training,
validation, suites and single episodes differ in these alone, so that one program plays
them all.
"""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from ragen_jax.rollout.sampling import check_options
from ragen_jax.rollout.turns import EpisodeLimits

# The options of the sampler; keys of the section `rollout`, too.
SAMPLING = ("temperature", "top_k", "top_p")


@struct.dataclass
class RolloutNumbers:
    """Numbers of a rollout.

    Attributes:
      temperature, top_k, top_p: see `sampling.sample`. None is another program than a
        number is.
      format_penalty: see `EpisodeLimits`.
      bonus: weights and options of the bonuses, by their keys; those that are set.
    """

    temperature: Float[Array, ""]
    top_k: Int[Array, ""] | None
    top_p: Float[Array, ""] | None
    format_penalty: Float[Array, ""]
    bonus: Mapping[str, Float[Array, ""] | Int[Array, ""]]

    def put_into(self, rules: EpisodeLimits) -> EpisodeLimits:
        """Rules that read these numbers in place of their own."""
        bonus = rules.bonus and rules.bonus.with_numbers(self.bonus)
        return dataclasses.replace(
            rules, format_penalty=self.format_penalty, bonus=bonus
        )

    def untruncated(self, temperature: float, vocab_size: int) -> "RolloutNumbers":
        """These numbers, but for sampling: from all tokens, at another temperature.

        The program stays: what truncates goes on with nothing to cut off.
        """
        check_options(temperature=temperature, top_k=None, top_p=None)
        return self.replace(
            temperature=jnp.float32(temperature),
            top_k=None if self.top_k is None else jnp.int32(vocab_size),
            top_p=None if self.top_p is None else jnp.float32(1),
        )


def rollout_numbers(
    rules: EpisodeLimits,
    *,
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
) -> RolloutNumbers:
    """The numbers of some rules, and of the sampler.

    Raises:
      ValueError: an option is out of range.
    """
    check_options(temperature=temperature, top_k=top_k, top_p=top_p)
    return RolloutNumbers(
        temperature=jnp.float32(temperature),
        top_k=None if top_k is None else jnp.int32(top_k),
        top_p=None if top_p is None else jnp.float32(top_p),
        format_penalty=jnp.float32(rules.format_penalty),
        bonus={} if rules.bonus is None else rules.bonus.numbers,
    )
