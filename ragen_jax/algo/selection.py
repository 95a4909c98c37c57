"""Which rows of a batch are learned from: a score per group, then a rule.

In: a trajectory. Out: a `Choice`. Binds an entry of each table in `algo/filters.py`
to its options.
"""

from collections.abc import Callable

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from ragen_jax.algo.credit import FILTER_LOSS_SCALES
from ragen_jax.algo.filters import RULES, SCORES
from ragen_jax.algo.rewards import raw_episode_rewards
from ragen_jax.tables import needed_data, own_options
from ragen_jax.types import Trajectory


@struct.dataclass
class Choice:
    """What the filter found.

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


def needs_entropies(score: str) -> bool:
    """The score reads per-token entropies, which cost a forward pass over all rows."""
    return "entropies" in needed_data(SCORES[score])


def make_choose(
    *,
    group_size: int,
    score: str,
    rule: str,
    direction: str,
    keep_zero: bool,
    keep_fraction: float | None,
    top_k: int | None,
    top_p: float | None,
    top_p_epsilon: float,
    min_p: float | None,
    quantile_low: float | None,
    quantile_high: float | None,
    rows_per_group: int | None,
    loss_scale: str,
) -> Callable[[Trajectory, Float[Array, "B T"] | None], Choice]:
    """Build `choose(trajectory, entropies) -> Choice`.

    Args:
      group_size: rows per group.
      score, rule, loss_scale: entries of `SCORES`, `RULES`, `FILTER_LOSS_SCALES`.
      others: options of rules; those of other rules than the chosen one are not looked
        at. `configs/base.py` says what they mean.
    """
    values = {
        "direction": direction,
        "keep_zero": keep_zero,
        "keep_fraction": keep_fraction,
        "top_k": top_k,
        "top_p": top_p,
        "top_p_epsilon": top_p_epsilon,
        "min_p": min_p,
        "quantile_low": quantile_low,
        "quantile_high": quantile_high,
        "rows_per_group": rows_per_group,
    }

    def bind(entry, **data):
        options = {name: values[name] for name in own_options(entry)}
        return options | {name: data[name] for name in needed_data(entry)}

    def choose(trajectory, entropies):
        rewards = raw_episode_rewards(trajectory.turns).reshape(-1, group_size)
        data = {"group_size": group_size, "rewards": rewards, "entropies": entropies}
        scores = SCORES[score](trajectory, **bind(SCORES[score], **data))
        kept = RULES[rule](scores, **bind(RULES[rule], **data))
        ratio = jnp.mean(jnp.any(kept, axis=1), dtype=jnp.float32)
        scale = FILTER_LOSS_SCALES[loss_scale]
        return Choice(
            scores=scores,
            kept=kept.reshape(-1),
            loss_scale=scale(ratio, **bind(scale, **data)),
        )

    return choose
