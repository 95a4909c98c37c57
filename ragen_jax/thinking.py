"""Measures the thoughts of a rollout: what they say of the prompts.

In: the policy that played and its episodes. Out: RAGEN's collapse metrics, of first
turns and of any turns (`collapse_first_turn_sample/...`,
`collapse_trajectory_sample/...`). The parts are `text.thoughts` (which tokens),
`diagnostics.pairs` (which turns), `diagnostics.scoring` (how likely) and
`diagnostics.information` (what that says).
"""

import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key
from ml_collections import ConfigDict

from ragen_jax import rngs
from ragen_jax.diagnostics import pairs
from ragen_jax.diagnostics.information import averaged, estimates
from ragen_jax.diagnostics.pairs import Pairs
from ragen_jax.diagnostics.scoring import Scorer
from ragen_jax.learner import sharding
from ragen_jax.learner.logprobs import token_log_probs
from ragen_jax.program import Program
from ragen_jax.text.answers import AnswerParser
from ragen_jax.text.thoughts import count_thought
from ragen_jax.types import Trajectory

FIRST_TURNS = "collapse_first_turn_sample/"
ANY_TURNS = "collapse_trajectory_sample/"


def make_information(config: ConfigDict, program: Program) -> Callable | None:
    """The measurement as a `ragen_jax.diagnosis.Diagnose`; None where nobody thinks."""
    if not config.prompt.thinking:
        return None
    root = rngs.root_key(config.seed)
    score = make_score(config, program)
    choose = functools.partial(
        choose_pairs,
        num_samples=config.diagnostics.num_samples,
        group_size=config.rollout.group_size,
    )
    choose = jax.jit(choose, out_shardings=sharding.replicated(_mesh(program)))
    # All games share the tokenizer and the length of replies.
    parser = program.game.dialogue.parser

    def measure(done, state, rollouts, batch):
        del rollouts
        key = rngs.stream(rngs.step_key(root, done - 1), "diagnostics")
        params = program.play_params(state)
        chosen, num_valid, num_played = choose(key, parser, batch)
        metrics = _coverage(*jax.device_get((num_valid, num_played)))
        for label, found in chosen.items():
            scores, found = jax.device_get((score(params, found), found))
            told = estimates(*_those_there_are(scores, found))
            metrics |= {f"{label}{name}": value for name, value in told.items()}
        return metrics

    return measure


def make_score(config: ConfigDict, program: Program) -> Callable[..., Array]:
    """`(params, pairs)` -> log-probabilities, at the temperature of the rollouts."""
    mesh = _mesh(program)
    num_shards = sharding.num_row_shards(mesh)

    def log_probs(params, hidden, tokens):
        return token_log_probs(
            program.policy,
            params,
            hidden,
            tokens,
            temperature=config.rollout.temperature,
            chunk_tokens=config.learner.logprob_chunk_tokens // num_shards,
        )[0]

    def split(tree):
        return jax.lax.with_sharding_constraint(tree, sharding.by_rows(mesh))

    scorer = Scorer(
        policy=program.policy,
        log_probs=sharding.over_own_rows(log_probs, mesh),
        split=split,
        num_shards=num_shards,
        chunk_rows=config.diagnostics.chunk_rows,
    )
    return jax.jit(scorer.score, out_shardings=sharding.replicated(mesh))


def choose_pairs(
    key: Key[Array, ""],
    parser: AnswerParser,
    batch: Trajectory,
    *,
    num_samples: int,
    group_size: int,
) -> tuple[dict[str, Pairs], Int[Array, " K"], Int[Array, " K"]]:
    """Pairs by their label; turns that have a thought, and that were played."""
    lengths = count_thoughts(parser, batch)
    is_valid = lengths > 0
    first_key, any_key = jax.random.split(key)
    turns = {
        FIRST_TURNS: pairs.first_turns(
            first_key, is_valid, num_samples=num_samples, group_size=group_size
        ),
        ANY_TURNS: pairs.any_turns(any_key, is_valid, num_samples=num_samples),
    }
    found = {
        label: pairs.gather_pairs(
            batch, chosen, lengths, max_reply_tokens=parser.max_reply_tokens
        )
        for label, chosen in turns.items()
    }
    return found, jnp.sum(is_valid, axis=0), jnp.sum(batch.turns.played, axis=0)


def count_thoughts(parser: AnswerParser, batch: Trajectory) -> Int[Array, "B K"]:
    """Tokens of each turn's thought, 0 where there is none."""
    turns, order = batch.turns, jnp.arange(parser.max_reply_tokens)

    def count(tokens, start, length):
        reply = tokens.at[start + order].get(mode="clip")
        return count_thought(parser, reply, length)

    of_row = jax.vmap(count, (None, 0, 0))
    counted = jax.vmap(of_row)(batch.tokens, turns.reply_start, turns.reply_length)
    return jnp.where(turns.played, counted, 0)


def averages(
    records: Sequence[Mapping[str, float | None]], metrics: Mapping[str, float]
) -> dict[str, float]:
    """What `information.averaged` adds to the metrics, from the record before them."""
    found = {}
    for label in (FIRST_TURNS, ANY_TURNS):
        own = _below(label, metrics)
        earlier = (_below(label, record) for record in reversed(records))
        before = next((r for r in earlier if "marginal_std_ema" in r), {})
        told = averaged(own, before)
        found |= {f"{label}{name}": value for name, value in told.items()}
    return found


def _below(label: str, metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """The metrics of a label, by the rest of their names."""
    return {k.removeprefix(label): v for k, v in metrics.items() if k.startswith(label)}


def _those_there_are(
    scores: np.ndarray, found: Pairs
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, lengths and prompts without what only fills the arrays."""
    pairs_there, prompts_there = int(found.num_pairs), int(found.num_prompts)
    return (
        scores[:pairs_there, :prompts_there],
        found.thought_lengths[:pairs_there],
        found.prompt_of[:pairs_there],
    )


def _coverage(num_valid: np.ndarray, num_played: np.ndarray) -> dict[str, float]:
    """How many turns have a thought to look at."""
    return {
        "collapse/valid_thinking_rate": float(num_valid.sum() / num_played.sum()),
        "collapse/first_turn_num_total": float(num_played[0]),
        "collapse/first_turn_num_valid": float(num_valid[0]),
        "collapse/first_turn_valid_rate": float(num_valid[0] / num_played[0]),
    }


def _mesh(program: Program):
    """The devices of a run."""
    return jax.tree.leaves(program.learner.played)[0].sharding.mesh
