"""When texts of the shop mean the same, by both sets of rules."""

import sys
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.host_games.webshop.game import WebShop
from ragen_jax.host_games.webshop.matching import (
    color_of,
    edit_distance,
    faithful_rules,
    light_rules,
    likely_nouns,
    plain,
    published_color_of,
    token_set_ratio,
)
from tests import commands
from tests.host_games.webshop.packages import fake_rapidfuzz, fake_spacy


@pytest.fixture(autouse=True)
def _forget_rules():
    yield
    faithful_rules.cache_clear()


# --- similarity


@pytest.mark.parametrize(
    ("first", "second", "ratio"),
    [
        ("tea tree", "tree tea", 100),
        ("Tea-Tree!", "tea tree oil", 100),
        ("", "tea", 0),
        ("!", "!", 0),
        ("abc", "xyz", 0),
        # No word is shared: 2 * 3 of 17 letters and blanks.
        ("essential oil", "oils", 100 * 2 * 3 / 17),
        # "oil" with "oil argan" or "oil olive": 2 * 3 of 12. "oil argan" with
        # "oil olive": 2 * 4 of 18, which is less.
        ("argan oil", "olive oil", 100 * 2 * 3 / 12),
        ("dimmable", "dimmables", 100 * 2 * 8 / 17),
    ],
)
def test_ratios(first, second, ratio):
    assert token_set_ratio(first, second) == pytest.approx(ratio)
    assert token_set_ratio(second, first) == pytest.approx(ratio)


TEXTS = st.text(alphabet="ab cd-É9_ß.", max_size=40) | st.text(max_size=20)


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_ratios_are_those_of_rapidfuzz(first, second):
    commands.need("rapidfuzz")
    from rapidfuzz import fuzz

    expected = fuzz.token_set_ratio(first, second, processor=plain)
    assert token_set_ratio(first, second) == pytest.approx(expected)


def slow_distance(first, second):
    if not first or not second:
        return len(first) + len(second)
    if first[0] == second[0]:
        return slow_distance(first[1:], second[1:])
    return 1 + min(slow_distance(first[1:], second), slow_distance(first, second[1:]))


@settings(deadline=None)
@given(*[st.text(alphabet="abc", max_size=7)] * 2)
def test_edit_distances(first, second):
    assert edit_distance(first, second) == slow_distance(first, second)


def test_similar_is_above_85_once_rounded():
    rules = light_rules()
    # 2 * 6 / 14 is 85.7, which rounds to 86; 2 * 11 / 26 is 84.6, to 85.
    assert rules.similar("abcdefg", "abcdefz")
    assert not rules.similar("abcdefghijklm", "abcdefghijkzz")
    # 2 * 23 / 54 is 85.2, which rounds to 85.
    assert not rules.similar("a" * 23 + "bcde", "a" * 23 + "fghi")


# --- nouns and colours


@pytest.mark.parametrize(
    ("title", "nouns"),
    [
        ("Warm Washable Hats for Women, 2 Pack", {"hat", "women"}),
        ("20 Red (XL)", set()),
        ("Glass Tables with USB Cable", {"glass", "table", "usb", "cable"}),
        ("Stylish waterproof boots boots", {"stylish", "boot"}),
        ("Чайник 2л", {"чайник"}),
        ("", set()),
    ],
)
def test_likely_nouns(title, nouns):
    assert likely_nouns(title) == nouns


@pytest.mark.parametrize(
    ("value", "color"),
    [
        ("Dark Blue", "blue"),
        ("blue | red", "blue"),
        ("rose gold", "rose"),
        ("shredded", "shredded"),
        ("12 Inch", "12 inch"),
    ],
)
def test_colors(value, color):
    assert color_of(value) == color


@pytest.mark.parametrize(
    ("value", "color"),
    [
        ("black forest", "black"),
        ("violet lavender", "lavender"),
        ("123alabaster", "alabaster"),
        ("steel ivy fuchsia", "fuchsia"),
        ("shredded", "red"),
        ("stonewash", "ash"),
        ("12 inch", "12 inch"),
        ("", ""),
    ],
)
def test_colors_of_the_published_code(value, color):
    assert published_color_of(value) == color


# --- the faithful rules


def test_faithful_rules_take_nouns_from_spacy(monkeypatch):
    """A stand-in for spaCy, whose model of English is not on package indexes."""
    tags = {"Lamp": "NOUN", "Oak": "PROPN", "bright": "ADJ", "glows": "VERB"}
    loaded = []

    def load(model):
        loaded.append(model)
        return lambda title: [
            types.SimpleNamespace(text=word, pos_=tags[word]) for word in title.split()
        ]

    monkeypatch.setitem(sys.modules, "spacy", fake_spacy(load))
    monkeypatch.setitem(sys.modules, "rapidfuzz", fake_rapidfuzz())
    rules = faithful_rules()
    assert rules.nouns("bright Oak Lamp glows Lamp") == ("oak", "lamp", "lamp")
    assert rules.ratio("Tea-Tree", "tea tree oil") == 100
    assert rules.similar("dimmable", "dimmables")
    assert WebShop(rules="faithful").num_tasks > 0
    assert loaded == ["en_core_web_sm"]


def test_faithful_rules_compare_by_rapidfuzz(monkeypatch):
    commands.need("rapidfuzz")
    monkeypatch.setitem(sys.modules, "spacy", fake_spacy(lambda model: str.split))
    rules = faithful_rules()
    assert rules.ratio("argan oil", "olive oil") == pytest.approx(50)
    assert not rules.similar("argan oil", "olive oil")


@pytest.mark.parametrize("missing", ["rapidfuzz", "spacy"])
def test_missing_packages_are_named(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, "spacy", fake_spacy())
    monkeypatch.setitem(sys.modules, "rapidfuzz", fake_rapidfuzz())
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(
        ImportError, match=rf"package {missing}.*pip install .*\[webshop\]"
    ):
        WebShop(rules="faithful")


def test_a_missing_model_is_named(monkeypatch):
    def load(model):
        raise OSError(f"[E050] Can't find model '{model}'")

    monkeypatch.setitem(sys.modules, "spacy", fake_spacy(load))
    monkeypatch.setitem(sys.modules, "rapidfuzz", fake_rapidfuzz())
    with pytest.raises(ImportError, match="python -m spacy download en_core_web_sm"):
        WebShop(rules="faithful")


def test_light_rules_import_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    monkeypatch.setitem(sys.modules, "rapidfuzz", None)
    assert WebShop().num_tasks > 0
