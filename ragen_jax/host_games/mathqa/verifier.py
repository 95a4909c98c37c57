"""The process that compares expressions; `judge.MathJudge` starts and kills it.

In: lines of JSON with `truth` and `reply`. Out: the line `{}` when it is ready, then a
line `{"equal": bool}` each. A separate program that imports nothing of ragen_jax.
Method: math-verify's `parse` and `verify` (github.com/huggingface/Math-Verify), without
their deadlines: the judge that reads the answers sets them.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys

import math_verify

PR_SET_PDEATHSIG = 1
MEMORY_BYTES = 4 << 30


def delimited(text: str) -> str:
    """One formula, whether or not it came with LaTeX's delimiters."""
    return f"${text.strip().strip('$')}$"


def equal(truth: str, reply: str) -> bool:
    """True if both are read as formulas and are equal; what cannot be read is not."""
    try:
        gold = math_verify.parse(delimited(truth), parsing_timeout=None)
        answer = math_verify.parse(delimited(reply), parsing_timeout=None)
        if not gold or not answer:
            return False
        return bool(math_verify.verify(gold, answer, timeout_seconds=None))
    # SymPy raises anything on odd input: TypeError, RecursionError, its own.
    except Exception:
        return False


def main() -> None:
    # A parent that dies cannot kill it.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # What a library prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    with contextlib.redirect_stdout(sys.stderr):
        print("{}", file=answers)
        for line in sys.stdin:
            request = json.loads(line)
            print(json.dumps({"equal": equal(**request)}), file=answers)


if __name__ == "__main__":
    main()
