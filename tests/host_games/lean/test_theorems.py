"""Files of theorems in miniF2F's format."""

import re

import pytest

from ragen_jax.host_games.lean.theorems import DEFAULT_HEADER, load_theorems
from tests.host_games.files import write_lines


@pytest.mark.parametrize(
    "end",
    [" := by", " := by\n", " := by sorry", " := sorry", " :=", "", " := by\n sorry"],
)
def test_ends_of_statements(tmp_path, end):
    claim = "theorem x (h : Stand_by) : p"
    row = {"name": "x", "split": "test", "formal_statement": claim + end}
    other = {"split": "valid", "formal_statement": "theorem y : q"}
    path = write_lines(tmp_path / "x.jsonl", [row, other])
    (theorem,) = load_theorems(path, "validation")
    assert theorem.code == f"{DEFAULT_HEADER}\n\n{claim} := by"
    assert theorem.words == ""


def test_fields_of_ragens_copy(tmp_path):
    row = {
        "formal_statement": "theorem x : p := by sorry",
        "natural_language_statement": "Show p.",
        "imports": "import Mathlib",
        "preamble": "open Nat\n",
    }
    rows = [{**row, "split": "valid"}, {"split": "test", "formal_statement": "lemma y"}]
    path = write_lines(tmp_path / "x.jsonl", rows)
    (theorem,) = load_theorems(path, "training")
    assert theorem.words == "Show p."
    assert theorem.code == "import Mathlib\n\nopen Nat\n\ntheorem x : p := by"


def test_splits_of_files_share_no_statement(tmp_path):
    claims = [f"(n : ℕ) (h : n = {i}) : n ≤ {i + 1}" for i in range(40)]
    rows = [{"formal_statement": f"theorem a{i} {c}"} for i, c in enumerate(claims)]
    again = [{"formal_statement": f"lemma b{i}  {c}"} for i, c in enumerate(claims)]

    def split(rows):
        path = write_lines(tmp_path / "x.jsonl", rows)
        return [
            {t.code.split(" (n", 1)[1] for t in load_theorems(path, split)}
            for split in ("training", "validation")
        ]

    training, validation = split(rows + again)
    assert not training & validation
    assert len(training | validation) == 40
    assert 2 < len(validation) < 16
    marked = [
        *({**row, "split": "valid"} for row in rows),
        *({**row, "split": "test"} for row in again[:10]),
    ]
    training, validation = split(marked)
    assert not training & validation
    assert (len(training), len(validation)) == (30, 10)


def test_a_few_odd_lines_are_left_out(tmp_path, caplog):
    rows = [
        {"split": split, "formal_statement": f"theorem x{i} : {i} < {i + 1}"}
        for i, split in enumerate(["valid"] * 20 + ["test"] * 10)
    ]
    odd = [{"split": "valid"}, {**rows[0], "header": 3}]
    # Half a surrogate pair: no server can be sent it.
    odd.append({**rows[0], "formal_statement": "theorem y : \ud83d"})
    path = write_lines(tmp_path / "x.jsonl", [*rows[:1], *odd, *rows[1:]])
    assert len(load_theorems(path, "training")) == 20
    assert "3 of 33 lines are left out" in caplog.text
    assert "x.jsonl, line 2, is of another form" in caplog.text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "line 1, is not JSON"),
        ("[]", "line 1, is of another form: AttributeError"),
        ('{"formal_statement": " "}', "no text in `formal_statement`"),
        (
            '\n{"formal_statement": "x", "split": "dev"}',
            "line 2, is of another form: ValueError: split is 'dev'; use",
        ),
        ("", "has no theorem for training"),
    ],
)
def test_bad_files(tmp_path, text, problem):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(problem)):
        load_theorems(str(path), "training")
