"""Lean: prove theorems of propositional logic, a tactic a turn.

python -m launch.train --config=configs/lean.py --workdir=runs/lean

A Lean server and miniF2F: --config.host.step_seconds=100
"--config.env.kwargs={'data': 'minif2f.jsonl', 'url': 'http://127.0.0.1:8000'}".
See docs/host_games.md.

The pocket model proves theorems that take up to three tactics.

Presets (`configs/sizes.py`): --config=configs/lean.py:qwen2.5-0.5b,starpo_s,grpo
"""

from ml_collections import ConfigDict

from configs import base, sizes


def get_config(presets: str = "pocket") -> ConfigDict:
    """Lean with presets such as "pocket,starpo_s" (see `configs/sizes.py`)."""
    config = base.get_config()
    sizes.apply_presets(config, presets)
    is_small = sizes.use_built_in(config, "pocket_host")
    sizes.play_in_python(config, "lean", max_turns=4 if is_small else 7)
    if is_small:
        config.env.kwargs.max_tactics = 3
    config.host.max_observation_tokens = 160
    # A rejected tactic costs 1.1, too. With the usual -0.1 a reply that lists no action
    # would be cheaper, and the policy learns to write such replies.
    config.rollout.format_penalty = -1.1
    config.rollout.max_reply_tokens = max(config.rollout.max_reply_tokens, 32)
    return config
