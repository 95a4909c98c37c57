"""Devices and how much memory they have.

In: a name, or nothing for the device that JAX computes on. Out: bytes that a run may
use there. Reads no configuration.
"""

import dataclasses

import jax

from ragen_jax.devices.sharding import device_memory
from ragen_jax.registry.functions import did_you_mean

MIB = 2**20
# Share of a device's memory that a run may plan with. The rest is the driver's context
# and the libraries' workspaces on GPUs (0.5 to 1.5 GB), the runtime on TPUs, and other
# programs on a computer.
USABLE = {"gpu": 0.92, "tpu": 0.97, "cpu": 0.9}
# Share of a GPU that JAX takes unless XLA_PYTHON_CLIENT_MEM_FRACTION is set (JAX's page
# on GPU memory allocation).
DEFAULT_SHARE = 0.75


@dataclasses.dataclass(frozen=True)
class Device:
    """A device.

    Attributes:
      name: its common name.
      kind: "gpu", "tpu" or "cpu".
      memory: bytes, all of it.
      limit: bytes that a run may use; on a CPU all devices of a mesh share them.
    """

    name: str
    kind: str
    memory: int
    limit: int

    def advice(self, peak: int) -> str:
        """The setting of JAX that a run with this peak needs; "" if it needs none."""
        is_shared = self.kind == "gpu" and self.limit < self.memory
        if not is_shared or not DEFAULT_SHARE * self.memory < peak <= self.limit:
            return ""
        return (
            f"; JAX takes {DEFAULT_SHARE:.0%} of a GPU by default, so start the run "
            f"with XLA_PYTHON_CLIENT_MEM_FRACTION={USABLE['gpu']}"
        )


def named_device(name: str) -> Device:
    """A device of the table.

    Raises:
      ValueError: the table does not have it.
    """
    if name not in DEVICES:
        hint = did_you_mean(name, DEVICES)
        raise ValueError(
            f"no device {name!r}; choose one of {', '.join(DEVICES)}.{hint}"
        )
    kind, mebibytes = DEVICES[name]
    memory = mebibytes * MIB
    return Device(name, kind, memory, int(memory * USABLE[kind]))


def detected_device() -> Device:
    """The device JAX computes on; for a CPU, the machine's memory.

    Raises:
      ValueError: the device does not report its memory.
    """
    device, memory = jax.devices()[0], device_memory()
    if memory is None:
        raise ValueError(
            f"{device.device_kind} does not report its memory to JAX; name a device, "
            f"one of {', '.join(DEVICES)}"
        )
    if device.platform == "cpu":
        return Device("this machine's CPU", "cpu", memory, int(memory * USABLE["cpu"]))
    # JAX has taken its share already, so the limit is exact.
    return Device(device.device_kind, device.platform, memory, memory)


# Name -> kind and MiB of one device, as JAX counts devices: as nvidia-smi shows them;
# TPUs per chip (v3: per core), from Google Cloud's pages on TPU versions.
DEVICES = {
    "t4": ("gpu", 15_360),
    "rtx-3090": ("gpu", 24_576),
    "rtx-4090": ("gpu", 24_564),
    "l4": ("gpu", 23_034),
    "rtx-5090": ("gpu", 32_607),
    "v100-32gb": ("gpu", 32_768),
    "a100-40gb": ("gpu", 40_960),
    "l40s": ("gpu", 46_068),
    "a100-80gb": ("gpu", 81_920),
    "h100": ("gpu", 81_559),
    "h200": ("gpu", 143_771),
    "b200": ("gpu", 183_359),
    "tpu-v3": ("tpu", 16 * 1024),
    "tpu-v4": ("tpu", 32 * 1024),
    "tpu-v5e": ("tpu", 16 * 1024),
    "tpu-v5p": ("tpu", 95 * 1024),
    "tpu-v6e": ("tpu", 32 * 1024),
}
