"""What OpenEnv's client said to our servers is answered today as it was then."""

import json

import pytest

from configs import frozen_lake
from ragen_jax.serve import pages
from ragen_jax.serve.build import build_game
from ragen_jax.serve.sessions import Session, Sessions
from tests.serve.serving import host_game, recorded


def as_sent(value):
    return json.loads(json.dumps(value))


GAMES = {
    "echo": host_game,
    "frozen_lake": lambda: build_game(frozen_lake.get_config()),
}


@pytest.mark.parametrize("name", GAMES)
def test_answers_to_the_official_client(name):
    """`tests/serve/record.py` recorded them from `launch.serve --env=NAME`."""
    game = GAMES[name]()
    documents, pairs = recorded(f"official_client_{name}")
    sessions = Sessions(game, 64)
    said = pages.metadata(sessions)
    # The version is that of the package; the sessions were not said then.
    own = {name: said[name] for name in ("version", "max_sessions")}
    assert said == documents["metadata"] | own
    assert as_sent(pages.schema(sessions)) == documents["schema"]
    session = Session(game.player())
    assert len(pairs) > 10
    for request, answer in pairs:
        assert json.loads(session.answer(json.dumps(request))) == answer
    session.close()


def test_the_official_server_answers_in_the_same_form():
    """The entries of its messages, and the codes of its errors, are those of ours."""
    _, theirs = recorded("official_client_official_server")
    _, ours = recorded("official_client_echo")
    forms = [
        {
            (request["type"], answer["type"]): {
                *answer["data"].keys() - {"metadata"},
                answer["data"].get("code", ""),
            }
            for request, answer in pairs
            if answer["data"].get("code") != "EXECUTION_ERROR"
        }
        for pairs in (theirs, ours)
    ]
    for key in (("reset", "observation"), ("step", "observation"), ("step", "error")):
        assert forms[0][key] == forms[1][key]
    state = {"episode_id", "step_count"}
    assert forms[0]["state", "state"] >= state <= forms[1]["state", "state"]
