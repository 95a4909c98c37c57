"""A batch whose rows read and reply when they please.

In: a prompt and a key per row, at any time. Out: the row's reply. Rows join and leave
the batch between chunks of decoding: none waits until another's turn has ended. What a
row samples does not depend on who else is in the batch, nor on when it came: shapes are
fixed, every token has its own key, and rows share nothing but the weights.

The key-value cache keeps what a row has read and written; a prompt is read from the
first token on that the cache does not have.
"""

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from ragen_jax.devices.sharding import num_row_shards, platform_of
from ragen_jax.models.kv_cache import init_cache
from ragen_jax.models.policy import Policy
from ragen_jax.rollout.collect import GivenSettings, make_decoding
from ragen_jax.rollout.decode import Context, Decoding, decode_step, read_in_chunks
from ragen_jax.rollout.layout import RowLayout
from ragen_jax.rollout.sampling import Sampler
from ragen_jax.rollout.turns import EpisodeLimits
from ragen_jax.text.dialogue import Dialogue, Endings
from ragen_jax.types import Params, TokenSpan

# Rows that a pass reads prompts of. Most prompts come one or two at a time, and a CPU
# computes the places of a pass that stay empty, too.
READ_ROWS, CPU_READ_ROWS = 8, 2
# Seconds that an idle batch waits for more rows after the first.
GATHER_SECONDS = 0.002


@struct.dataclass
class Writing:
    """The rows of a batch.

    Attributes:
      context: what each row has read, its reply included.
      starts, limits: tokens before each reply, and tokens that it may have.
      temperatures, top_ps: of sampling.
      keys: of each reply; token `i` is drawn with `fold_in(key, i)`.
      tokens, log_probs, lengths: the replies so far.
      is_writing: the row wants another token.
      is_stopped: a stop token ended the reply.
    """

    context: Context
    starts: Int[Array, " B"]
    limits: Int[Array, " B"]
    temperatures: Float[Array, " B"]
    top_ps: Float[Array, " B"]
    keys: Key[Array, " B"]
    tokens: Int[Array, "B R"]
    log_probs: Float[Array, "B R"]
    lengths: Int[Array, " B"]
    is_writing: Bool[Array, " B"]
    is_stopped: Bool[Array, " B"]


@struct.dataclass
class Joining:
    """Prompts of some rows of a batch.

    Attributes:
      rows: their numbers on their device, and for no row the number of rows there.
      prompt: what the cache does not have yet.
      starts: tokens that it has.
      limits, temperatures, top_ps, keys: as in `Writing`.
    """

    rows: Int[Array, " n"]
    prompt: TokenSpan
    starts: Int[Array, " n"]
    limits: Int[Array, " n"]
    temperatures: Float[Array, " n"]
    top_ps: Float[Array, " n"]
    keys: Key[Array, " n"]


@dataclasses.dataclass(frozen=True)
class SampledTokens:
    """A reply as it was sampled.

    Attributes:
      tokens, log_probs: of every sampled token.
      is_stopped: a stop token ended it, not the limit.
    """

    tokens: Int[np.ndarray, " n"]
    log_probs: Float[np.ndarray, " n"]
    is_stopped: bool


class RowPrograms:
    """The compiled programs of batches of `num_rows` rows.

    Args:
      policy: who replies.
      rules: of replies.
      layout: of the rows over devices.
      num_rows: of a batch.
      context_tokens: most tokens that a row holds, its reply included.
      read_tokens: of a prompt that a pass reads.
      has_top_p: rows may have a `top_p` of their own.
      decoding: see `make_responder`.
    """

    def __init__(
        self,
        policy: Policy,
        rules: EpisodeLimits,
        layout: RowLayout,
        *,
        num_rows: int,
        context_tokens: int,
        read_tokens: int,
        has_top_p: bool = False,
        **decoding: float | None,
    ):
        self._has_top_p = has_top_p
        self.num_rows, self.context_tokens = num_rows, context_tokens
        self.num_devices = num_row_shards(layout.mesh)
        self.device_rows = num_rows // self.num_devices
        # On each device.
        is_cpu = platform_of(layout.mesh) == "cpu"
        self.num_read = min(CPU_READ_ROWS if is_cpu else READ_ROWS, self.device_rows)
        # A pass writes whole chunks, and rows that do not write need a free slot.
        self._read_tokens = read_tokens
        self._slots = context_tokens + read_tokens + 1
        make = make_decoding(
            policy, rules, layout, read_chunk_tokens=read_tokens, **decoding
        )
        self._policy, self._num_tokens = policy, rules.max_reply_tokens

        def start(params, dialogue, given, keys) -> Writing:
            del params
            return self._start(make(dialogue, given), keys)

        def join(params, dialogue, given, writing, joining) -> Writing:
            return self._join(params, make(dialogue, given), writing, joining)

        def write(params, dialogue, given, writing) -> Writing:
            return self._write(params, make(dialogue, given), writing)

        def over_rows(function: Callable) -> Callable:
            return layout.over_rows(function, num_replicated=3)

        self.start = jax.jit(over_rows(start))
        # The cache stays where it is.
        self.join = jax.jit(over_rows(join), donate_argnums=3)
        self.write = jax.jit(over_rows(write), donate_argnums=3)

    @property
    def prompt_tokens(self) -> int:
        """Width of the prompts of `join`: whole passes."""
        return -(-self.context_tokens // self._read_tokens) * self._read_tokens

    def _start(self, decoding: Decoding, keys: Key[Array, " B"]) -> Writing:
        config, num_rows = self._policy.config, keys.shape[0]
        dtype, layout = self._policy.dtype, {"slots_last": not decoding.has_kernel}
        no, shape = jnp.zeros(num_rows, bool), (num_rows, self._num_tokens)
        zeros = jnp.zeros(num_rows, jnp.int32)
        cache = init_cache(config, num_rows, self._slots, dtype, **layout)
        return Writing(
            context=Context(
                # Other rows come and go: none may change a row's sums.
                cache.replace(reads_all=True),
                jnp.zeros((num_rows, config.hidden_size), dtype),
            ),
            starts=zeros,
            limits=zeros,
            temperatures=jnp.ones(num_rows, jnp.float32),
            top_ps=jnp.ones(num_rows, jnp.float32),
            keys=keys,
            tokens=jnp.zeros(shape, jnp.int32),
            log_probs=jnp.zeros(shape, jnp.float32),
            lengths=zeros,
            is_writing=no,
            is_stopped=no,
        )

    def _join(
        self, params: Params, decoding: Decoding, writing: Writing, joining: Joining
    ) -> Writing:
        params = self._policy.cast_params(params)
        rows = joining.rows
        some = jax.tree.map(lambda x: x.at[rows].get(mode="clip"), writing.context)
        how = joining.prompt, joining.starts, decoding
        some = read_in_chunks(self._policy, params, some, *how)

        def put(x: Array, new: Array) -> Array:
            return x.at[rows].set(new, mode="drop")

        return writing.replace(
            context=jax.tree.map(put, writing.context, some),
            starts=put(writing.starts, joining.starts + joining.prompt.length),
            limits=put(writing.limits, joining.limits),
            temperatures=put(writing.temperatures, joining.temperatures),
            top_ps=put(writing.top_ps, joining.top_ps),
            keys=put(writing.keys, joining.keys),
            lengths=put(writing.lengths, jnp.zeros_like(rows)),
            is_writing=put(writing.is_writing, joining.limits > 0),
            is_stopped=put(writing.is_stopped, jnp.zeros_like(rows, bool)),
        )

    def _write(self, params: Params, decoding: Decoding, writing: Writing) -> Writing:
        params = self._policy.cast_params(params)
        rows = jnp.arange(writing.lengths.shape[0])

        def token(_, now: Writing) -> Writing:
            keys = jax.vmap(jax.random.fold_in)(now.keys, now.lengths)
            position = now.starts + now.lengths
            context, tokens, log_probs = decode_step(
                self._policy,
                params,
                now.context,
                position,
                keys,
                sampler=functools.partial(
                    _sample, decoding.sampler, self._has_top_p, now
                ),
            )
            is_stop = jnp.any(tokens[:, None] == decoding.stop_tokens[None], axis=1)
            is_stop &= now.is_writing
            # Rows that do not write put theirs nowhere.
            column = jnp.where(now.is_writing, now.lengths, self._num_tokens)
            lengths = now.lengths + now.is_writing.astype(jnp.int32)
            return now.replace(
                context=context,
                tokens=now.tokens.at[rows, column].set(tokens, mode="drop"),
                log_probs=now.log_probs.at[rows, column].set(log_probs, mode="drop"),
                lengths=lengths,
                is_writing=now.is_writing & ~is_stop & (lengths < now.limits),
                is_stopped=now.is_stopped | is_stop,
            )

        return jax.lax.fori_loop(0, decoding.chunk_tokens, token, writing)


def _sample(
    sampler: Sampler,
    has_top_p: bool,
    now: Writing,
    keys: Key[Array, " B"],
    logits: Float[Array, "B V"],
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """Draw a token of every row, by its own temperature and `top_p`."""
    plain = functools.partial(sampler, keys, logits, temperature=now.temperatures)
    if not has_top_p:
        return plain()
    # Few ask for it, and it reads the vocabulary 31 times.
    return jax.lax.cond(
        jnp.any(now.is_writing & (now.top_ps < 1)),
        lambda: plain(top_p=now.top_ps),
        plain,
    )


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How a reply is sampled.

    Attributes:
      key: token `i` is drawn with `fold_in(key, i)`.
      temperature, top_p: see `sampling.sample`; `top_p` needs `RowPrograms` for it.
    """

    key: Key[Array, ""]
    temperature: float
    top_p: float = 1.0


@dataclasses.dataclass
class _Waiting:
    """A row that waits to join the batch."""

    row: int
    prompt: Sequence[int]
    start: int
    limit: int
    sampling: Sampling
    reply: asyncio.Future


class RowDecoder:
    """A batch of rows that reply when they are asked.

    Args:
      programs: of its number of rows.
      fixed: parameters, the dialogue (or `Endings` alone) and settings.
      keys: any key per row, for their form.
    """

    def __init__(
        self,
        programs: RowPrograms,
        fixed: tuple[Params, Dialogue | Endings, GivenSettings],
        keys: Key[Array, " B"],
    ):
        self._programs, self._fixed = programs, fixed
        self._writing = programs.start(*fixed, keys)
        self._waiting: list[_Waiting] = []
        self._replies: dict[int, asyncio.Future] = {}
        # What each row's cache holds.
        self._held: list[list[int]] = [[] for _ in range(programs.num_rows)]
        self._arrived = asyncio.Event()

    async def reply(
        self,
        row: int,
        prompt: Sequence[int],
        limit: int,
        sampling: Sampling,
        *,
        is_alone: bool,
    ) -> tuple[SampledTokens, int]:
        """The reply of a row, of at most `limit` tokens, and how many tokens were read.

        Args:
          prompt: all tokens before the reply. A row replies to one prompt at a time.
          is_alone: read the whole prompt, whatever the row has read before.
        """
        held = [] if is_alone else self._held[row]
        start = min(num_equal(held, prompt), len(prompt) - 1)
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(
            _Waiting(row, prompt[start:], start, limit, sampling, future)
        )
        self._arrived.set()
        written: SampledTokens = await future
        self._held[row] = [*prompt, *written.tokens.tolist()]
        return written, len(prompt) - start

    def num_held(self, row: int, prompt: Sequence[int]) -> int:
        """Tokens at the beginning of a prompt that a row need not read again."""
        return num_equal(self._held[row], prompt)

    async def run(self) -> None:
        """Serve the rows until cancelled."""
        while True:
            if not self._replies and not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
                await asyncio.sleep(GATHER_SECONDS)
            while self._waiting:
                some = self._next()
                await asyncio.to_thread(self._join, some)
                self._replies |= {x.row: x.reply for x in some.values()}
            for row, written in (await asyncio.to_thread(self._write)).items():
                reply = self._replies.pop(row)
                # The row's episode may have been given up.
                if not reply.cancelled():
                    reply.set_result(written)

    def _next(self) -> dict[int, _Waiting]:
        """Rows that join next, by their places in the pass that reads their prompts.

        A row's place is always the same: a product of matrices may round the rows of
        its last block otherwise than the others.
        """
        programs, some, others = self._programs, {}, []
        for x in self._waiting:
            device, row = divmod(x.row, programs.device_rows)
            place = device * programs.num_read + row % programs.num_read
            if place in some:
                others.append(x)
            else:
                some[place] = x
        self._waiting = others
        return some

    def _join(self, some: Mapping[int, _Waiting]) -> None:
        programs = self._programs
        count = programs.num_read * programs.num_devices
        prompts = np.zeros((count, programs.prompt_tokens), np.int32)
        numbers = np.zeros((4, count), np.int32)
        numbers[0] = programs.device_rows
        for i, x in some.items():
            prompts[i, : len(x.prompt)] = x.prompt
            row = x.row % programs.device_rows
            numbers[:, i] = row, len(x.prompt), x.start, x.limit
        rows, lengths, starts, limits = numbers
        first = next(iter(some.values()))
        sampled = [some.get(i, first).sampling for i in range(count)]
        keys = jnp.stack([x.key for x in sampled])
        temperatures = np.array([x.temperature for x in sampled], np.float32)
        top_ps = np.array([x.top_p for x in sampled], np.float32)
        options = limits, temperatures, top_ps, keys
        joining = Joining(rows, TokenSpan(prompts, lengths), starts, *options)
        self._writing = programs.join(*self._fixed, self._writing, joining)

    def _write(self) -> dict[int, SampledTokens]:
        """Write a chunk; the replies that have ended, by their rows."""
        self._writing = now = self._programs.write(*self._fixed, self._writing)
        is_writing = np.asarray(now.is_writing)
        done = [row for row in self._replies if not is_writing[row]]
        if not done:
            return {}
        on_host = (now.tokens, now.log_probs, now.lengths, now.is_stopped)
        # Copies: the next chunk takes the arrays' memory.
        tokens, log_probs, lengths, is_stopped = map(np.array, on_host)
        return {
            row: SampledTokens(
                tokens[row, : lengths[row]],
                log_probs[row, : lengths[row]],
                bool(is_stopped[row]),
            )
            for row in done
        }


def num_equal(x: Sequence[int], y: Sequence[int]) -> int:
    """Tokens at the beginning that both have."""
    pairs = enumerate(zip(x, y, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(x), len(y)))
