"""The same update and rollout on meshes of 1 to 8 devices: what they exchange and hold.

    python -m benchmarks.mesh --json=FILE        # pocket model, 8 forced CPU devices
    python -m benchmarks.mesh --tiny             # a small network, two meshes
    python -m benchmarks.mesh --target=h100 --topology=1x1x8     # GPUs' programs

Per mesh: bytes a device holds of the train state and needs at most for an update (XLA's
count), bytes a device gets from the others in one iteration (read from the compiled
programs), programs compiled by two updates and two rollouts, and how far the parameters
are from those of one device after an update (the same batch; at most 1e-6).

The update's loops run as often as the batch says: all groups kept. Of the rollout's
loops, which end early, each turn is taken to be the longest. No times: devices that are
forced upon a CPU share its cores, so times would say nothing. The status is 1 when
parameters differ or a program was compiled twice.

With `--target` the programs are compiled for described GPUs, each way to split the
topology beside one GPU: nothing runs, so the last two columns are left out. Needs the
extra `[cuda]`, and no GPU.
"""

import math
import os

from absl import flags

from benchmarks import harness, runs
from benchmarks.exchanges import collectives
from launch import command

_TINY = flags.DEFINE_bool("tiny", False, "A small random network, two meshes.")
_TARGET = flags.DEFINE_string("target", None, "GPU, see ragen_jax/memory/targets.py.")
_TOPOLOGY = flags.DEFINE_string("topology", "1x1x8", "With --target: 1xHOSTSxGPUS.")
harness.define_json()

# data, fsdp, tensor
MESHES = ((1, 1, 1), (2, 1, 1), (1, 4, 1), (2, 2, 1), (8, 1, 1), (1, 8, 1), (2, 2, 2))
TINY_MESHES = ((1, 1, 1), (2, 1, 1))
BATCH = {
    # One device plays as each of several does.
    "rollout.part_rows": None,
    # AdamW gives a gradient near 0 the full step, with the sign of its rounding.
    "optimizer.learning_rate": 5e-6,
}
DEVICES = 8
MOST = 1e-6


def force_devices() -> None:
    """As many CPU devices as the largest mesh has. Before JAX is imported."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    forced = f"--xla_force_host_platform_device_count={DEVICES}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {forced}"


def read_config(mesh: tuple[int, int, int]):
    """The pocket model's run without a critic on this mesh, checked."""
    changes = {**BATCH, "filter.keep_fraction": 1.0}
    if _TINY.value:
        changes |= {"rollout.max_reply_tokens": 8, "learner.microbatch_rows": 4}
    for axis, size in zip(("data", "fsdp", "tensor"), mesh, strict=True):
        changes[f"mesh.{axis}"] = size
    return runs.batch_config("pocket,grpo", changes, tiny=_TINY.value)


def received(compiled, trips: list[int]) -> dict[str, int]:
    """Kind -> bytes that exchanges make on a device while the program runs once.

    Args:
      compiled: the program.
      trips: how often its loops of an unknown length run, the outermost first.
    """
    sums: dict[str, int] = {}
    for one in collectives(compiled.as_text()):
        received = one.total * math.prod(trips[: one.open_depth])
        sums[one.kind] = sums.get(one.kind, 0) + received
    return sums


def measure_mesh(mesh: tuple[int, int, int], reference: dict) -> dict:
    """One mesh's figures; `reference` is filled by the first mesh, of one device."""
    import jax
    import numpy as np

    config = read_config(mesh)
    setup = runs.set_up(config, tiny=_TINY.value)
    learner, (task,) = setup.parts.learner, setup.parts.tasks
    key = jax.random.key(config.seed)
    if not reference:
        reference["batch"] = jax.device_get(runs.full_rows(setup, config)[0])
    where = jax.tree.map(lambda _: setup.parts.batch_sharding, reference["batch"])
    batch = jax.device_put(reference["batch"], where)
    state, frozen = learner.init(setup.params, 0), learner.freeze(setup.params)
    fixed = frozen, learner.numbers
    compiled = learner.update.lower(*fixed, state, batch, key).compile()
    params = learner.play_params(frozen, state)
    rollout = jax.jit(task.collect).lower(params, key).compile()
    figures = figures_of(config, mesh, setup.parts, compiled, rollout)
    for _ in range(2):
        jax.block_until_ready(task.collect(params, key))
    # The state of the first update is compared, the second may compile again.
    state, *_ = learner.update(*fixed, state, batch, key)
    after = jax.device_get(state.params)
    learner.update(*fixed, state, batch, key)
    reference.setdefault("params", after)
    differences = jax.tree.map(
        lambda a, b: float(np.abs(a - b).max()), after, reference["params"]
    )
    return figures | {
        "compilations": learner.update._cache_size(),
        "difference": max(jax.tree.leaves(differences)),
    }


def figures_of(config, mesh: tuple[int, int, int], parts, update, rollout) -> dict:
    """What the compiled programs hold and exchange."""
    from ragen_jax.memory.programs import memory_of
    from ragen_jax.memory.sizes import tree_bytes

    sizes = config.learner
    num_rows = config.rollout.num_groups * config.rollout.group_size
    trips = [
        num_rows // sizes.minibatch_rows,
        sizes.minibatch_rows // sizes.microbatch_rows,
    ]
    budget = config.rollout
    chunks = -(-budget.max_reply_tokens // budget.decode_chunk_tokens)
    return {
        "mesh": dict(zip(("data", "fsdp", "tensor"), mesh, strict=True)),
        "state_bytes": tree_bytes(parts.learner.state),
        "update_peak_bytes": memory_of(update).peak,
        "update_received": received(update, trips),
        "rollout_received": received(rollout, [budget.max_turns, chunks]),
    }


def splits(topology: str) -> list[tuple[int, int, int]]:
    """One device, and ways to split the run over all of a topology."""
    from ragen_jax.memory.targets import hosts_and_devices

    hosts, per_host = hosts_and_devices(topology)
    count = hosts * per_host
    layouts = [(1, 1, 1), (count, 1, 1), (1, count, 1), (hosts, per_host, 1)]
    if per_host % 2 == 0:
        layouts.append((hosts, per_host // 2, 2))
    return list(dict.fromkeys(layouts))


def compile_mesh(mesh: tuple[int, int, int], topology: str) -> dict:
    """One mesh's figures from programs for described GPUs."""
    from ragen_jax.memory import targets
    from ragen_jax.program.lowering import lower

    config = read_config(mesh)
    where = topology if math.prod(mesh) > 1 else targets.ONE_DEVICE
    target = targets.named_target(_TARGET.value)
    parts, batch = runs.describe(config, target, where, tiny=_TINY.value)
    update, rollout = (
        lower(parts, name, batch)[0].compile() for name in ("update", "rollout")
    )
    return figures_of(config, mesh, parts, update, rollout)


def measure_target() -> list[dict]:
    """Figures of every way to split a described topology.

    Raises:
      ValueError: the target is unknown, or its compiler is not installed.
    """
    from ragen_jax.memory import targets

    target, meshes = targets.named_target(_TARGET.value), splits(_TOPOLOGY.value)
    runs.prepare_devices(target, max(map(math.prod, meshes)))
    return [compile_mesh(mesh, _TOPOLOGY.value) for mesh in meshes]


def print_table(figures: list[dict]) -> None:
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    rows = []
    for of in figures:
        got = of["update_received"]
        sent = {kind: got.get(kind, 0) for kind in kinds}
        # Permutations are parts of what the partitioner makes of all-to-alls.
        sent["all-to-all"] = sum(got.values()) - sum(sent[kind] for kind in kinds[:3])
        sizes = {
            "state MB": of["state_bytes"],
            "update's peak MB": of["update_peak_bytes"],
            **{f"update: {kind} MB": size for kind, size in sent.items()},
            "rollout: all MB": sum(of["rollout_received"].values()),
        }
        row = {"data x fsdp x tensor": " x ".join(map(str, of["mesh"].values()))}
        row |= {column: f"{size / 1e6:,.1f}" for column, size in sizes.items()}
        if "difference" in of:
            row["update programs"] = of["compilations"]
            row["parameters differ by"] = f"{of['difference']:.1e}"
        rows.append(row)
    harness.print_rows(rows)


def main(_: list[str]) -> int:
    if _TARGET.value is not None:
        figures = measure_target()
        print_table(figures)
        harness.write_json({"target": _TARGET.value, "meshes": figures})
        return 0
    force_devices()
    # Looking at a program compiles it a second time.
    command.enable_compilation_cache()
    reference: dict = {}
    figures = [
        measure_mesh(mesh, reference)
        for mesh in (TINY_MESHES if _TINY.value else MESHES)
    ]
    harness.print_versions()
    print_table(figures)
    harness.write_json({"meshes": figures})
    is_right = all(
        of["difference"] <= MOST and of["compilations"] == 1 for of in figures
    )
    return 0 if is_right else 1


if __name__ == "__main__":
    command.run(main)
