"""Declarations of keys: what they make, what they refuse, where they are read."""

import re

import pytest

from ragen_jax.registry import settings as lib
from ragen_jax.registry.settings import (
    Settings,
    check,
    count,
    flatten,
    number,
    number_problem,
    section,
    switch,
    text,
    values,
)

KEYS = Settings(
    {
        "seed": number(0, "A seed.", least=0, below=2**32),
        "game": section("The game."),
        "game.rows": count(3, "Rows."),
        "game.columns": count(None, "Columns.", none="as many as rows"),
        "game.slip": number(0.1, "Slip.", least=0, most=1),
        "game.reward": number(None, "Reward.", none="none", never=0),
        "game.decay": number(0.5, "Decay.", above=0, below=1, note="a share"),
        "game.loud": switch(False, "Loud."),
        "game.name": text("x", "Name.", one_of=("x", "y")),
        "game.place": text("full", "Place.", one_of="ragen_jax.text.context:CONTEXTS"),
        "game.title": text("t", "Title.", needs=("game.loud is True", "seed > 0")),
        "game.pairs": values(None, "Pairs.", none="no pair"),
        "more": section("Further.", needs="game.columns is not None"),
        "more.depth": count(1, "Depth."),
    }
)


def test_defaults_have_the_types_of_their_keys():
    config = KEYS.make_config()
    leaves = flatten(config)
    assert sorted(leaves) == sorted(KEYS.keys_of_values)
    assert (leaves["game.rows"], leaves["game.columns"]) == (3, None)
    check(leaves, KEYS)
    with pytest.raises(TypeError):
        config.game.columns = "many"
    config.game.columns = 4


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("game.rows", 0, "game.rows = 0; it must be at least 1 and below 2**31"),
        ("game.rows", 2**31, "below 2**31"),
        ("game.rows", 1.5, "game.rows = 1.5; it must be a whole number, at least 1"),
        ("game.rows", "many", "game.rows = 'many'; it must be a whole number"),
        ("game.rows", True, "game.rows = True; it must be a whole number"),
        ("game.rows", None, "game.rows may not be None; give it a value"),
        ("game.columns", 0, "game.columns = 0; it must be at least 1"),
        ("seed", -1, "seed = -1; it must be at least 0 and below 2**32"),
        ("game.slip", 1.5, "game.slip = 1.5; it must be between 0 and 1"),
        ("game.slip", float("nan"), "game.slip = nan; it must be a finite number"),
        ("game.slip", 1e39, "it must be a finite number"),
        ("game.slip", True, "game.slip = True; it must be between 0 and 1"),
        ("game.decay", 0.0, "it must be above 0 and below 1 (a share)"),
        ("game.decay", 1, "it must be above 0 and below 1 (a share)"),
        ("game.reward", 0.0, "game.reward = 0.0; it must be above or below 0"),
        ("game.loud", 1, "game.loud = 1; it must be True or False"),
        ("game.name", "z", "game.name = 'z'; choose one of x, y."),
        ("game.place", "ful", "one of full, last_k, single_turn. Did you mean 'full'?"),
        ("game.title", 3, "game.title = 3; it must be a text"),
        ("game.pairs", 3, "game.pairs = 3; it must be a list of values"),
        ("other", None, "other may not be None"),
    ],
)
def test_a_value_outside_the_declaration_is_refused(key, value, words):
    leaves = flatten(KEYS.make_config()) | {key: value}
    with pytest.raises(ValueError, match=re.escape(words)):
        check(leaves, KEYS)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 2**32 - 1),
        ("game.rows", 2**31 - 1),
        ("game.columns", None),
        ("game.slip", 1),
        ("game.reward", -1.0),
        ("game.pairs", [["a", 1]]),
        ("other", 7),
    ],
)
def test_a_value_inside_passes(key, value):
    check(flatten(KEYS.make_config()) | {key: value}, KEYS)


def test_where_nothing_reads_a_key_it_is_refused_with_the_condition():
    leaves = flatten(KEYS.make_config())
    for key, words in (
        ("game.title", "it is read only if game.loud is True, and game.loud = False"),
        ("more.depth", "only if game.columns is not None, and game.columns = None"),
    ):
        check(leaves, KEYS)
        with pytest.raises(ValueError, match=f"{key} has no effect here: .*{words}"):
            check(leaves, KEYS, overrides=[key])
    leaves |= {"game.loud": True, "seed": 1, "game.columns": 2}
    check(leaves, KEYS, overrides=["game.title", "more.depth"])
    # To say "off" once more does no harm.
    check(leaves | {"more.depth": 1}, KEYS, overrides=["game.reward"])


def test_reasons_of_functions_hold_for_a_key_or_a_section():
    leaves = {"a.b": 1, "ab": 1}

    def idle(leaves):
        yield "a.", "a is off"

    check(leaves, Settings(), idle=[idle], overrides=["ab"])
    with pytest.raises(ValueError, match=r"a\.b has no effect here: a is off"):
        check(leaves, Settings(), idle=[idle], overrides=["a.b"])


def test_rules_between_keys_come_after_those_of_single_keys():
    def never(leaves):
        yield f"game.rows = {leaves['game.rows']} is never right"

    leaves = flatten(KEYS.make_config())
    with pytest.raises(ValueError, match=r"game\.rows = 3 is never right"):
        check(leaves, KEYS, checks=[never])
    with pytest.raises(ValueError, match="at least 1"):
        check(leaves | {"game.rows": 0}, KEYS, checks=[never])


def test_declarations_are_picked_moved_and_changed():
    assert [*KEYS.only("more", "seed")] == ["seed", "more", "more.depth"]
    moved = KEYS.only("seed").under("games.x")
    assert [*moved] == ["games.x.seed"]
    (changed,) = KEYS.changed("game.slip", "slip", default=0.2).items()
    assert (changed[0], changed[1].default, changed[1].most) == ("slip", 0.2, 1)
    assert KEYS["game.slip"].default == 0.1


def test_true_is_not_the_choice_1():
    assert lib.choice_problem("ahead", 1, (0, 1)) is None
    assert "choose one of 0, 1" in lib.choice_problem("ahead", True, (0, 1))


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("game.row", " Did you mean 'game.rows'?"),
        ("depth", " Did you mean 'more.depth'?"),
        ("zzz.zzz", ""),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(key, hint):
    error = lib.unknown_key(key, KEYS.keys_of_values)
    assert str(error) == f"no configuration key {key!r}.{hint}"


@pytest.mark.parametrize(
    ("value", "default", "is_good"),
    [
        (1, 1.0, True),
        (0.5, 1.0, True),
        (7, 3, True),
        (-1, 3, True),
        (7.0, 3, False),
        (True, 3, False),
        (True, 3.0, False),
        ("text", 3.0, False),
        ("3", 3, False),
        ((1, 2), 3.0, False),
        (None, 3.0, False),
        (float("nan"), 3.0, False),
        (float("inf"), 3.0, False),
        (1e39, 3.0, False),
        (10**14, 3, False),
        (10**14, 3.0, True),
        (10**400, 3.0, False),
    ],
)
def test_a_value_in_a_number_s_place(value, default, is_good):
    problem = number_problem("env.params.x", value, default)
    assert (problem is None) == is_good
    assert is_good or problem.startswith(f"env.params.x = {value!r}; it must be a")
