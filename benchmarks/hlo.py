"""What a compiled program sends between devices, read from its text."""

import dataclasses
import math
import re

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2}  # of others: 4
_BYTES |= {"f64": 8, "s64": 8, "u64": 8}
_KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
_COLLECTIVE = re.compile(rf"= (.*?) ({_KINDS})(?:-start)?\(")
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_CALLED = re.compile(r"(?:calls|to_apply|\w+_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r"known_trip_count\W+n\W+(\d+)")


@dataclasses.dataclass(frozen=True)
class Collective:
    """An exchange between devices.

    Attributes:
      kind: as XLA names it.
      num_bytes: of what a device gets each time.
      sizes: of all axes of the arrays it gets.
      times: how often it runs in the loops of a known length that it stands in.
      depth: loops it stands in, of whatever length.
      open_depth: those of them whose length the program does not say.
      line: the instruction.
    """

    kind: str
    num_bytes: int
    sizes: frozenset[int]
    times: int
    depth: int
    open_depth: int
    line: str

    @property
    def total(self) -> int:
        """Bytes, every loop of an unknown length run once."""
        return self.num_bytes * self.times


def collectives(text: str) -> list[Collective]:
    """All exchanges of a program, `jax.stages.Compiled.as_text()`."""
    computations, entry = _computations(text)
    found = []

    def visit(name: str, times: int, depth: int, open_depth: int) -> None:
        for line in computations[name]:
            if match := _COLLECTIVE.search(line):
                arrays = _ARRAY.findall(match[1])
                num_bytes = sum(map(_num_bytes, arrays))
                sizes = frozenset(n for _, shape in arrays for n in _sizes(shape))
                where = (times, depth, open_depth)
                found.append(Collective(match[2], num_bytes, sizes, *where, line))
            if " while(" in line:
                trips = _TRIPS.search(line)
                runs = times * int(trips[1]) if trips else times
                for part in re.findall(r"(?:body|condition)=%?([\w.\-]+)", line):
                    visit(part, runs, depth + 1, open_depth + (not trips))
            elif not match:  # the sum that an all-reduce applies is no call
                called = _CALLED.findall(line)
                for names in _BRANCHES.findall(line):
                    called += [name.strip(" %") for name in names.split(",")]
                for part in called:
                    visit(part, times, depth, open_depth)

    visit(entry, 1, 0, 0)
    return found


def total(exchanges: list[Collective], kind: str) -> int:
    """Bytes of all exchanges of a kind."""
    return sum(one.total for one in exchanges if one.kind == kind)


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Lines of every computation, and the name of the one that is run."""
    computations, entry, lines = {}, None, []
    for line in text.splitlines():
        if match := _COMPUTATION.match(line):
            lines = computations[match[2]] = []
            entry = match[2] if match[1] else entry
        else:
            lines.append(line)
    return computations, entry


def _num_bytes(array: tuple[str, str]) -> int:
    dtype, shape = array
    return _BYTES.get(dtype, 4) * math.prod(_sizes(shape))


def _sizes(shape: str) -> list[int]:
    return [int(n) for n in shape.split(",") if n]
