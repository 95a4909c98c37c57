"""SearchQA: answer questions with a search engine.

python -m launch.train --config=configs/search.py --workdir=runs/search

Needs pip install -e ".[search]". See docs/host_games.md.

The pocket model answers questions of one hop, on 64 small worlds.

Presets (`configs/sizes.py`): --config=configs/search.py:qwen2.5-0.5b,starpo_s,grpo
"""

from ml_collections import ConfigDict

from configs import base, sizes


def get_config(presets: str = "pocket") -> ConfigDict:
    """SearchQA with presets such as "pocket,starpo_s" (see `configs/sizes.py`)."""
    config = base.get_config()
    sizes.apply_presets(config, presets)
    is_small = sizes.use_built_in(config, "pocket_host")
    # As many searches as the game allows, and the answer.
    sizes.play_in_python(config, "search", max_turns=3 if is_small else 6)
    if is_small:
        # Many worlds, so that names are copied and not learned by heart.
        config.env.kwargs.update(num_hops=1, num_worlds=64, max_searches=2)
    config.host.max_observation_tokens = 160
    config.rollout.max_reply_tokens = max(config.rollout.max_reply_tokens, 32)
    return config
