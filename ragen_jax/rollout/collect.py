"""Whole episodes in one compiled program: render, read, reply, parse, step.

In: parameters, a dialogue (text as token tables), random keys. Out: a `Trajectory`. A
`Responder` replies: the policy, or a scripted demonstrator in supervised fine-tuning;
both play through `play_episodes`.

Rows never influence each other: every row has separate keys, and finished rows are
masked, not removed. Shapes are static. The turns are a loop that ends once every row
has finished; each part of a turn is compiled once, however many turns there are.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Key

from envs.base import EnvParams, TextEnvironment
from ragen_jax.devices.sharding import kernel_platform
from ragen_jax.models.kernels.decode import uses_kernel
from ragen_jax.models.kv_cache import grow_cache, init_cache
from ragen_jax.models.policy import Policy
from ragen_jax.rollout.context import empty_window
from ragen_jax.rollout.decode import (
    AnyRow,
    Context,
    Decoding,
    decode_reply,
    read_in_chunks,
)
from ragen_jax.rollout.keys import RolloutKeys, fold_turn
from ragen_jax.rollout.layout import RowLayout, check_rows
from ragen_jax.rollout.numbers import RolloutNumbers, rollout_numbers
from ragen_jax.rollout.parts import (
    cut_rows,
    is_one_cpu,
    join_rows,
    rows_per_part,
    run_parts,
)
from ragen_jax.rollout.sampling import sample
from ragen_jax.rollout.transcript import empty_transcript, empty_turns
from ragen_jax.rollout.turns import (
    EpisodeLimits,
    Play,
    Responder,
    RolloutContext,
    act,
    continue_episodes,
    get_reply,
    open_episodes,
    step_env,
    to_trajectory,
)
from ragen_jax.text.dialogue import Dialogue, Endings
from ragen_jax.types import EnvState, Images, Params, TokenSpan, Trajectory


class Rollouts(NamedTuple):
    """Rollouts of a task by a policy.

    Attributes:
      collect: a `Collect`, or a `HostCollector`.
      keys: random keys of a rollout, from a step's key in training, from the number of
        the sample in validation.
    """

    collect: Callable[[Params, Dialogue, RolloutKeys], Trajectory]
    keys: Callable[..., RolloutKeys]

    def play(
        self, params: Params, dialogue: Dialogue, which: Key[Array, ""] | int
    ) -> Trajectory:
        """The rollout whose keys `which` gives."""
        return self.collect(params, dialogue, self.keys(which))


@struct.dataclass
class GivenSettings:
    """What a rollout reads beside the policy, the dialogue and its keys; all data.

    Attributes:
      env_params: of the game.
      numbers: of the rollout.
      shares_levels: the rows of a group play the same level; False: every row its own.
        None: they do in this program, which takes less memory.
      images: those that tokens name; None: they name none.
    """

    env_params: EnvParams
    numbers: RolloutNumbers
    shares_levels: Bool[Array, ""] | None
    images: Images | None = None

    def for_evaluation(self, temperature: float, vocab_size: int) -> "GivenSettings":
        """These settings, but every row plays a level of its own, untruncated."""
        return self.replace(
            numbers=self.numbers.untruncated(temperature, vocab_size),
            shares_levels=None if self.shares_levels is None else np.bool_(False),
        )


def given_settings(
    env_params: EnvParams, rules: EpisodeLimits, mesh: Mesh, **sampling: float | None
) -> GivenSettings:
    """Settings of training; `sampling`: see `rollout_numbers`.

    A single CPU plays evaluations by the same program.
    """
    shares_levels = np.bool_(True) if is_one_cpu(mesh) else None
    return GivenSettings(env_params, rollout_numbers(rules, **sampling), shares_levels)


@dataclasses.dataclass(frozen=True, eq=False)
class Collect:
    """Rollouts of the policy: `collect(params, dialogue, keys) -> Trajectory`.

    On a CPU those of training, validation, suites and single episodes share a program,
    which plays a part of the rows, see `parts`. Elsewhere every number of rows has its
    own.

    Attributes:
      compile: makes the program of groups of a size: jitted `(params, dialogue,
        GivenSettings, keys of rows) -> Trajectory`.
      program: its result.
      mesh: its devices.
      policy: who replies.
      num_groups, group_size: `G` and `N`; rows of a group play the same level.
      part_rows: rows that the program plays; None: all.
      concurrently: play several parts at a time.
      given: settings.
    """

    compile: Callable[[int], Callable[..., Trajectory]]
    program: Callable[..., Trajectory]
    mesh: Mesh
    policy: Policy
    num_groups: int
    group_size: int
    part_rows: int | None
    concurrently: bool
    given: GivenSettings

    def __call__(
        self, params: Params, dialogue: Dialogue, keys: RolloutKeys
    ) -> Trajectory:
        num_rows = self.num_groups * self.group_size
        play = functools.partial(self.program, params, dialogue, self.given)
        if self.part_rows in (None, num_rows):
            return play(self._cut(keys, 0))
        starts = range(0, num_rows, self.part_rows)
        parts = [self._cut(keys, start) for start in starts]
        rollouts = run_parts(play, parts, concurrently=self.concurrently)
        return join_rows(rollouts, num_rows, self.mesh)

    def with_numbers(self, numbers: RolloutNumbers) -> "Collect":
        """Rollouts by the same program with other numbers."""
        return dataclasses.replace(self, given=self.given.replace(numbers=numbers))

    def for_evaluation(self, num_prompts: int, temperature: float) -> "Collect":
        """Rollouts by the same program: a row a level, sampled from all tokens.

        Raises:
          ValueError: the rows cannot be split over the mesh.
        """
        check_rows(self.mesh, num_prompts)
        given = self.given.for_evaluation(temperature, self.policy.config.vocab_size)
        program = self.program
        if given.shares_levels is None and self.group_size > 1:
            program = self.compile(1)
        sizes = {"num_groups": num_prompts, "group_size": 1}
        return dataclasses.replace(self, **sizes, program=program, given=given)

    def lower(
        self, params: Params, dialogue: Dialogue, keys: RolloutKeys
    ) -> jax.stages.Lowered:
        """The program before it is compiled, from descriptions of its arrays."""
        rows = jax.eval_shape(functools.partial(self._cut, start=0), keys)
        given = jax.eval_shape(lambda: self.given)
        return self.program.lower(params, dialogue, given, rows)

    def _cut(self, keys: RolloutKeys, start: int) -> RolloutKeys:
        num_rows = self.num_groups * self.group_size
        count = num_rows if self.part_rows is None else self.part_rows
        return cut_rows(keys, start, count=count, group_size=self.group_size)


def make_collect(
    env: TextEnvironment,
    env_params: EnvParams,
    policy: Policy,
    *,
    mesh: Mesh,
    num_groups: int,
    group_size: int,
    rules: EpisodeLimits,
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    part_rows: int | None = None,
    **decoding: float | None,
) -> Collect:
    """Compile-once rollouts of the policy.

    Args:
      mesh: rows are split over its axes `ROW_AXES`; each device plays its own rows.
      num_groups, group_size: `G` and `N`; rows of a group play the same level.
      rules: of an episode.
      temperature, top_k, top_p: see `sampling.sample`.
      part_rows: see `parts.rows_per_part`.
      decoding: see `make_responder`.

    Raises:
      ValueError: the rows cannot be split over the mesh, or an option is out of range.
    """
    check_rows(mesh, num_groups * group_size)
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    compile = functools.partial(_compile, env, policy, mesh, rules, decoding)
    return Collect(
        compile=compile,
        program=compile(group_size),
        mesh=mesh,
        policy=policy,
        num_groups=num_groups,
        group_size=group_size,
        part_rows=rows_per_part(part_rows, mesh, num_groups, group_size),
        # All rows at once are as many as fit.
        concurrently=part_rows is not None,
        given=given_settings(env_params, rules, mesh, **sampling),
    )


def _compile(
    env: TextEnvironment,
    policy: Policy,
    mesh: Mesh,
    rules: EpisodeLimits,
    decoding: Mapping[str, float | None],
    group_size: int,
) -> Callable[..., Trajectory]:
    layout = RowLayout(mesh, group_size)
    respond = make_responder(policy, rules, layout, **decoding)

    def rollout(
        params: Params, dialogue: Dialogue, given: GivenSettings, keys: RolloutKeys
    ) -> Trajectory:
        return play_episodes(
            env,
            given.env_params,
            dialogue,
            respond(params, dialogue, given),
            keys,
            rules=given.numbers.put_into(rules),
            any_row=layout.any_row,
        )

    # Parameters, dialogue and settings are on every device, keys split by rows.
    return jax.jit(layout.over_rows(rollout, num_replicated=3))


def make_responder(
    policy: Policy,
    rules: EpisodeLimits,
    layout: RowLayout,
    **decoding: float | None,
) -> Callable[[Params, Dialogue, GivenSettings], Responder]:
    """Builds `(params, dialogue, settings) -> Responder`; see `make_decoding`."""
    make_how = make_decoding(policy, rules, layout, **decoding)

    def make(params: Params, dialogue: Dialogue, given: GivenSettings) -> Responder:
        return model_responder(
            policy.shown(given.images),
            params,
            make_how(dialogue, given),
            group_size=layout.group_size,
            shares_levels=given.shares_levels,
            num_common=dialogue.opening.num_common,
        )

    return make


def make_decoding(
    policy: Policy,
    rules: EpisodeLimits,
    layout: RowLayout,
    *,
    decode_chunk_tokens: int,
    compactions: int | None = None,
    read_chunk_tokens: int | None = None,
    decode_attention: str = "auto",
) -> Callable[[Dialogue | Endings, GivenSettings], Decoding]:
    """Builds `(dialogue, settings) -> Decoding`; of the dialogue its endings are read.

    Args:
      policy, rules, layout: who replies, how long, in which rows.
      decode_chunk_tokens, compactions, read_chunk_tokens: see `decode.Decoding`
        (`chunk_tokens` there).
      decode_attention: see `kernels.decode.uses_kernel`.

    Raises:
      ValueError: an option is out of range, or cannot run on these devices.
    """
    has_kernel = uses_kernel(
        decode_attention,
        policy.config.head_dim,
        kernel_platform(layout.mesh),
        layout.mesh.shape["tensor"],
    )

    def make(dialogue: Dialogue | Endings, given: GivenSettings) -> Decoding:
        numbers = given.numbers
        sampler = functools.partial(
            sample,
            temperature=numbers.temperature,
            top_k=numbers.top_k,
            top_p=numbers.top_p,
        )
        return Decoding(
            sampler=sampler,
            stop_tokens=dialogue.stop_tokens,
            max_reply_tokens=rules.max_reply_tokens,
            chunk_tokens=decode_chunk_tokens,
            compactions=compactions,
            any_row=layout.any_row,
            read_chunk_tokens=read_chunk_tokens,
            has_kernel=has_kernel,
            text_end=dialogue.text_end,
        )

    return make


def model_responder(
    policy: Policy,
    params: Params,
    decoding: Decoding,
    *,
    group_size: int = 1,
    shares_levels: Bool[Array, ""] | None = None,
    num_common: int = 0,
) -> Responder:
    """The policy as a `Responder`, with its KV cache as the carry.

    Args:
      decoding: of prompts and replies.
      group_size: adjacent rows that play the same level; their common first message is
        read once.
      shares_levels: whether they do; None: always.
      num_common: tokens with which all first messages begin.
    """
    # Once, not at each of a rollout's thousands of steps.
    params = policy.cast_params(params)

    def init(num_rows: int, slots: int = 0) -> Context:
        how = {"slots_last": not decoding.has_kernel}
        cache = init_cache(policy.config, num_rows, slots, policy.dtype, **how)
        hidden = jnp.zeros((num_rows, policy.config.hidden_size), policy.dtype)
        return Context(cache, hidden)

    def observe(context, span, starts, is_active, slots) -> Context:
        if context.cache.num_slots == 0:
            return grow(read_first(span), slots)
        # Finished rows may be too full for the span: they overwrite their start.
        starts = jnp.where(is_active, starts, 0)
        return read_from(grow(context, slots), span, starts)

    def grow(context: Context, slots: int) -> Context:
        return context.replace(cache=grow_cache(context.cache, slots))

    def read_from(context: Context, span: TokenSpan, starts) -> Context:
        return read_in_chunks(policy, params, context, span, starts, decoding)

    def read_alone(span: TokenSpan) -> Context:
        empty = init(*span.tokens.shape)
        return read_from(empty, span, jnp.zeros_like(span.length))

    def continue_common(context: Context, span: TokenSpan, is_first) -> Context:
        pieces = _in_pieces(decoding, span.tokens.shape[1], num_common)
        where = context, span, jnp.zeros_like(span.length)
        skipped = jnp.where(is_first, 0, num_common)
        return read_in_chunks(policy, params, *where, pieces, skipped)

    def read_first(span: TokenSpan) -> Context:
        num_rows = span.tokens.shape[0]
        # A device may hold part of a group.
        per_level = math.gcd(group_size, num_rows)
        if per_level == 1:
            return read_alone(span)
        if shares_levels is None:
            once = read_alone(jax.tree.map(lambda x: x[::per_level], span))
            return jax.tree.map(lambda x: jnp.repeat(x, per_level, axis=0), once)
        return read_levels(
            continue_common, init(*span.tokens.shape), span, per_level, shares_levels
        )

    def reply(context, starts, states, keys, turn, is_active):
        del states, turn
        return decode_reply(policy, params, context, starts, is_active, keys, decoding)

    return Responder(init=init, observe=observe, reply=reply)


def _in_pieces(decoding: Decoding, width: int, num_common: int) -> Decoding:
    """How first messages are read, whose first `num_common` tokens are the same.

    By the first rows in whole passes, by the others, which skip these tokens, in one.
    """
    if decoding.read_chunk_tokens is not None:
        return decoding
    chunk = -(-width // (width // (width - num_common)))
    return dataclasses.replace(decoding, read_chunk_tokens=chunk)


def read_levels(
    read: Callable[[Context, TokenSpan, Bool[Array, ""]], Context],
    context: Context,
    span: TokenSpan,
    per_level: int,
    shares_levels: Bool[Array, ""],
) -> Context:
    """The first message of every row, in passes of as many rows as there are groups.

    One pass where groups share a level: one of their rows reads for all. Both cases are
    one program.

    Args:
      read: the context after a message of some rows, given that of the first ones, and
        whether these are the first.
      context: of all rows, empty, with a slot for every token of the message.
      span: the message of every row.
      per_level: rows of a group, more than one.
      shares_levels: a group's rows read the same.
    """
    num_rows = span.tokens.shape[0]
    num_groups = num_rows // per_level
    stride = jnp.where(shares_levels, per_level, 1)

    def read_some(carry):
        begin, context = carry
        rows = (begin + jnp.arange(num_groups)) * stride
        before = jax.tree.map(lambda x: x[:num_groups], context)
        some = read(before, jax.tree.map(lambda x: x[rows], span), begin == 0)
        put = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=0)
        put_all = functools.partial(jax.tree.map, lambda x, y: put(x, y, begin))
        return begin + num_groups, put_all(context, some)

    def is_unread(carry):
        return carry[0] * stride < num_rows

    _, context = jax.lax.while_loop(is_unread, read_some, (jnp.int32(0), context))

    def spread(carry):
        """Once or never, like `send_following` of `play_episodes`."""

        def to_rows(x):
            return jnp.repeat(x[:num_groups], per_level, axis=0)

        return jnp.bool_(False), jax.tree.map(to_rows, carry[1])

    carry = jnp.asarray(shares_levels), context
    return jax.lax.while_loop(lambda carry: carry[0], spread, carry)[1]


def play_episodes(
    env: TextEnvironment,
    env_params: EnvParams,
    dialogue: Dialogue,
    responder: Responder,
    keys: RolloutKeys,
    *,
    rules: EpisodeLimits,
    any_row: AnyRow = jnp.any,
) -> Trajectory:
    """Play one episode per row, from the level to the last turn. Call it in `jit`.

    Args:
      dialogue: built for this environment and these rules.
      responder: the player.
      keys: `G` level keys, `B` row keys; rows of a group are adjacent.
      rules: of an episode.
      any_row: see `decode.AnyRow`.

    Raises:
      ValueError: the dialogue was built for another budget or reply length.
    """
    check_dialogue(dialogue, rules)
    context = RolloutContext(env, env_params, dialogue, responder, rules)
    max_turns, slots = rules.budget.max_turns, dialogue.max_window_tokens + 1
    play = start_episodes(context, keys)
    initial_state = play.states
    play = open_episodes(context, play, slots)

    def take_turn(carry):
        turn, _, play = carry
        # Keys by the turn's number, not split in turn: a row's draws are its own.
        play, reply = get_reply(context, play, turn, fold_turn(keys.sample, turn))
        step = step_env(context, fold_turn(keys.noise, turn))
        play = act(context, play, turn, reply, step)
        turn += 1
        goes_on = (turn < max_turns) & any_row(play.is_active)
        # A single turn has no next message, nor room for one.
        if max_turns > 1:
            play = send_following(turn, goes_on, play)
        return turn, goes_on, play

    def send_following(turn, goes_on, play):
        """Once or never: a loop, which keeps the cache where it is.

        XLA copies what goes through a conditional: the whole cache, twice a turn.
        """

        def send_once(carry):
            play = continue_episodes(context, carry[1], turn, slots)
            return jnp.zeros_like(goes_on), play

        return jax.lax.while_loop(lambda carry: carry[0], send_once, (goes_on, play))[1]

    first = (jnp.int32(0), any_row(play.is_active), play)
    _, _, play = jax.lax.while_loop(lambda carry: carry[1], take_turn, first)
    return to_trajectory(context, play, initial_state, keys.noise)


def start_episodes(context: RolloutContext, keys: RolloutKeys) -> Play:
    """Every row at the start of its level, before the first message.

    Args:
      context: of the rollout.
      keys: `G` level keys, `B` row keys; rows of a group are adjacent.
    """
    group_size = keys.noise.shape[0] // keys.level.shape[0]
    draw = jax.vmap(context.env.draw_level, (0, None, 0))
    states = draw(keys.level, context.env_params, keys.is_held_out)
    # One reset per group: its rows start on the same level, to be compared.
    states = jax.tree.map(lambda x: jnp.repeat(x, group_size, axis=0), states)
    return start_from(context, states)


def start_from(context: RolloutContext, states: EnvState) -> Play:
    """Rows in given states, before the first message.

    Without a dialogue and a responder in `context` the episodes record no tokens.
    """
    dialogue, responder, budget = (
        context.dialogue,
        context.responder,
        context.rules.budget,
    )
    num_rows = jax.tree.leaves(states)[0].shape[0]
    zeros = jnp.zeros(num_rows, jnp.int32)
    window, num_tokens = None, 0
    if dialogue is not None:
        window = empty_window(dialogue, num_rows, budget.max_turns)
        num_tokens = dialogue.max_trajectory_tokens
    return Play(
        states=states,
        carry=() if responder is None else responder.init(num_rows),
        num_read=zeros,
        transcript=empty_transcript(num_rows, num_tokens),
        turns=empty_turns(num_rows, budget.max_turns, budget.max_actions_per_turn),
        actions_left=zeros + budget.max_actions_per_episode,
        is_active=jnp.ones(num_rows, bool),
        feedback={"reward_hundredths": zeros, "was_invalid": zeros, "was_cut": zeros},
        window=window,
    )


def check_dialogue(dialogue: Dialogue, rules: EpisodeLimits) -> None:
    """The static bound that keeps every write inside its array."""
    budget, max_reply_tokens = rules.budget, rules.max_reply_tokens
    per_turn = dialogue.following.max_tokens + max_reply_tokens
    first = dialogue.opening.max_tokens + max_reply_tokens
    needed = first + (budget.max_turns - 1) * per_turn
    if dialogue.max_trajectory_tokens != needed:
        raise ValueError(
            f"the dialogue has room for {dialogue.max_trajectory_tokens} tokens, but "
            f"{budget.max_turns} turns of up to {max_reply_tokens} reply tokens need "
            f"{needed}; build it with this budget and reply length"
        )
