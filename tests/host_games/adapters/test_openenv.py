"""The client of OpenEnv servers, against recorded ones and against faults."""

import contextlib
import json
import math
import pathlib
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.datastructures import Headers
from websockets.http11 import Response
from websockets.sync.server import serve

from ragen_jax.host_games.adapters import openenv_connection as openenv_wire
from ragen_jax.host_games.adapters.openenv import OpenEnvGame
from ragen_jax.host_games.adapters.openenv_actions import (
    MAX_ACTION_BYTES,
    TEXT_FIELDS,
    Unreadable,
    find_text,
    read_form,
    read_reward,
)
from ragen_jax.host_games.adapters.openenv_connection import OpenEnvError, server_urls
from ragen_jax.host_games.base import Step

DATA = pathlib.Path(__file__).parents[2] / "serve" / "data"
DOCUMENTS = {
    "/schema": {
        "action": {
            "properties": {"message": {"type": "string"}, "metadata": {}},
            "required": ["message"],
        }
    },
    "/metadata": {"name": "Stub", "description": "Say so."},
}


@contextlib.contextmanager
def stub(talk, documents=None):
    """A server whose sessions are `talk(socket)`; yields its URL."""
    documents = DOCUMENTS if documents is None else documents

    def page(connection, request):
        if request.path == "/ws":
            return None
        document = documents.get(request.path)
        if document is None:
            return Response(404, "Not Found", Headers(), b"")
        body = document if isinstance(document, bytes) else json.dumps(document)
        body = body if isinstance(body, bytes) else body.encode()
        headers = Headers({"Content-Length": str(len(body)), "Connection": "close"})
        return Response(200, "OK", headers, body)

    with serve(talk, "127.0.0.1", 0, process_request=page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield "ws://{}:{}".format(*server.socket.getsockname())
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def playing(talk, documents=None, split="training", **options):
    with stub(talk, documents) as url:
        game = OpenEnvGame(split, url, **options)
        try:
            yield game
        finally:
            game.close()


def observation(text="ok", reward=0.0, done=False, **fields):
    seen = {"prompt": text, **fields}
    data = {"observation": seen, "reward": reward, "done": done}
    return json.dumps({"type": "observation", "data": data})


def error(code, message="no", **more):
    data = {"code": code, "message": message, **more}
    return json.dumps({"type": "error", "data": data})


def answering(*answers):
    asked, left = [], iter(answers)

    def talk(socket):
        for raw in socket:
            request = json.loads(raw)
            if request["type"] == "close":
                return
            asked.append(request)
            answer = next(left)
            if answer is None:
                socket.close()
                return
            socket.send(answer)

    return talk, asked


def test_openenvs_own_server_as_recorded():
    """`tests/serve/record.py` recorded this client at OpenEnv's own server."""
    found = json.loads((DATA / "our_client_official_server.json").read_text())
    documents = {f"/{name}": value for name, value in found["documents"].items()}
    talk, asked = answering(*(json.dumps(answer) for _, answer in found["pairs"]))
    with playing(talk, documents) as game:
        assert game.instruction == "Words\nSay the word asked for."
        assert game.reset(0).text == "Say north."
        steps = [
            game.step(reply)
            for reply in ["null", "no", '{"word": 1}', '{"message": "null"}', "north"]
        ]
        assert [step.reward for step in steps] == [0, 0, 0, 0, 1]
        assert [step.info["valid"] for step in steps] == [True, True, False, True, True]
        assert [step.observation.text for step in steps] == [
            "Nothing.",
            "No, say north.",
            "The game did not accept this: message: Field required\nNo, say north.",
            "Nothing.",
            "Right.",
        ]
        assert (steps[-1].terminated, steps[-1].info["success"]) == (True, True)
        assert game.reset(1).text == "Say south."
        with pytest.raises(OpenEnvError, match="EXECUTION_ERROR: raised on purpose"):
            game.step("raise")
        # The session is gone, and the next episode has a new one.
        assert game.reset(2).text == "Say north."
        assert game.step("north").info["success"]
    assert asked == [request for request, _ in found["pairs"]]


def test_seeds_of_the_splits_differ():
    seeds = {}
    for split in ("training", "validation"):
        talk, asked = answering(*[observation()] * 300)
        with playing(talk, split=split) as game:
            for seed in [*range(100), 2**30 - 1, 2**30, 2**31 - 1]:
                game.reset(seed)
            game.reset(0, task=3)
        assert {request["data"]["split"] for request in asked} == {split}
        assert asked[-1]["data"]["task"] == 3
        seeds[split] = {request["data"]["seed"] for request in asked}
        assert len(seeds[split]) == 101
        assert all(0 <= seed < 2**31 for seed in seeds[split])
    assert not seeds["training"] & seeds["validation"]


def test_what_the_server_says_of_success_and_limits_counts():
    talk, _ = answering(
        observation(),
        observation(reward=5, done=True, success=False, truncated=True, valid=False),
        observation(),
        observation(reward=-1, done=True),
        observation(),
        observation(reward=0.4, done=True),
    )
    with playing(talk, success_above=0.5) as game:
        game.reset(0)
        step = game.step("a")
        assert (step.terminated, step.truncated, step.reward) == (False, True, 5.0)
        assert step.info == {"success": False, "valid": False}
        for _ in range(2):
            game.reset(0)
            step = game.step("a")
            assert (step.terminated, step.truncated) == (True, False)
            assert step.info == {"success": False, "valid": True}


def test_a_connection_that_was_lost_between_episodes_is_made_anew():
    num_sessions = []

    def talk(socket):
        num_sessions.append(1)
        for is_over in (False, True):
            socket.recv()
            socket.send(observation(done=is_over))

    with playing(talk) as game:
        for seed in range(5):
            game.reset(seed)
            game.step("a")
            time.sleep(0.05)
    assert len(num_sessions) == 5


def test_a_server_that_ended_an_idle_session_is_asked_again():
    def talk(socket):
        socket.recv()
        socket.send(observation())
        socket.send(error("SESSION_ERROR", "idle"))

    with playing(talk) as game:
        game.reset(0)
        time.sleep(0.1)
        assert game.reset(1).text == "ok"


def test_a_connection_that_is_lost_inside_an_episode_is_a_failure():
    talk, _ = answering(observation("first"), None, observation("second"))
    with playing(talk) as game:
        game.reset(0)
        with pytest.raises(OpenEnvError, match="ended the connection"):
            game.step("a")
        # Nothing is played in a session that the server has forgotten.
        with pytest.raises(OpenEnvError, match="its connection was lost"):
            game.step("a")
        assert game.reset(1).text == "second"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("nonsense", "answered null, which is not a message"),
        ("[" * 100_000, "which is not a message"),
        ("[]", "which is not a message"),
        ('{"type": "observation"}', "which is not a message"),
        ('{"type": "state", "data": {}}', 'type "state", not an observation'),
        (error("EXECUTION_ERROR"), "failed with EXECUTION_ERROR: no"),
        (observation(reward="1"), 'the reward is "1", not a finite number'),
        (observation(reward=float("nan")), "the reward is NaN"),
        (observation(done="true"), 'done is "true", neither true nor false'),
        (observation(done=[1]), "done is [1], neither"),
        (observation(done=True, success="no"), 'success is "no", neither'),
        (observation(valid=0.5), "valid is 0.5, neither"),
        ('{"type": "observation", "data": {"observation": 3}}', "the observation is 3"),
        (
            '{"type": "observation", "data": {"observation": {"board": ""}}}',
            "name the one with the text by observation_field",
        ),
        (b"\xff", "which is not a message"),
    ],
)
def test_answers_that_are_none_are_failures(answer, words):
    talk, _ = answering(observation(), answer, observation())
    with playing(talk) as game:
        game.reset(0)
        with pytest.raises(OpenEnvError, match=words.replace("[", r"\[")):
            game.step("a")
        game.reset(0)


def test_an_episode_that_is_over_at_its_reset_is_a_failure():
    """It would be asked for a reply, and the reply be paid."""
    talk, asked = answering(observation("won", reward=1.0, done=True), observation())
    with playing(talk) as game:
        with pytest.raises(OpenEnvError, match="over before its first reply"):
            game.reset(0)
        assert game.reset(0).text == "ok"
    assert [request["type"] for request in asked] == ["reset", "reset"]


def test_numbers_may_say_that_an_episode_has_ended():
    """One whose server has ended it would be asked for further replies."""
    talk, _ = answering(
        observation(done=0), observation(done=None), observation(done=1, success=0)
    )
    with playing(talk) as game:
        game.reset(0)
        assert not game.step("a").terminated
        step = game.step("b")
    assert (step.terminated, step.info["success"]) == (True, False)


def wait_for_another_message(game):
    """Until the client has received one that nobody has read."""
    frames = game._connection._socket.recv_messages.frames
    deadline = time.monotonic() + 30
    while frames.empty():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_second_answer_is_not_taken_for_the_next_requests():
    def talk(socket):
        for number, _ in enumerate(socket):
            for copy in range(2 if number == 1 else 1):
                socket.send(observation(f"answer {number}, copy {copy}"))

    with playing(talk) as game:
        game.reset(0)
        assert game.step("a").observation.text == "answer 1, copy 0"
        wait_for_another_message(game)
        with pytest.raises(OpenEnvError, match="answered a request twice"):
            game.step("b")
        # Another session; at a reset nothing is lost.
        assert game.reset(1).text == "answer 0, copy 0"
        game.step("c")
        wait_for_another_message(game)
        assert game.reset(2).text == "answer 0, copy 0"


def test_a_silent_server_is_given_up():
    def talk(socket):
        socket.recv()
        time.sleep(1.0)

    with playing(talk, timeout_seconds=0.3) as game:
        began = time.monotonic()
        with pytest.raises(OpenEnvError, match=r"did not answer within 0\.3 s; raise"):
            game.reset(0)
        assert time.monotonic() - began < 3.0


def test_a_server_that_is_gone_is_not_said_to_be_full():
    talk, _ = answering(observation())
    with playing(talk) as game:
        pass
    with pytest.raises(OpenEnvError, match="cannot connect") as gone:
        game.reset(0)
    assert "room" not in str(gone.value)


@pytest.mark.parametrize("instruction", [None, "Say so."])
def test_the_servers_sessions_are_counted_whoever_instructs(instruction):
    documents = DOCUMENTS | {"/metadata": {"name": "Stub", "max_sessions": 4}}
    talk, _ = answering(observation())
    with playing(talk, documents, instruction=instruction) as game:
        assert game.max_rows == 4


def test_an_oversized_answer_is_a_failure(monkeypatch):
    monkeypatch.setattr(openenv_wire, "MAX_MESSAGE_BYTES", 10_000)
    talk, _ = answering(observation(), observation("x" * 20_000))
    with playing(talk) as game:
        game.reset(0)
        with pytest.raises(OpenEnvError, match="ended the connection"):
            game.step("a")


def test_the_client_sends_no_pings_and_answers_them():
    pongs = []

    def talk(socket):
        socket.recv()
        pongs.append(socket.ping())
        socket.send(observation())
        socket.recv()

    with playing(talk) as game:
        game.reset(0)
        assert pongs[0].wait(5.0)
        assert game._connection._socket.ping_interval is None


def test_a_full_server_is_asked_again_for_a_moment():
    refusals = [3]

    def talk(socket):
        if refusals[0]:
            refusals[0] -= 1
            socket.send(error("CAPACITY_REACHED", "full"))
            return
        socket.recv()
        socket.send(observation())
        socket.recv()

    with playing(talk) as game:
        assert game.reset(0).text == "ok"
        assert refusals == [0]


@pytest.mark.parametrize("says_why", [True, False])
def test_a_server_that_stays_full_is_an_error_with_the_cure(says_why, monkeypatch):
    monkeypatch.setattr(openenv_wire, "ROOM_SECONDS", 0.2)

    def talk(socket):
        if says_why:
            socket.send(error("CAPACITY_REACHED", "full"))

    with playing(talk) as game, pytest.raises(OpenEnvError, match="or use fewer rows"):
        game.reset(0)


SILENT = DOCUMENTS | {"/metadata": {"name": ""}}


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        ({"/schema": b"<html>"}, "check that the URL is right"),
        ({}, "/schema answered with status 404"),
        ({"/schema": {"action": "x" * 1_000_000}}, "more than 1000000 bytes"),
        (SILENT, "with the option instruction"),
    ],
)
def test_servers_that_are_none_are_refused(documents, words):
    with (
        stub(lambda socket: None, documents) as url,
        pytest.raises(ValueError, match=words),
    ):
        OpenEnvGame("training", url)


def test_no_server_and_one_that_says_nothing_of_its_game():
    with pytest.raises(ValueError, match="check that the server runs"):
        OpenEnvGame("training", "ws://127.0.0.1:9")
    with stub(lambda socket: None, SILENT) as url:
        game = OpenEnvGame("training", url, instruction="Say it.")
        assert game.instruction == "Say it."


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"split": "test"}, "split is 'test'"),
        ({"url": "127.0.0.1:8000"}, "use one like ws://127.0.0.1:8000"),
        ({"url": "ftp://a"}, "use one like"),
        ({"url": "ws://a:b"}, "use one like"),
        ({"url": "ws://a/?x=1"}, "leave out what follows"),
        ({"timeout_seconds": 0}, "use a finite number above 0"),
        ({"field": "answer"}, "the server's actions have message; use one of them"),
    ],
)
def test_options_that_cannot_be_used(options, words):
    with stub(lambda socket: None) as url, pytest.raises(ValueError, match=words):
        OpenEnvGame(**{"split": "training", "url": url} | options)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ws://a:1", ("ws://a:1/ws", "http://a:1")),
        ("http://a:1/", ("ws://a:1/ws", "http://a:1")),
        ("wss://a/games/echo", ("wss://a/games/echo/ws", "https://a/games/echo")),
        ("https://a/ws", ("wss://a/ws", "https://a")),
        ("ws://[::1]:2", ("ws://[::1]:2/ws", "http://[::1]:2")),
    ],
)
def test_addresses(url, expected):
    assert server_urls(url) == expected


def typed(kind):
    return {"properties": {"move": {"type": kind}}, "required": ["move"]}


TYPED = typed("integer")
TWO = {"properties": {"a": {}, "b": {}, "metadata": {}}, "required": ["a", "b"]}
MESSAGE = DOCUMENTS["/schema"]["action"]


@pytest.mark.parametrize(
    ("schema", "field", "reply", "action"),
    [
        (MESSAGE, None, "Up", {"message": "Up"}),
        (MESSAGE, None, "", {"message": ""}),
        (MESSAGE, None, '{"message": "a", "x": 1}', {"message": "a", "x": 1}),
        (MESSAGE, None, "[1]", {"message": "[1]"}),
        (MESSAGE, None, '{"a": NaN}', {"message": '{"a": NaN}'}),
        (MESSAGE, None, "{" * 9_999, {"message": "{" * 9_999}),
        (MESSAGE, None, "\ud800", {"message": "?"}),
        (MESSAGE, "message", '{"x": 1}', {"message": '{"x": 1}'}),
        (TYPED, None, " 3\n", {"move": 3}),
        (TYPED, None, "three", "Reply with a whole number."),
        (TYPED, None, "true", "Reply with a whole number."),
        (TYPED, None, "3.0", "Reply with a whole number."),
        (typed("number"), None, "1e3", {"move": 1000.0}),
        (typed("number"), None, "word", "Reply with a number."),
        (typed("boolean"), None, "True", {"move": True}),
        (typed("boolean"), None, "word", "Reply with true or false."),
        (TWO, None, '{"a": 1, "b": 2}', {"a": 1, "b": 2}),
        (TWO, None, "a", "Reply with a JSON object with a, b."),
        (TWO, "b", "x", {"b": "x"}),
        ({}, "code", "x", {"code": "x"}),
        (None, None, "x", "Reply with a JSON object"),
        (MESSAGE, None, "x" * MAX_ACTION_BYTES, "The answer is too long."),
    ],
)
def test_replies_become_actions(schema, field, reply, action):
    form = read_form(schema, field)
    if isinstance(action, dict):
        assert form.read(reply) == action
    else:
        with pytest.raises(Unreadable, match=action):
            form.read(reply)


def test_the_instruction_says_how_to_reply_where_text_is_no_action():
    talk, asked = answering(observation("board"), observation())
    documents = DOCUMENTS | {"/schema": {"action": TYPED}}
    with playing(talk, documents) as game:
        assert game.instruction == "Stub\nSay so.\nReply with a whole number."
        game.reset(0)
        step = game.step("left")
        assert step.observation.text == "Reply with a whole number.\nboard"
        assert step.info["valid"] is False
        game.step("2")
    assert [request["type"] for request in asked] == ["reset", "step"]


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        ("plain", "plain"),
        ({"prompt": "a", "text": "b"}, "b"),
        ({"stdout": ""}, ""),
        ({"text": None, "content": "c"}, "c"),
        ({"messages": [{"role": "user", "content": "a"}, "b"]}, "a\nb"),
        ({"question": {"n": 1}}, '{"n": 1}'),
        ({"text": "b", "shown": "a"}, "a"),
    ],
)
def test_texts_are_found(seen, text):
    assert find_text(seen, None) == text


def test_a_field_of_the_users_choice():
    assert find_text({"text": "a", "board": [1, "x"]}, "board") == "1\nx"
    with pytest.raises(ValueError, match="has text, none of board"):
        find_text({"text": "a"}, "board")
    assert "text" in TEXT_FIELDS


def test_rewards():
    assert [read_reward(x) for x in (None, True, 2, -0.5)] == [0.0, 1.0, 2.0, -0.5]
    for large in (1e300, 10**400, math.inf, -(10**400)):
        with pytest.raises(ValueError, match=r"not a finite number up to 1e\+15"):
            read_reward(large)


@settings(deadline=None)
@given(st.text() | st.sampled_from(["x" * 600_000, "{" * 100_000, "\x00", "]"]))
def test_a_hostile_reply_is_a_step(echo, reply):
    echo.reset(0)
    step = echo.step(reply)
    assert isinstance(step, Step)
    assert isinstance(step.info["valid"], bool)


@pytest.fixture(scope="module")
def echo():
    def talk(socket):
        for raw in socket:
            request = json.loads(raw)
            is_step = request["type"] == "step"
            if is_step and not isinstance(request["data"].get("message"), str):
                socket.send(error("VALIDATION_ERROR", errors=[{"loc": ["x"]}]))
            else:
                socket.send(observation())

    with playing(talk) as game:
        yield game
