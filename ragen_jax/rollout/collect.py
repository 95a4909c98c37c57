"""Whole episodes in one compiled program: render, read, reply, parse, step.

In: parameters, a dialogue (text as token tables), random keys. Out: a `Trajectory`. Who
replies is a `Responder`: the policy here, a scripted demonstrator in the supervised
warm start; both play through `play_episodes`.

Rows never influence each other: every row reads its own keys, and finished rows are
masked, not removed. Shapes are static. The turns are a loop that ends early once every
row has finished; each part of a turn is compiled once, however many turns there are.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Int, Key

from envs.base import (
    TRAINING,
    VALIDATION,
    EnvParams,
    TextEnvironment,
)
from ragen_jax import rngs
from ragen_jax.models.kv_cache import grow_cache, init_cache
from ragen_jax.models.policy import Policy
from ragen_jax.rollout.context import empty_memory
from ragen_jax.rollout.decode import AnyRow, Context, Decoding, decode_reply, read
from ragen_jax.rollout.sampling import check_options, sample
from ragen_jax.rollout.transcript import empty_transcript, empty_turns
from ragen_jax.rollout.turns import (
    Play,
    PlayRules,
    Responder,
    RolloutContext,
    answer,
    tell_following,
    tell_opening,
)
from ragen_jax.sharding import ROW_AXES, num_row_shards, row_problems
from ragen_jax.text.dialogue import Dialogue
from ragen_jax.types import Params, TokenSpan, Trajectory


@struct.dataclass
class RolloutKeys:
    """Random keys of a rollout: `B` rows in `G` groups.

    Attributes:
      level: makes the level that the rows of a group share.
      noise: slips and payouts; folded with the turn, then the action's index.
      sample: the sampler's draws; folded with the turn, then the reply position.
      split: part of the game's levels to draw from, one of `envs.base.SPLITS`.
    """

    level: Key[Array, " G"]
    noise: Key[Array, " B"]
    sample: Key[Array, " B"]
    split: str = struct.field(pytree_node=False, default=TRAINING)


def rollout_keys(
    step_key: Key[Array, ""], num_groups: int, group_size: int
) -> RolloutKeys:
    """Keys of a rollout on training levels.

    Group `g` and row `b` get theirs whatever the sizes.
    """
    num_rows = num_groups * group_size
    return RolloutKeys(
        level=rngs.rows(rngs.stream(step_key, "level"), num_groups),
        noise=rngs.rows(rngs.stream(step_key, "noise"), num_rows),
        sample=rngs.rows(rngs.stream(step_key, "sample"), num_rows),
    )


def validation_keys(seed: int, num_prompts: int, sample: int = 0) -> RolloutKeys:
    """Keys of one sample of every validation prompt (`evaluation.seed`).

    The levels are held out from training. They are the same in every sample, the draws
    are not. Prompt `g` gets its keys whatever the number of prompts and samples.
    """
    root = rngs.stream(rngs.root_key(seed), "evaluation")
    keys = rollout_keys(rngs.sample_key(root, sample), num_prompts, 1)
    level = rngs.rows(rngs.stream(root, "level"), num_prompts)
    return keys.replace(level=level, split=VALIDATION)


def fold_turn(keys: Key[Array, " B"], turn: int | Int[Array, ""]) -> Key[Array, " B"]:
    """A turn's keys (turns from 0) from the episode's."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, turn)


def make_collect(
    env: TextEnvironment,
    env_params: EnvParams,
    policy: Policy,
    *,
    mesh: Mesh,
    num_groups: int,
    group_size: int,
    rules: PlayRules,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    decode_chunk_tokens: int,
    compactions: int | None = None,
) -> Callable[[Params, Dialogue, RolloutKeys], Trajectory]:
    """Compile-once rollouts of the policy.

    Args:
      mesh: rows are split over its axes `ROW_AXES`; each device plays its own rows.
      num_groups, group_size: `G` and `N`; rows of a group play the same level.
      rules: of an episode.
      temperature, top_k, top_p: see `ragen_jax.rollout.sampling.sample`.
      decode_chunk_tokens, compactions: see `Decoding` (`chunk_tokens` there).

    Returns:
      A jitted `collect(params, dialogue, keys) -> Trajectory` with `G * N` rows.

    Raises:
      ValueError: the rows cannot be split over the mesh, or an option is out of range.
    """
    rows_per_device = _rows_per_device(mesh, num_groups, group_size)
    check_options(temperature=temperature, top_k=top_k, top_p=top_p)
    sampler = functools.partial(
        sample, temperature=temperature, top_k=top_k, top_p=top_p
    )
    any_row = _any_row(mesh)

    def play(params: Params, dialogue: Dialogue, keys: RolloutKeys) -> Trajectory:
        responder = model_responder(
            policy,
            params,
            Decoding(
                sampler=sampler,
                stop_tokens=dialogue.stop_tokens,
                max_reply_tokens=rules.max_reply_tokens,
                chunk_tokens=decode_chunk_tokens,
                compactions=compactions,
                any_row=any_row,
            ),
            # A device may hold part of a group.
            rows_per_level=math.gcd(group_size, rows_per_device),
        )
        return play_episodes(
            env,
            env_params,
            dialogue,
            responder,
            keys,
            rules=rules,
            any_row=any_row,
        )

    return _compile_over_rows(play, mesh, group_size)


def _rows_per_device(mesh: Mesh, num_groups: int, group_size: int) -> int:
    """Rows of each part that the mesh splits them into.

    Raises:
      ValueError: the parts would not be equal.
    """
    num_rows = num_groups * group_size
    for problem in row_problems("groups x rollouts", num_rows, mesh.shape):
        raise ValueError(problem)
    return num_rows // num_row_shards(mesh)


def _any_row(mesh: Mesh) -> AnyRow:
    """How devices that hold different rows agree on going on.

    Where each device has the whole network they need not: those whose rows have
    finished stop. A network that is split over `tensor` exchanges activations, and an
    exchange that some devices never reach makes the others wait for good: all rows
    leave a loop together then.
    """
    if mesh.shape["tensor"] == 1 or mesh.size == mesh.shape["tensor"]:
        return jnp.any

    def any_row(mask: Bool[Array, " B"]) -> Bool[Array, ""]:
        return jax.lax.pmax(jnp.any(mask).astype(jnp.int32), ROW_AXES) > 0

    return any_row


def _compile_over_rows(play: Callable, mesh: Mesh, group_size: int) -> Callable:
    """`play`, compiled, each device playing its own rows."""
    whole, by_row = PartitionSpec(), PartitionSpec(ROW_AXES)
    play_shard = jax.shard_map(
        play,
        mesh=mesh,
        in_specs=(whole, whole, by_row),
        out_specs=by_row,
        axis_names=set(ROW_AXES),
        check_vma=False,
    )

    @jax.jit
    def collect(params: Params, dialogue: Dialogue, keys: RolloutKeys) -> Trajectory:
        # A level key per row: a shard may hold part of a group.
        keys = keys.replace(level=jnp.repeat(keys.level, group_size))
        return play_shard(params, dialogue, keys)

    return collect


def model_responder(
    policy: Policy,
    params: Params,
    decoding: Decoding,
    *,
    rows_per_level: int = 1,
) -> Responder:
    """The policy as a `Responder`: it reads into its KV cache and writes from it.

    Args:
      rows_per_level: adjacent rows that play the same level. Their first message is the
        same: it is read once.
      decoding: how replies are written.
    """
    params = policy.cast_params(params)

    def init(num_rows: int, slots: int = 0) -> Context:
        width = policy.config.hidden_size
        return Context(
            cache=init_cache(policy.config, num_rows, slots, policy.dtype),
            hidden=jnp.zeros((num_rows, width), policy.dtype),
        )

    def observe(context, span, starts, is_active, slots) -> Context:
        if context.cache.num_slots == 0:
            context = read_first(span)
        else:
            # Finished rows may be too full for the span: they overwrite their start.
            starts = jnp.where(is_active, starts, 0)
            context = read(policy, params, context, span, starts)
        return context.replace(cache=grow_cache(context.cache, slots))

    def read_first(span: TokenSpan) -> Context:
        """With no more slots than it fills."""
        once = jax.tree.map(lambda x: x[::rows_per_level], span)
        empty = init(*once.tokens.shape)
        starts = jnp.zeros_like(once.length)
        context = read(policy, params, empty, once, starts)
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
    rules: PlayRules,
    any_row: AnyRow = jnp.any,
) -> Trajectory:
    """Play one episode per row, from the level to the last turn. Call it in `jit`.

    Args:
      dialogue: built for this environment and these rules.
      responder: who answers.
      keys: `G` level keys, `B` row keys; rows of a group are adjacent.
      rules: of an episode.
      any_row: see `decode.AnyRow`.

    Raises:
      ValueError: the dialogue was built for another budget or reply length.
    """
    _check_dialogue(dialogue, rules)
    context = RolloutContext(env, env_params, dialogue, responder, rules)
    budget = rules.budget
    slots = dialogue.max_window_tokens + 1
    play = start_episodes(context, keys)
    initial_state = play.states
    play = tell_opening(context, play, slots)

    def take_turn(carry):
        turn, _, play = carry
        sample_keys, noise_keys = (
            fold_turn(keys.sample, turn),
            fold_turn(keys.noise, turn),
        )
        play = answer(
            context, play, turn, sample_keys=sample_keys, noise_keys=noise_keys
        )
        turn += 1
        goes_on = (turn < budget.max_turns) & any_row(play.is_active)
        # A single turn has no next message, nor room for one.
        if budget.max_turns > 1:
            play = jax.lax.cond(
                goes_on,
                lambda play: tell_following(context, play, turn, slots),
                lambda play: play,
                play,
            )
        return turn, goes_on, play

    first = (jnp.int32(0), any_row(play.is_active), play)
    _, _, play = jax.lax.while_loop(lambda carry: carry[1], take_turn, first)
    transcript = play.transcript
    terminated = jax.vmap(env.is_terminated, (0, None))(play.states, env_params)
    return Trajectory(
        tokens=transcript.tokens,
        lengths=transcript.lengths,
        loss_mask=transcript.loss_mask,
        turn_index=transcript.turn_index,
        sample_log_probs=transcript.log_probs,
        turns=play.turns,
        terminated=terminated,
        truncated=~terminated,
        success=jax.vmap(env.is_success, (0, None))(play.states, env_params),
        initial_state=initial_state,
        windows=play.memory and play.memory.windows,
        noise_key=jax.random.key_data(keys.noise),
    )


def start_episodes(context: RolloutContext, keys: RolloutKeys) -> Play:
    """Every row at the start of its level, nothing said yet.

    Args:
      keys: `G` level keys, `B` row keys; rows of a group are adjacent.
    """
    budget = context.rules.budget
    num_rows = keys.noise.shape[0]
    group_size = num_rows // keys.level.shape[0]
    reset = functools.partial(context.env.reset_split, split=keys.split)
    states = jax.vmap(reset, (0, None))(keys.level, context.env_params)
    max_tokens = context.dialogue.max_trajectory_tokens
    zeros = jnp.zeros(num_rows, jnp.int32)
    return Play(
        states=jax.tree.map(lambda x: jnp.repeat(x, group_size, axis=0), states),
        carry=context.responder.init(num_rows),
        num_read=zeros,
        transcript=empty_transcript(num_rows, max_tokens),
        turns=empty_turns(num_rows, budget.max_turns, budget.max_actions_per_turn),
        actions_left=zeros + budget.max_actions_per_episode,
        is_active=jnp.ones(num_rows, bool),
        last={"reward_hundredths": zeros, "was_invalid": zeros, "was_cut": zeros},
        memory=empty_memory(context.dialogue, num_rows, budget.max_turns),
    )


def _check_dialogue(dialogue: Dialogue, rules: PlayRules) -> None:
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
