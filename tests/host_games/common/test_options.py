"""The checks of options: what they let through, and what they say."""

import math
import re

import pytest

from ragen_jax.host_games.common import options
from ragen_jax.host_games.common.splits import check_split

WHOLE, NUMBER, ONE_OF = options.check_whole, options.check_number, options.check_one_of


@pytest.mark.parametrize(
    ("check", "arguments", "bounds"),
    [
        (WHOLE, (1,), {}),
        (WHOLE, (0,), {"least": 0}),
        (WHOLE, (4,), {"most": 4}),
        (NUMBER, (-1.5,), {}),
        (NUMBER, (3,), {"above": 0}),
        (NUMBER, (0,), {"least": 0, "most": 1}),
        (NUMBER, (1.0,), {"least": 0, "most": 1}),
        (ONE_OF, ("b", ("a", "b")), {}),
        (ONE_OF, (None, (None, "a")), {}),
        (options.check_bool, (False,), {}),
        (options.check_task, (4, 5), {}),
        (options.check_task, (None, 5), {}),
    ],
)
def test_what_is_allowed(check, arguments, bounds):
    name = () if check is options.check_task else ("x",)
    check(*name, *arguments, **bounds)


@pytest.mark.parametrize(
    ("check", "value", "bounds", "words"),
    [
        (WHOLE, 0, {}, "x is 0; use a whole number of at least 1"),
        (WHOLE, True, {}, "x is True; use a whole number"),
        (WHOLE, 2.0, {}, "x is 2.0; use a whole number"),
        (WHOLE, "3", {}, "x is '3'; use a whole number"),
        (WHOLE, 5, {"most": 4}, "x is 5; use a whole number from 1 to 4"),
        (WHOLE, 1, {"least": 2}, "of at least 2"),
        (NUMBER, "much", {}, "x is 'much'; use a finite number"),
        (NUMBER, math.nan, {}, "x is nan; use a finite number"),
        (NUMBER, -math.inf, {"below": 0}, "use a finite number below 0"),
        (NUMBER, True, {}, "x is True; use a finite number"),
        (NUMBER, 0, {"above": 0}, "x is 0; use a finite number above 0"),
        (NUMBER, 0.0, {"below": 0}, "below 0"),
        (NUMBER, 2, {"least": 0, "most": 1}, "of at least 0 and of at most 1"),
        (NUMBER, -1, {"least": 0, "most": 1}, "of at least 0 and of at most 1"),
        (ONE_OF, "c", {"allowed": ("a", "b")}, "x is 'c'; use a or b"),
        (ONE_OF, [], {"allowed": {"a": 1}}, "x is []; use a"),
        (options.check_bool, 1, {}, "x is 1; use True or False"),
    ],
)
def test_what_is_refused(check, value, bounds, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        check("x", value, **bounds)


def test_tasks_splits_and_options_without_effect():
    for task in (-1, 5):
        with pytest.raises(ValueError, match=f"task is {task}; use 0 to 4"):
            options.check_task(task, 5)
    for split in ("training", "validation"):
        check_split(split)
    with pytest.raises(ValueError, match="split is 'test'; use training or validation"):
        check_split("test")
    options.refuse_given("without data; set data", x=None)
    with pytest.raises(ValueError, match="y is 0 without data; set data, or leave y"):
        options.refuse_given("without data; set data", x=None, y=0)
