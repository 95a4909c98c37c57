"""A policy behind the API that agents call, for any program that speaks it.

In: the weights of a run or of a folder. Out: an `ApiServer` whose calls the compiled
decoder answers, several at once (`rollout/host/row_decoder.py`). Calls are written and
replies read as in training (`rollout/host/calls.py`): the tokens are the same.
"""

import asyncio
import collections
import dataclasses
import functools
import itertools
import threading

import jax
import numpy as np

from envs.base import PlayBudget
from ragen_jax.devices.sharding import make_mesh
from ragen_jax.host_games.agent.api import ApiServer
from ragen_jax.host_games.agent.calls import ChatAnswer, ChatCall
from ragen_jax.host_games.agent.tools import TOOL_FORMATS
from ragen_jax.models.policy import Policy
from ragen_jax.rollout.collect import GivenSettings
from ragen_jax.rollout.host.calls import CallEpisode, CallLimits
from ragen_jax.rollout.host.row_decoder import RowDecoder, RowPrograms, Sampling
from ragen_jax.rollout.layout import RowLayout
from ragen_jax.rollout.numbers import rollout_numbers
from ragen_jax.rollout.turns import EpisodeLimits
from ragen_jax.text.calls import CallWriter
from ragen_jax.text.dialogue import find_endings
from ragen_jax.text.tokenizer import Tokenizer
from ragen_jax.types import Params

# Replies that later calls may repeat by their tokens.
NUM_REMEMBERED = 1_000
# Tokens between two looks at who has come and who has ended, and those that a pass of a
# prompt reads.
CHUNK_TOKENS, READ_TOKENS = 8, 64


@dataclasses.dataclass(frozen=True)
class ServedPolicy:
    """A policy and its words.

    Attributes:
      name: of the model, in the API.
      policy, params: the network.
      tokenizer: its own.
    """

    name: str
    policy: Policy
    params: Params
    tokenizer: Tokenizer


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class PolicyServer:
    """Answers calls by a policy from its making until `close`.

    Args:
      served: the policy.
      host, port: see `ApiServer`.
      max_calls: that are answered at the same time; others wait.
      context_tokens: of a call and its reply.
      max_reply_tokens: of a reply.
      seed: of the samples; a call's own `seed` goes before it.
    """

    def __init__(
        self,
        served: ServedPolicy,
        *,
        host: str,
        port: int,
        max_calls: int,
        context_tokens: int,
        max_reply_tokens: int,
        seed: int = 0,
    ):
        tokenizer = served.tokenizer
        self._served, self._write = served, CallWriter(tokenizer)
        self._tools = TOOL_FORMATS[self._write.tool_format]
        self._limits = CallLimits(
            max_calls=1,
            max_reply_tokens=max_reply_tokens,
            context_tokens=context_tokens,
            episode_tokens=context_tokens,
            max_segments=1,
        )
        self._recent = collections.deque(maxlen=NUM_REMEMBERED)
        self._key, self._numbers = jax.random.key(seed), itertools.count(1)
        self._decoder = self._make_decoder(max_calls)
        self._free = set(range(max_calls))
        self._loop = asyncio.new_event_loop()
        self._is_free = asyncio.Condition()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._running = asyncio.run_coroutine_threadsafe(
            self._decoder.run(), self._loop
        )
        self._api = ApiServer(self._complete, model=served.name, host=host, port=port)

    @property
    def url(self) -> str:
        """What clients call the base URL."""
        return self._api.url

    def serve_forever(self) -> None:
        """Return only by an error of the decoder."""
        self._running.result()

    def server_close(self) -> None:
        """Answer no more calls."""
        self._api.close()
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _make_decoder(self, num_rows: int) -> RowDecoder:
        mesh, limits = make_mesh(data=1, fsdp=1, tensor=1), self._limits
        rules = EpisodeLimits(PlayBudget(1, 1, 1), limits.max_reply_tokens)
        programs = RowPrograms(
            self._served.policy,
            rules,
            RowLayout(mesh, 1),
            num_rows=num_rows,
            context_tokens=limits.context_tokens,
            read_tokens=READ_TOKENS,
            has_top_p=True,
            decode_chunk_tokens=CHUNK_TOKENS,
        )
        sampling = {"temperature": 1.0, "top_k": None, "top_p": None}
        given = GivenSettings(None, rollout_numbers(rules, **sampling), None)
        fixed = self._served.params, find_endings(self._served.tokenizer), given
        return RowDecoder(programs, fixed, jax.random.split(self._key, num_rows))

    def _complete(self, call: ChatCall) -> ChatAnswer:
        """The reply to a call; in the thread of its connection."""
        episode = CallEpisode(
            self._write,
            self._served.tokenizer,
            self._tools,
            self._limits,
            tuple(self._recent),
        )
        prompt = episode.prompt(call)
        key = self._key_of(call)
        sampling = Sampling(
            key,
            1.0 if call.temperature is None else call.temperature,
            1.0 if call.top_p is None else call.top_p,
        )
        reply = self._reply(prompt.ids, prompt.limit, sampling)
        sampled, num_read = asyncio.run_coroutine_threadsafe(reply, self._loop).result()
        answer = episode.answer(call, prompt, sampled, num_read)
        self._recent.append(episode.last_sampled)
        return answer

    def _key_of(self, call: ChatCall):
        if call.seed is not None:
            return jax.random.key(call.seed % 2**32)
        # Calls come in several threads; no two get one number.
        number = next(self._numbers) % 2**32
        return jax.random.fold_in(self._key, np.uint32(number))

    async def _reply(self, prompt, limit: int, sampling: Sampling):
        async with self._is_free:
            await self._is_free.wait_for(lambda: self._free)
            # The row that has read most of the dialogue.
            held = functools.partial(self._decoder.num_held, prompt=prompt)
            row = max(self._free, key=lambda row: (held(row), -row))
            self._free.remove(row)
        try:
            return await self._decoder.reply(
                row, prompt, limit, sampling, is_alone=False
            )
        finally:
            async with self._is_free:
                self._free.add(row)
                self._is_free.notify()
