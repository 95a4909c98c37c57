"""What a thought states, as one would read it on the host: regexes over bytes."""

import re
from collections.abc import Sequence

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
    reply: bytes, names: Sequence[tuple[str, Sequence[str]]]
) -> list[tuple[int, int] | None]:
    """The cell stated for each landmark, None where there is none."""
    thought, found, _ = reply.partition(b"</think>")
    if not found:
        return [None] * len(names)
    patterns = [_pattern(symbol, words) for symbol, words in names]
    any_name = re.compile(b"|".join(patterns))
    return [_first(thought, re.compile(p), any_name) for p in patterns]


def _first(thought: bytes, pattern, any_name) -> tuple[int, int] | None:
    for match in pattern.finditer(thought):
        end = match.end()
        run_concurrently = AT_ONCE.match(thought, end)
        if run_concurrently:
            digits = run_concurrently.group(1)
            if len(digits) in (2, 4):
                half = len(digits) // 2
                return int(digits[:half]), int(digits[half:])
            continue
        prose = PROSE.match(thought, end)
        if prose and not any_name.search(thought, end, prose.start(2)):
            return int(prose.group(1)), int(prose.group(2))
    return None
