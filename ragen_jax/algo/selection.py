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
      counted: rows whose game has not failed; None where none can.
    """

    scores: Float[Array, " G"]
    kept: Bool[Array, " B"]
    loss_scale: Float[Array, ""]
    counted: Bool[Array, " B"] | None

    @property
    def kept_groups(self) -> Bool[Array, " G"]:
        return jnp.any(self.kept.reshape(self.scores.shape[0], -1), axis=1)


@dataclasses.dataclass(frozen=True)
class FilterConfig:
    """The section `filter` of a configuration; `configs/base.py` explains each key.

    Attributes:
      score, rule, loss_scale: entries of `SCORES`, `FILTERS`, `FILTER_LOSS_SCALES`.
      options: every key of the section; the three entries read those they name.
      rows_fail: a row may have nothing to learn from, as its game has failed. If none
        can, numbers of rows are constants of the program.
    """

    score: str
    rule: str
    loss_scale: str
    options: Mapping[str, Any]
    rows_fail: bool = True

    @property
    def needs_entropies(self) -> bool:
        """The score reads token entropies, which cost a forward pass over all rows."""
        return "entropies" in data_names(resolve(SCORES, self.score))

    def counted(self, mask: Bool[Array, "B T"]) -> Bool[Array, " B"] | None:
        """Rows whose game has not failed; None where none can."""
        return takes_part(mask) if self.rows_fail else None

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
        rewards, counted = data["game_rewards"], self.counted(data["mask"])
        given = dict(data, rewards=rewards, counted=counted, entropies=entropies)
        scores = call(SCORES, self.score, self.options, **given)
        if counted is not None:
            # No rule chooses rows that have nothing to learn from.
            rewards = jnp.where(counted, rewards, jnp.nan)
        by_group = rewards.reshape(-1, data["group_size"])
        given = dict(data, rewards=by_group, scores=scores)
        kept = call(FILTERS, self.rule, self.options, **given)
        kept_ratio = jnp.mean(jnp.any(kept, axis=1), dtype=jnp.float32)
        scale = call(
            FILTER_LOSS_SCALES, self.loss_scale, self.options, kept_ratio=kept_ratio
        )
        return FilterResult(scores, kept.reshape(-1), scale, counted)
