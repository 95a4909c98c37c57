"""Compiled programs, read from their text: instructions, loops, bytes, exchanges.

In: `jax.stages.Compiled.as_text()`, which is scheduled: what stands outside of a fusion
is a kernel, in the order of the launches. Out: a `Program`, whose instructions are
visited with the loops that they stand in.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterator

_BYTES = {"pred": 1, "s4": 1, "u4": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2}
_BYTES |= {"s16": 2, "u16": 2, "f64": 8, "s64": 8, "u64": 8, "c64": 8, "token": 0}
_BYTES |= dict.fromkeys(("f8e4m3fn", "f8e5m2"), 1)
_ITEM = 4  # bytes of all others
COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
# The only start of an exchange that makes its results alone.
_REDUCE_START = "all-reduce-start"
# Instructions that launch nothing.
_FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "partition-id",
    "replica-id",
    "opt-barrier",
    "while",
    "conditional",
    "call",
}
_ARRAY = re.compile(r"\b([a-z]+\d*(?:e\dm\d\w*)?)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_NAMED = re.compile(r"%([\w.\-]+)")
_ASSIGNED = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|\w+_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r"known_trip_count\W+n\W+(\d+)")
_ALIASED = re.compile(r"output_to_operand_aliasing=\{(.*?)\}, \w+=")
_PAIR = re.compile(r"\{(\d*)\}: \((\d+)")
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_FILE = re.compile(r'^(\d+) "(.*)"$')
_PLACE = re.compile(r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)")
_STACK = re.compile(r"^(\d+) \{file_location_id=(\d+)")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')


@dataclasses.dataclass(frozen=True)
class Array:
    """Shape and dtype of an array."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all numbers."""
        return math.prod(self.shape) * _BYTES.get(self.dtype, _ITEM)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction.

    Attributes:
      name, opcode: as XLA writes them.
      arrays: that it makes.
      operands: names.
      called: computations that it runs.
      is_root: it is the result of its computation.
      line: the text.
    """

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    called: tuple[str, ...]
    is_root: bool
    line: str

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays that it makes."""
        return sum(array.num_bytes for array in self.arrays)

    @property
    def results(self) -> tuple[Array, ...]:
        """The arrays without the operands, which the start of an exchange repeats."""
        has_operands = self.opcode.endswith("-start") and self.opcode != _REDUCE_START
        count = len(self.operands) if has_operands else 0
        return self.arrays[count : 2 * count] if count else self.arrays

    @property
    def num_elements(self) -> int:
        """Numbers in the arrays that it makes."""
        return sum(math.prod(array.shape) for array in self.arrays)

    @property
    def op_name(self) -> str:
        """The operation of JAX that it came from, with its scopes."""
        match = _OP_NAME.search(self.line)
        return match[1] if match else ""

    @property
    def aliased(self) -> dict[int, int]:
        """Numbers of the results that one of our kernels writes into an operand."""
        match = _ALIASED.search(self.line)
        pairs = _PAIR.findall(match[1]) if match else ()
        return {int(result or 0): int(operand) for result, operand in pairs}

    @property
    def trips(self) -> int | None:
        """Turns of a loop; None: the program does not say."""
        match = _TRIPS.search(self.line)
        return int(match[1]) if match else None

    @property
    def collective(self) -> str | None:
        """Kind of an exchange between devices, counted where it starts."""
        kind = self.opcode.removesuffix("-start")
        return kind if kind in COLLECTIVES else None

    @property
    def is_kernel(self) -> bool:
        """Whether it launches something on the device."""
        is_end = self.opcode.endswith(("-done", "-update"))
        return self.opcode not in _FREE and self.collective is None and not is_end


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop around an instruction.

    Attributes:
      name: of the instruction that runs it.
      trips: turns; None: unknown.
    """

    name: str
    trips: int | None


class Program:
    """A compiled program.

    Attributes:
      computations: name -> instructions in the order of the schedule.
      entry: name of the computation that is run.
    """

    def __init__(self, text: str):
        self.computations: dict[str, list[Instruction]] = {}
        self.entry = ""
        lines: list[Instruction] = []
        self._files: dict[str, str] = {}
        self._places: dict[str, str] = {}
        self._frames: dict[str, str] = {}
        section = ""
        for line in text.splitlines():
            if line in ("FileNames", "FunctionNames"):
                section = line
            elif section == "FileNames" and (match := _FILE.match(line)):
                self._files[match[1]] = match[2]
            elif match := _PLACE.match(line):
                self._places[match[1]] = f"{self._files[match[2]]}:{match[3]}"
            elif match := _STACK.match(line):
                self._frames[match[1]] = self._places[match[2]]
            if match := _COMPUTATION.match(line):
                lines = self.computations[match[2]] = []
                self.entry = match[2] if match[1] else self.entry
            elif match := _ASSIGNED.match(line):
                lines.append(_read(match, line))
        if not self.entry:
            raise ValueError("this is not the text of a compiled program: no ENTRY")

    def visit(self) -> Iterator[tuple[Instruction, tuple[Loop, ...]]]:
        """All instructions outside of fusions, with the loops around them."""
        yield from self._visit(self.entry, ())

    def _visit(self, name: str, loops: tuple[Loop, ...]):
        for one in self.computations[name]:
            yield one, loops
            around = loops
            if one.opcode == "while":
                around = (*loops, Loop(one.name, one.trips))
            if one.opcode in ("while", "conditional", "call"):
                for part in one.called:
                    yield from self._visit(part, around)

    @functools.cached_property
    def _uses(self) -> dict[tuple[str, str], list[Instruction]]:
        """(computation, name) -> the instructions that read it."""
        uses = collections.defaultdict(list)
        for computation, instructions in self.computations.items():
            for one in instructions:
                for operand in set(one.operands):
                    uses[computation, operand].append(one)
        return uses

    @functools.cached_property
    def _by_name(self) -> dict[str, Instruction]:
        return {one.name: one for c in self.computations.values() for one in c}

    def operands(self, one: Instruction) -> list[Instruction]:
        """The instructions that make what this one reads."""
        return [self._by_name[name] for name in one.operands if name in self._by_name]

    def source(self, one: Instruction) -> str:
        """File and line that an instruction came from; empty: not known."""
        match = _FRAME.search(one.line)
        return self._frames.get(match[1], "") if match else ""

    def traffic(self, one: Instruction, live: float = 1.0) -> tuple[int, int]:
        """Bytes that a kernel reads and writes in memory.

        Of an array that is only sliced or gathered from, what is taken; of one that is
        updated in place, the update. What a kernel reads twice counts once.

        Args:
          live: share that one of our kernels reads of the arrays that it writes into,
            which no program says.
        """
        if aliased := one.aliased:
            sizes = [x.num_bytes for x in self.operands(one)]
            cached = sum(sizes[operand] for operand in aliased.values())
            new = sum(
                array.num_bytes
                for number, array in enumerate(one.arrays)
                if number not in aliased
            )
            return sum(sizes) - cached + int(live * cached), new
        body = self.fused(one)
        if body is None:
            return self._read_by(one), self._written_by([one])
        parameters = [x for x in body if x.opcode == "parameter"]
        by_number = {int(_number(x)): x for x in parameters}
        name = one.called[0]
        read = 0
        for number, operand in enumerate(self.operands(one)):
            share = self._share_read(name, by_number[number])
            read += int(share * operand.num_bytes)
        (root,) = [x for x in body if x.is_root]
        results = self.operands(root) if root.opcode == "tuple" else [root]
        return read, self._written_by(results)

    def fused(self, one: Instruction) -> list[Instruction] | None:
        """What a fusion computes; None of another instruction."""
        is_fusion = one.opcode == "fusion" and one.called
        return self.computations[one.called[0]] if is_fusion else None

    def _share_read(self, name: str, source: Instruction) -> float:
        """Share of a value inside of a fusion that its result depends on."""
        share = float(source.is_root)
        for use in self._uses[name, source.name]:
            if use.opcode in _ELEMENTWISE:
                share += self._share_read(name, use)
            elif use.operands[0] != source.name or use.opcode not in _PARTIAL:
                return 1.0
            elif use.opcode in _TAKING:
                share += use.num_elements / max(1, source.num_elements)
        return min(share, 1.0)

    def _read_by(self, one: Instruction) -> int:
        sizes = [x.num_bytes for x in self.operands(one)]
        if one.opcode in _TAKING:
            return one.num_bytes + sum(sizes[1:])
        return sum(sizes[1:] if one.opcode in _PARTIAL else sizes)

    def _written_by(self, results: list[Instruction]) -> int:
        written = 0
        for result in results:
            while result.opcode in ("bitcast", "reshape"):
                result = self.operands(result)[0]
            if result.opcode in _UPDATING:
                update = self.operands(result)[_UPDATING[result.opcode]]
                written += update.num_bytes
            else:
                written += result.num_bytes
        return written


def bytes_of(text: str) -> int:
    """Bytes of the arrays that a text names, such as "f32[3,4]"."""
    return sum(array.num_bytes for array in _read_arrays(text))


def _read_arrays(text: str) -> tuple[Array, ...]:
    return tuple(
        Array(dtype, tuple(int(n) for n in shape.split(",") if n))
        for dtype, shape in _ARRAY.findall(text)
    )


def _read(match: re.Match, line: str) -> Instruction:
    rest = line[match.end() :]
    end = _closing(rest) if rest.startswith("(") else rest.index(" ")
    opcode = _OPCODE.match(rest[end:])
    inside = rest[end + opcode.end() - 1 :]
    arguments = _closing(inside)
    tail = inside[arguments:]
    called = _CALLED.findall(tail)
    for names in _BRANCHES.findall(tail):
        called += [name.strip(" %") for name in names.split(",")]
    return Instruction(
        name=match[2],
        opcode=opcode[1],
        arrays=_read_arrays(rest[:end]),
        operands=tuple(_NAMED.findall(inside[:arguments])),
        called=tuple(called),
        is_root=bool(match[1]),
        line=line,
    )


def _closing(text: str) -> int:
    """Index after the parenthesis that closes the first one."""
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return i + 1
    raise ValueError(f"a parenthesis is not closed: {text[:200]}")


def _number(parameter: Instruction) -> str:
    return re.search(r"parameter\((\d+)\)", parameter.line)[1]


# Instructions of which a number depends on one number of an operand of that shape.
_ELEMENTWISE = {
    "bitcast",
    "reshape",
    "pad",
    "convert",
    "select",
    "compare",
    "and",
    "add",
    "subtract",
    "multiply",
    "divide",
    "maximum",
    "minimum",
    "exponential",
    "negate",
    "copy",
    "transpose",
}
# Instructions that read no more of their first operand than they make, ...
_TAKING = ("dynamic-slice", "slice", "gather")
# ... that put an operand of this number into it, in place; ...
_UPDATING = {"dynamic-update-slice": 1, "scatter": 2}
# ... and both.
_PARTIAL = (*_TAKING, *_UPDATING)
