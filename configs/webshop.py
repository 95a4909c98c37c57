"""WebShop: find what is asked for in a shop, and buy it.

python -m launch.train --config=configs/webshop.py --workdir=runs/webshop

Needs pip install -e ".[search]". See docs/host_games.md.

The pocket model has not been shown this game: start from a real checkpoint, with
presets such as --config=configs/webshop.py:qwen2.5-0.5b,starpo_s,grpo
"""

from ml_collections import ConfigDict

from configs import base, sizes


def get_config(presets: str = "pocket") -> ConfigDict:
    """WebShop with presets such as "pocket,starpo_s" (see `configs/sizes.py`)."""
    config = base.get_config()
    sizes.apply_presets(config, presets)
    # The shopper that knows every page takes five.
    sizes.play_in_python(config, "webshop", max_turns=7)
    config.env.kwargs.page_size = 3
    config.rollout.max_reply_tokens = max(config.rollout.max_reply_tokens, 48)
    # A page repeats the goal.
    config.rollout.context = "single_turn"
    config.learner.share_prompts = False
    config.rollout.context_turns = 2
    return config
