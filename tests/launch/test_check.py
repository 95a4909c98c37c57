"""What `launch.check` prints of broken rules."""

import pytest

from launch.check import _untold
from tests import commands


def test_a_broken_rule_is_told_once():
    """Three episodes meet the same line; a later check meets it again."""
    told = set()
    line = (
        "ValueError: invalid literal for int() with base 10: '' (/g/game.py, line 38)"
    )
    first = [f"training, seed {n}, reply '': {line}" for n in range(3)]
    assert [*_untold(first, told)] == first[:1]
    again = [f"validation, seed {n}: {line}" for n in range(3)]
    assert [*_untold(again, told)] == ["the error above (/g/game.py, line 38)"]
    others = [f"training, seed {n}: its solution takes 3 replies" for n in range(3)]
    assert [*_untold(others, told)] == others[:1]


def test_two_errors_of_one_line_are_told_both():
    """As of a library's line that several calls reach."""
    told, place = set(), "(/g/json.py, line 9)"
    first = f"training, seed 0: ValueError: no digit {place}"
    others = [
        f"training, seed 1: ValueError: no sign {place}",
        f"training, seed 1: KeyError: no digit {place}",
    ]
    assert [*_untold([first], told)] == [first]
    assert [*_untold(others, told)] == others


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("host.step_seconds=abc", "host.step_seconds = 'abc'; it must be above 0"),
        ("host.step_seconds=None", "host.step_seconds may not be None; give it a"),
        ("host.num_workers=1.5", "host.num_workers = 1.5; it must be a whole number"),
    ],
)
def test_values_of_the_section_host_are_checked(word, said):
    assert said in commands.refusal("check", "coding", word)


def test_keys_of_a_configuration_are_refused():
    """They would change nothing: options are words of their own."""
    done = commands.call(
        commands.command("check", "echo", "--config.env.kwargs.num_words=5")
    )
    assert done.returncode == 2
    assert "no flag --config.env.kwargs.num_words" in done.stderr
