"""Metrics of the diagnostics, of the exact solver and of the early warning.

Declarations only: several of them are computed together, by the module that each table
names. To add a metric, compute it there and declare it here; an undeclared one fails a
test.
"""

import functools

from ragen_jax.diagnostics.early_warning import REGIMES
from ragen_jax.registry.metrics import Metric, View

FIRST_TURN = "collapse_first_turn_sample/"
_SAMPLE = "collapse_{turns}_sample/"
_NATS = "nats per token"


def _play(name: str, title: str, unit: str, text: str, **rest) -> Metric:
    """A metric of each environment's episodes; that of held-out ones is drawn."""
    view = View(
        f"{{env}}: {title}", unit, name=f"val-env/{{env}}/{name}", section="progress"
    )
    full_name = f"{{split}}/{{env}}/{name}"
    return Metric(full_name, text, section="play", views=(view,), **rest)


# By `optimality`: training's episodes where solving is fast, held-out ones always.
PLAY_METRICS = (
    _play(
        "solved_of_solvable",
        "solvable levels solved",
        "share of solvable levels",
        "success among the levels that can be solved within the budget",
        kind="share",
        healthy="as success",
    ),
    _play(
        "optimal_action_share",
        "optimal actions",
        "share of actions",
        "share of the executed actions after which best play expects as much as before",
        kind="share",
        healthy="rises with success",
        cure="flat: episodes are won by luck or on easy levels",
    ),
    _play(
        "excess_actions",
        "excess actions",
        "actions above the shortest solution",
        "actions beyond the fewest that can win, mean of the solved episodes",
        healthy="falls towards 0",
        cure="rises: the policy wanders until it wins",
    ),
    _play(
        "hallucination_rate",
        "false statements in thoughts",
        "share of stated coordinates",
        "share of the places stated in thoughts (player, box, target, goal) that are "
        "wrong",
        kind="share",
        healthy="falls, or stays low",
        cure="rises while success rises: the policy no longer reads its thoughts; "
        "`bonus.facts` pays for true statements",
    ),
    _play(
        "misprediction_rate",
        "false predictions in thoughts",
        "share of predicted coordinates",
        "share of the places that thoughts state a second time (where player, box, "
        "target or goal are to be after the turn) that are wrong",
        kind="share",
        healthy="falls, or stays low",
        cure="rises: the policy no longer foresees what its actions do; "
        "`bonus.prediction` pays for right predictions",
    ),
)

_plane = functools.partial(Metric, section="plane")


def _first(name: str, title: str, unit: str = "", **rest) -> tuple[View]:
    """The metric of first turns is drawn."""
    return (View(title, unit, name=FIRST_TURN + name, **rest),)


# By `mutual_information`, of first turns and of all turns; docs/collapse.md explains
# the estimates and their forms.
INFORMATION_METRICS = (
    _plane(
        _SAMPLE + "mi_estimate",
        "I(X;Z): information of thoughts about their prompts, nats per token (RAGEN's "
        "estimate)",
        views=_first("mi_estimate", "Information and entropy", _NATS, label="I(X;Z)"),
        healthy="steady",
        cure="falls while entropy stays: template collapse, which shows here first",
    ),
    _plane(
        _SAMPLE + "conditional_entropy_est",
        "H(Z|X): variety of thoughts under one prompt, nats per token",
        views=_first(
            "conditional_entropy_est",
            "Information and entropy",
            label="H(Z|X)",
            style="thin",
        ),
        healthy="falls slowly",
        cure="near 0: one thought per prompt; with low information: low-entropy "
        "collapse",
    ),
    _plane(_SAMPLE + "conditional_entropy_seq_est", "H(Z|X), nats per thought"),
    _plane(
        _SAMPLE + "mi_seq_estimate",
        "I(X;Z) in nats per thought: the form that estimates the information",
        healthy="near `mi_upper_bound`, or steady",
        cure="as `mi_estimate`",
    ),
    _plane(
        _SAMPLE + "mi_estimate_paper",
        "I(X;Z) in the form of arXiv 2604.06268, equation 1",
    ),
    _plane(
        _SAMPLE + "mi_estimate_uniform",
        "`mi_estimate` with RAGEN's weight 1/N for every prompt: compare it with "
        "RAGEN's published numbers",
    ),
    _plane(
        _SAMPLE + "mi_seq_estimate_uniform",
        "`mi_seq_estimate` with the weight 1/N for every prompt",
    ),
    _plane(
        _SAMPLE + "mi_upper_bound", "entropy of the prompts: no estimate can be larger"
    ),
    _plane(
        _SAMPLE + "reasoning_entropy_est",
        "H(Z) = I(X;Z) + H(Z|X): variety of thoughts over all prompts, nats per token",
        healthy="falls slowly",
    ),
    _plane(_SAMPLE + "reasoning_entropy_seq_est", "H(Z), nats per thought"),
    _plane(
        _SAMPLE + "reasoning_entropy_est_paper",
        "H(Z) in the form of arXiv 2604.06268, equation 1",
    ),
    _plane(
        _SAMPLE + "reasoning_entropy_est_uniform",
        "`reasoning_entropy_est` with the weight 1/N for every prompt",
    ),
    _plane(
        _SAMPLE + "reasoning_entropy_seq_est_uniform",
        "`reasoning_entropy_seq_est` with the weight 1/N for every prompt",
    ),
    _plane(
        _SAMPLE + "retrieval_accuracy{rank}",
        "share of the thoughts whose prompt is the likeliest (`@k`: among the k "
        "likeliest)",
        kind="share",
        views=_first(
            "retrieval_accuracy",
            "Retrieval of the prompt from the thought",
            "share of thoughts",
            label="accuracy",
        ),
        healthy="far above chance",
        cure="as `mi_estimate`",
    ),
    _plane(
        _SAMPLE + "retrieval_chance_level{rank}",
        "`retrieval_accuracy` if prompts were guessed",
        kind="share",
        views=_first(
            "retrieval_chance_level",
            "Retrieval of the prompt from the thought",
            label="chance",
            style="reference",
        ),
    ),
    _plane(
        _SAMPLE + "retrieval_above_chance{rank}",
        "`retrieval_accuracy` minus its chance level",
        kind="share",
        healthy="far above 0",
    ),
    _plane(
        _SAMPLE + "mi_zscore{form}",
        "I(X;Z) over the standard deviation of the marginal",
        views=_first("mi_zscore", "I(X;Z) as a z-score", "standard scores"),
    ),
    _plane(
        _SAMPLE + "mi_zscore_ema{form}",
        "I(X;Z) over a moving average of the standard deviation of the marginal",
        healthy="steady",
    ),
    _plane(
        _SAMPLE + "marginal_std{form}",
        "standard deviation of the marginal log-probabilities",
    ),
    _plane(_SAMPLE + "marginal_std_ema{form}", "moving average of `marginal_std`"),
    _plane(
        _SAMPLE + "matched_log_prob_mean",
        "mean log-probability of thoughts under their prompts, nats per token",
    ),
    _plane(
        _SAMPLE + "marginal_log_prob_mean",
        "mean log-probability of thoughts under the mixture of prompts, nats per token",
    ),
    _plane(_SAMPLE + "num_samples", "thoughts measured"),
    _plane(_SAMPLE + "num_prompts", "prompts that these thoughts were written under"),
    Metric(
        "collapse/valid_thinking_rate",
        "share of the turns with a thought that ends and is not empty",
        section="indicators",
        kind="share",
        views=(View("Valid thoughts", "share of replies"),),
        healthy="steady or rising",
        cure="falls: empty or unfinished thoughts",
    ),
    _plane(
        "collapse/first_turn_valid_rate",
        "share of the first turns with a thought that ends and is not empty",
        kind="share",
    ),
    _plane("collapse/first_turn_num_valid", "first turns with such a thought"),
    _plane("collapse/first_turn_num_total", "first turns played"),
)

_alarms = functools.partial(Metric, section="alarms")
_REGIMES = sorted(REGIMES.values())

# By `early_warning`.
WARNING_METRICS = (
    _alarms(
        "alarm/{indicator}",
        "1 while the indicator is outside its band, else 0",
        views=(View("Alarms", "1: alarm", is_special=True),),
        healthy="0",
        cure="the console names the bound; `warning.action` may stop the run or "
        "cut the learning rate",
    ),
    _alarms(
        "collapse/regime",
        ", ".join(f"{regime.number} {regime.name}" for regime in _REGIMES)
        + ", relative to the first measurement",
        views=(View("Regime", "number of the regime", is_special=True),),
        healthy=", ".join(f"{r.number} {r.healthy}" for r in _REGIMES if r.healthy),
        cure=" or ".join(str(r.number) for r in _REGIMES if not r.healthy)
        + ": stop and read episodes, see below",
    ),
)

_buckets = functools.partial(Metric, section="buckets")
_BUCKET = "grad_norm/{bucket}/"

# By `gradient_buckets`.
BUCKET_METRICS = (
    _buckets(
        _BUCKET + "{part}",
        "norm of the gradient of a part of the loss: task, entropy, kl",
        views=tuple(
            View(
                f"Norm of the gradient: {part}",
                "L2 norm",
                name=_BUCKET + part,
                is_special=True,
            )
            for part in ("task", "entropy", "kl")
        ),
        healthy="the task's far above the others'",
        cure="entropy and KL as large as the task's: the update is mostly regularizer, "
        "which does not depend on the prompt; lower their weights, or filter",
    ),
    _buckets(
        _BUCKET + "snr",
        "signal-to-noise ratio of the task's gradient: squared norm of its mean over "
        "its variance, less 1/n (arXiv 1812.06162); negative values are possible, a "
        "bucket of one group has none",
        views=(View("Signal to noise", "signal / noise", is_special=True),),
        healthy="above 0",
        cure="near 0 or below everywhere: noise; more rollouts per group, more groups",
    ),
    _buckets(
        _BUCKET + "per_sample/{part}",
        "the norm divided by the bucket's episodes: compares buckets of unequal size",
    ),
    _buckets(
        _BUCKET + "per_token/{part}", "the norm divided by the bucket's trained tokens"
    ),
    _buckets(_BUCKET + "loss/{loss}", "the loss's parts and their sum"),
    _buckets(
        _BUCKET + "reward_std_{statistic}", "reward spread of the bucket's groups"
    ),
    _buckets(_BUCKET + "sample_count", "episodes in the bucket"),
    _buckets(_BUCKET + "sample_pct", "percentage of all episodes"),
)

METRICS = (*PLAY_METRICS, *INFORMATION_METRICS, *WARNING_METRICS, *BUCKET_METRICS)
