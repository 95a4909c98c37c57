"""The judge of answers, against cases worked out by hand."""

import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.host_games.search.scores import exact_match, f1_score, normalize, pay

NORMALIZED = [
    ("The Eiffel Tower!", "eiffel tower"),
    ("an apple  a day", "apple day"),
    ("U.S.", "us"),
    ("A. B. Yehoshua", "b yehoshua"),  # the initial reads as an article
    ("Theodore and Anna", "theodore and anna"),  # articles inside words stay
    ("well-known", "wellknown"),
    ("\tNew\u2003York \n", "new york"),
    ("1,000.50", "100050"),
    ("“the” end", "“ ” end"),  # quotes outside ASCII stay, and are word borders
    ("The The", ""),
    ("!?", ""),
]

# Answer, truth, exact match, F1 = 2 shared / (words + words), pay.
CASES = [
    ("Paris", "Paris", True, 1, 1),
    ("the PARIS.", "Paris", True, 1, 1),
    ("1,000", "1000", True, 1, 1),
    ("Paris", "London", False, 0, 0),
    ("", "Paris", False, 0, 0),
    ("Obama", "Barack Obama", False, 2 / 3, 2 / 3),
    ("the president Barack Obama", "Barack Obama", False, 4 / 5, 4 / 5),
    ("New York City", "New York", False, 4 / 5, 4 / 5),
    ("York", "New York City", False, 2 / 4, 2 / 4),
    ("York New", "New York", False, 1, 1),  # the order does not count
    ("very very big", "very big", False, 4 / 5, 4 / 5),  # the second `very` is wrong
    ("big big", "big big big", False, 4 / 5, 4 / 5),
    # The threshold: 3 shared of 17 + 3, and 2 shared of 12 + 2.
    ("x y z" + " w" * 14, "x y z", False, 6 / 20, 0.3),
    ("x y" + " w" * 10, "x y", False, 4 / 14, 0),
    ("yes", "no", False, 0, 0),
    ("Yes!", "yes", True, 1, 1),
    ("yes it is", "yes", False, 0, 0),  # as a whole or not at all
    ("no", "no man", False, 0, 0),
    ("noanswer", "noanswer today", False, 0, 0),
    ("yes and no", "no and yes", False, 1, 1),  # neither is one of the whole answers
    ("an", "The The", False, 0, 0),  # nothing is left of either
    ("the  the", "The The", True, 0, 1),
    ("!", "?", False, 0, 0),
    (".", "[]", True, 0, 1),  # brackets cannot be replied
    # Composed by a tokenizer or not.
    ("Cafe\u0301 de Flore", "Caf\u00e9 de Flore", True, 1, 1),
    ("Caf\u00e9", "the Cafe\u0301", True, 1, 1),
]


@pytest.mark.parametrize(("answer", "normalized"), NORMALIZED)
def test_normalization(answer, normalized):
    assert normalize(answer) == normalized


@pytest.mark.parametrize(("answer", "truth", "exact", "f1", "paid"), CASES)
def test_cases_by_hand(answer, truth, exact, f1, paid):
    assert exact_match(answer, truth) is exact
    assert f1_score(answer, truth) == pytest.approx(f1, abs=1e-12)
    assert pay(answer, truth) == pytest.approx(paid, abs=1e-12)


WORDS = st.lists(st.sampled_from(["x", "y", "z", "yes", "no"]), max_size=6)


@settings(deadline=None)
@given(answer=WORDS, truth=WORDS)
def test_f1_is_the_mean_of_precision_and_recall(answer, truth):
    shared = sum((collections.Counter(answer) & collections.Counter(truth)).values())
    if answer != truth and (answer in (["yes"], ["no"]) or truth in (["yes"], ["no"])):
        shared = 0
    expected = 0.0
    if shared:
        precision, recall = shared / len(answer), shared / len(truth)
        expected = 2 * precision * recall / (precision + recall)
    assert f1_score(" ".join(answer), " ".join(truth)) == pytest.approx(expected)


@settings(deadline=None)
@given(answer=st.text(), truth=st.text())
def test_scores_stay_in_their_range(answer, truth):
    assert 0 <= f1_score(answer, truth) <= 1
    assert pay(answer, truth) in (0, 1) or 0.3 <= pay(answer, truth) <= 1
    assert pay(truth, truth) == 1
