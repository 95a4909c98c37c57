"""Weak scaling of an update, from exchanges that are written here."""

import json
import sys

import pytest

from ragen_jax.memory.targets import named_target
from tests import commands

# A pass of 24 layers takes 120 ms; a second of exchanges between hosts.
WORK_MS, BYTES = 120, named_target("h100").network_rate


def table_row(tmp_path, depth, is_innermost) -> dict[str, str]:
    """Of 64 GPUs: 32 passes in an update, eight of them in a minibatch.

    Args:
      depth: loops of unknown length around the exchange.
      is_innermost: the last of them has none inside.
    """
    exchange = {
        "where": "between hosts",
        "open_depth": depth,
        "is_innermost": is_innermost,
        "bytes": BYTES,
    }
    figures = {
        "rollout_bytes": 2**33,
        "update_bytes": 2**34,
        "token_s": 0.001,
        "layer_arithmetic_s": WORK_MS / 24 / 1e3,
        "layer_bytes_s": 0.004,
        "rollout_exchanges": [],
        "update_exchanges": [exchange],
    }
    file = tmp_path / "scaling.json"
    file.write_text(json.dumps({"qwen2.5-0.5b weak 8x8": figures}))
    words = [sys.executable, "-m", "benchmarks.scaling", "--nocompile"]
    done = commands.call([*words, f"--json={file}"])
    # The other cases are missing.
    assert done.returncode == 1, done.stderr
    names, _, row = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in done.stdout.splitlines()
        if line.startswith("|")
    )
    return dict(zip(names, row, strict=True))


@pytest.mark.parametrize(
    ("depth", "is_innermost", "milliseconds"),
    [
        (2, True, 1000),
        # Another loop in the pass.
        (2, False, 1000),
        # Values, computed before.
        (1, True, 1000),
        (1, False, 125),
        (0, False, 31),
    ],
)
def test_a_pass_has_its_share_of_what_runs_less_often(
    tmp_path, depth, is_innermost, milliseconds
):
    row = table_row(tmp_path, depth, is_innermost)
    assert row["a pass: work ms"] == str(WORK_MS)
    assert row["exchanges in a host ms"] == "0"
    assert row["between hosts ms"] == str(milliseconds)


def test_the_share_of_ideal(tmp_path):
    row = table_row(tmp_path, 1, False)
    # 120 of 245 ms, or of the 125 ms of what takes longer.
    assert row["share of ideal"] == "49% to 96%"
    # 2,000 tokens of a millisecond, and 32 passes.
    assert row["iteration s"] == "6.0 to 9.8"
