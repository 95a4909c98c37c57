"""Time of a call by kernel of the GPU, from a trace of JAX's profiler."""

import collections
import pathlib
import re
import tempfile
import time
from collections.abc import Callable


def kernel_times(call: Callable[[], object]) -> dict:
    """Calls under the profiler, waits, and adds up what its kernels took.

    Returns:
      "wall_s"; "busy_s", time in which a kernel ran; and "kernels", name -> number of
      launches and seconds, numbers at the end of names left out; both are empty where
      there is no GPU.
    """
    import jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            began = time.perf_counter()
            jax.block_until_ready(call())
            wall = time.perf_counter() - began
        (file,) = pathlib.Path(folder).rglob("*.xplane.pb")
        launches = gpu_launches(jax.profiler.ProfileData.from_file(str(file)))
    kernels = collections.defaultdict(lambda: [0, 0.0])
    for name, began, ended in launches:
        entry = kernels[re.sub(r"([._]\d+)+$", "", name)]
        entry[0] += 1
        entry[1] += 1e-9 * (ended - began)
    return {"wall_s": wall, "busy_s": busy_seconds(launches), "kernels": dict(kernels)}


def gpu_launches(profile) -> list[tuple[str, float, float]]:
    """Name, begin and end in ns of everything that ran on streams of GPUs."""
    return [
        (event.name, event.start_ns, event.start_ns + event.duration_ns)
        for plane in profile.planes
        if plane.name.startswith("/device:GPU")
        for line in plane.lines
        if line.name.startswith("Stream")
        for event in line.events
    ]


def busy_seconds(launches: list[tuple[str, float, float]]) -> float:
    """Length of the union of the launches' intervals."""
    busy, until = 0.0, float("-inf")
    for _, began, ended in sorted(launches, key=lambda launch: launch[1]):
        busy += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return 1e-9 * busy


def print_times(name: str, times: dict, most: int = 25) -> None:
    """The kernels that took longest, with their share of the wall time."""
    wall = times["wall_s"]
    print(f"{name}: {wall:.3f} s under the profiler, GPU busy {times['busy_s']:.3f} s")
    kernels = sorted(times["kernels"].items(), key=lambda item: -item[1][1])
    for kernel, (count, seconds) in kernels[:most]:
        each = 1e6 * seconds / count
        print(f"{seconds / wall:6.1%} {count:8,} x {each:9.1f} us  {kernel[:90]}")
