"""A program that calls the model itself, with its own loop and tools.

python -m launch.train --config=configs/agent.py
--config.env.host=agent:package.module:function --workdir=runs/agent

Up to eight calls an episode; see docs/agents.md.

Presets (`configs/sizes.py`): --config=configs/agent.py:qwen2.5-0.5b,starpo_s,grpo
"""

from ml_collections import ConfigDict

from configs import base, sizes


def get_config(presets: str = "pocket") -> ConfigDict:
    """An agent with presets such as "pocket,starpo_s"."""
    config = base.get_config()
    sizes.apply_presets(config, presets)
    sizes.play_in_python(
        config, "agent:ragen_jax.host_games.agent.react:episode", max_turns=8
    )
    config.prompt.thinking = False
    # What presets set for other games and a program's own dialogue has no use for.
    config.rollout.stop_at_answer = config.learner.share_prompts = False
    config.bonus.format = None
    return config
