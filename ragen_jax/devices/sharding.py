"""Placement of arrays: the mesh, and the only map from logical axes to its axes.

Models name the axes of their parameters; `LOGICAL_AXES` maps the names to axes of the
mesh. The mesh has three axes: `data` (copies of the parameters, rows split), `fsdp`
(parameters and rows split) and `tensor` (heads, inner widths and vocabulary split).
"""

import math
import os
import re
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from ragen_jax.types import Params

MESH_AXES = ("data", "fsdp", "tensor")
# Mesh axes that split the rows of a batch.
ROW_AXES = ("data", "fsdp")


def make_mesh(
    *, data: int, fsdp: int, tensor: int, devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """A mesh over the first `data * fsdp * tensor` devices.

    Args:
      data, fsdp, tensor: devices of each axis.
      devices: to choose from, real or described; None: those JAX computes on.

    Raises:
      ValueError: there are fewer devices.
    """
    needed = data * fsdp * tensor
    if devices is None:
        for problem in mesh_problems({"data": data, "fsdp": fsdp, "tensor": tensor}):
            raise ValueError(problem)
        devices = jax.devices()
    return _mesh_of(devices[:needed], (data, fsdp, tensor))


def platform_of(mesh: Mesh) -> str:
    """Platform of a mesh's devices, as JAX names it."""
    return mesh.devices.flat[0].platform


def kernel_platform(mesh: Mesh) -> str:
    """Platform of a mesh, but the name of the device for a GPU without our kernels.

    They and cuDNN's compute in bfloat16 on matrix units, which NVIDIA's GPUs have from
    compute capability 8 on.
    """
    device = mesh.devices.flat[0]
    if device.platform != "gpu":
        return device.platform
    # AMD's GPUs report a name such as "gfx942".
    capability = re.fullmatch(r"(\d+)\.\d+", str(device.compute_capability))
    is_enough = capability is not None and int(capability[1]) >= 8
    return "gpu" if is_enough else device.device_kind


def mesh_problems(mesh: Mapping[str, int]) -> Iterator[str]:
    """Why a mesh cannot be made here.

    Args:
      mesh: devices by the name of their axis.
    """
    needed, available = math.prod(mesh.values()), jax.device_count()
    if needed > available:
        yield (
            f"mesh.data x mesh.fsdp x mesh.tensor = {needed} devices, but "
            f"only {available} are available; use smaller factors"
        )
    elif needed < available and jax.process_count() > 1:
        yield (
            f"mesh.data x mesh.fsdp x mesh.tensor = {needed} devices, but the "
            f"{jax.process_count()} processes have {available}, and each must take "
            "part with all of its devices; use larger factors"
        )


def row_problems(name: str, num_rows: int, mesh: Mapping[str, int]) -> Iterator[str]:
    """Why rows cannot be split evenly over a mesh.

    Args:
      name: what the rows are, for the sentence.
      num_rows: their number.
      mesh: devices by the name of their axis.
    """
    shards = math.prod(mesh[axis] for axis in ROW_AXES)
    if num_rows % shards:
        yield (
            f"{name} = {num_rows} rows cannot be split over mesh.data x mesh.fsdp = "
            f"{shards} devices; use a multiple of {shards}"
        )


def check_network(mesh: Mapping[str, int], model: object) -> None:
    """Refuse a mesh that cannot split the network evenly between whole heads.

    Args:
      mesh: devices by the name of their axis.
      model: the network's description, with the names of `config.json`.

    Raises:
      ValueError: one of its `SPLIT_SIZES` does not divide.
    """
    for axis, names in SPLIT_SIZES.items():
        for name in names:
            size = getattr(model, name)
            if size % mesh[axis]:
                raise ValueError(
                    f"mesh.{axis} = {mesh[axis]} cannot split the model's {name} = "
                    f"{size}; use a divisor of {size}, and mesh.data for the other "
                    "devices"
                )


def device_memory() -> int | None:
    """Bytes of the first device; for a CPU, of the machine, which all devices share.

    None if the device does not report them (JAX's "platform" allocator does not).
    """
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (device.memory_stats() or {}).get("bytes_limit")


def peak_memory() -> int | None:
    """Most bytes in use so far on one of this process's devices; on CPUs, by itself.

    None if the devices do not report them.
    """
    devices = jax.local_devices()
    if devices[0].platform == "cpu":
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    peaks = [(x.memory_stats() or {}).get("peak_bytes_in_use") for x in devices]
    return None if None in peaks else max(peaks)


def mesh_memory(mesh: Mesh) -> int | None:
    """Bytes of all devices of a mesh together; None: unknown, see `device_memory`."""
    memory, is_shared = device_memory(), platform_of(mesh) == "cpu"
    return memory if memory is None or is_shared else memory * mesh.size


def make_players(
    mesh: Mesh, count: int, devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """A mesh over the `count` devices after those of another, split like it.

    The sizes of `fsdp` and `tensor` are equal, so that a device of one mesh holds the
    same slices of parameters as one of the other: they move without the host.

    Args:
      mesh: of `make_mesh`, over the first of the devices.
      count: devices, see `player_problems`.
      devices: the devices from which `mesh` was made.
    """
    devices = jax.devices() if devices is None else devices
    fsdp, tensor = mesh.shape["fsdp"], mesh.shape["tensor"]
    devices = devices[mesh.size : mesh.size + count]
    return _mesh_of(devices, (count // (fsdp * tensor), fsdp, tensor))


def player_problems(
    count: int, num_rows: int, mesh: Mapping[str, int]
) -> Iterator[str]:
    """Why `count` further devices cannot play rows for the learner of a mesh.

    Args:
      count: the value of `rollout.devices`.
      num_rows: of a rollout.
      mesh: devices by the name of their axis.
    """
    needed, split = math.prod(mesh.values()), mesh["fsdp"] * mesh["tensor"]
    if needed + count > jax.device_count():
        yield (
            f"rollout.devices = {count} beside the {needed} of mesh.data x mesh.fsdp x "
            f"mesh.tensor, but only {jax.device_count()} devices are available; use "
            "smaller factors"
        )
    elif count % split:
        yield (
            f"rollout.devices = {count} cannot be split like the learner's, over "
            f"mesh.fsdp x mesh.tensor = {split}; use a multiple of {split}"
        )
    elif num_rows % (count // mesh["tensor"]):
        shards = count // mesh["tensor"]
        yield (
            f"rollout.num_groups x rollout.group_size = {num_rows} rows cannot be "
            f"split over rollout.devices / mesh.tensor = {shards} devices; use a "
            f"multiple of {shards}"
        )


def on_mesh(tree: PyTree, mesh: Mesh) -> PyTree[NamedSharding]:
    """The sharding of every leaf of a tree, moved to another mesh."""
    return jax.tree.map(lambda x: NamedSharding(mesh, x.sharding.spec), tree)


def replicated(mesh: Mesh) -> NamedSharding:
    """Whole copies on every device."""
    return NamedSharding(mesh, PartitionSpec())


def by_rows(mesh: Mesh) -> NamedSharding:
    """The leading axis, the rows of a batch, split; other axes whole."""
    return NamedSharding(_ambient(mesh), PartitionSpec(_row_axes()))


def constrained(tree: PyTree, shardings: PyTree[NamedSharding]) -> PyTree:
    """A tree held as the shardings say, which do not name `data`.

    Unlike `with_sharding_constraint` also inside `on_each_copy`.
    """
    here = jax.tree.map(lambda x: NamedSharding(_ambient(x.mesh), x.spec), shardings)
    return jax.lax.with_sharding_constraint(tree, here)


def param_shardings(
    params: Params, logical_axes: PyTree, mesh: Mesh
) -> PyTree[NamedSharding]:
    """One sharding per parameter, in a tree like `params`.

    Args:
      params: arrays, or anything with a shape.
      logical_axes: the same tree with, for each parameter, a tuple of names from
        `LOGICAL_AXES`, one per axis.
      mesh: of `make_mesh`.

    Raises:
      ValueError: a parameter has no axes or axes have no parameter, their numbers
        differ, a name is unknown, two axes of a parameter fall on one mesh axis, or a
        size does not divide.
    """
    leaves, structure = jax.tree.flatten_with_path(params)
    named = dict(
        _by_path(jax.tree.leaves_with_path(logical_axes, is_leaf=_is_axis_names))
    )
    paths = [jax.tree_util.keystr(path) for path, _ in leaves]
    for path in sorted(named.keys() ^ set(paths)):
        what = "no logical axes" if path in paths else "logical axes, but no array"
        raise ValueError(f"parameter {path} has {what}; declare each exactly once")
    shardings = [
        NamedSharding(mesh, _partition(path, leaf.shape, named[path], mesh))
        for path, (_, leaf) in zip(paths, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, shardings)


def gather_vocab_tables(
    shardings: PyTree[NamedSharding], logical_axes: PyTree
) -> PyTree:
    """The shardings with vocabulary tables split along the vocabulary only.

    Their other axis is gathered once, before the table is read. XLA would otherwise
    gather the vocabulary at every lookup, and the other axis for every chunk of the
    output head.

    Args:
      shardings: of `param_shardings`.
      logical_axes: those the shardings were made from.
    """

    def whole(sharding: NamedSharding, names: tuple[str | None, ...]) -> NamedSharding:
        if "vocab" not in names:
            return sharding
        axes = (LOGICAL_AXES[name] if name == "vocab" else None for name in names)
        return NamedSharding(sharding.mesh, PartitionSpec(*axes))

    return jax.tree.map(whole, shardings, logical_axes)


def num_row_shards(mesh: Mesh) -> int:
    """Number of parts into which rows are split."""
    return math.prod(mesh.shape[axis] for axis in _row_axes())


def _row_axes() -> tuple[str, ...]:
    """Axes that split rows: without `data` inside `on_each_copy`."""
    manual = jax.sharding.get_abstract_mesh().manual_axes
    return tuple(axis for axis in ROW_AXES if axis not in manual)


def _ambient(mesh: Mesh) -> Mesh | AbstractMesh:
    """The mesh that shardings name here: inside `shard_map` its own."""
    ambient = jax.sharding.get_abstract_mesh()
    return ambient if ambient.manual_axes else mesh


def copies_compute_apart(mesh: Mesh) -> bool:
    """Whether there are copies of the parameters, and `on_each_copy` can be used.

    Not where `fsdp` and `tensor` both split a copy: XLA's partitioner (JAX 0.11.2) ends
    the process there, when it splits a lookup in a table for some of the axes alone.
    """
    shape = mesh.shape
    return shape["data"] > 1 and min(shape["fsdp"], shape["tensor"]) == 1


def on_each_copy(function: Callable, mesh: Mesh) -> Callable:
    """`function(whole, batches)` by each copy of the parameters, for its rows.

    Only where `copies_compute_apart`. `batches` are arrays [n, rows, ...], of which the
    second axis is split. What is returned must be the same for all copies; the function
    adds it up over `data`, once. In it the axes `fsdp` and `tensor` stay automatic.
    """
    whole, by_row = PartitionSpec(), PartitionSpec(None, "data")
    return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=(whole, by_row),
        out_specs=whole,
        axis_names={"data"},
        check_vma=False,
    )


def on_each_device(function: Callable, mesh: Mesh) -> Callable:
    """`function(params, rows, ...)`, computed by each device for the rows it holds.

    For a gradient of `params`, sums over rows are added up between devices once, at the
    end, and not at every step of the function's loops. `tensor` stays automatic.
    """
    if num_row_shards(mesh) == 1:
        return function

    def mapped(params: Params, *arrays):
        axes = _row_axes()
        whole, by_row = PartitionSpec(), PartitionSpec(axes)
        return jax.shard_map(
            function,
            mesh=_ambient(mesh),
            in_specs=(whole, *(by_row for _ in arrays)),
            out_specs=by_row,
            axis_names=set(axes),
            check_vma=False,
        )(params, *arrays)

    return mapped


def _mesh_of(devices: Sequence[jax.Device], shape: tuple[int, int, int]) -> Mesh:
    # JAX's default, Explicit, would refuse sharding constraints inside a program.
    types = (AxisType.Auto,) * len(MESH_AXES)
    return jax.make_mesh(shape, MESH_AXES, axis_types=types, devices=devices)


def _partition(
    path: str, shape: tuple[int, ...], names: tuple[str | None, ...], mesh: Mesh
) -> PartitionSpec:
    """Mesh axes of one parameter."""
    if len(names) != len(shape):
        raise ValueError(
            f"parameter {path} has shape {shape}, but logical axes {names}; name one "
            "per axis"
        )
    used: dict[str, str] = {}
    for name, size in zip(names, shape, strict=True):
        if name not in LOGICAL_AXES:
            raise ValueError(
                f"parameter {path} has the logical axis {name!r}; "
                f"ragen_jax/devices/sharding.py knows "
                f"{', '.join(LOGICAL_AXES)}"
            )
        axis = LOGICAL_AXES[name]
        if axis is None:
            continue
        if axis in used:
            raise ValueError(
                f"parameter {path}: logical axes {used[axis]!r} and {name!r} both fall "
                f"on the mesh axis {axis!r}; change LOGICAL_AXES in "
                "ragen_jax/devices/sharding.py"
            )
        used[axis] = name
        if size % mesh.shape[axis]:
            raise ValueError(
                f"parameter {path}: axis {name!r} of size {size} cannot be split over "
                f"mesh.{axis} = {mesh.shape[axis]}; use a divisor of {size}"
            )
    return PartitionSpec(*(LOGICAL_AXES[name] for name in names))


def _is_axis_names(node) -> bool:
    return type(node) is tuple


def _by_path(leaves):
    return ((jax.tree_util.keystr(path), leaf) for path, leaf in leaves)


# Logical axis of a parameter -> mesh axis; None: whole on every device.
LOGICAL_AXES = {
    "vocab": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "norm": None,
    "rank": None,
}

# Mesh axis -> sizes of a network that it splits. An axis of a parameter is heads x head
# size: it may divide although the number of heads does not.
SPLIT_SIZES = {
    "tensor": (
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "vocab_size",
    ),
    "fsdp": ("hidden_size",),
}
