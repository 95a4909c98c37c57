"""Standard error loses the compiler's alarms and nothing else."""

import os
import subprocess
import sys

import pytest

from ragen_jax.memory.alarms import hidden_alarms, without_alarms

RULE = "********************************"
ADVICE = "run with envvar XLA_FLAGS=--xla_dump_to=/tmp/foo and attach the results."
ALARMS = {
    "slow compile": [
        "E0219 07:30:02.045318 12 slow_operation_alarm.cc:73] ",
        RULE,
        f"[Compiling module jit_play] Very slow compile? To file a bug, {ADVICE}",
        RULE,
    ],
    "its end": [
        "2025-03-19 07:30:14.8: E external/xla/xla/service/slow_operation_alarm.cc:140]"
        " The operation took 2m12.850942799s",
        "",
        RULE,
        f"[Compiling module jit_play] Very slow compile? To file a bug, {ADVICE}",
        RULE,
    ],
    "folding": [
        "E0219 07:30:02.045318 12 slow_operation_alarm.cc:73] Constant folding an "
        "instruction is taking > 1s:",
        "",
        "  %pad.3 = f32[8,256] pad(%a, %b), padding=0_0x0_1",
        "",
        "This isn't necessarily a bug; constant-folding is a trade-off.",
        "",
        f"If you'd like to file a bug, {ADVICE}",
    ],
}
OTHERS = ["error: no such folder", "", RULE, f"see {ADVICE}", "E1 1 1 client.cc:4] bad"]


def as_bytes(lines):
    return [f"{line}\n".encode() for line in lines]


@pytest.mark.parametrize("alarm", ALARMS.values(), ids=ALARMS)
def test_only_alarms_are_dropped(alarm):
    lines = as_bytes([*OTHERS, *alarm, *OTHERS, *alarm, *alarm, "end"])
    assert [*without_alarms(lines)] == as_bytes([*OTHERS, *OTHERS, "end"])


def test_the_file_descriptor_is_filtered_and_given_back(capfd):
    with hidden_alarms():
        os.write(2, "".join(map(bytes.decode, as_bytes(ALARMS["folding"]))).encode())
        print("a warning", file=sys.stderr)
        os.write(2, b"no newline")
    os.write(2, b", later")
    assert capfd.readouterr().err == "a warning\nno newline, later"


def test_the_last_words_of_a_crash_are_passed_on():
    code = (
        "import os\n"
        "from ragen_jax.memory.alarms import hidden_alarms\n"
        "with hidden_alarms():\n"
        "    os.write(2, b'F1 1 1 a.cc:1] Check failed\\n')\n"
        "    os.abort()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode < 0
    assert done.stderr.startswith("F1 1 1 a.cc:1] Check failed")
