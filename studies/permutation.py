"""Permutation tests over few runs.

In: numbers of runs. Out: one-sided p-values. A test with few permutations goes through
all of them, otherwise through `NUM_SAMPLES` drawn ones, the observed one included
(Phipson and Smyth 2010). The only assumption is that the numbers are exchangeable if
there is no effect.

SciPy's `permutation_test` knows no blocks, refuses a sample of one run, and takes sums
that are equal but for their rounding for different ones.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key
from scipy import stats

from ragen_jax import rngs

NUM_SAMPLES = 10_000
_TOLERANCE = 1e-9


class PValues(NamedTuple):
    """Probabilities, without an effect, of one at least as large.

    Attributes:
      above, below: in either direction.
      least: smallest that so few values can have.
    """

    above: float
    below: float
    least: float = 0.0


def two_samples(high: Sequence[float], low: Sequence[float]) -> PValues:
    """Difference of the means: the runs are split in all other ways."""
    pooled, size = np.array([*high, *low], float), len(high)
    if math.comb(len(pooled), size) <= NUM_SAMPLES:
        splits = itertools.combinations(range(len(pooled)), size)
        chosen = np.array(list(splits))
    else:
        chosen = _permutations(_key(), len(pooled))[:, :size]
    sums = pooled[chosen].sum(axis=1)
    # With the sum of the first sample the difference of the means rises.
    p = _p_values(sums, float(np.sum(high)))
    return p._replace(least=1 / math.comb(len(pooled), size))


def one_sample(values: Sequence[float]) -> PValues:
    """Mean against 0: the signs are changed in all ways."""
    values = np.array(values, float)
    if 2 ** len(values) <= NUM_SAMPLES:
        signs = np.array(list(itertools.product((1, -1), repeat=len(values))))
    else:
        signs = np.array(jax.random.rademacher(_key(), (NUM_SAMPLES, len(values))))
        signs[0] = 1
    p = _p_values(signs @ values, float(values.sum()))
    return p._replace(least=0.5 ** len(values))


def rank_correlation(
    x: Sequence[float], y: Sequence[float], blocks: Sequence[object] | None = None
) -> tuple[float, PValues]:
    """Spearman's correlation, and its test.

    Args:
      x, y: of every unit.
      blocks: ranks are taken, and values exchanged, among units of one block, games for
        example; None: all are of one.
    """
    blocks = [0] * len(x) if blocks is None else list(blocks)
    members = [
        [i for i, block in enumerate(blocks) if block == name]
        for name in dict.fromkeys(blocks)
    ]
    first, second = (_block_ranks(values, members) for values in (x, y))
    scale = math.sqrt(float(first @ first) * float(second @ second))
    if scale == 0:
        return 0.0, PValues(1.0, 1.0)
    observed, statistics = float(first @ second), second[_orders(members)] @ first
    # Ranks in the same order in every block.
    most = sum(np.sort(first[block]) @ np.sort(second[block]) for block in members)
    p = _p_values(statistics, observed)
    return observed / scale, p._replace(least=_p_values(statistics, most).above)


def _orders(members: Sequence[Sequence[int]]) -> Int[np.ndarray, "orders n"]:
    """Orders of all units that exchange those of one block; one keeps them all."""
    size = sum(map(len, members))
    if math.prod(math.factorial(len(block)) for block in members) <= NUM_SAMPLES:
        within = [itertools.permutations(block) for block in members]
        moved = np.array([sum(each, ()) for each in itertools.product(*within)])
        orders = np.empty_like(moved)
        orders[:, [i for block in members for i in block]] = moved
        return orders
    orders = np.tile(np.arange(size), (NUM_SAMPLES, 1))
    for i, block in enumerate(members):
        key = jax.random.fold_in(_key(), i)
        orders[:, block] = np.array(block)[_permutations(key, len(block))]
    return orders


def _block_ranks(
    values: Sequence[float], members: Sequence[Sequence[int]]
) -> Float[np.ndarray, " n"]:
    """Ranks within blocks, their mean at 0, relative to the size of the block."""
    ranks = np.zeros(len(values))
    for block in members:
        within = stats.rankdata([values[i] for i in block])
        ranks[block] = (within - within.mean()) / len(block)
    return ranks


def _key() -> Key[Array, ""]:
    return rngs.stream(rngs.root_key(0), "permutation")


def _permutations(key: Key[Array, ""], size: int) -> Int[np.ndarray, "n size"]:
    """Drawn orders; the first is the identity."""
    tiled = jnp.tile(jnp.arange(size), (NUM_SAMPLES, 1))
    orders = np.array(jax.random.permutation(key, tiled, axis=1, independent=True))
    orders[0] = np.arange(size)
    return orders


def _p_values(statistics: Float[np.ndarray, " n"], observed: float) -> PValues:
    slack = _TOLERANCE * max(1.0, abs(observed))
    return PValues(
        above=float(np.mean(statistics >= observed - slack)),
        below=float(np.mean(statistics <= observed + slack)),
    )
