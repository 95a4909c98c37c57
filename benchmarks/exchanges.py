"""Exchanges between the devices of a compiled program, read from its text.

In: `jax.stages.Compiled.as_text()`. Out: a `Collective` for every exchange: its kind,
who takes part, how often, and the bytes that a device gets from the others.
"""

import dataclasses
import math
import re

import numpy as np

from benchmarks.hlo import Program

_GROUPS = re.compile(
    r"(?:replica_groups|source_target_pairs)=([{\[m].*?)(?:, (?!device_ids)[a-z_]+=|$)"
)
_NUM_DEVICES = re.compile(r"num_partitions=(\d+)")
_WRITTEN = re.compile(r"\{((?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{(.*)\}"
)
_MESH_AXIS = re.compile(r"'(\w+)'=(\d+)")
# An axis, or a part of it: 'x':(2)4 has 4 of what is left of x after 2.
_AXIS = re.compile(r"'(\w+)'(?::\((\d+)\)(\d+))?")


@dataclasses.dataclass(frozen=True)
class Collective:
    """An exchange between devices.

    Attributes:
      kind: as XLA names it.
      num_bytes: of what a device makes of it each time.
      sizes: of all axes of the arrays it makes.
      groups: devices that exchange with each other; of a permutation, pairs.
      times: how often it runs in the loops of a known length that it stands in.
      depth: loops it stands in, of any length.
      open_depth: those of them whose length the program does not say.
      is_innermost: the last of those has no other one inside.
      line: the instruction.
    """

    kind: str
    num_bytes: int
    sizes: frozenset[int]
    groups: tuple[tuple[int, ...], ...]
    times: int
    depth: int
    open_depth: int
    is_innermost: bool
    line: str

    @property
    def total(self) -> int:
        """Bytes it makes, every loop of an unknown length run once."""
        return self.num_bytes * self.times

    @property
    def received(self) -> float:
        """Bytes that a device gets from the others, around a ring, as often."""
        n = max(map(len, self.groups))
        factors = {"all-reduce": 2 * (n - 1) / n, "reduce-scatter": n - 1}
        factors["collective-permute"] = 1.0
        return self.total * factors.get(self.kind, (n - 1) / n)


def collectives(text: str) -> list[Collective]:
    """All exchanges of a program, `jax.stages.Compiled.as_text()`.

    Raises:
      ValueError: the groups of one are written in a form that is not known.
    """
    count = _NUM_DEVICES.search(text)
    visited = list(Program(text).visit())
    outer = {
        loop.name
        for one, loops in visited
        if one.opcode == "while" and one.trips is None
        for loop in loops
    }
    found = []
    for one, loops in visited:
        if not one.collective:
            continue
        opened = [loop.name for loop in loops if loop.trips is None]
        found.append(
            Collective(
                kind=one.collective,
                num_bytes=sum(array.num_bytes for array in one.results),
                sizes=frozenset(n for array in one.results for n in array.shape),
                groups=_read_groups(one.line, int(count[1]) if count else None),
                times=math.prod(loop.trips or 1 for loop in loops),
                depth=len(loops),
                open_depth=len(opened),
                is_innermost=bool(opened) and opened[-1] not in outer,
                line=one.line,
            )
        )
    return found


def total(exchanges: list[Collective], kind: str) -> int:
    """Bytes that all exchanges of a kind make."""
    return sum(one.total for one in exchanges if one.kind == kind)


def _read_groups(line: str, num_devices: int | None) -> tuple[tuple[int, ...], ...]:
    """Written out; an iota, transposed; or axes of a mesh of devices."""
    match = _GROUPS.search(line)
    text = match[1].strip() if match else ""
    if text == "{}" and num_devices is not None:
        return (tuple(range(num_devices)),)
    if match := _WRITTEN.fullmatch(text):
        groups = re.findall(r"\{([\d,]*)\}", match[1])
        return tuple(_numbers(group) for group in groups)
    if match := _IOTA.fullmatch(text):
        return _rows(_iota(match[2], match[3]).reshape(_numbers(match[1])))
    if match := _MESH.fullmatch(text):
        return _axis_groups(*match.groups())
    raise ValueError(f"these groups of devices cannot be read: {line.strip()[:300]}")


def _axis_groups(
    mesh: str, shape: str | None, order: str | None, axes: str
) -> tuple[tuple[int, ...], ...]:
    """Groups along some axes of a mesh, or along parts of them."""
    sizes = {name: int(size) for name, size in _MESH_AXIS.findall(mesh)}
    parts = {name: (1, size) for name, size in sizes.items()}
    chosen = []
    for name, before, size in _AXIS.findall(axes):
        chosen.append(name)
        if size:
            parts[name] = int(before), int(size)
    split = []
    for name, size in sizes.items():
        before, taken = parts[name]
        split += [before, taken, size // (before * taken)]
    if shape is None:
        devices = np.arange(math.prod(sizes.values()))
    else:
        devices = _iota(shape, order)
    # Every axis is three: what comes before the part, the part, what follows it.
    places = [3 * list(sizes).index(name) + 1 for name in chosen]
    others = [i for i in range(len(split)) if i not in places]
    devices = devices.reshape(split).transpose(others + places)
    width = math.prod(split[i] for i in places)
    return _rows(devices.reshape(-1, width))


def _iota(shape: str, order: str | None) -> np.ndarray:
    """Numbers from 0 in a shape, its axes in another order."""
    sizes = _numbers(shape)
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    return numbers.transpose(_numbers(order)) if order else numbers


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n)


def _rows(devices: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(n) for n in row) for row in devices)
