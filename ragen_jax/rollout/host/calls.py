"""The calls of an agent's episode, and their trajectory.

In: calls of a program (`host_games.agent.calls`), and what the policy sampled for them.
Out: the tokens to read for a call, the answer to it, and at the end the arrays of a
`Trajectory`. A call whose tokens extend a segment of the episode is appended to it; any
other call begins a new segment. Knows neither programs nor the policy.

The tokens trained on are those sampled: a reply comes back in later calls as a text,
and stands there by its recorded ids (`text.calls`). A limit or a stop text of a call
cuts the reply at a token; what the policy wrote after it is neither shown nor kept.
"""

import dataclasses
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import jax
import numpy as np

from ragen_jax.host_games.agent.calls import (
    LENGTH,
    STOP,
    TOOL_CALLS,
    CallRefused,
    ChatAnswer,
    ChatCall,
)
from ragen_jax.host_games.agent.episode import BUDGET_EXHAUSTED
from ragen_jax.host_games.agent.tools import ToolFormat
from ragen_jax.rollout.host.row_decoder import SampledTokens, num_equal
from ragen_jax.rollout.transcript import empty_turns
from ragen_jax.text.calls import CallWriter, SampledReply, state_hash
from ragen_jax.text.tokenizer import Tokenizer
from ragen_jax.types import Turns, Windows

# Numbers of every agent's episodes, besides those that its program reports.
SEGMENTS, REREAD, REFUSED = "segments", "reread_tokens", "refused_calls"


@dataclasses.dataclass(frozen=True)
class CallLimits:
    """Limits of an episode of calls.

    Attributes:
      max_calls: `K`.
      max_reply_tokens: of a reply, `R`.
      context_tokens: of a segment, `W`.
      episode_tokens: of all segments, `T`.
      max_segments: `M`.
    """

    max_calls: int
    max_reply_tokens: int
    context_tokens: int
    episode_tokens: int
    max_segments: int


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A call in tokens.

    Attributes:
      ids: all that the model reads.
      segment: that it extends, or a new one.
      num_known: tokens of the segment before the call.
      limit: tokens of the reply at most.
    """

    ids: Sequence[int]
    segment: int
    num_known: int
    limit: int


@dataclasses.dataclass
class Call:
    """A call that was answered.

    Attributes:
      prompt: what was read.
      tokens, log_probs: of the reply, as far as the program got it.
      is_cut: a limit ended the reply.
      has_format: what it says of tools could be read.
      reward, valid: of the game.
    """

    prompt: Prompt
    tokens: np.ndarray
    log_probs: np.ndarray
    is_cut: bool
    has_format: bool
    reward: float = 0.0
    valid: bool = True


class CallEpisode:
    """The calls of one row.

    Args:
      write: calls to ids.
      tokenizer: spells replies.
      tools: how the model writes calls of tools.
      limits: of the episode.
      sampled: replies of before, which calls may repeat.

    Attributes:
      calls: so far.
      segments: their tokens, replies included.
      num_reread: tokens that were read more than once.
      refusals: why calls were refused.
    """

    def __init__(
        self,
        write: CallWriter,
        tokenizer: Tokenizer,
        tools: ToolFormat,
        limits: CallLimits,
        sampled: Sequence[SampledReply] = (),
    ):
        self._write, self._tokenizer, self._tools = write, tokenizer, tools
        self._limits = limits
        self._sampled = [*sampled]
        self._num_tokens = self._num_tool_calls = 0
        self.calls: list[Call] = []
        self.segments: list[list[int]] = []
        self.num_reread = 0
        self.refusals: list[str] = []

    def prompt(self, call: ChatCall) -> Prompt:
        """What the model reads for a call.

        Raises:
          CallRefused: it does not fit, or a budget is used up.
        """
        try:
            return self._prompt(call)
        except CallRefused as refusal:
            self.refusals.append(str(refusal))
            if len(self.refusals) > self._limits.max_calls:
                raise _exhausted(f"{refusal}, again and again") from refusal
            raise

    def _prompt(self, call: ChatCall) -> Prompt:
        limits = self._limits
        if len(self.calls) == limits.max_calls:
            raise _exhausted(f"all {limits.max_calls} calls (rollout.max_turns)")
        try:
            ids = self._write.ids(call.messages, call.tools, self._sampled)
        except ValueError as error:
            raise CallRefused(str(error)) from error
        room = limits.context_tokens - len(ids)
        if room < 1:
            raise CallRefused(
                f"the call has {len(ids)} tokens, and the context holds "
                f"{limits.context_tokens} with a reply (context_tokens); shorten "
                "the dialogue",
                code="context_length_exceeded",
                param="messages",
            )
        segment, num_known = self._extended(ids)
        if segment == limits.max_segments:
            raise _exhausted(f"all {limits.max_segments} segments (host.max_segments)")
        left = limits.episode_tokens - self._num_tokens - (len(ids) - num_known)
        if left < 1:
            raise _exhausted(
                f"all {limits.episode_tokens} tokens (host.episode_tokens)"
            )
        asked = limits.max_reply_tokens if call.max_tokens is None else call.max_tokens
        limit = min(limits.max_reply_tokens, asked, room, left)
        return Prompt(ids, segment, num_known, limit)

    def _extended(self, ids: Sequence[int]) -> tuple[int, int]:
        """The segment that a call extends, a new one if none, and its length."""
        fits = [
            (len(known), i)
            for i, known in enumerate(self.segments)
            if ids[: len(known)] == known
        ]
        length, segment = max(fits, default=(0, len(self.segments)))
        return segment, length

    def answer(
        self, call: ChatCall, prompt: Prompt, sampled: SampledTokens, num_read: int
    ) -> ChatAnswer:
        """Record a reply; what the program gets of it."""
        tokens, text, is_stopped = self._cut(sampled, call.stop)
        count = len(tokens)
        content, tool_calls, is_malformed = text, (), False
        if call.tools:
            content, tool_calls, is_malformed = self._tools.read(
                text, self._num_tool_calls
            )
            self._num_tool_calls += len(tool_calls)
        log_probs = sampled.log_probs[:count]
        if prompt.segment == len(self.segments):
            self.segments.append([])
        known = max((num_equal(x, prompt.ids) for x in self.segments), default=0)
        self.num_reread += max(0, num_read - (len(prompt.ids) - known))
        self.segments[prompt.segment] = [*prompt.ids, *tokens.tolist()]
        self._num_tokens += len(prompt.ids) - prompt.num_known + count
        self.calls.append(
            Call(prompt, tokens, log_probs, not is_stopped, not is_malformed)
        )
        self._sampled.append(
            SampledReply(prompt.ids, tokens.tolist(), content, tool_calls)
        )
        pairs = None
        if call.wants_logprobs:
            texts = self._tokenizer.spell(tokens)
            pairs = tuple(zip(texts, log_probs.tolist(), strict=True))
        ids = call.wants_token_ids
        reason = LENGTH if not is_stopped else TOOL_CALLS if tool_calls else STOP
        return ChatAnswer(
            content,
            tuple(tool_calls),
            reason,
            prompt_tokens=len(prompt.ids),
            completion_tokens=count,
            token_ids=tuple(tokens.tolist()) if ids else None,
            prompt_token_ids=tuple(prompt.ids) if ids else None,
            logprobs=pairs,
        )

    @property
    def last_sampled(self) -> SampledReply:
        """The last reply, as later calls repeat it."""
        return self._sampled[-1]

    def sort(self) -> None:
        """Put the calls in the order of their tokens, whatever came first.

        The last one has the reward.
        """
        reward = sum(call.reward for call in self.calls)
        self.calls.sort(key=lambda x: (list(x.prompt.ids), x.tokens.tolist()))
        numbers: dict[int, int] = {}
        for call in self.calls:
            number = numbers.setdefault(call.prompt.segment, len(numbers))
            call.prompt = dataclasses.replace(call.prompt, segment=number)
            call.reward = 0.0
        self.calls[-1].reward = reward

    def _cut(
        self, sampled: SampledTokens, stop: Sequence[str]
    ) -> tuple[np.ndarray, str, bool]:
        """Tokens up to a stop text, the text before it, and whether the reply ended."""
        spelled = self._tokenizer.token_bytes
        # A model may have more ids than its tokenizer: they spell nothing.
        pieces = [spelled[i] if i < len(spelled) else b"" for i in sampled.tokens]
        written = b"".join(pieces)
        found = [(written.find(x.encode()), len(x.encode())) for x in stop]
        place, length = min((x for x in found if x[0] >= 0), default=(None, 0))
        if place is None:
            text = written.decode("utf-8", "replace")
            return sampled.tokens, text, sampled.is_stopped
        ends = np.cumsum([len(piece) for piece in pieces])
        count = int(np.searchsorted(ends, place + length)) + 1
        return sampled.tokens[:count], written[:place].decode("utf-8", "replace"), True


def _exhausted(what: str) -> CallRefused:
    return CallRefused(
        f"the episode has used up {what}; return from it",
        HTTPStatus.TOO_MANY_REQUESTS,
        BUDGET_EXHAUSTED,
    )


@dataclasses.dataclass(frozen=True)
class Played:
    """An episode that has ended.

    Attributes:
      calls: see `CallEpisode`.
      penalty: of a turn whose reply was of no use.
      terminated, success: of the game.
      is_lost: the game failed: nothing is learned from the episode.
    """

    calls: Sequence[Call]
    penalty: float
    terminated: bool
    success: bool
    is_lost: bool


def to_trajectory(
    episodes: Sequence[Played], limits: CallLimits, num_actions: int
) -> dict[str, Any]:
    """The fields of a `Trajectory` that calls decide, as NumPy arrays.

    With a single segment the dialogue is what the model saw: there are no windows.

    Args:
      episodes: a row each.
      num_actions: `A`, of the arrays.
    """
    num_rows, num_turns = len(episodes), limits.max_calls
    shape, by_turn = (num_rows, limits.episode_tokens), (num_rows, num_turns)
    tokens, turn_index = np.zeros(shape, np.int32), np.full(shape, -1, np.int32)
    loss_mask, log_probs = np.zeros(shape, bool), np.zeros(shape, np.float32)
    lengths = np.zeros(num_rows, np.int32)
    turns = _empty_turns(by_turn, num_actions)
    windows = Windows(
        tokens=np.zeros(
            (num_rows, limits.max_segments, limits.context_tokens), np.int32
        ),
        lengths=np.zeros((num_rows, limits.max_segments), np.int32),
        reply_start=np.zeros(by_turn, np.int32),
        of_turn=np.zeros(by_turn, np.int32),
    )
    for row, episode in enumerate(episodes):
        end = 0
        for turn, call in enumerate(episode.calls):
            ids, reply = call.prompt.ids, call.tokens
            new = ids[call.prompt.num_known :]
            begin, start, end = end, end + len(new), end + len(new) + len(reply)
            tokens[row, begin:start], tokens[row, start:end] = new, reply
            turn_index[row, begin:end] = turn
            loss_mask[row, start:end] = not episode.is_lost
            log_probs[row, start:end] = call.log_probs
            _record_turn(turns, row, turn, call, start, episode.penalty)
            window = row, call.prompt.segment
            whole = len(ids) + len(reply)
            windows.tokens[window][:whole] = [*ids, *reply]
            windows.lengths[window] = whole
            windows.reply_start[row, turn] = len(ids)
            windows.of_turn[row, turn] = call.prompt.segment
        lengths[row] = end
    terminated = np.array([x.terminated for x in episodes])
    return {
        "tokens": tokens,
        "lengths": lengths,
        "loss_mask": loss_mask,
        "turn_index": turn_index,
        "sample_log_probs": log_probs,
        "turns": turns,
        "terminated": terminated,
        "truncated": ~terminated,
        "success": np.array([x.success for x in episodes]),
        "windows": windows if limits.max_segments > 1 else None,
    }


def _empty_turns(shape: tuple[int, int], num_actions: int) -> Turns:
    """Like `transcript.empty_turns`, on the host."""
    arrays = jax.eval_shape(lambda: empty_turns(*shape, num_actions))
    turns = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), arrays)
    turns.actions[:] = -1
    return turns


def _record_turn(
    turns: Turns, row: int, turn: int, call: Call, start: int, penalty: float
) -> None:
    """Enter a call into the records of its row; it is one action of the game."""
    is_good = call.valid and call.has_format
    values = {
        "played": True,
        "reward": call.reward,
        "penalty": 0.0 if is_good else penalty,
        "reply_start": start,
        "reply_length": len(call.tokens),
        "reply_is_cut": call.is_cut,
        "has_format": call.has_format,
        "num_listed": 1,
        "num_valid": is_good,
        "num_executed": 1,
        "num_effective": call.valid,
        "actions_left": turns.played.shape[1] - turn,
        "state_hash": state_hash(call.prompt.ids),
    }
    for name, value in values.items():
        getattr(turns, name)[row, turn] = value
    turns.actions[row, turn, 0] = 0
