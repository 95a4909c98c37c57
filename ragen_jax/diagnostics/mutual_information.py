"""Mutual information between prompts and thoughts, within and across inputs.

In: the policy that played and its episodes. Out: RAGEN's collapse metrics, of first
turns and of any turns (`collapse_first_turn_sample/...`,
`collapse_trajectory_sample/...`): estimates of H(Z) = I(X;Z) + H(Z|X), computed on the
host in float64 from the log-probability of every thought under every prompt.

For a thought `i` of `n_i` tokens, its log-probability `s_ij` under prompt `j`, and the
share `w_j` of the thoughts written under prompt `j` (equal prompts are one):

    matched_i  = s_i,own(i)              marginal_i = log sum_j w_j exp(s_ij)

The forms, by the suffix of their names:

- `_seq`: as above, in nats per thought. The one that estimates the information.
- none: `s_ij / n_i` in place of `s_ij`, so lengths are divided out before the mixture
  (RAGEN's repository).
- `_paper`: `matched_i / n_i` and `marginal_i / n_i`, lengths are divided out after it
  (arXiv 2604.06268, equation 1).
- `_uniform`, `_seq_uniform`: the first and the second with the weight `1 / N` in place
  of `w_j` for each of the `N` prompts (RAGEN's repository). Equal where every prompt
  has as many thoughts.

`docs/collapse.md` compares them.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict

from ragen_jax import rngs
from ragen_jax.devices import sharding
from ragen_jax.devices.exchange import to_host
from ragen_jax.diagnostics import pairs
from ragen_jax.diagnostics.pairs import Draws, Pairs
from ragen_jax.diagnostics.scoring import Scorer
from ragen_jax.learner.learner import Learner
from ragen_jax.learner.logprobs import token_log_probs
from ragen_jax.text.answers import AnswerParser
from ragen_jax.text.statements import count_thought
from ragen_jax.types import Params, Trajectory

# Form, a suffix of names -> names of its information and its H(Z).
FORMS = {
    "": ("mi_estimate", "reasoning_entropy_est"),
    "_seq": ("mi_seq_estimate", "reasoning_entropy_seq_est"),
    "_paper": ("mi_estimate_paper", "reasoning_entropy_est_paper"),
    "_uniform": ("mi_estimate_uniform", "reasoning_entropy_est_uniform"),
    "_seq_uniform": ("mi_seq_estimate_uniform", "reasoning_entropy_seq_est_uniform"),
}
# Forms of whole thoughts; the others are per token.
_WHOLE_THOUGHTS = ("_seq", "_seq_uniform")
# Added to a standard deviation before it divides (RAGEN).
STD_EPSILON = 1e-3
# Decay of the moving averages (RAGEN).
EMA_DECAY = 0.9
# k of the top-k retrieval accuracies.
RANKS = (1, 2, 4, 8)


def estimates(
    scores: Float[np.ndarray, "M P"],
    lengths: Int[np.ndarray, " M"],
    prompt_of: Int[np.ndarray, " M"],
) -> dict[str, float]:
    """Metrics of one set of pairs, by RAGEN's names.

    Args:
      scores: log-probability of each thought under each prompt, nats.
      lengths: tokens of each thought, at least 1.
      prompt_of: index of the prompt each thought was written under; every prompt has
        one.

    Returns:
      The counts; with at least one pair also the conditional entropy; with at least two
      prompts, so that there is something to compare with, all others.
    """
    num_pairs, num_prompts = scores.shape
    metrics = {"num_samples": num_pairs, "num_prompts": num_prompts}
    if num_pairs > 0:
        scores, sizes = scores.astype(np.float64), lengths.astype(np.float64)
        matched = scores[np.arange(num_pairs), prompt_of]
        metrics |= {
            "matched_log_prob_mean": np.mean(matched / sizes),
            "conditional_entropy_est": -np.mean(matched / sizes),
            "conditional_entropy_seq_est": -np.mean(matched),
        }
        if num_prompts > 1:
            shares = np.bincount(prompt_of, minlength=num_prompts) / num_pairs
            metrics["mi_upper_bound"] = -np.sum(shares * np.log(shares))
            metrics |= _information(scores, matched, sizes, shares)
            metrics |= _retrieval(scores, matched)
    return {name: float(value) for name, value in metrics.items()}


def averaged(
    metrics: Mapping[str, float], before: Mapping[str, float | None]
) -> dict[str, float]:
    """Moving averages of the marginal's spread, and the z-scores that they give.

    Args:
      metrics: of `estimates`.
      before: metrics of the previous measurement, with its averages; empty before the
        first.
    """
    averages = {}
    for form, (information, _) in FORMS.items():
        if f"marginal_std{form}" not in metrics:
            continue
        spread = float(metrics[f"marginal_std{form}"])
        last = before.get(f"marginal_std_ema{form}")
        if last is not None and math.isfinite(last):
            spread = EMA_DECAY * last + (1 - EMA_DECAY) * spread
        averages[f"marginal_std_ema{form}"] = spread
        zscore = float(metrics[information]) / (spread + STD_EPSILON)
        averages[f"mi_zscore_ema{form}"] = zscore
    return averages


def _information(
    scores: Float[np.ndarray, "M P"],
    matched: Float[np.ndarray, " M"],
    sizes: Float[np.ndarray, " M"],
    shares: Float[np.ndarray, " P"],
) -> dict[str, float]:
    """Information, H(Z), spread and z-score in every form."""
    uniform = np.full(shares.shape, 1 / len(shares))
    per_token = scores / sizes[:, None]
    marginals = {
        "": _mixture(per_token, shares),
        "_seq": _mixture(scores, shares),
        "_paper": _mixture(scores, shares) / sizes,
        "_uniform": _mixture(per_token, uniform),
        "_seq_uniform": _mixture(scores, uniform),
    }
    metrics = {"marginal_log_prob_mean": np.mean(marginals[""])}
    for form, (information, entropy) in FORMS.items():
        marginal = marginals[form]
        likelihood = matched if form in _WHOLE_THOUGHTS else matched / sizes
        gain, spread = np.mean(likelihood - marginal), np.std(marginal)
        metrics[information], metrics[entropy] = gain, -np.mean(marginal)
        metrics[f"marginal_std{form}"] = spread
        metrics[f"mi_zscore{form}"] = gain / (spread + STD_EPSILON)
    return metrics


def _mixture(
    log_probs: Float[np.ndarray, "M P"], weights: Float[np.ndarray, " P"]
) -> Float[np.ndarray, " M"]:
    """`log sum_j weights_j exp(log_probs_ij)`."""
    return np.logaddexp.reduce(log_probs + np.log(weights), axis=1)


def _retrieval(
    scores: Float[np.ndarray, "M P"], matched: Float[np.ndarray, " M"]
) -> dict[str, float]:
    """Share of thoughts whose prompt is among the k likeliest; ties count by chance."""
    num_prompts, metrics = scores.shape[1], {}
    num_better = np.sum(scores > matched[:, None], axis=1)
    num_equal = np.sum(scores == matched[:, None], axis=1)
    for rank in RANKS:
        hits = np.clip((rank - num_better) / num_equal, 0.0, 1.0)
        accuracy, chance = np.mean(hits), min(1.0, rank / num_prompts)
        suffix = "" if rank == 1 else f"@{rank}"
        metrics[f"retrieval_accuracy{suffix}"] = accuracy
        metrics[f"retrieval_chance_level{suffix}"] = chance
        metrics[f"retrieval_above_chance{suffix}"] = accuracy - chance
    return metrics


FIRST_TURNS = "collapse_first_turn_sample/"
ANY_TURNS = "collapse_trajectory_sample/"


def make_information(
    config: ConfigDict, learner: Learner, frozen: Params | None, parser: AnswerParser
) -> Callable | None:
    """The measurement as a `schedule.Measure`; None if `prompt.thinking` is off."""
    if not config.prompt.thinking:
        return None
    score = make_score(config, learner)
    num_samples = config.diagnostics.num_samples
    choose = functools.partial(
        choose_pairs,
        num_samples=num_samples,
        group_size=config.rollout.group_size,
        max_reply_tokens=parser.max_reply_tokens,
    )

    def prepare(key, parser, batch):
        """What is computed on the devices before pairs are chosen."""
        num_rows, num_turns = batch.turns.played.shape
        draws = pairs.draw(key, num_rows, num_turns, num_samples=num_samples)
        return count_thoughts(parser, batch), draws

    prepare = jax.jit(prepare, out_shardings=sharding.replicated(_mesh(learner)))

    def measure(numbers, key, state, batch):
        key = rngs.stream(key, "diagnostics")
        params = learner.play_params(frozen, state.acting_state)
        lengths, draws = prepare(key, parser, batch)
        # No state of a game is read, which may be large.
        images, batch = batch.images, batch.replace(initial_state=None, images=None)
        lengths, draws, batch = to_host((lengths, draws, batch))
        metrics = _coverage(np.sum(lengths > 0, 0), np.sum(batch.turns.played, 0))
        for label, sample in choose(draws, lengths, batch).items():
            scores = to_host(score(numbers, params, sample, images))
            values = estimates(*_drop_padding(scores, sample))
            metrics |= {f"{label}{name}": value for name, value in values.items()}
        return metrics

    return measure


def make_score(config: ConfigDict, learner: Learner) -> Callable[..., Array]:
    """Log-probabilities of thoughts, at the rollouts' temperature.

    A compiled `(numbers, params, pairs, images) -> float32[M, P]`; the images are those
    that prompts name, None if they name none.
    """
    mesh = _mesh(learner)
    num_shards = sharding.num_row_shards(mesh)
    chunk_tokens = config.learner.logprob_chunk_tokens // num_shards

    def log_probs(whole, hidden, tokens):
        params, temperature = whole
        how = {"temperature": temperature, "chunk_tokens": chunk_tokens}
        return token_log_probs(learner.policy, params, hidden, tokens, **how)[0]

    def split(tree):
        return jax.lax.with_sharding_constraint(tree, sharding.by_rows(mesh))

    def score(numbers, params, pairs, images=None):
        temperature = learner.make_stages(numbers).passes.temperature
        on_devices = sharding.on_each_device(log_probs, mesh)
        scorer = Scorer(
            policy=learner.policy.shown(images),
            log_probs=lambda params, *rows: on_devices((params, temperature), *rows),
            split=split,
            num_shards=num_shards,
            chunk_rows=config.diagnostics.chunk_rows,
        )
        return scorer.score(params, pairs)

    return jax.jit(score, out_shardings=sharding.replicated(mesh))


def choose_pairs(
    draws: Draws,
    lengths: Int[np.ndarray, "B K"],
    batch: Trajectory,
    *,
    num_samples: int,
    group_size: int,
    max_reply_tokens: int,
) -> dict[str, Pairs]:
    """Pairs by their label, from the lengths of thoughts; all on the host."""
    is_valid = lengths > 0
    turns = {
        FIRST_TURNS: pairs.first_turns(
            draws, is_valid, num_samples=num_samples, group_size=group_size
        ),
        ANY_TURNS: pairs.any_turns(draws, is_valid),
    }
    return {
        label: pairs.gather_pairs(
            batch, chosen, lengths, max_reply_tokens=max_reply_tokens
        )
        for label, chosen in turns.items()
    }


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
    """Moving averages of both samples, continued from the records before."""
    metrics_of_both = {}
    for label in (FIRST_TURNS, ANY_TURNS):
        current = _below(label, metrics)
        earlier = (_below(label, record) for record in reversed(records))
        before = next((r for r in earlier if "marginal_std_ema" in r), {})
        values = averaged(current, before)
        metrics_of_both |= {f"{label}{name}": x for name, x in values.items()}
    return metrics_of_both


def _below(label: str, metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    return {k.removeprefix(label): v for k, v in metrics.items() if k.startswith(label)}


def _drop_padding(
    scores: np.ndarray, sample: Pairs
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    num_pairs, num_prompts = int(sample.num_pairs), int(sample.num_prompts)
    return (
        scores[:num_pairs, :num_prompts],
        sample.thought_lengths[:num_pairs],
        sample.prompt_of[:num_pairs],
    )


def _coverage(num_valid: np.ndarray, num_played: np.ndarray) -> dict[str, float]:
    return {
        "collapse/valid_thinking_rate": float(num_valid.sum() / num_played.sum()),
        "collapse/first_turn_num_total": float(num_played[0]),
        "collapse/first_turn_num_valid": float(num_valid[0]),
        "collapse/first_turn_valid_rate": float(num_valid[0] / num_played[0]),
    }


def _mesh(learner: Learner) -> Mesh:
    return jax.tree.leaves(learner.played)[0].sharding.mesh
