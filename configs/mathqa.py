"""MetaMathQA: word problems with one answer.

python -m launch.train --config=configs/mathqa.py --workdir=runs/mathqa

MetaMathQA's file, judged by math-verify (pip install -e ".[math]"):
"--config.env.kwargs={'path': 'MetaMathQA.json', 'judge': 'math'}".
See docs/host_games.md.

The pocket model solves problems of one step with numbers up to 20.

Presets (`configs/sizes.py`): --config=configs/mathqa.py:qwen2.5-0.5b,starpo_s,grpo
"""

from ml_collections import ConfigDict

from configs import base, sizes


def get_config(presets: str = "pocket") -> ConfigDict:
    """MetaMathQA with presets such as "pocket,starpo_s" (see `configs/sizes.py`)."""
    config = base.get_config()
    sizes.apply_presets(config, presets)
    sizes.play_in_python(config, "math", max_turns=1)
    if sizes.use_built_in(config, "pocket_host"):
        config.env.kwargs.update(num_steps=1, max_number=20)
        # One answer each: many of these short episodes.
        config.rollout.num_groups = 128
        config.learner.minibatch_rows = 64
    config.rollout.max_reply_tokens = max(config.rollout.max_reply_tokens, 32)
    return config
