"""Templates on the host: the exact text of every kind of part."""

import numpy as np
import pytest

from envs.templates import Cells, Choice, Grid, Number, Template


def test_a_template_renders_its_parts_in_order():
    template = Template(
        (
            "Board:\n",
            Grid("board", (".", "#"), 2, 3),
            Cells("boxes", "Boxes", 2, 3, 6),
            Choice("mood", (" calm", " busy")),
            " at ",
            Number("score", -1000, 1000, decimals=2),
            "\n",
        )
    )
    values = {
        "board": np.array([[0, 1, 0], [1, 1, 0]]),
        "boxes": np.array([[0, 1, 0], [0, 0, 1]]),
        "mood": 1,
        "score": -10,
        "unused": 7,
    }
    assert template.fields == ("board", "boxes", "mood", "score")
    assert template.render(values) == (
        "Board:\n.#.\n##.\nBoxes: (0, 1), (1, 2)\n busy at -0.1\n"
    )


def test_boards_are_read_back_from_the_text():
    rng = np.random.default_rng(0)
    symbols = ("(", "|", ".", "√")
    board = Grid("board", symbols, 2, 3)
    template = Template(
        (
            "Turn (1)\n",
            Number("turn", -20, 20, decimals=1),
            Choice("mood", ("", "a|b")),
            board,
            Cells("boxes", "Boxes", 2, 3, 6),
        )
    )
    for _ in range(50):
        values = {
            "board": rng.integers(0, 4, (2, 3)),
            "turn": rng.integers(-20, 21),
            "mood": rng.integers(0, 2),
            "boxes": rng.integers(0, 2, (2, 3)),
        }
        (read,) = template.read_boards(template.render(values))
        assert read == [[symbols[i] for i in row] for row in values["board"]]
    assert template.read_boards("Turn (1)\n") is None
    assert Template(("a",)).read_boards("a") == []


def test_boards_with_words_for_symbols():
    """A separator keeps "1 6" and "16" apart, here and when the text is read."""
    symbols = (".", "1", "6", "16", "61")
    board = Grid("board", symbols, 2, 3, separator=" ")
    template = Template(("Now:\n", board, "end"))
    rng = np.random.default_rng(0)
    for _ in range(50):
        cells = rng.integers(0, 5, (2, 3))
        rows = [[symbols[i] for i in row] for row in cells]
        text = template.render({"board": cells})
        assert text == "Now:\n" + "".join(" ".join(r) + "\n" for r in rows) + "end"
        assert template.read_boards(text) == [rows]
    for wrong in (
        "16 1\n6 . .\n",
        "1616 1\n6 . .\n",
        "1 6 1 \n6 . .\n",
        "1 6 2\n. . .\n",
    ):
        assert template.read_boards(f"Now:\n{wrong}end") is None


def test_symbols_with_the_separator_are_refused():
    with pytest.raises(ValueError, match="must not contain separator=' '"):
        Grid("board", (".", "1 6"), 2, 3, separator=" ")


def test_templates_join():
    joined = Template(("a", Choice("x", ("0", "1")))) + Template(("b",))
    assert joined.parts == ("a", Choice("x", ("0", "1")), "b")
    assert joined.render({"x": 1}) == "a1b"


@pytest.mark.parametrize(
    ("units", "decimals", "text"),
    [
        (1090, 2, "10.9"),
        (-10, 2, "-0.1"),
        (5, 2, "0.05"),
        (-100, 2, "-1"),
        (0, 2, "0"),
        (1000, 2, "10"),
        (1001, 2, "10.01"),
        (-3, 0, "-3"),
        (10, 0, "10"),
        (np.int32(-990), 2, "-9.9"),
    ],
)
def test_numbers_have_no_trailing_zeros(units, decimals, text):
    assert Number("n", -2000, 2000, decimals).render(units) == text


def test_cells_without_marks_have_no_text():
    assert Cells("boxes", "Boxes", 2, 2, 4).render(np.zeros((2, 2))) == ""


def test_a_field_without_a_value_is_an_error():
    with pytest.raises(KeyError, match="mood"):
        Template((Choice("mood", ("a",)),)).render({})
