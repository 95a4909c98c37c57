"""2048 on a 3x3 board: reach the tile 32, one move a turn.

python -m launch.train --config=configs/game2048.py --workdir=runs/game2048

The model sees the present board alone (`rollout.context = "single_turn"`): an episode
takes up to 24 turns. The original's board: --config.env.kwargs.size=4
--config.env.kwargs.goal=2048, which takes about 1,000 moves; its solver is a reference
player, not exact.

The pocket model reaches the goal on 26 % of 256 held-out levels, best play on all.
Training raises that to 48 to 59 % in 20 iterations, 11 to 19 minutes on one core that
had a busy neighbour (docs/results.md).

Presets (`configs/sizes.py`): --config=configs/game2048.py:qwen2.5-0.5b,starpo_s,grpo
"""

from ml_collections import ConfigDict

from configs import algorithms, base, sizes


def get_config(presets: str = "pocket") -> ConfigDict:
    """2048 with presets such as "pocket,starpo_s" (see `configs/sizes.py`)."""
    config = base.get_config()
    config.env.name = "game2048"
    # In 24 moves random play wins 11 % of its games, and 62 % are won by always sliding
    # Down, else Left, else Right, else Up.
    config.env.kwargs.goal = 32
    # Without it best play delays the win, since merging continues to pay.
    config.env.params.goal_reward = 10.0
    sizes.apply_presets(config, presets)
    if sizes.use_built_in(config, "pocket_worlds"):
        # Every turn is a row: these are up to 1,536.
        config.rollout.num_groups = 8
        config.learner.minibatch_rows = 128
        config.train.num_iterations = 20
        if not algorithms.ESTIMATORS.keys() & presets.split(","):
            # A merge pays at once and is worth most in the next few moves; credit for
            # the return of all 24 is mostly noise.
            config.algo.advantage = "bi_level_gae"
            config.algo.reward_placement = "turn"
            config.algo.high_level_gamma = 0.8
    config.rollout.context = "single_turn"
    config.learner.share_prompts = False
    config.rollout.context_turns = 1
    config.rollout.max_turns = 24
    config.rollout.max_actions_per_turn = 1
    config.rollout.max_actions_per_episode = 24
    return config
