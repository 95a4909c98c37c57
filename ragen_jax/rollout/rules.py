"""Rules of the keys that let rollouts be one iteration ahead of the updates.

`ragen_jax/config.py` has the other rules of the section `rollout`.
"""

import math
from collections.abc import Iterator

import jax

from ragen_jax.registry.settings import Leaves, Rules
from ragen_jax.sharding import MESH_AXES, player_problems


def _ahead(leaves: Leaves) -> Iterator[str]:
    if leaves["rollout.ahead"] == 0:
        return
    mesh = {axis: leaves[f"mesh.{axis}"] for axis in MESH_AXES}
    num_learners, num_players = math.prod(mesh.values()), leaves["rollout.devices"]
    if jax.process_count() > 1:
        yield (
            f"rollout.ahead = 1 plays in a thread, and {jax.process_count()} processes "
            "would not start the programs they share in one order; use one process, or "
            "rollout.ahead = 0"
        )
    if leaves["loss.importance_cap"] is None:
        yield (
            "rollout.ahead = 1 plays with the parameters before the latest update, and "
            "loss.importance_cap = None corrects nothing of that; set it (2.0 is "
            "usual) and loss.old_log_probs = 'learner', or rollout.ahead to 0"
        )
    if num_players is not None:
        num_rows = leaves["rollout.num_groups"] * leaves["rollout.group_size"]
        yield from player_problems(num_players, num_rows, mesh)
    elif num_learners > 1:
        yield (
            f"rollout.ahead = 1 would play and learn on the same {num_learners} "
            "devices of mesh.*, whose exchanges must not overlap; set rollout.devices "
            "to a number of further devices that play, or rollout.ahead to 0"
        )
    elif leaves["env.host"] is None:
        yield (
            "rollout.ahead = 1 gains nothing where one device both plays a compiled "
            "game and learns; set rollout.devices to a number of further devices that "
            "play, play a game in Python (env.host), or set rollout.ahead to 0"
        )


def _no_effect(leaves: Leaves) -> Iterator[tuple[str, str]]:
    if leaves["rollout.ahead"] == 0:
        reason = "rollout.ahead is 0: the devices of mesh.* play, then learn"
        yield "rollout.devices", reason
    else:
        reason = "rollout.ahead = 1: the sampler is another policy than the learner"
        yield "train.max_sampler_difference", reason


RULES = Rules(
    optional=("rollout.devices",),
    positive_integers=("rollout.devices",),
    ranges={"rollout.ahead": ("0 or 1", lambda x: x in (0, 1))},
    checks=(_ahead,),
    no_effect=(_no_effect,),
)
