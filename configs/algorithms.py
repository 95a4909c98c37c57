"""Algorithm overlays: the settings of a published algorithm.

`--config=configs/sokoban.py:qwen2.5-0.5b,starpo_s` applies the entry of that name after
the size preset. One variant and one estimator may be given: `:pocket,starpo_s,grpo`.
"""

from ml_collections import ConfigDict


def starpo(config: ConfigDict) -> None:
    """Vanilla StarPO (arXiv 2504.20073): no filter, symmetric clip, KL 0.001.

    The KL is a loss with the estimator k3; as a loss, the paper's k1 has no gradient on
    average (`docs/algorithms.md`).
    """
    _keep_everything(config)
    config.loss.clip_low = 0.2
    config.loss.clip_high = 0.2
    config.kl.placement = "loss"
    config.kl.coeff = 0.001


def starpo_s(config: ConfigDict) -> None:
    """StarPO-S: the 25 % of groups with most reward spread, no KL, clip 0.2/0.28."""
    _keep_everything(config)
    config.filter.keep_fraction = 0.25
    _decoupled_clip(config)


def ragen2(config: ConfigDict) -> None:
    """RAGEN-2 (arXiv 2604.06268): the groups that hold 90 % of the spread."""
    _keep_everything(config)
    config.filter.rule = "top_p"
    config.filter.keep_fraction = None
    config.filter.top_p = 0.9
    config.filter.keep_zero = False
    _decoupled_clip(config)


def ppo(config: ConfigDict) -> None:
    """PPO with a critic: GAE with gamma = lambda = 1."""
    config.algo.advantage = "gae"
    config.algo.gamma = 1.0
    config.algo.lam = 1.0


def grpo(config: ConfigDict) -> None:
    """GRPO: no critic, rewards relative to the group's."""
    config.algo.advantage = "grpo"


def _keep_everything(config: ConfigDict) -> None:
    config.filter.score = "reward_std"
    config.filter.rule = "top_fraction"
    for name in ("top_k", "top_p", "min_p", "quantile_low", "quantile_high"):
        config.filter[name] = None
    config.filter.rows_per_group = None
    config.filter.keep_fraction = 1.0
    config.filter.keep_zero = True


def _decoupled_clip(config: ConfigDict) -> None:
    config.loss.clip_low = 0.2
    config.loss.clip_high = 0.28
    config.kl.placement = None


# Presets take at most one entry of each table: a second would undo the first.
VARIANTS = {"starpo": starpo, "starpo_s": starpo_s, "ragen2": ragen2}
ESTIMATORS = {"ppo": ppo, "grpo": grpo}
