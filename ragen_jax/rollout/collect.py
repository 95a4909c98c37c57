"""Whole episodes in one compiled program: render, read, reply, parse, step.

In: parameters, a dialogue (text as token tables), random keys. Out: a `Trajectory`. A
`Responder` replies: the policy, or a scripted demonstrator in supervised fine-tuning;
both play through `play_episodes`.

Rows never influence each other: every row has separate keys, and finished rows are
masked, not removed. Shapes are static. The turns are a loop that ends once every row
has finished; each part of a turn is compiled once, however many turns there are.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Key

from envs.base import EnvParams, TextEnvironment
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
from ragen_jax.rollout.keys import RolloutKeys, fold_turn, spread_levels
from ragen_jax.rollout.layout import RowLayout
from ragen_jax.rollout.parts import CollectInParts, groups_per_part
from ragen_jax.rollout.sampling import check_options, sample
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
from ragen_jax.sharding import kernel_platform
from ragen_jax.text.dialogue import Dialogue
from ragen_jax.types import EnvState, Params, TokenSpan, Trajectory

# The compiled rollouts of a task.
Collect = Callable[[Params, Dialogue, RolloutKeys], Trajectory]


class Rollouts(NamedTuple):
    """Rollouts of a task by a policy.

    Attributes:
      collect: `(params, dialogue, keys) -> Trajectory`, compiled once.
      keys: random keys of a rollout, from a step's key in training, from the number of
        the sample in validation.
    """

    collect: Collect
    keys: Callable[..., RolloutKeys]

    def play(
        self, params: Params, dialogue: Dialogue, which: Key[Array, ""] | int
    ) -> Trajectory:
        """The rollout whose keys `which` gives."""
        return self.collect(params, dialogue, self.keys(which))


def make_collect(
    env: TextEnvironment,
    env_params: EnvParams,
    policy: Policy,
    *,
    mesh: Mesh,
    num_groups: int,
    group_size: int,
    rules: EpisodeLimits,
    part_rows: int | None = None,
    **decoding: float | None,
) -> Collect:
    """Compile-once rollouts of the policy.

    Args:
      mesh: rows are split over its axes `ROW_AXES`; each device plays its own rows.
      num_groups, group_size: `G` and `N`; rows of a group play the same level.
      rules: of an episode.
      part_rows: see `parts.groups_per_part`.
      decoding: see `make_responder`.

    Returns:
      `collect(params, dialogue, keys) -> Trajectory` with `G * N` rows: jitted, or a
      `CollectInParts`. Both have `lower`.

    Raises:
      ValueError: the rows cannot be split over the mesh, or an option is out of range.
    """
    part_groups = groups_per_part(part_rows, mesh, num_groups, group_size)
    layout = RowLayout(mesh, part_groups, group_size)
    respond = make_responder(policy, rules, layout, **decoding)

    def play(params: Params, dialogue: Dialogue, keys: RolloutKeys) -> Trajectory:
        return play_episodes(
            env,
            env_params,
            dialogue,
            respond(params, dialogue),
            keys,
            rules=rules,
            any_row=layout.any_row,
        )

    # Parameters and dialogue are on every device, keys are split by rows.
    play = layout.over_rows(play, num_replicated=2)
    collect = jax.jit(
        lambda params, dialogue, keys: play(
            # Outside the split: a device may hold part of a group.
            params,
            dialogue,
            spread_levels(keys, group_size),
        )
    )
    if part_groups == num_groups:
        return collect
    sizes = {"num_groups": num_groups, "group_size": group_size}
    return CollectInParts(collect, **sizes, part_groups=part_groups, mesh=mesh)


def make_responder(
    policy: Policy,
    rules: EpisodeLimits,
    layout: RowLayout,
    *,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    decode_chunk_tokens: int,
    compactions: int | None = None,
    read_chunk_tokens: int | None = None,
    decode_attention: str = "auto",
) -> Callable[[Params, Dialogue], Responder]:
    """Builds `(params, dialogue) -> Responder`.

    Args:
      policy, rules, layout: who replies, how long, in which rows.
      temperature, top_k, top_p: see `ragen_jax.rollout.sampling.sample`.
      decode_chunk_tokens, compactions, read_chunk_tokens: see `decode.Decoding`
        (`chunk_tokens` there).
      decode_attention: see `kernels.decode.uses_kernel`.

    Raises:
      ValueError: an option is out of range, or cannot run on these devices.
    """
    check_options(temperature=temperature, top_k=top_k, top_p=top_p)
    has_kernel = uses_kernel(
        decode_attention,
        policy.config.head_dim,
        kernel_platform(layout.mesh),
        layout.mesh.shape["tensor"],
    )
    sampler = functools.partial(
        sample, temperature=temperature, top_k=top_k, top_p=top_p
    )

    def make(params: Params, dialogue: Dialogue) -> Responder:
        return model_responder(
            policy,
            params,
            Decoding(
                sampler=sampler,
                stop_tokens=dialogue.stop_tokens,
                max_reply_tokens=rules.max_reply_tokens,
                chunk_tokens=decode_chunk_tokens,
                compactions=compactions,
                any_row=layout.any_row,
                read_chunk_tokens=read_chunk_tokens,
                has_kernel=has_kernel,
                text_end=dialogue.text_end,
            ),
            rows_per_level=layout.rows_per_level,
        )

    return make


def model_responder(
    policy: Policy,
    params: Params,
    decoding: Decoding,
    *,
    rows_per_level: int = 1,
) -> Responder:
    """The policy as a `Responder`, with its KV cache as the carry.

    Args:
      decoding: of prompts and replies.
      rows_per_level: adjacent rows that play the same level; their common first message
        is read once.
    """
    # Once, not at each of a rollout's thousands of steps.
    params = policy.cast_params(params)

    def init(num_rows: int, slots: int = 0) -> Context:
        width = policy.config.hidden_size
        return Context(
            cache=init_cache(
                policy.config,
                num_rows,
                slots,
                policy.dtype,
                slots_last=not decoding.has_kernel,
            ),
            hidden=jnp.zeros((num_rows, width), policy.dtype),
        )

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

    def read_first(span: TokenSpan) -> Context:
        # Rows of a level read the same first message: one of them reads it for all.
        once = jax.tree.map(lambda x: x[::rows_per_level], span)
        empty = init(*once.tokens.shape)
        context = read_from(empty, once, jnp.zeros_like(once.length))
        return jax.tree.map(lambda x: jnp.repeat(x, rows_per_level, axis=0), context)

    def reply(context, starts, states, keys, turn, is_active):
        del states, turn
        return decode_reply(policy, params, context, starts, is_active, keys, decoding)

    return Responder(init=init, observe=observe, reply=reply)


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
    reset = functools.partial(context.env.reset_split, split=keys.split)
    states = jax.vmap(reset, (0, None))(keys.level, context.env_params)
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
