"""The rollout filter: which rows of a batch are learned from.

In: arrays by name. Out: a `FilterResult`. Calls an entry of each table in
`algo/filters.py` with its options.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from ragen_jax.algo.credit import FILTER_LOSS_SCALES
from ragen_jax.algo.filters import FILTERS, SCORES
from ragen_jax.algo.segments import takes_part
from ragen_jax.registry.functions import call, data_names, resolve


@struct.dataclass
class FilterResult:
    """The filter's decision.

    Attributes:
      scores: of the groups.
      kept: rows that are learned from.
      loss_scale: factor on the advantages.
    """

    scores: Float[Array, " G"]
    kept: Bool[Array, " B"]
    loss_scale: Float[Array, ""]

    @property
    def kept_groups(self) -> Bool[Array, " G"]:
        return jnp.any(self.kept.reshape(self.scores.shape[0], -1), axis=1)


@dataclasses.dataclass(frozen=True)
class FilterConfig:
    """The section `filter` of a configuration; `configs/base.py` explains each key.

    Attributes:
      score, rule, loss_scale: entries of `SCORES`, `FILTERS`, `FILTER_LOSS_SCALES`.
      options: every key of the section; the three entries read those they name.
    """

    score: str
    rule: str
    loss_scale: str
    options: Mapping[str, Any]

    @property
    def needs_entropies(self) -> bool:
        """The score reads token entropies, which cost a forward pass over all rows."""
        return "entropies" in data_names(resolve(SCORES, self.score))

    def choose(
        self,
        data: Mapping[str, Any],
        entropies: Float[Array, "B T"] | None,
    ) -> FilterResult:
        """Score the groups and choose rows.

        Args:
          data: see `EPISODE_DATA`.
          entropies: per token; None unless `needs_entropies`.
        """
        rewards = data["game_rewards"]
        # No rule chooses rows that have nothing to learn from.
        counted = jnp.where(takes_part(data["mask"]), rewards, jnp.nan)
        by_group = counted.reshape(-1, data["group_size"])
        given = dict(data, rewards=rewards, entropies=entropies)
        scores = call(SCORES, self.score, self.options, **given)
        given = dict(data, rewards=by_group, scores=scores)
        kept = call(FILTERS, self.rule, self.options, **given)
        kept_ratio = jnp.mean(jnp.any(kept, axis=1), dtype=jnp.float32)
        scale = call(
            FILTER_LOSS_SCALES, self.loss_scale, self.options, kept_ratio=kept_ratio
        )
        return FilterResult(scores=scores, kept=kept.reshape(-1), loss_scale=scale)
