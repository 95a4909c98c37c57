"""Which demonstrations a step learns from: fresh ones, or the next of a data set.

In: the games of a warm start, a root key, a step. Out: per game the keys that the
step's episodes are played with. An episode is made on the device from its key and its
number, so a data set of N demonstrations is the numbers 0 to N - 1 under one key: no
files, and the same episodes whenever they are played again.

A data set is one stream of numbers: epoch after epoch, each shuffled anew, cut into
steps wherever they end. A step may hold the end of one epoch and the start of the next;
only the last one, after `num_epochs`, may hold fewer demonstrations than the others. So
every demonstration is learned from exactly `num_epochs` times.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from ragen_jax import rngs
from ragen_jax.sft.data import Draw, Game


def make_draw(
    games: Mapping[str, Game], root: Key[Array, ""], *, num_epochs: int | None
) -> Callable[[int], dict[str, Draw]]:
    """Compiles `draw(step) -> Draw by game`, steps from 1.

    Args:
      games: a game with `num_demonstrations` has a data set of as many.
      root: of the run.
      num_epochs: times that a data set is learned from. None: no limit.
    """

    @jax.jit
    def draw(step: Int[Array, ""]) -> dict[str, Draw]:
        draws = {}
        for i, (name, game) in enumerate(games.items()):
            if game.num_demonstrations is None:
                draws[name] = draw_fresh(root, step, i, num_episodes=game.episodes)
                continue
            draws[name] = draw_next(
                root,
                step,
                i,
                num_episodes=game.episodes,
                num_demonstrations=game.num_demonstrations,
                num_epochs=num_epochs,
            )
        return draws

    return draw


def draw_fresh(
    root: Key[Array, ""], step: Int[Array, ""], game: int, *, num_episodes: int
) -> Draw:
    """Episodes that no other step sees."""
    key = rngs.stream(rngs.step_key(root, step), "demonstration")
    return Draw(
        key=jax.random.fold_in(key, game),
        numbers=jnp.arange(num_episodes, dtype=jnp.int32),
        counts=jnp.ones(num_episodes, bool),
    )


def draw_next(
    root: Key[Array, ""],
    step: Int[Array, ""],
    game: int,
    *,
    num_episodes: int,
    num_demonstrations: int,
    num_epochs: int | None,
) -> Draw:
    """The next episodes of a data set at least as large as a step."""
    key, order_key = (
        jax.random.fold_in(rngs.stream(root, name), game)
        for name in ("demonstration", "shuffle")
    )
    position = (step - 1) * num_episodes + jnp.arange(num_episodes, dtype=jnp.int32)
    epoch, place = position // num_demonstrations, position % num_demonstrations
    first = epoch[0]
    # A step is no longer than an epoch: it touches two at most.
    orders = jnp.stack(
        [
            jax.random.permutation(
                jax.random.fold_in(order_key, first + i), num_demonstrations
            )
            for i in range(2)
        ]
    )
    counts = jnp.ones(num_episodes, bool)
    if num_epochs is not None:
        counts = epoch < num_epochs
    return Draw(key, orders[epoch - first, place].astype(jnp.int32), counts)
