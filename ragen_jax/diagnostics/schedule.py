"""Diagnostics of the policy in training, and the iterations in which they are due.

In: the train state and its latest episodes, before the update. Out: further metrics of
the iteration. Diagnostics change nothing that is learned: no key, no parameter. Each is
an entry of `DIAGNOSTICS`. Moving averages are computed from the records of earlier
iterations (`trends`), so that diagnostics have no state to save.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from jaxtyping import Array, Key
from ml_collections import ConfigDict

from ragen_jax.diagnostics.gradient_buckets import make_gradients
from ragen_jax.diagnostics.mutual_information import averages, make_information
from ragen_jax.diagnostics.timing import Timed, timed
from ragen_jax.learner.learner import Learner
from ragen_jax.learner.state import TrainState
from ragen_jax.registry.numbers import Numbers
from ragen_jax.text.answers import AnswerParser
from ragen_jax.types import Params, Trajectory

# (the learner's numbers, key of the iteration, state before its update, its episodes)
# -> metrics by name.
Measure = Callable[[Numbers, Key[Array, ""], TrainState, Trajectory], dict[str, float]]
Record = Mapping[str, float | None]


@dataclasses.dataclass(frozen=True)
class Diagnostics:
    """Measurements of a program.

    Attributes:
      measures: each with the iterations between two of it.
      numbers: settings that they take as data, see `Learner`.
    """

    measures: Sequence[tuple[int, Measure]]
    numbers: Numbers

    def measure(
        self,
        done: int,
        key: Key[Array, ""],
        state: TrainState,
        batch: Trajectory,
        timed: Timed = timed,
    ) -> dict[str, float]:
        """Metrics of iteration `done`, empty where nothing is due.

        Args:
          done: number of the iteration, from 1.
          key: of the iteration.
          state: that played; it has not been updated yet.
          batch: its episodes, of all tasks.
          timed: measures the stage, as `timing_s/diagnostics`.
        """
        due = [measure for every, measure in self.measures if is_due(every, done)]
        if not due:
            return {}
        metrics, timing = {}, {}
        with timed(timing, "diagnostics"):
            for measure in due:
                metrics |= measure(self.numbers, key, state, batch)
        return metrics | timing


def build_diagnostics(
    config: ConfigDict, learner: Learner, frozen: Params | None, parser: AnswerParser
) -> Diagnostics:
    """All diagnostics of `config.diagnostics`; the seed does not matter.

    Args:
      config: validated.
      learner, frozen: the learner and the parameters that it does not train.
      parser: of replies; all tasks share the tokenizer and the reply length.
    """
    measures = []
    for key, make in DIAGNOSTICS:
        every = config.diagnostics[key]
        measure = None if every is None else make(config, learner, frozen, parser)
        if measure is not None:
            measures.append((every, measure))
    return Diagnostics(measures, learner.numbers)


def is_due(every: int, done: int) -> bool:
    """True in the first iteration and in multiples of `every` (as in RAGEN)."""
    return done == 1 or done % every == 0


def trends(records: Sequence[Record], metrics: Record) -> dict[str, float]:
    """Metrics that follow from this iteration's and those of the iterations before.

    Args:
      records: of the iterations before, oldest first.
      metrics: of this iteration.
    """
    return averages(records, metrics)


# Key of `config.diagnostics` with the interval, and builder: from the arguments of
# `build_diagnostics` to a Measure, or to None if there is nothing to measure.
DIAGNOSTICS: tuple[tuple[str, Callable[..., Measure | None]], ...]
DIAGNOSTICS = (
    ("every", make_information),
    ("gradient_every", make_gradients),
)
