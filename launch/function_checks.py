"""What a user's function must do to take part in training, tried on random episodes.

In: a function and values of its options. Out: a sentence per promise that it breaks.
`launch.check` prints them; the tests put every entry of the library's tables to the
same checks.
"""

import dataclasses
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ragen_jax.algo.advantages import ADVANTAGES
from ragen_jax.algo.filters import FILTERS, SCORES
from ragen_jax.algo.rewards import REWARD_PLACEMENTS, REWARDS
from ragen_jax.algo.segments import last_trained, takes_part
from ragen_jax.learner.batch import game_rewards, named_arrays
from ragen_jax.registry.functions import Table, bind, data_names
from ragen_jax.rollout.bonuses import CUSTOM_BONUSES, Written
from ragen_jax.rollout.metrics import METRIC_FUNCTIONS
from ragen_jax.rollout.transcript import empty_turns
from ragen_jax.types import ParsedAnswer, Reply, Trajectory

NUM_GROUPS, GROUP_SIZE, NUM_TURNS, NUM_TOKENS = 4, 4, 3, 24
NUM_ROWS = NUM_GROUPS * GROUP_SIZE


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of function.

    Attributes:
      key: configuration key that names it.
      table: whose entries are called alike.
      shape: of the result; None: a mapping of names to numbers.
      dtype: of the result.
    """

    key: str
    table: Table
    shape: tuple[int, ...] | None
    dtype: Any = jnp.float32


KINDS = {
    "advantage": Kind("algo.advantage", ADVANTAGES, (NUM_ROWS, NUM_TOKENS)),
    "filter": Kind("filter.rule", FILTERS, (NUM_GROUPS, GROUP_SIZE), jnp.bool_),
    "score": Kind("filter.score", SCORES, (NUM_GROUPS,)),
    "placement": Kind(
        "algo.reward_placement", REWARD_PLACEMENTS, (NUM_ROWS, NUM_TOKENS)
    ),
    "reward": Kind("algo.reward", REWARDS, (NUM_ROWS, NUM_TURNS)),
    "bonus": Kind("bonus.custom", CUSTOM_BONUSES, (NUM_ROWS,)),
    "metrics": Kind("logging.metrics", METRIC_FUNCTIONS, None),
}


def problems(kind: Kind, entry: Callable, options: Mapping[str, Any]) -> Iterator[str]:
    """Sentences about what is wrong with a function; none if nothing is.

    Args:
      kind: of the function.
      entry: the function.
      options: a value for each of its options.
    """
    for name, episodes in _episodes().items():
        data = _data(kind, episodes)
        sizes = {name: x for name, x in data.items() if isinstance(x, int)}
        arrays = {x: data[x] for x in data_names(entry) if x not in sizes}
        run = bind(entry, options, **sizes)
        try:
            result = jax.jit(lambda arrays, run=run: _arrays(run(**arrays)))(arrays)
        except Exception as error:
            yield f"on {name}: {_describe_error(error, entry)}"
            return
        for problem in _result_problems(kind, result, episodes):
            yield f"on {name}: {problem}"


def _describe_error(error: Exception, entry: Callable) -> str:
    if isinstance(error, RuntimeError):
        error = error.__cause__ or error
    file = inspect.getsourcefile(inspect.unwrap(entry))
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    text = str(error).splitlines()[0] if str(error) else ""
    if isinstance(error, ValueError) and not lines:
        return text
    where = f" ({file}, line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {text}{where}"


def find_kind(entry: Callable) -> str | None:
    """The kind of a function by its parameters, None where they do not say."""
    parameters = inspect.signature(entry).parameters.values()
    names = {p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
    by_names = {
        "advantage": ({"rewards", "mask"}, {"trajectory", "rewards"}),
        "filter": ({"scores"},),
        "placement": ({"totals", "mask"}, {"turn_rewards", "mask"}),
        "bonus": ({"written"},),
    }
    return next((kind for kind, takes in by_names.items() if names in takes), None)


def _result_problems(kind: Kind, result: dict, episodes: Trajectory) -> Iterator[str]:
    for name, value in result.items():
        shape = () if kind.shape is None else kind.shape
        if value.shape != shape or value.dtype != kind.dtype:
            yield (
                f"{name} is {value.dtype}{list(value.shape)}; it must be "
                f"{jnp.dtype(kind.dtype)}{list(shape)}"
            )
        elif not np.isfinite(value).all():
            yield f"{name} is not finite"
        elif kind.key == "algo.advantage" and value[~episodes.loss_mask].any():
            yield f"{name} is not 0 at tokens that the model did not sample"


def _arrays(result: Any) -> dict[str, jax.Array]:
    if isinstance(result, Mapping):
        return {name: jnp.asarray(value, jnp.float32) for name, value in result.items()}
    if dataclasses.is_dataclass(result):
        parts = {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}
        return {name: value for name, value in parts.items() if value is not None}
    return {"the result": jnp.asarray(result)}


def _data(kind: Kind, episodes: Trajectory) -> dict[str, Any]:
    tokens = episodes.loss_mask.astype(jnp.float32)
    totals = game_rewards(episodes)
    by_group = totals.reshape(NUM_GROUPS, GROUP_SIZE)
    rewards = {
        "algo.advantage": jnp.where(last_trained(tokens > 0), totals[:, None], 0.0),
        "algo.reward": episodes.turns.reward,
        "filter.rule": by_group,
        "filter.score": totals,
    }
    data = named_arrays(episodes, group_size=GROUP_SIZE) | {
        "rewards": rewards.get(kind.key),
        "scores": jnp.std(by_group, axis=1),
        "values": 0.5 * tokens,
        "entropies": tokens,
        "counted": takes_part(episodes.loss_mask),
        "written": _written(),
    }
    return {name: data[name] for name in kind.table.data}


def _episodes() -> dict[str, Trajectory]:
    """Episodes of several kinds: usual ones, and those that divide by zero."""
    usual = _random_episodes()
    turns = usual.turns
    alike = turns.replace(reward=jnp.ones_like(turns.reward))
    unpaid = turns.replace(reward=jnp.zeros_like(turns.reward))
    first_group = (jnp.arange(NUM_ROWS) < GROUP_SIZE)[:, None]
    kept = usual.replace(loss_mask=usual.loss_mask & first_group)
    empty = usual.replace(loss_mask=jnp.zeros_like(usual.loss_mask))
    return {
        "random episodes": usual,
        "episodes with equal rewards": usual.replace(turns=alike),
        "episodes without rewards": usual.replace(turns=unpaid),
        "a batch with one kept group": kept,
        "a batch without kept groups": empty,
    }


def _random_episodes() -> Trajectory:
    random = np.random.default_rng(0)
    per_turn = NUM_TOKENS // NUM_TURNS
    num_played = random.integers(1, NUM_TURNS + 1, NUM_ROWS)
    played = np.arange(NUM_TURNS) < num_played[:, None]
    turn_index = np.repeat(np.arange(NUM_TURNS)[None], NUM_ROWS, 0).repeat(per_turn, 1)
    is_there = played.repeat(per_turn, axis=1)
    is_reply = np.tile(np.arange(per_turn) >= per_turn // 2, NUM_TURNS)
    loss_mask = is_there & is_reply
    counts = random.integers(0, 3, played.shape) * played
    success = random.random(NUM_ROWS) < 0.4
    turns = empty_turns(NUM_ROWS, NUM_TURNS, num_actions=2).replace(
        played=played,
        reward=(random.normal(size=played.shape) * played).astype(np.float32),
        reply_start=np.arange(NUM_TURNS) * per_turn + per_turn // 2 + 0 * counts,
        reply_length=(per_turn - per_turn // 2) * played,
        has_format=played,
        num_listed=counts,
        num_valid=counts,
        num_executed=counts,
        num_effective=counts,
        actions_left=10 - counts,
        state_hash=random.integers(0, 2**32, (*played.shape, 2), np.uint32),
    )
    trajectory = Trajectory(
        tokens=random.integers(0, 50, (NUM_ROWS, NUM_TOKENS)),
        lengths=is_there.sum(1),
        loss_mask=loss_mask,
        turn_index=np.where(is_there, turn_index, -1),
        sample_log_probs=np.where(loss_mask, -0.7, 0.0).astype(np.float32),
        turns=turns,
        terminated=success,
        truncated=~success,
        success=success,
        initial_state=None,
        env_index=np.zeros(NUM_ROWS, np.int32),
    )
    return jax.tree.map(_on_device, trajectory)


def _written() -> Written:
    random = np.random.default_rng(0)
    length = random.integers(0, 8, NUM_ROWS)
    reply = Reply(
        tokens=random.integers(0, 50, (NUM_ROWS, 8)),
        log_probs=np.zeros((NUM_ROWS, 8), np.float32),
        length=length,
        is_cut=length == 8,
    )
    parsed = ParsedAnswer(
        names=np.full((NUM_ROWS, 2), -1),
        num_names=np.zeros(NUM_ROWS, np.int32),
        num_listed=np.zeros(NUM_ROWS, np.int32),
        has_format=random.random(NUM_ROWS) < 0.5,
    )
    written = Written(reply, parsed, is_true=None, is_foreseen=None)
    return jax.tree.map(_on_device, written)


def _on_device(values: np.ndarray) -> jax.Array:
    """Whole numbers as int32, as the program has them."""
    is_wide = values.dtype == np.int64
    return jnp.asarray(values.astype(np.int32) if is_wide else values)
