"""What a program that is compiled for a GPU moves, launches and waits for.

In: a `hlo.Program` and the sizes of what it works on. Out: dictionaries of numbers.
Nothing here needs a compiler or a GPU: tests read small stored texts.

Scopes of the program (`jax.named_scope`) say what an instruction belongs to: "decode"
(one token of every row), "read" (a chunk of a message), "layer".
"""

import collections
import re

from benchmarks import hlo
from benchmarks.exchanges import collectives

# A kernel takes at least this long, launched from a command buffer: NVIDIA's figures
# for graphs of many small kernels on an H100, straight-line.
SECONDS_A_LAUNCH = 1.5e-6


def in_scope(one: hlo.Instruction, scope: str) -> bool:
    """Whether an instruction stands in a scope, or in any derivative of it."""
    return re.search(rf"(?:^|[/(]){scope}(?:[/)]|$)", one.op_name) is not None


def loops_of(program: hlo.Program) -> dict[tuple[hlo.Loop, ...], list[hlo.Instruction]]:
    """Loops (none: outside of all) -> the kernels that stand directly in them."""
    kernels = collections.defaultdict(list)
    for one, loops in program.visit():
        if one.is_kernel:
            kernels[loops].append(one)
    return kernels


def work(
    program: hlo.Program, kernels: list[hlo.Instruction], live: float = 1.0
) -> dict[str, int]:
    """Number and bytes of kernels, each run once."""
    traffic = [program.traffic(one, live) for one in kernels]
    return {
        "kernels": len(kernels),
        "read": sum(read for read, _ in traffic),
        "written": sum(written for _, written in traffic),
    }


def busiest_loop(program: hlo.Program, scope: str) -> list[hlo.Instruction]:
    """Kernels of the loop that has most of a scope's, the deepest of equals.

    Raises:
      ValueError: no loop has any.
    """

    def count(entry: tuple[tuple, list[hlo.Instruction]]) -> tuple[int, int]:
        loops, kernels = entry
        return sum(in_scope(one, scope) for one in kernels), len(loops)

    in_loops = [entry for entry in loops_of(program).items() if entry[0]]
    most = max(in_loops, key=count, default=((), []))
    if not count(most)[0]:
        raise ValueError(f"no kernel in a loop stands in the scope {scope!r}")
    return most[1]


def decode_figures(
    program: hlo.Program,
    *,
    num_layers: int,
    logits_shape: tuple[int, int],
    must_move: int,
    live: float,
) -> dict[str, float]:
    """Of one token of every row.

    Args:
      logits_shape: rows and vocabulary, of one device.
      must_move: fewest bytes that a token can move: weights, live keys and values,
        logits, once each.
      live: share of the slots that are filled.
    """
    kernels = busiest_loop(program, "decode")
    of_layers = [one for one in kernels if in_scope(one, "layer")]
    moved = work(program, kernels, live)
    total = moved["read"] + moved["written"]
    return moved | {
        "kernels_per_layer": len(of_layers) / num_layers,
        "bytes": total,
        "must_move": must_move,
        "ratio": total / must_move,
        "logits_passes": logits_passes(program, kernels, logits_shape),
    }


def logits_passes(
    program: hlo.Program, kernels: list[hlo.Instruction], shape: tuple[int, int]
) -> float:
    """How often the float32 logits are written and read."""
    logits, passes = hlo.Array("f32", shape), 0.0
    for one in kernels:
        passes += one.arrays.count(logits)
        if any(logits in source.arrays for source in program.operands(one)):
            passes += min(1.0, program.traffic(one)[0] / logits.num_bytes)
    return round(passes, 2)


def layer_passes(program: hlo.Program, num_layers: int) -> list[dict]:
    """Loops over the layers of a network: what each turn moves, in the program's order.

    A loop is a backward pass if its operations are transposed ones.
    """
    figures = []
    for loops, kernels in loops_of(program).items():
        if not loops or loops[-1].trips != num_layers:
            continue
        scoped = [one for one in kernels if in_scope(one, "layer")]
        if scoped:
            is_backward = any("transpose(" in one.op_name for one in scoped)
            name = "backward" if is_backward else "forward"
            figures.append({"pass": name} | work(program, kernels))
    return figures


def copies(program: hlo.Program, least: int) -> list[dict]:
    """Copies of arrays of at least this many bytes, each turn of a loop.

    What is copied outside of all loops, once, is left out.
    """
    counts = collections.Counter()
    for one, loops in program.visit():
        if one.is_kernel and loops and one.num_bytes >= least:
            opcodes = {part.opcode for part in program.fused(one) or [one]}
            if opcodes <= _MOVING and opcodes & {"copy", "copy-start", "transpose"}:
                counts[one.num_bytes, len(loops)] += 1
    return [
        {"bytes": size, "depth": depth, "count": count}
        for (size, depth), count in sorted(counts.items(), reverse=True)
    ]


_MOVING = {"copy", "copy-start", "transpose", "bitcast", "parameter", "tuple"}


def exchanges(text: str, gpus_per_host: int) -> list[dict]:
    """Collectives by kind, place and loops: how many, and bytes that a device gets.

    A loop whose length the program does not say counts once; `depth` is the number of
    loops around, `open_depth` that of those, `is_innermost` whether the last of them
    has no other inside. Bytes are those of a ring through all that take part.
    """
    sums: dict[tuple, list[int]] = {}
    for one in collectives(text):
        hosts = [{device // gpus_per_host for device in g} for g in one.groups]
        place = "between hosts" if any(len(h) > 1 for h in hosts) else "in a host"
        key = one.kind, place, one.depth, one.open_depth, one.is_innermost
        entry = sums.setdefault(key, [0, 0])
        entry[0] += one.times
        entry[1] += round(one.received)
    names = "kind", "where", "depth", "open_depth", "is_innermost"
    return [
        dict(zip(names, key, strict=True)) | {"count": count, "bytes": size}
        for key, (count, size) in sums.items()
    ]


def least_seconds(
    *, moved: float, arithmetic: float, launches: float, target
) -> dict[str, float | str]:
    """The time below which a step cannot be, by what binds it.

    Args:
      moved: bytes.
      arithmetic: floating point operations in matrix products.
      launches: kernels.
      target: see `ragen_jax.memory.targets.Target`.
    """
    seconds = {
        "bytes": moved / target.bandwidth,
        "arithmetic": arithmetic / target.matrix_rate,
        "launches": launches * SECONDS_A_LAUNCH,
    }
    binds = max(seconds, key=seconds.get)
    return seconds | {"least": seconds[binds], "binds": binds}


def largest_buffers(report: str, program: hlo.Program, count: int) -> list[dict]:
    """The largest parts of the temporaries, from XLA's report of its memory.

    Args:
      report: text of a file `...-memory-usage-report.txt` of `xla_dump_to`.
      program: whose instructions name the lines of our code.
    """
    makers: dict[str, hlo.Instruction] = {}
    for one, _ in program.visit():
        for array in one.arrays:
            makers.setdefault(f"{array.dtype}{list(array.shape)}".replace(" ", ""), one)
    buffers = []
    for line in report.splitlines():
        match = re.match(r"\s*[\d.]+\w+\(.*?\);\s+([\d.]+)(\w+);.*?;.*?; (.*)", line)
        if match is None:
            continue
        shapes = re.findall(r"[a-z]+\d*\[[\d,]*\]", match[3])
        largest = max(shapes, key=lambda text: hlo.bytes_of(text), default="")
        maker = makers.get(largest)
        size = float(match[1]) * _UNITS[match[2]]
        source = program.source(maker) if maker else ""
        buffers.append({"bytes": int(size), "array": largest, "source": source})
    return buffers[:count]


_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
