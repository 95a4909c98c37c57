"""What is measured of a policy while it trains, besides how well it plays.

In: the train state and what it has just played, before it learns from that. Out: more
metrics of the iteration. Nothing here changes what is learned: no key, no parameter.
Each diagnostic is an entry of `DIAGNOSTICS`; what the record of earlier iterations adds
to the numbers of this one is `trends`, so that nothing has to be remembered.
"""

from collections.abc import Callable, Mapping, Sequence

from ml_collections import ConfigDict

from ragen_jax.diagnostics.gradient_buckets import make_gradients
from ragen_jax.diagnostics.mutual_information import averages, make_information
from ragen_jax.learner.learner import Learner
from ragen_jax.learner.state import TrainState
from ragen_jax.text.answers import AnswerParser
from ragen_jax.timing import timed
from ragen_jax.types import Params, Trajectory

# (iterations done with this one, state that played, what it played, the same joined)
# -> metrics by name; none in an iteration in which none are due.
Diagnose = Callable[
    [int, TrainState, Sequence[Trajectory], Trajectory], dict[str, float]
]
Record = Mapping[str, float | None]


def make_diagnose(
    config: ConfigDict, learner: Learner, frozen: Params | None, parser: AnswerParser
) -> Diagnose:
    """All that `config.diagnostics` asks for, timed as `timing_s/diagnostics`.

    Args:
      config: validated.
      learner, frozen: the learner and the parameters that stay beside its state.
      parser: reads the replies; all tasks share the tokenizer and the reply length.
    """
    made = []
    for key, make in DIAGNOSTICS:
        every = config.diagnostics[key]
        measure = None if every is None else make(config, learner, frozen, parser)
        if measure is not None:
            made.append((every, measure))

    def diagnose(done, state, rollouts, batch):
        due = [measure for every, measure in made if is_due(every, done)]
        if not due:
            return {}
        metrics, timing = {}, {}
        with timed(timing, "diagnostics"):
            for measure in due:
                metrics |= measure(done, state, rollouts, batch)
        return metrics | timing

    return diagnose


def is_due(every: int, done: int) -> bool:
    """In the first iteration, then every so many (as RAGEN has it)."""
    return done == 1 or done % every == 0


def trends(records: Sequence[Record], metrics: Record) -> dict[str, float]:
    """What the iterations before say together with the metrics of this one.

    Args:
      records: of the iterations before, oldest first; a resumed run reads them back.
      metrics: of this iteration.
    """
    return averages(records, metrics)


# Each has the key of `config.diagnostics` that says how often it is made, and makes a
# Diagnose from the arguments of `make_diagnose`, or None if it has nothing to
# measure.
DIAGNOSTICS: tuple[tuple[str, Callable[..., Diagnose | None]], ...]
DIAGNOSTICS = (
    ("every", make_information),
    ("gradient_every", make_gradients),
)
