"""GPUs for which programs are compiled on machines without them.

In: a name such as "h100", and the number of GPUs. Out: described devices: XLA compiles,
schedules and assigns buffers for them on any machine that has the extra `[cuda]`, with
or without a GPU. Nothing runs or is allocated on a described device, and XLA keeps the
defaults of what it would tune by measuring.
"""

import dataclasses
import importlib.util
import math
import os
import re

import jax

from ragen_jax import install_command

# The first number of a topology counts slices; here all hosts are in one.
_TOPOLOGY = re.compile(r"1x([1-9]\d*)x([1-9]\d*)")
_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
ONE_DEVICE = "1x1x1"


@dataclasses.dataclass(frozen=True)
class Target:
    """A GPU.

    Attributes:
      name: key of `TARGETS`, also of `devices.DEVICES`.
      label: as its driver names it.
      capability: CUDA's compute capability, the major number.
      cores: streaming multiprocessors.
      lanes: float32 units of each.
      clock: GHz.
      memory: bytes.
      l2: bytes of cache that all cores share.
      shared_kib: KiB of memory shared by the threads of a core; a block may have all
        but one.
      bandwidth: bytes per second of its memory.
      matrix_rate: floating point operations per second, dense bfloat16 matrices.
      link_rate: bytes per second between the GPUs of a host, each way (NVLink).
      network_rate: bytes per second between hosts, each way, per GPU.
    """

    name: str
    label: str
    capability: int
    cores: int
    lanes: int
    clock: float
    memory: int
    l2: int
    shared_kib: int
    bandwidth: float
    matrix_rate: float
    link_rate: float
    network_rate: float

    @property
    def description(self) -> str:
        """XLA's `GpuTargetConfigProto`, as text."""
        info = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "shared_memory_per_block": 48 * 1024,
            "shared_memory_per_core": self.shared_kib * 1024,
            "threads_per_core_limit": 2048,
            "core_count": self.cores,
            "fpus_per_core": self.lanes,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 2**16 - 1,
            "block_dim_limit_z": 2**16 - 1,
            "memory_bandwidth": int(self.bandwidth),
            "l2_cache_size": self.l2,
            "clock_rate_ghz": self.clock,
            "device_memory_size": self.memory,
            "shared_memory_per_block_optin": (self.shared_kib - 1) * 1024,
            "registers_per_core_limit": 2**16,
            "registers_per_block_limit": 2**16,
        }
        fields = " ".join(f"{name}: {value}" for name, value in info.items())
        return (
            f"gpu_device_info {{ {fields} "
            f"cuda_compute_capability {{ major: {self.capability} }} }} "
            'platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 } '
            "runtime_version { major: 12 minor: 9 } "
            f'device_description_str: "{self.label}"'
        )


def named_target(name: str) -> Target:
    """A target of the table.

    Raises:
      ValueError: the table does not have it.
    """
    if name not in TARGETS:
        raise ValueError(
            f"no target {name!r}: programs are compiled for {', '.join(TARGETS)}; "
            "for other devices use --device, which estimates by formula"
        )
    return TARGETS[name]


def has_compiler() -> bool:
    """Whether XLA's compiler for NVIDIA's GPUs is installed."""
    return any(importlib.util.find_spec(name) for name in _PLUGINS)


def require_compiler(target: Target) -> None:
    """Refuse a target without XLA's compiler for it.

    Raises:
      ValueError: it is not installed.
    """
    if not has_compiler():
        raise ValueError(
            f"programs for {target.name} need XLA's compiler for NVIDIA's GPUs, which "
            f"is not installed: {install_command('cuda')}"
        )


def prepare_compiler() -> None:
    """Let the compiler work without a GPU; call it before JAX looks for devices."""
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    jax.config.update("jax_platforms", "cpu")


def hosts_and_devices(topology: str) -> tuple[int, int]:
    """Hosts, and GPUs of each, of a topology such as "1x4x8".

    Raises:
      ValueError: it has another form.
    """
    match = _TOPOLOGY.fullmatch(topology)
    if match is None:
        raise ValueError(
            f"topology {topology!r}: use 1xHOSTSxGPUS, e.g. 1x1x8 for one host of "
            "eight GPUs or 1x32x8 for 32 of them"
        )
    return int(match[1]), int(match[2])


def check_mesh(mesh: dict[str, int], topology: str) -> None:
    """Refuse a mesh that does not fit a topology.

    Raises:
      ValueError: its devices are not those of the topology, or `tensor` leaves a host.
    """
    hosts, per_host = hosts_and_devices(topology)
    if math.prod(mesh.values()) != hosts * per_host:
        raise ValueError(
            f"topology {topology} has {hosts * per_host} GPUs, but mesh.data x "
            f"mesh.fsdp x mesh.tensor = {math.prod(mesh.values())}; set them to its "
            f"number, e.g. --config.mesh.fsdp={per_host} --config.mesh.data={hosts}"
        )
    if per_host % mesh["tensor"]:
        raise ValueError(
            f"mesh.tensor = {mesh['tensor']} would split layers between hosts of "
            f"{per_host} GPUs: every layer of every token would wait for the network "
            f"twice; use a divisor of {per_host}, and mesh.fsdp or mesh.data beyond"
        )


def describe_devices(target: Target, topology: str = ONE_DEVICE) -> list[jax.Device]:
    """Described devices, those of a host adjacent; call `prepare_compiler` first."""
    from jax.experimental import topologies  # experimental: only where it is used

    description = topologies.get_topology_desc(
        platform="cuda", target_config=target.description, topology=topology
    )
    return list(description.devices)


# Cores, clocks, memory and caches as the devices report them (OpenXLA publishes their
# reports), rates from NVIDIA's data sheets of the SXM modules and of DGX systems:
# NVLink 3, 4, 4, 5; one InfiniBand port of 200 or 400 Gbit/s for each GPU.
_TABLE = {
    "name": ("a100-80gb", "h100", "h200", "b200"),
    "label": (
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA H100 80GB HBM3",
        "NVIDIA H200",
        "NVIDIA B200",
    ),
    "capability": (8, 9, 9, 10),
    "cores": (108, 132, 132, 148),
    "lanes": (64, 128, 128, 128),
    "clock": (1.41, 1.98, 1.98, 1.965),
    "memory": (85_100_068_864, 84_942_979_072, 151_397_597_184, 191_514_411_008),
    "l2": (40 * 2**20, 50 * 2**20, 50 * 2**20, 132_644_864),
    "shared_kib": (164, 228, 228, 228),
    "bandwidth": (2.03904e12, 3.35232e12, 4.8e12, 7.67232e12),
    "matrix_rate": (312e12, 989.4e12, 989.4e12, 2250e12),
    "link_rate": (300e9, 450e9, 450e9, 900e9),
    "network_rate": (25e9, 50e9, 50e9, 50e9),
}
TARGETS = {
    row[0]: Target(**dict(zip(_TABLE, row, strict=True)))
    for row in zip(*_TABLE.values(), strict=True)
}
