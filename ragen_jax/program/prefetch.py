"""The rollout of an iteration, played when it is needed or one iteration ahead.

In: the train state and the number of an iteration. Out: its episodes, on the devices
that learn. With `rollout.ahead` = 1 the next iteration's rollout is played in a thread
while the update runs, with the parameters that the update starts from: on
separate devices (`rollout.devices`), or on the same one, which host games leave idle.
What is played follows from the state alone (`TrainState.acting_snapshot`), never from
the clock, so that a resumed run plays it again.

Programs split over the same devices must not overlap (`Program.collect`): the thread
uses the devices that play, and everything else those that learn. What moves between
them moves while the thread has nothing to do.
"""

import concurrent.futures
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
from ml_collections import ConfigDict

from ragen_jax import rngs
from ragen_jax.devices.sharding import on_mesh
from ragen_jax.learner.metrics import STALENESS
from ragen_jax.learner.state import Snapshot, TrainState, take_snapshot
from ragen_jax.program.build import Program
from ragen_jax.runs.metrics import HIDDEN
from ragen_jax.types import Trajectory


class Prefetched(NamedTuple):
    """A rollout.

    Attributes:
      rollouts: one per task.
      metrics: its staleness; empty where rollouts are not ahead.
      timing: its seconds that nothing waited for; empty as well.
    """

    rollouts: Sequence[Trajectory]
    metrics: dict[str, float]
    timing: dict[str, float]


class _Pending(NamedTuple):
    """A rollout that was started: of which iteration, with what."""

    done: int
    snapshot: Snapshot
    future: concurrent.futures.Future

    def is_of(self, snapshot: Snapshot, done: int) -> bool:
        return self.snapshot is snapshot and self.done == done


class RolloutPrefetcher:
    """Plays the rollouts of a run. Use it as a context manager.

    Args:
      config: validated.
      program: of it.
    """

    def __init__(self, config: ConfigDict, program: Program):
        self._program, self._root = program, rngs.root_key(config.seed)
        self._last = config.train.num_iterations
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "rollout")
        self._pending: _Pending | None = None
        snapshot, self._frozen = program.learner.state.acting_snapshot, None
        if snapshot is not None:
            self._mesh = snapshot.iteration.sharding.mesh
            if config.lora.rank is not None:
                # Adapters are merged into these where they are played with.
                where = on_mesh(program.frozen, self._mesh)
                self._frozen = jax.device_put(program.frozen, where)

    def __enter__(self) -> "RolloutPrefetcher":
        return self

    def __exit__(self, *_) -> None:
        if self._pending is not None and not self._pending.future.cancel():
            for task in self._program.tasks:
                task.stop_games()
        self._thread.shutdown()

    def result(self, state: TrainState, done: int) -> Prefetched:
        """The rollout of an iteration, from 1: waited for, or played now.

        Args:
          state: before the iteration's update.

        Raises:
          GamesFailed: too many games of it failed; the state is as it was.
        """
        if state.acting_snapshot is None:
            params = self._program.play_params(state)
            return Prefetched(self._program.collect(params, self._key(done)), {}, {})
        pending, self._pending = self._pending, None
        began = time.perf_counter()
        if pending is not None and pending.is_of(state.acting_snapshot, done):
            rollouts, seconds = pending.future.result()
        else:
            if pending is not None:
                concurrent.futures.wait([pending.future])
            rollouts, seconds = self._play(state.acting_snapshot, done)
        waited = time.perf_counter() - began
        where = jax.tree.map(lambda _: self._program.batch_sharding, rollouts)
        staleness = int(state.iteration) - int(state.acting_snapshot.iteration)
        return Prefetched(
            jax.device_put(rollouts, where),
            {STALENESS.name: float(staleness)},
            {HIDDEN: max(0.0, seconds - waited)},
        )

    def start(self, state: TrainState, done: int) -> Snapshot | None:
        """Start the rollout of the iteration after this one, but for the last.

        Args:
          state: before the update, which plays it.

        Returns:
          `acting_snapshot` of the state after the update.
        """
        if state.acting_snapshot is None:
            return None
        snapshot = take_snapshot(state, self._mesh)
        if done < self._last:
            future = self._thread.submit(self._play, snapshot, done + 1)
            self._pending = _Pending(done + 1, snapshot, future)
        return snapshot

    def _play(
        self, snapshot: Snapshot, done: int
    ) -> tuple[Sequence[Trajectory], float]:
        began = time.perf_counter()
        params = self._program.learner.play_params(self._frozen, snapshot)
        rollouts = self._program.collect(params, self._key(done))
        return rollouts, time.perf_counter() - began

    def _key(self, done: int):
        return rngs.step_key(self._root, done - 1)
