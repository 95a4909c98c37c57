"""Boards as pictures for models behind an API."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from envs.pictures import draw_cells
from tests.evaluation.api.server import serve
from tests.evaluation.api.test_evaluate import SMALL, play, walk

SYMBOLS = ("#", "_", "O", "\u221a", "X", "P", "S")
MEANINGS = ("wall", "floor", "target", "box on target", "box", "you", "you on a target")


def board_in(url: str) -> list[str]:
    """The board that a picture shows, cell by cell."""
    head, _, data = url.partition(",")
    assert head == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        pixels = np.asarray(image)
    cells = draw_cells(SYMBOLS, MEANINGS, 28)
    assert pixels.shape == (168, 168, 3)
    tiles = pixels.reshape(6, 28, 6, 28, 3).swapaxes(1, 2)
    found = (tiles[:, :, None] == cells).all(axis=(3, 4, 5))
    assert (found.sum(axis=2) == 1).all()
    return ["".join(SYMBOLS[i] for i in row) for row in found.argmax(axis=2)]


def play_as(tmp_path, observation):
    changes = SMALL | {"prompt.observation": observation}

    def answer(request):
        for message in request.messages:
            if not isinstance(message["content"], str):
                message["content"] = message["content"][0]["text"]
        return walk(request)

    asked = []

    def keep(request):
        asked.append([dict(message) for message in request.messages])
        return answer(request)

    with serve(keep) as server:
        metrics, lines = play(tmp_path / "out.jsonl", server.url, changes=changes)
    return metrics, lines, asked


@pytest.mark.parametrize(
    "observation", ["image", pytest.param("both", marks=pytest.mark.slow)]
)
def test_a_board_goes_beside_the_message_of_its_turn(tmp_path, observation):
    (tmp_path / "text").mkdir()
    plain, texts, _ = play_as(tmp_path / "text", "text")
    metrics, _, asked = play_as(tmp_path, observation)
    # The same moves on the same levels.
    assert metrics["Sokoban"]["success"] == plain["Sokoban"]["success"]
    boards = {tuple(turn["board"]) for line in texts for turn in line["turns"]}
    seen = set()
    for messages in asked:
        for message in messages:
            if message["role"] != "user":
                continue
            text, picture = message["content"]
            seen.add(tuple(board_in(picture["image_url"]["url"])))
            is_drawn_alone = observation == "image"
            assert ("(see the picture)" in text["text"]) == is_drawn_alone
            assert ("######" in text["text"]) != is_drawn_alone
    assert seen == boards
    system = asked[0][0]["content"]
    assert ("Drawings: bricks: wall" in system) == (observation == "image")
