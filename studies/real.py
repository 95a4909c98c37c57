"""Protocol: the claims about collapse, filtering and thinking on a real language model.

SmolLM2-135M on Bandit, the preset `smollm2-135m` and single changes of it. The weights
are needed (`launch.fetch smollm2-135m`), so that "all" studies leave this one out.
"""

from studies.arms import Arm
from studies.claims import Claim, Difference, Mean, Study
from studies.measures import CLEAR

_SIZE = "smollm2-135m"
# Half of the preset's rows, so that the runs fit into an afternoon.
_SETTINGS = {
    "rollout.group_size": 8,
    "rollout.max_reply_tokens": 12,
    "learner.minibatch_rows": 64,
    "train.num_iterations": 40,
    "evaluation.every": 5,
    "evaluation.num_prompts": 64,
    "checkpoint.every": 40,
    "checkpoint.keep_best": None,
    "logging.sinks": (),
}
# The papers' coefficient, that of the other presets.
_NO_BONUS = {"loss.entropy_coeff": 0.001}


def _arm(name: str, label: str, presets: str = "", num_seeds: int = 3, **settings):
    return Arm(
        f"bandit-smollm2-{name}",
        f"SmolLM2, Bandit, {label}",
        "bandit",
        size=_SIZE,
        presets=presets,
        settings=_SETTINGS | settings,
        num_seeds=num_seeds,
    )


_PRESET = _arm("preset", "preset")
_PLAIN = _arm("plain", "no entropy bonus", **_NO_BONUS)
# A test of one sample needs five runs to decide.
_VANILLA = _arm("vanilla", "vanilla StarPO", "starpo,grpo", num_seeds=5, **_NO_BONUS)
_STARPO_S = _arm("starpo_s", "StarPO-S", "starpo_s,grpo", **_NO_BONUS)
_THINKING = _arm(
    "thinking",
    "thinking",
    **{"prompt.thinking": True, "rollout.max_reply_tokens": 64},
)

REAL = Study(
    name="real",
    title="A real language model: SmolLM2-135M on Bandit",
    question="Does vanilla StarPO with GRPO gain and collapse on a real model, does "
    "StarPO-S do better, does an entropy bonus, and do thoughts help? Written after "
    "one run of the preset (19 to 89 %) and before these.",
    paper="Success rises and then collapses; StarPO-S collapses later or not; thinking "
    "helps on Bandit (RAGEN, arXiv 2504.20073, figures 5, 9 and table 4).",
    claims=(
        Claim(
            "Vanilla: success rises by 5 points or more",
            Mean((_VANILLA,), "peak_gain", above=0.05),
        ),
        Claim(
            "Vanilla: afterwards it falls by 10 points or more",
            Mean((_VANILLA,), "fall", above=CLEAR),
        ),
        Claim("StarPO-S ends above vanilla", Difference(_STARPO_S, _VANILLA)),
        Claim("The preset ends above it without bonus", Difference(_PRESET, _PLAIN)),
        Claim("The preset ends above vanilla", Difference(_PRESET, _VANILLA)),
        Claim("With thoughts success ends higher", Difference(_THINKING, _PRESET)),
    ),
    columns=(
        "start",
        "peak_gain",
        "fall",
        "final",
        "entropy",
        "reply_length",
        "entropy_alarm",
        "seconds",
    ),
    curves=("val-env/*/success", "actor/entropy"),
)
