"""One episode in the terminal: played by a person, the policy or the exact solver.

In: a game, the number of a level, who plays. Out: the exact text the model reads, and
what the game made of each reply. The turns are the rollout's own: only the responder
differs.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from envs.base import VALIDATION
from ragen_jax import rngs
from ragen_jax.evaluation.load import Trained
from ragen_jax.rollout import demonstrators
from ragen_jax.rollout.collect import (
    RolloutKeys,
    fold_turn,
    play_episodes,
    start_episodes,
)
from ragen_jax.rollout.records import episodes
from ragen_jax.rollout.turns import (
    Play,
    Responder,
    RolloutContext,
    answer,
    tell_following,
    tell_opening,
)
from ragen_jax.sharding import make_mesh
from ragen_jax.tasks import Task, build_collect
from ragen_jax.text import chat
from ragen_jax.types import Reply

# The solver prefers short ways where actions are free.
_SOLVER_DISCOUNT = 0.95


def level_keys(trained: Trained, level: int) -> RolloutKeys:
    """Random keys of one episode on the numbered validation level.

    Level 0 is the first prompt of an evaluation, 1 the second, and so on.
    """
    seed = trained.config.evaluation.seed
    root = rngs.stream(rngs.root_key(seed), "evaluation")
    return RolloutKeys(
        *(
            jax.random.fold_in(rngs.stream(root, name), level)[None]
            for name in ("level", "noise", "sample")
        ),
        split=VALIDATION,
    )


def watch_policy(trained: Trained, level: int) -> dict:
    """The policy's episode on a level, as `ragen_jax.rollout.records` records it."""
    config, program = trained.config, trained.program
    collect = build_collect(
        config,
        program.task,
        program.policy,
        make_mesh(**config.mesh),
        num_groups=1,
        group_size=1,
        temperature=config.evaluation.temperature or None,
        top_k=None,
        top_p=None,
    )
    keys = level_keys(trained, level)
    task = program.task
    trajectory = collect(trained.params, task.dialogue, keys)
    return episodes(trajectory, task.tokenizer, task.dialogue.prompts)[0]


def watch_solver(trained: Trained, level: int) -> dict:
    """The exact solver's episode on a level, in the same form."""
    task = trained.program.task
    always_best = demonstrators.Mixture(
        shares=jnp.ones(1),
        thoughts=jnp.array([demonstrators.READING]),
        noise=jnp.zeros(1),
        redraw=jnp.float32(0),
    )
    facts = task.env.facts()
    replies = demonstrators.compile_replies(
        task.env,
        task.tokenizer,
        facts,
        task.rules.budget,
        tokenization=trained.config.prompt.tokenization,
        thinking=task.dialogue.thinking,
    )
    responder = demonstrators.build_responder(
        task.env,
        task.params,
        replies,
        always_best,
        facts=facts,
        rules=task.rules,
        discount=_SOLVER_DISCOUNT,
    )

    @jax.jit
    def watch(dialogue, keys):
        return play_episodes(
            task.env,
            task.params,
            dialogue,
            responder,
            keys,
            rules=dataclasses.replace(task.rules, bonus=None),
        )

    trajectory = watch(task.dialogue, level_keys(trained, level))
    return episodes(trajectory, task.tokenizer, task.dialogue.prompts)[0]


def typed_responder(max_reply_tokens: int) -> Responder:
    """A responder whose memory is the reply it is about to give."""

    def init(num_rows: int) -> Reply:
        return Reply(
            tokens=jnp.zeros((num_rows, max_reply_tokens), jnp.int32),
            log_probs=jnp.zeros((num_rows, max_reply_tokens)),
            length=jnp.zeros(num_rows, jnp.int32),
            is_cut=jnp.zeros(num_rows, bool),
        )

    def reply(prepared, starts, states, keys, turn, is_active):
        del starts, states, keys, turn
        length = jnp.where(is_active, prepared.length, 0)
        return prepared, prepared.replace(length=length)

    return Responder(init=init, observe=lambda prepared, *_: prepared, reply=reply)


def complete_reply(line: str, *, thinking: bool) -> str:
    """What a person typed, as the model would have written it.

    A bare answer ("Up || Left") gets the tags; a line with tags is taken as it is.
    """
    if "<" not in line:
        thought = "</think><answer>" if thinking else ""
        line = f"{thought}{line.strip()}</answer>"
    return line + chat.END


def play(
    task: Task,
    keys: RolloutKeys,
    *,
    read_line: Callable[[], str],
    say: Callable[[str], None],
) -> float:
    """Play one episode (one row of `keys`).

    Returns:
      The sum of rewards and format penalties.

    Raises:
      EOFError: from `read_line`, when the person leaves.
    """
    rules = dataclasses.replace(task.rules, bonus=None)
    responder = typed_responder(rules.max_reply_tokens)
    context = RolloutContext(task.env, task.params, task.dialogue, responder, rules)

    @jax.jit
    def open_turn(episode: Play, turn) -> Play:
        return tell_following(context, episode, turn, 0)

    @jax.jit
    def close_turn(episode: Play, turn) -> Play:
        sample_keys = fold_turn(keys.sample, turn)
        noise_keys = fold_turn(keys.noise, turn)
        return answer(
            context, episode, turn, sample_keys=sample_keys, noise_keys=noise_keys
        )

    episode = start_episodes(context, keys)
    for turn in range(rules.budget.max_turns):
        before = int(episode.transcript.lengths[0])
        episode = (
            open_turn(episode, turn) if turn else tell_opening(context, episode, 0)
        )
        after = int(episode.transcript.lengths[0])
        message = np.asarray(episode.transcript.tokens[0, before:after])
        say(task.tokenizer.decode(message))
        reply = _prepare(task, episode, read_line, say)
        episode = close_turn(episode.replace(carry=reply), turn)
        record = jax.tree.map(lambda x, turn=turn: x[0, turn], episode.turns)
        say(
            f"\n[{int(record.num_executed)} actions run, reward {record.reward:g}, "
            f"penalty {record.penalty:g}]"
        )
        if not bool(episode.is_active[0]):
            break
    state = jax.tree.map(lambda x: x[0], episode.states)
    won = bool(task.env.is_success(state, task.params))
    total = float(jnp.sum(episode.turns.reward) + jnp.sum(episode.turns.penalty))
    say(f"\n{task.env.render(state, task.params)}")
    say(f"{'won' if won else 'not won'}, return {total:g}")
    return total


def _prepare(task: Task, episode: Play, read_line, say) -> Reply:
    """Ask until the reply fits."""
    max_reply_tokens = task.rules.max_reply_tokens
    while True:
        line = complete_reply(read_line(), thinking=task.dialogue.thinking)
        tokens = task.tokenizer.encode(line)
        if len(tokens) <= max_reply_tokens:
            break
        say(
            f"[that reply takes {len(tokens)} tokens, {max_reply_tokens} are allowed; "
            "write a shorter one]"
        )
    padded = np.zeros((1, max_reply_tokens), np.int32)
    padded[0, : len(tokens)] = tokens
    return episode.carry.replace(
        tokens=jnp.asarray(padded), length=jnp.asarray([len(tokens)], jnp.int32)
    )
