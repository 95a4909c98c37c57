"""Messages that show boards as pictures: ids, text, instructions, refusals."""

import jax.numpy as jnp
import numpy as np
import pytest

import envs
from ragen_jax.text.dialogue import build_dialogue
from ragen_jax.text.pictures import Picture, picture_of, show_boards
from ragen_jax.types import IDS_PER_PICTURE, PICTURE_IDS, ROW_END
from tests.text.dialogues import BUDGET
from tests.text.sighted import sighted_tokenizer

FIELDS = {"turn": 2, "actions_left": 5, "reward_hundredths": -20, "was_invalid": 0}
FIELDS |= {"was_cut": 0}
GAMES = {
    "sokoban": ((6, 6), 7),
    "frozen_lake": ((4, 4), 6),
    "game2048": ((3, 3), 3),
    "sudoku": ((4, 4), 5),
}


def build(name, observation, kind=0, **changes):
    tokenizer = sighted_tokenizer()
    how = {"style": "terse", "tokenization": "symbols", "length_hint_words": 60}
    env = envs.make(name)
    return build_dialogue(
        env,
        tokenizer,
        budget=BUDGET,
        max_reply_tokens=20,
        picture_kind=kind,
        **how | changes | {"observation": observation},
    )


def fields_of(name):
    size, count = GAMES[name]
    board = np.random.RandomState(0).randint(0, count, size).astype(np.int32)
    fields = FIELDS | {"board": board}
    if name == "game2048":
        fields |= dict.fromkeys(("Up", "Right", "Down", "Left"), 1)
    return {key: jnp.asarray(value, jnp.int32) for key, value in fields.items()}


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("observation", ["image", "both"])
def test_ids_name_the_cells_and_decode_to_the_board(name, observation):
    dialogue, fields = build(name, observation, kind=3), fields_of(name)
    span = dialogue.following.tokens(fields)
    ids = np.asarray(span.tokens)[: int(span.length)]
    cells = ids[ids >= PICTURE_IDS] - PICTURE_IDS - 3 * IDS_PER_PICTURE
    board = np.asarray(fields["board"])
    expected = board.copy()
    expected[:, -1] += ROW_END
    np.testing.assert_array_equal(cells, expected.reshape(-1))
    # All of a picture's tokens are neighbours.
    places = np.flatnonzero(ids >= PICTURE_IDS)
    np.testing.assert_array_equal(np.diff(places), 1)
    tokenizer = sighted_tokenizer(dialogue.picture)
    text = tokenizer.decode(ids)
    assert text == dialogue.prompts.following.render(fields)
    assert "".join(tokenizer.spell(ids)) == text
    drawn = dialogue.picture.render(board)
    assert text.count(drawn) == (2 if observation == "both" else 1)
    assert f"<|vision_start|>{drawn}<|vision_end|>\n" in text


@pytest.mark.parametrize("tokenization", ["symbols", "rows"])
def test_text_stays_as_it_is(tokenization):
    as_before = build("sokoban", "text", tokenization=tokenization)
    assert as_before.picture is None
    both = build("sokoban", "both", tokenization=tokenization)
    fields = fields_of("sokoban")
    if tokenization == "rows":  # boards have a border there
        board = np.zeros((6, 6), np.int32)
        board[1:-1, 1:-1] = np.asarray(fields["board"])[1:-1, 1:-1]
        fields["board"] = jnp.asarray(board)
    plain, with_picture = (
        np.asarray(d.opening.tokens(fields).tokens) for d in (as_before, both)
    )
    begin, end = (
        sighted_tokenizer().id_of(f"<|vision_{x}|>") for x in ("start", "end")
    )
    assert {begin, end} < set(with_picture)
    assert begin not in set(plain)


def test_instructions_say_what_is_drawn():
    env = envs.make("sokoban")
    image = show_boards(env, "image", 0).instruction
    assert "Symbols:" not in image
    assert image.startswith(env.instruction.split("\n")[0])
    assert "The board is a picture. Drawings: bricks: wall, nothing: floor" in image
    both = show_boards(env, "both", 0).instruction
    assert both == f"{env.instruction}\nThe picture shows the board, too."
    assert "Drawings" not in show_boards(envs.make("sudoku"), "image", 0).instruction
    # The game itself is left as it was.
    assert picture_of(env.template, Picture) is None


def test_what_cannot_be_shown_is_refused(tokenizer):
    with pytest.raises(ValueError, match="'film' is unknown; choose one of text, imag"):
        build("sokoban", "film")
    with pytest.raises(ValueError, match="Bandit has no board that a picture"):
        build("bandit", "image")
    coordinates = envs.make("sokoban", observation="coord")
    with pytest.raises(ValueError, match="of Sokoban, where 'grid' shows its board"):
        show_boards(coordinates, "both", 0)
    symbols = tuple(chr(0x4E00 + i) for i in range(257))
    with pytest.raises(ValueError, match="257 symbols; a picture can show 256"):
        Picture("board", symbols, 2, 2)
    how = {"style": "terse", "tokenization": "symbols", "length_hint_words": 60}
    with pytest.raises(ValueError, match=r"no token '<\|vision_start\|>'"):
        build_dialogue(
            envs.make("sokoban"),
            tokenizer,
            budget=BUDGET,
            max_reply_tokens=20,
            observation="image",
            **how,
        )
