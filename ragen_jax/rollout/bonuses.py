"""Bonuses: rewards for the form of a reply, beside what the game pays.

In: the replies of a turn, parsed, and the states they were written in. Out: one number
per row. A bonus is an entry of `BONUSES`, called as

    bonus(written, *, <options>) -> Float[B], usually between 0 and 1

and paid with the weight `bonus.<name>` of the configuration; its keyword-only
parameters are configuration keys too. The learner adds it to the turn's reward, like a
format penalty; the filter, the metrics of the game and the player never see it.

Reward for the reasoning itself, because reward for the outcome alone does not keep it
alive: arXiv 2504.20073, third finding.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from envs.base import EnvParams, Landmark, TextEnvironment, TextGame
from ragen_jax.registry.functions import Table, bind, option_names
from ragen_jax.text.statements import FactReader, is_there, landmarks_of
from ragen_jax.types import EnvState, ParsedAnswer, Reply


@struct.dataclass
class Written:
    """Replies of a turn and what bonuses need to know of them. Axis `M`: landmarks.

    Attributes:
      reply: as sampled.
      parsed: result of the parser.
      is_true: the thought names a cell for the landmark, and the landmark is there;
        None where thoughts are not read.
      is_foreseen: it names one a second time, and the landmark is there after the
        turn; None, too.
    """

    reply: Reply
    parsed: ParsedAnswer
    is_true: Bool[Array, "B M"] | None
    is_foreseen: Bool[Array, "B M"] | None


@dataclasses.dataclass(frozen=True, eq=False)
class BonusSum:
    """The weighted sum of the entries that have a weight; a `turns.Bonus`.

    Attributes:
      env: the game that is played.
      settings: see `build_bonus`.
    """

    env: TextGame
    settings: Mapping[str, Any]

    @property
    def numbers(self) -> dict[str, Array]:
        """Weights and options that are set, as arrays; not what a user's bonus reads.

        Its options may be sizes of arrays.
        """
        custom = self.settings.get("custom")
        fixed = option_names(CUSTOM_BONUSES[custom]) if custom is not None else ()
        return {
            name: jnp.asarray(
                value, jnp.int32 if isinstance(value, int) else jnp.float32
            )
            for name, value in self.settings.items()
            if isinstance(value, int | float) and name not in fixed
        }

    def with_numbers(self, numbers: Mapping[str, Array]) -> "BonusSum":
        """The same entries with other weights and options, which may be traced."""
        return BonusSum(self.env, {**self.settings, **numbers})

    def __call__(
        self,
        params: EnvParams,
        reader: FactReader,
        states: tuple[EnvState, EnvState],
        reply: Reply,
        parsed: ParsedAnswer,
    ) -> Float[Array, " B"]:
        settings, are_right = self.settings, (None, None)
        if reads_thoughts(settings):
            landmarks = landmarks_of(self.env)
            are_right = _check_facts(self.env, params, landmarks, reader, states, reply)
        written = Written(reply, parsed, *are_right)
        total = jnp.zeros(reply.length.shape)
        for name, entry in BONUSES.items():
            if settings[name] is not None:
                total += settings[name] * bind(entry, settings)(written)
        if (custom := settings.get("custom")) is not None:
            total += bind(CUSTOM_BONUSES[custom], settings)(written)
        return total


def build_bonus(env: TextGame, **settings: float | int | str | None) -> BonusSum | None:
    """The weighted sum of all entries that have a weight; None where none has.

    Args:
      env: the game that is played.
      settings: the section `bonus` of the configuration: for each entry its weight,
        None for none, the entries' options, and `custom`, the user's function.

    Raises:
      ValueError: a setting is missing, or the game has no landmarks.
    """
    options = {name for entry in BONUSES.values() for name in option_names(entry)}
    missing = (options | set(BONUSES)) - set(settings)
    if missing:
        raise ValueError(
            f"bonus lacks the keys {', '.join(sorted(missing))}, which the entries of "
            "BONUSES in ragen_jax/rollout/bonuses.py need; keep configs/base.py in step"
        )
    if reads_thoughts(settings):
        landmarks_of(env)
    is_paid = any(settings.get(name) is not None for name in (*BONUSES, "custom"))
    return BonusSum(env, settings) if is_paid else None


def reads_thoughts(settings: Mapping[str, Any]) -> bool:
    """Whether an entry with a weight needs the places that thoughts state."""
    return any(settings[name] is not None for name in ("facts", "prediction"))


def format_kept(written: Written) -> Float[Array, " B"]:
    """1 where thought and answer stand in their tags."""
    return written.parsed.has_format.astype(jnp.float32)


def length_in_band(
    written: Written, *, min_tokens: int, max_tokens: int
) -> Float[Array, " B"]:
    """1 where the reply takes `min_tokens` to `max_tokens`, its stop token included."""
    length = written.reply.length
    return ((length >= min_tokens) & (length <= max_tokens)).astype(jnp.float32)


def facts_stated(written: Written) -> Float[Array, " B"]:
    """Share of the landmarks that the thought places where they are."""
    return jnp.mean(written.is_true, axis=1, dtype=jnp.float32)


def next_facts_stated(written: Written) -> Float[Array, " B"]:
    """Share of the landmarks that the thought places where they are after the turn.

    The reward for transition modelling of arXiv 2510.16907, with the board as judge.
    """
    return jnp.mean(written.is_foreseen, axis=1, dtype=jnp.float32)


def _check_facts(
    env: TextEnvironment,
    params: EnvParams,
    landmarks: tuple[Landmark, ...],
    reader: FactReader,
    states: tuple[EnvState, EnvState],
    reply: Reply,
) -> tuple[Bool[Array, "B M"], Bool[Array, "B M"]]:
    """Which statements about the states before and after the turn are right."""

    def check(states, tokens, length) -> tuple[Bool[Array, " M"], ...]:
        stated = reader.read(tokens, length)
        boards = [env.observe(None, state, None, params) for state in states]
        pairs = zip(boards, stated, strict=True)
        return tuple(is_there(board, landmarks, some) for board, some in pairs)

    return jax.vmap(check)(states, reply.tokens, reply.length)


BONUSES = {
    "format": format_kept,
    "length": length_in_band,
    "facts": facts_stated,
    "prediction": next_facts_stated,
}
# Users' functions only.
CUSTOM_BONUSES = Table({}, data=("written",), returns=Array)
