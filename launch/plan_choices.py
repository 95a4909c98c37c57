"""What else a model could be trained with: its other presets, and more devices.

In: a configuration that does not fit a device. Out: configurations that might, with the
words of a command line that choose them. Plans nothing.
"""

import os
import runpy
from collections.abc import Collection, Iterator

from ml_collections import ConfigDict

from configs.sizes import SIZES
from ragen_jax.memory.plan import changed
from ragen_jax.registry.settings import flatten

Choice = tuple[str, ConfigDict]
# More are a cluster, see docs/cluster.md.
_MAX_SHARDS = 8


def other_presets(
    config: ConfigDict, source: str, overrides: Collection[str]
) -> Iterator[Choice]:
    """The other presets of the same model.

    Args:
      config: as asked for.
      source: where it is from, FILE:PRESETS; without a size there are no others.
      overrides: dotted paths of the keys whose values are kept.
    """
    path, _, text = source.partition(":")
    names = text.split(",")
    asked = next((name for name in names if name in SIZES), None)
    if asked is None:
        return
    get_config = runpy.run_path(path)["get_config"]
    kept = {
        leaf: value
        for leaf, value in flatten(config).items()
        if any(f"{leaf}.".startswith(f"{key}.") for key in overrides)
    }
    model = get_config(text).model.path
    for size in SIZES:
        presets = ",".join(size if name == asked else name for name in names)
        other = get_config(presets)
        if size != asked and other.model.path == model:
            short = min(path, os.path.relpath(path), key=len)
            yield f"--config={short}:{presets}", changed(other, kept)


def more_devices(config: ConfigDict) -> Iterator[Choice]:
    """The parameters and rows split over more devices, the fewest first."""
    rows, fsdp = config.learner.microbatch_rows, config.mesh.fsdp
    while (fsdp := 2 * fsdp) <= _MAX_SHARDS:
        # A pass has a row or a group for every device.
        least = config.mesh.data * fsdp
        if config.learner.share_prompts:
            least *= config.rollout.group_size
        changes = {"mesh.fsdp": fsdp}
        if rows % least:
            changes["learner.microbatch_rows"] = least
        words = " ".join(f"--config.{key}={value}" for key, value in changes.items())
        yield words, changed(config, changes)
