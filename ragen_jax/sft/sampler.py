"""The episodes of each step: new ones, or the next of a data set.

In: demonstrated tasks, a root key, a step. Out: per task the random keys of the step's
episodes. An episode is determined by its key and its number, so a data set of N
demonstrations is the numbers 0 to N - 1 under one key. They are played again at every
use; only those of host games are stored.

A data set is read as one stream of numbers, epoch after epoch, each in another random
order, cut into steps. A step may contain the end of one epoch and the start of the
next; only the last step, after `num_epochs`, may have fewer demonstrations than the
others. So every demonstration is trained on exactly `num_epochs` times.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from ragen_jax import rngs
from ragen_jax.sft.data import DemoTask, Draw, data_set_key


def make_draw(
    tasks: Mapping[str, DemoTask], root: Key[Array, ""], *, num_epochs: int | None
) -> Callable[[int], dict[str, Draw]]:
    """Build the compiled `draw(step) -> Draw by task`; steps count from 1.

    Args:
      tasks: one with `num_demonstrations` has a data set of that size.
      root: key of the run.
      num_epochs: passes over a data set; None: no limit.
    """

    @jax.jit
    def draw(step: Int[Array, ""]) -> dict[str, Draw]:
        return {
            name: draw_episodes(root, step, i, task, num_epochs)
            for i, (name, task) in enumerate(tasks.items())
        }

    return draw


def draw_episodes(
    root: Key[Array, ""],
    step: Int[Array, ""],
    index: int,
    task: DemoTask,
    num_epochs: int | None,
) -> Draw:
    """The episodes of one task in a step, see `make_draw`; `index` is the task's."""
    places = jnp.arange(task.episodes, dtype=jnp.int32)
    mask = jnp.ones(task.episodes, bool)
    if task.num_demonstrations is None:
        # A key per step: no other step has these episodes.
        key = rngs.stream(rngs.step_key(root, step), "demonstration")
        return Draw(jax.random.fold_in(key, index), places, mask)
    key = data_set_key(root, index)
    order_key = jax.random.fold_in(rngs.stream(root, "shuffle"), index)
    position = (step - 1) * task.episodes + places
    epoch, place = jnp.divmod(position, task.num_demonstrations)
    first = epoch[0]
    # A step has at most as many episodes as an epoch, so it touches at most two.
    orders = jnp.stack(
        [
            jax.random.permutation(
                jax.random.fold_in(order_key, first + i), task.num_demonstrations
            )
            for i in range(2)
        ]
    )
    if num_epochs is not None:
        mask = epoch < num_epochs
    return Draw(key, orders[epoch - first, place].astype(jnp.int32), mask)
