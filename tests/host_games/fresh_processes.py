"""What a program prints does not depend on the process that runs it."""

import os
import subprocess
import sys


def printed(program: str) -> bytes:
    """Output of a program, the same in two processes that hash texts differently."""
    first, second = (
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    )
    assert first == second
    return first
