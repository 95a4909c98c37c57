"""Diagnostics of the policy in training, and the iterations in which they are due.

In: the train state and its latest episodes, before the update. Out: further metrics of
the iteration. Diagnostics change nothing that is learned: no key, no parameter. Each is
an entry of `DIAGNOSTICS`. Moving averages are computed from the records of earlier
iterations (`trends`), so that diagnostics have no state to save.
"""

from collections.abc import Callable, Mapping, Sequence

from ml_collections import ConfigDict

from ragen_jax.diagnostics.gradient_buckets import make_gradients
from ragen_jax.diagnostics.mutual_information import averages, make_information
from ragen_jax.learner.learner import Learner
from ragen_jax.learner.state import TrainState
from ragen_jax.text.answers import AnswerParser
from ragen_jax.timing import Timed, timed
from ragen_jax.types import Params, Trajectory

# (number of the iteration, state before its update, its rollouts, the same joined) ->
# metrics by name; empty in an iteration without a due diagnostic.
Diagnose = Callable[
    [int, TrainState, Sequence[Trajectory], Trajectory], dict[str, float]
]
Record = Mapping[str, float | None]


def make_diagnose(
    config: ConfigDict,
    learner: Learner,
    frozen: Params | None,
    parser: AnswerParser,
    timed: Timed = timed,
) -> Diagnose:
    """All diagnostics of `config.diagnostics`, timed as `timing_s/diagnostics`.

    Args:
      config: validated.
      learner, frozen: the learner and the parameters that it does not train.
      parser: of replies; all tasks share the tokenizer and the reply length.
      timed: measures the stage.
    """
    diagnostics = []
    for key, make in DIAGNOSTICS:
        every = config.diagnostics[key]
        measure = None if every is None else make(config, learner, frozen, parser)
        if measure is not None:
            diagnostics.append((every, measure))

    def diagnose(done, state, rollouts, batch):
        due = [measure for every, measure in diagnostics if is_due(every, done)]
        if not due:
            return {}
        metrics, timing = {}, {}
        with timed(timing, "diagnostics"):
            for measure in due:
                metrics |= measure(done, state, rollouts, batch)
        return metrics | timing

    return diagnose


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
# `make_diagnose` to a Diagnose, or to None if there is nothing to measure.
DIAGNOSTICS: tuple[tuple[str, Callable[..., Diagnose | None]], ...]
DIAGNOSTICS = (
    ("every", make_information),
    ("gradient_every", make_gradients),
)
