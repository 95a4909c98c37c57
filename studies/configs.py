"""Configurations of the arms of studies, whole or shortened.

In: an arm. Out: a task file's configuration with the arm's presets and settings.
"""

from ml_collections import ConfigDict

from configs import sft
from ragen_jax.sweeps.grid import make_cell
from studies.arms import Arm

# With --quick; of keys that an arm's configuration has.
_SHORT = {
    "train.num_iterations": 2,
    "evaluation.every": 1,
    "evaluation.num_prompts": 32,
    "diagnostics.every": 1,
}
_SHORT_SFT = {"train.num_steps": 8, "evaluation.num_prompts": 32}


def arm_config(arm: Arm, *, is_quick: bool) -> ConfigDict:
    """The configuration of an arm, for `launch.train` or `launch.sft`; locked."""
    if arm.is_sft:
        config = sft.get_config(f"{arm.game},{arm.size}")
        short = _SHORT_SFT
    else:
        config = sft.TASKS[arm.game].get_config(f"{arm.size},{arm.presets}")
        short = _SHORT
    config = make_cell(config, arm.settings).config
    if is_quick:
        config.update_from_flattened_dict(short)
        if not arm.is_sft and config.diagnostics.gradient_every is not None:
            config.diagnostics.gradient_every = 2
    return config.lock()
