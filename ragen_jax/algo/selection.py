"""The rollout filter: which rows of a batch are learned from.

In: a trajectory. Out: a `FilterResult`. Binds an entry of each table in
`algo/filters.py` to its options.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from ragen_jax.algo.credit import FILTER_LOSS_SCALES
from ragen_jax.algo.filters import FILTERS, SCORES
from ragen_jax.algo.rewards import raw_episode_rewards
from ragen_jax.registry.functions import bind, data_names
from ragen_jax.types import Trajectory


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
        """Groups with a kept row."""
        return jnp.any(self.kept.reshape(self.scores.shape[0], -1), axis=1)


# (trajectory, token entropies if the score needs them) -> result.
Filter = Callable[[Trajectory, Float[Array, "B T"] | None], FilterResult]


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
        return "entropies" in data_names(SCORES[self.score])


def make_filter(config: FilterConfig, *, num_groups: int, group_size: int) -> Filter:
    """Build `filter_rows(trajectory, entropies) -> FilterResult`."""

    def filter_rows(trajectory, entropies):
        rewards = raw_episode_rewards(trajectory.turns).reshape(-1, group_size)
        data = {
            "num_groups": num_groups,
            "group_size": group_size,
            "rewards": rewards,
            "entropies": entropies,
        }
        options = config.options
        scores = bind(SCORES[config.score], options, **data)(trajectory)
        kept = bind(FILTERS[config.rule], options, **data)(scores)
        kept_ratio = jnp.mean(jnp.any(kept, axis=1), dtype=jnp.float32)
        scale = bind(FILTER_LOSS_SCALES[config.loss_scale], options, **data)
        return FilterResult(
            scores=scores, kept=kept.reshape(-1), loss_scale=scale(kept_ratio)
        )

    return filter_rows
