"""What a thought states, as one would read it on the host: regexes over bytes."""

import itertools
import re
from collections.abc import Iterator, Sequence

AT_ONCE = re.compile(rb"([0-9]+)")
PROSE = re.compile(
    rb"[^0-9.;\n]{1,32}([0-9]{1,3})(?![0-9])[^0-9.;\n]{1,16}([0-9]{1,3})(?![0-9])"
)


def _pattern(symbol: str, words: Sequence[str]) -> bytes:
    def bordered(name: bytes) -> bytes:
        before = rb"(?<![A-Za-z])" if name[:1].isalpha() else b""
        behind = rb"(?![A-Za-z])" if name[-1:].isalpha() else b""
        return before + re.escape(name) + behind

    spelled = [bordered(symbol.encode())]
    spelled += [b"(?i:" + bordered(word.encode()) + b")" for word in words]
    return b"|".join(spelled)


def read_facts(
    reply: bytes, names: Sequence[tuple[str, Sequence[str]]], number: int = 0
) -> list[tuple[int, int] | None]:
    """The cell stated for each landmark, None where there is none.

    The first one stated, or that of another number.
    """
    thought, found, _ = reply.partition(b"</think>")
    if not found:
        return [None] * len(names)
    patterns = [_pattern(symbol, words) for symbol, words in names]
    any_name = re.compile(b"|".join(patterns))
    stated = (_stated(thought, re.compile(p), any_name) for p in patterns)
    return [next(itertools.islice(cells, number, None), None) for cells in stated]


def _stated(thought: bytes, pattern, any_name) -> Iterator[tuple[int, int]]:
    for match in pattern.finditer(thought):
        end = match.end()
        run_concurrently = AT_ONCE.match(thought, end)
        if run_concurrently:
            digits = run_concurrently.group(1)
            if len(digits) in (2, 4):
                half = len(digits) // 2
                yield int(digits[:half]), int(digits[half:])
            continue
        prose = PROSE.match(thought, end)
        if prose and not any_name.search(thought, end, prose.start(2)):
            yield int(prose.group(1)), int(prose.group(2))
