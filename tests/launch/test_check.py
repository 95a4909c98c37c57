"""What `launch.check` prints of broken rules."""

from launch.check import _untold


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
