"""The turn loop of the host: for host games, models behind an API, and people.

In: episodes that advance turn by turn (`HostEpisodes`), and a function that replies.
Out: a `Trajectory`, like that of the compiled rollout. The loop knows neither
environments nor tokens. Episodes of a `TokenGame` run the functions of the compiled
rollout one turn at a time, on tokens; those of a `text.ChatGame` show a game in chat
messages and read replies in text.
"""

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from envs.base import TextGame
from ragen_jax.devices.exchange import to_host
from ragen_jax.models.policy import Policy
from ragen_jax.models.widths import shared_length
from ragen_jax.rollout.collect import GivenSettings, make_responder, start_episodes
from ragen_jax.rollout.keys import RolloutKeys, fold_turn
from ragen_jax.rollout.layout import RowLayout
from ragen_jax.rollout.transcript import Turn
from ragen_jax.rollout.turns import (
    Carry,
    EpisodeLimits,
    GameStep,
    Play,
    Responder,
    RolloutContext,
    Sending,
    act,
    prompt_starts,
    record_message,
    step_env,
    to_trajectory,
    write_following,
    write_opening,
)
from ragen_jax.text.dialogue import Dialogue
from ragen_jax.types import Params, Reply, TokenSpan, Trajectory

# Tokens of a prompt that a pass reads, where the lengths of prompts differ and
# `rollout.read_chunk_tokens` does not say.
READ_TOKENS = 64


# Reads and writes nothing: replies come from the host.
SILENT = Responder(
    init=lambda num_rows: (), observe=lambda carry, *_: carry, reply=lambda *_: ((), ())
)


class HostEpisodes(Protocol):
    """Episodes of one or more rows, one turn at a time.

    Attributes:
      max_turns: of an episode.
    """

    max_turns: int

    def prompt(self, turn: int) -> Any:
        """The input of a turn's reply: arrays, or chat messages."""

    async def step(self, turn: int, reply: Any) -> bool:
        """Apply the replies of a turn; False once every row has ended."""

    def trajectory(self) -> Trajectory:
        """The episodes, after the last turn."""


async def play_turns(
    game: HostEpisodes, reply: Callable[[int, Any], Awaitable[Any]]
) -> Trajectory:
    """Play a game to its end.

    Args:
      game: before its first turn.
      reply: `(turn, prompt) -> reply`, turns from 0, in the form that `game` takes;
        None ends the episode.
    """
    for turn in range(game.max_turns):
        answer = await reply(turn, game.prompt(turn))
        if answer is None or not await game.step(turn, answer):
            break
    return game.trajectory()


# A policy's parameters, and what a rollout reads beside them.
PlayedParams = tuple[Params, GivenSettings]

# `(context, turn, given) -> GameStep`: `given` is what a turn needs from outside, the
# rollout's keys or the outputs of workers.
MakeStep = Callable[[RolloutContext, Turn, Any], GameStep]


def step_by_keys(context: RolloutContext, turn: Turn, keys: RolloutKeys) -> GameStep:
    """Steps of an array environment."""
    return step_env(context, fold_turn(keys.noise, turn))


class TokenGame:
    """A game on tokens, compiled one turn at a time.

    Args:
      rules: of an episode.
      make_context: `(params, dialogue) -> RolloutContext`; the parameters are those
        of the player, and whatever else is data.
      compile: compiles a function of `(params, dialogue, turn, *rows)`; the default is
        for a single device.
      make_step: who steps the game.
      num_widths: lengths of the responder's carry, each compiled once when it is first
        needed; 1: the largest possible one.
      read_tokens: of a prompt that the responder reads in a pass.
    """

    def __init__(
        self,
        rules: EpisodeLimits,
        make_context: Callable[[Params, Dialogue], RolloutContext],
        compile: Callable[[Callable], Callable] = jax.jit,
        make_step: MakeStep = step_by_keys,
        num_widths: int = 1,
        read_tokens: int = READ_TOKENS,
    ):
        context = make_context

        def start(params, dialogue, turn, keys) -> Play:
            return start_episodes(context(params, dialogue), keys)

        def open_(params, dialogue, turn, play) -> Sending:
            return write_opening(context(params, dialogue), play)

        def follow(params, dialogue, turn, play) -> Sending:
            return write_following(context(params, dialogue), play, turn)

        # The responder's part gets nothing of the game: games share what is compiled.
        def read(slots, params, dialogue, turn, carry, prompt, *rows) -> Carry:
            observe = context(params, dialogue).responder.observe
            return observe(carry, prompt, *rows, slots)

        def note(params, dialogue, turn, play, sending) -> Play:
            return record_message(play, sending, turn)

        def reply(params, dialogue, turn, carry, starts, states, keys, is_active):
            respond = context(params, dialogue).responder.reply
            keys = fold_turn(keys, turn)
            return respond(carry, starts, states, keys, turn, is_active)

        def act_(params, dialogue, turn, play, reply, given) -> Play:
            rollout = context(params, dialogue)
            return act(rollout, play, turn, reply, make_step(rollout, turn, given))

        def finish(params, dialogue, turn, play, initial_state, keys) -> Trajectory:
            return to_trajectory(
                context(params, dialogue), play, initial_state, keys.noise
            )

        self.max_turns, self.num_widths = rules.budget.max_turns, num_widths
        self.max_reply_tokens, self.read_tokens = rules.max_reply_tokens, read_tokens
        self.read = functools.cache(
            lambda slots: compile(functools.partial(read, slots))
        )
        self.start, self.open, self.follow = map(compile, (start, open_, follow))
        self.note, self.reply = map(compile, (note, reply))
        self.act, self.finish = map(compile, (act_, finish))


def make_token_game(
    env: TextGame,
    policy: Policy,
    layout: RowLayout,
    rules: EpisodeLimits,
    make_step: MakeStep = step_by_keys,
    num_widths: int = 1,
    **decoding: float | None,
) -> TokenGame:
    """A game whose rows are laid out over devices.

    Arguments as of `make_responder` and `TokenGame`; its parameters are pairs of the
    policy's and `GivenSettings`.
    """
    read_tokens = decoding.get("read_chunk_tokens") or READ_TOKENS
    if num_widths > 1:
        decoding["read_chunk_tokens"] = read_tokens
    respond = make_responder(policy, rules, layout, **decoding)

    def make_context(played: PlayedParams, dialogue: Dialogue) -> RolloutContext:
        params, given = played
        return RolloutContext(
            env,
            given.env_params,
            dialogue,
            respond(params, dialogue, given),
            given.numbers.put_into(rules),
        )

    return TokenGame(
        rules,
        make_context,
        compile=lambda function: jax.jit(layout.over_rows(function, num_replicated=3)),
        make_step=make_step,
        num_widths=num_widths,
        read_tokens=read_tokens,
    )


class TokenEpisodes:
    """Episodes of a `TokenGame`; `HostEpisodes` whose replies are `(Play, Reply)`."""

    def __init__(
        self, game: TokenGame, params: Params, dialogue: Dialogue, keys: RolloutKeys
    ):
        self._game, self._fixed, self._keys = game, (params, dialogue), keys
        self.max_turns = game.max_turns
        self.play: Play = game.start(*self._fixed, jnp.int32(0), keys)
        self._initial_state = self.play.states
        self._num_slots = 0

    def prompt(self, turn: int) -> Play:
        """The episodes after the turn's message, which the responder has read."""
        game, fixed = self._game, (*self._fixed, jnp.int32(turn))
        # Without the carry, whose shape may differ from turn to turn.
        play = self.play.replace(carry=())
        sending = (game.follow if turn else game.open)(*fixed, play)
        slots, prompt = self._fitted(sending.prompt)
        rows = prompt, prompt_starts(play), play.is_active
        carry = game.read(slots)(*fixed, self.play.carry, *rows)
        self.play = game.note(*fixed, play, sending).replace(carry=carry)
        self._num_slots = slots
        return self.play

    def _fitted(self, prompt: TokenSpan) -> tuple[int, TokenSpan]:
        """Slots of the carry that hold prompts and replies; the prompts, as wide."""
        game, (_, dialogue), play = self._game, self._fixed, self.play
        longest = dialogue.max_window_tokens + 1
        if game.num_widths == 1:
            return longest, prompt
        starts, lengths, is_active = to_host(
            (prompt_starts(play), prompt.length, play.is_active)
        )
        # Whole chunks of prompts are written; replies follow their text.
        chunk = game.read_tokens
        width = -(-lengths.max() // chunk) * chunk
        used = starts + np.maximum(width, lengths + game.max_reply_tokens + 1)
        slots = shared_length(
            int(used[is_active].max()), longest + chunk, game.num_widths
        )
        slots = max(slots, self._num_slots)
        tokens = prompt.tokens[:, :slots]
        padding = (0, 0), (0, slots - tokens.shape[1])
        return slots, prompt.replace(tokens=jnp.pad(tokens, padding))

    async def reply(self, turn: int, play: Play) -> tuple[Play, Reply]:
        """The responder's reply to a prompt."""
        rows = play.carry, play.num_read, play.states, self._keys.sample, play.is_active
        carry, written = self._game.reply(*self._fixed, jnp.int32(turn), *rows)
        return play.replace(carry=carry), written

    async def step(self, turn: int, reply: tuple[Play, Reply]) -> bool:
        return self._act(turn, reply, self._keys)

    def _act(self, turn: int, reply: tuple[Play, Reply], given: Any) -> bool:
        play, written = reply
        rows = play.replace(carry=()), written, given
        after = self._game.act(*self._fixed, jnp.int32(turn), *rows)
        self.play = after.replace(carry=play.carry)
        return bool(jnp.any(self.play.is_active))

    def trajectory(self) -> Trajectory:
        rows = (self.play.replace(carry=()), self._initial_state, self._keys)
        return self._game.finish(*self._fixed, jnp.int32(0), *rows)
