"""The server over real sockets: sessions, their ends, and pages."""

import contextlib
import json
import os
import socket
import struct
import subprocess
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidStatus

from ragen_jax.host_games.common.http_server import MAX_BODY_BYTES
from ragen_jax.serve import server as server_module
from ragen_jax.serve.games import SessionOutput
from ragen_jax.serve.sessions import Session
from tests.serve.serving import (
    ask,
    connected,
    hear,
    host_game,
    request,
    request_json,
    serving,
)


@pytest.fixture(scope="module")
def server():
    with serving(host_game()) as running:
        yield running


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def all_workers():
    found = subprocess.run(
        ["pgrep", "-P", str(os.getpid()), "-f", "ragen_jax.host_games.workers.worker"],
        capture_output=True,
        text=True,
        check=False,
    )
    return set(found.stdout.split())


def closing_code(client):
    """The code with which the server closes a connection."""
    with pytest.raises(ConnectionClosed) as closed:
        client.recv(timeout=10)
    return closed.value.rcvd.code


@pytest.fixture
def num_workers():
    """Counts those that the test has started."""
    before = all_workers()
    return lambda: len(all_workers() - before)


def test_an_episode(server):
    with connected(server) as client:
        first = ask(client, "reset", seed=3, episode_id="mine")
        shown = first["data"]["observation"]["shown"]
        assert first["type"] == "observation"
        assert first["data"]["reward"] is None
        assert first["data"]["done"] is False
        expected = f"{server.sessions.game.instruction}\n\n{shown}"
        assert first["data"]["observation"]["text"] == expected
        assert ask(client, "state")["data"] == {
            "episode_id": "mine",
            "step_count": 0,
            "seed": 3,
            "split": "training",
            "task": None,
            "done": False,
        }
        last = ask(client, "step", answer=shown.split()[-1])
        assert (last["data"]["reward"], last["data"]["done"]) == (1.0, True)
        assert last["data"]["observation"]["success"] is True
        state = ask(client, "state")["data"]
        assert (state["step_count"], state["done"]) == (1, True)
        again = ask(client, "reset", seed=3)
        assert again["data"]["observation"]["shown"] == shown
        assert again["data"]["metadata"]["episode_id"] not in (None, "mine")
        other = ask(client, "reset", seed=3, split="validation")
        assert other["data"]["observation"]["shown"] != shown


def test_a_reset_without_a_seed_says_which_it_drew(server):
    with connected(server) as client:
        first = ask(client, "reset")["data"]
        seed = first["metadata"]["seed"]
        assert ask(client, "reset")["data"]["metadata"]["seed"] != seed
        again = ask(client, "reset", seed=seed)["data"]
        assert again["observation"] == first["observation"]


def test_steps_out_of_order_are_errors_and_not_the_end(server):
    with connected(server) as client:
        early = ask(client, "step", answer="Up")["data"]
        assert early["code"] == "EXECUTION_ERROR"
        assert early["message"] == "the episode has not begun; send a reset first"
        numbered = ask(client, "reset", seed=1, task=0)["data"]
        assert "there is no task 0: Echo has no numbered tasks" in numbered["message"]
        assert ask(client, "state")["data"]["episode_id"] is None
        client.send("nonsense")
        assert hear(client)["data"]["code"] == "INVALID_JSON"
        client.send(b"\xff")
        assert hear(client)["data"]["code"] == "INVALID_JSON"
        ask(client, "reset", seed=1)
        ask(client, "step", answer="Up")
        late = ask(client, "step", answer="Up")["data"]
        assert late["message"] == "the episode is over; send a reset first"


def test_what_a_reset_does_not_know_is_named(server):
    with connected(server) as client:
        answer = ask(client, "reset", seed=1, difficulty=2)
        assert answer["data"]["metadata"]["ignored"] == ["difficulty"]


def test_messages_sent_at_once_are_answered_in_order(server):
    with connected(server) as client:
        for seed in range(100):
            client.send(json.dumps({"type": "reset", "data": {"seed": seed}}))
        seeds = [hear(client)["data"]["metadata"]["seed"] for _ in range(100)]
    assert seeds == [*range(100)]


def test_tasks_are_numbered_where_the_game_numbers_them():
    with serving(host_game("search")) as server, connected(server) as client:
        num_tasks = server.sessions.game.env.num_tasks["training"]
        answer = ask(client, "reset", seed=0, task=num_tasks)["data"]
        assert f"tasks 0 to {num_tasks - 1} in training" in answer["message"]
        texts = {
            ask(client, "reset", seed=seed, task=4)["data"]["observation"]["text"]
            for seed in range(3)
        }
        assert len(texts) == 1


def test_sessions_do_not_share_a_game(server):
    with connected(server) as one, connected(server) as two:
        first = ask(one, "reset", seed=1)["data"]["observation"]["shown"]
        ask(two, "reset", seed=2)
        assert ask(one, "step", answer=first.split()[-1])["data"]["reward"] == 1.0
        assert ask(two, "state")["data"]["step_count"] == 0


def test_a_client_that_is_refused_reads_why():
    with serving(host_game(), max_sessions=2) as server:
        with connected(server) as one, connected(server) as two:
            ask(one, "reset")
            ask(two, "reset")
            for _ in range(20):
                with connected(server) as third:
                    # Written before the answer is read, as clients do.
                    with contextlib.suppress(ConnectionClosed):
                        third.send('{"type": "reset"}')
                    answer = hear(third)
                    assert closing_code(third) == 1013
                assert answer["data"]["code"] == "CAPACITY_REACHED"
                assert answer["data"]["active_sessions"] == 2
                assert answer["data"]["max_sessions"] == 2
        wait_for(lambda: server.sessions.num_open == 0)
        with connected(server) as again:
            assert ask(again, "reset")["type"] == "observation"


def test_a_session_that_says_nothing_ends():
    with serving(host_game(), idle_seconds=1.5) as server, connected(server) as client:
        ask(client, "reset")
        # A ping is not a message: a client that only lives does not play.
        for _ in range(3):
            time.sleep(0.2)
            client.ping()
        answer = hear(client)
        assert answer["data"]["code"] == "SESSION_ERROR"
        assert answer["data"]["message"] == "no message for 1.5 s; the session ends"
        closing_code(client)
        wait_for(lambda: server.sessions.num_open == 0)


def test_a_game_that_thinks_is_not_idle_and_pings_are_answered():
    game = host_game("tests.host_games.games:Faulty", step_seconds=2.0)
    with serving(game, idle_seconds=0.5) as server, connected(server) as client:
        ask(client, "reset", seed=0)
        client.send(json.dumps({"type": "step", "data": {"answer": "hang"}}))
        began = time.monotonic()
        assert client.ping().wait(1.0)
        assert time.monotonic() - began < 1.0
        answer = hear(client)["data"]
        assert answer["code"] == "EXECUTION_ERROR"
        assert "no answer within 2 s" in answer["message"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise", "RuntimeError: broken on purpose"),
        ("die", "killed by SIGKILL"),
    ],
)
def test_a_game_that_breaks_ends_its_episode_alone(fault, words):
    game = host_game("tests.host_games.games:Faulty", step_seconds=2.0)
    with serving(game) as server, connected(server) as one, connected(server) as two:
        ask(one, "reset", seed=1)
        ask(two, "reset", seed=2)
        answer = ask(one, "step", answer=fault)["data"]
        assert answer["code"] == "EXECUTION_ERROR"
        assert words in answer["message"]
        late = ask(one, "step", answer="a")["data"]["message"]
        assert late == "the episode is over; send a reset first"
        assert ask(two, "step", answer="a")["data"]["reward"] == 1.0
        assert ask(one, "reset", seed=1)["type"] == "observation"
        assert ask(one, "step", answer="a")["data"]["reward"] == 1.0


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_ends_its_episode(reward):
    """Such as one of an array game, which no worker has checked."""

    class Player:
        def reset(self, *problem):
            return SessionOutput("begin", "begin")

        def step(self, answer):
            return SessionOutput("go on", "go on", reward=reward)

    session = Session(Player())
    session.answer(json.dumps({"type": "reset", "data": {}}))
    step = json.dumps({"type": "step", "data": {"answer": "a"}})
    answer = json.loads(session.answer(step))["data"]
    assert answer["message"] == f"the game failed: its reward is {reward}"
    assert "is over" in json.loads(session.answer(step))["data"]["message"]


def test_an_oversized_message_closes_the_connection(server):
    for message in "x" * (MAX_BODY_BYTES + 1), ["x" * 400_000] * 4:
        with connected(server) as client:
            # The server may close before the last part is sent.
            with contextlib.suppress(ConnectionClosed):
                client.send(message)
            assert closing_code(client) == 1009
    with connected(server) as client:
        # The largest that is taken.
        client.send("x" * MAX_BODY_BYTES)
        assert hear(client)["data"]["code"] == "INVALID_JSON"
    wait_for(lambda: server.sessions.num_open == 0)


def test_a_message_in_parts_is_one(server):
    with connected(server) as client:
        client.send(['{"type": ', '"reset", "data"', ': {"seed": 4}}'])
        assert hear(client)["data"]["metadata"]["seed"] == 4


def test_close_ends_a_session(server):
    wait_for(lambda: server.sessions.num_open == 0)
    with connected(server) as client:
        ask(client, "reset")
        assert server.sessions.num_open == 1
        client.send('{"type": "close"}')
        assert closing_code(client) == 1000
        wait_for(lambda: server.sessions.num_open == 0)


HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def raw_socket(server):
    return socket.create_connection(server.server_address[:2], timeout=10)


@contextlib.contextmanager
def raw_websocket(server):
    with raw_socket(server) as raw:
        raw.sendall(HANDSHAKE)
        assert raw.recv(4096).startswith(b"HTTP/1.1 101")
        yield raw


RESET = b"\x81\x91\0\0\0\0" + b'{"type": "reset"}'


def test_abandoned_sockets_free_their_sessions_and_processes(server, num_workers):
    for how in ("reset", "shut", "half a message"):
        with raw_websocket(server) as raw:
            raw.sendall(RESET)
            assert raw.recv(4096)
            assert server.sessions.num_open == 1
            assert num_workers() == 1
            if how == "half a message":
                raw.sendall(RESET[:9])
            if how == "reset":
                # Closed without a word, as by a process that was killed.
                raw.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
        wait_for(lambda: server.sessions.num_open == 0)
        assert num_workers() == 0


def test_many_abandoned_sockets_leave_nothing_behind(server):
    def things():
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    wait_for(lambda: server.sessions.num_open == 0)
    before = things()
    for _ in range(20):
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(raw_socket(server)) for _ in range(30)]
            for raw in sockets:
                raw.sendall(HANDSHAKE)
            for raw in sockets[:20]:
                assert raw.recv(4096).startswith(b"HTTP/1.1 101")
    wait_for(lambda: server.sessions.num_open == 0)
    wait_for(lambda: things() <= before)
    assert server._places._value == server._places._initial_value


def test_a_client_that_does_not_close_loses_its_session_all_the_same(server):
    message = b'{"type": "close"}'
    with raw_websocket(server) as raw:
        raw.sendall(bytes([0x81, 0x80 | len(message), 0, 0, 0, 0]) + message)
        assert raw.recv(4096)[:1] == b"\x88"
        # Its own close never comes.
        wait_for(lambda: server.sessions.num_open == 0)


@pytest.mark.parametrize(
    "frame",
    [
        b"\x81\x05hello",  # not masked, as a client's must be
        b"\xc1\x80\0\0\0\0",  # a reserved bit
        b"\x83\x80\0\0\0\0",  # a reserved opcode
        b"\x80\x80\0\0\0\0",  # the rest of no message
        b"\x81\x82\0\0\0\0\xff\xff",  # a text that is not UTF-8
        b"\x81\xff" + b"\xff" * 8 + b"\0\0\0\0",  # a length of 2**64
        b"\x89\xfe\x01\x00\0\0\0\0" + b"x" * 256,  # a ping that is too long
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_websocket_is_closed(server, frame):
    with raw_websocket(server) as raw:
        raw.sendall(frame)
        # The opcode of a close, then the end.
        assert raw.recv(4096)[:1] == b"\x88"
        assert raw.recv(4096) == b""
    wait_for(lambda: server.sessions.num_open == 0)


FRAMES = st.binary() | st.builds(
    lambda opcode, data: bytes([0x80 | opcode, 0x80 | len(data)]) + bytes(4) + data,
    st.sampled_from([1, 2, 8, 9, 10]),
    st.binary(max_size=125),
)


@settings(deadline=None)
@given(st.lists(FRAMES, max_size=5), st.booleans())
def test_no_bytes_keep_a_session_or_stop_the_server(server, frames, is_websocket):
    with (
        (raw_websocket if is_websocket else raw_socket)(server) as raw,
        # The server may have closed the connection before all is sent.
        contextlib.suppress(OSError),
    ):
        for frame in frames:
            raw.sendall(frame)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(65_536):
            pass
    wait_for(lambda: server.sessions.num_open == 0)
    assert request_json(server, "GET", "/health")[0] == 200


def test_pages_of_other_sites_cannot_connect(server):
    with (
        pytest.raises(InvalidStatus) as refused,
        connected(server, origin="http://example.com"),
    ):
        pass
    assert refused.value.response.status_code == 403
    with connected(server, origin=server.url) as client:
        assert ask(client, "state")["type"] == "state"


def test_pages_of_other_sites_cannot_post(server):
    for origin in (
        "http://elsewhere.example",
        f"http://evil.example:{server.server_port}",
        "http://[no.address",
    ):
        for path in ("/reset", "/step"):
            body = json.dumps({"action": {"answer": "Up"}})
            headers = {"Origin": origin, "Host": origin.removeprefix("http://")}
            assert request(server, "POST", path, body, **headers)[0] == 403
    assert server.sessions.num_open == 0


def test_sessions_of_others_cannot_be_joined(server):
    with (
        pytest.raises(InvalidStatus) as refused,
        connected(server, "/ws?session_id=a"),
    ):
        pass
    assert refused.value.response.status_code == 404


def test_a_client_that_waits_hears_nothing(server):
    """No ping that a client which decodes for minutes would have to answer."""
    with raw_websocket(server) as raw:
        raw.sendall(RESET)
        heard = raw.recv(4096)
        # A text, all of it.
        assert heard[:2] == b"\x81\x7e"
        assert len(heard) == 4 + int.from_bytes(heard[2:4], "big")
        raw.settimeout(2.0)
        with pytest.raises(TimeoutError):
            raw.recv(1)
        # An empty ping, as clients of other libraries send it, is answered.
        raw.sendall(b"\x89\x80\0\0\0\0")
        assert raw.recv(4096) == b"\x8a\x00"


def test_a_websocket_needs_a_handshake(server):
    status, _, _ = request(server, "GET", "/ws")
    assert status == 426


def test_too_many_connections_are_closed(monkeypatch):
    monkeypatch.setattr(server_module, "SPARE_CONNECTIONS", 1)
    with serving(host_game(), max_sessions=1) as server:
        with raw_socket(server), raw_socket(server):
            wait_for(lambda: not server._places._value)
            with raw_socket(server) as third:
                assert third.recv(10) == b""
        wait_for(lambda: server._places._value)
        assert request_json(server, "GET", "/health")[0] == 200


def test_the_end_of_the_server_ends_its_sessions():
    with serving(host_game()) as server, connected(server) as client:
        ask(client, "reset")
        assert server.close_sessions() == 1
        assert server.sessions.num_open == 0
        assert closing_code(client) == 1001


def test_the_end_of_the_server_waits_for_a_game_that_hangs(num_workers):
    game = host_game("tests.host_games.games:Faulty", step_seconds=3.0)
    with serving(game) as server, connected(server) as client:
        ask(client, "reset", seed=0)
        client.send(json.dumps({"type": "step", "data": {"answer": "hang"}}))
        time.sleep(0.2)
        assert server.close_sessions() == 1
        assert server.sessions.num_open == 0
        assert num_workers() == 0


def test_it_binds_to_this_machine_alone_by_default(server):
    assert server.server_address[0] == "127.0.0.1"


def test_documents(server):
    assert request_json(server, "GET", "/health") == (200, {"status": "healthy"})
    status, about = request_json(server, "GET", "/metadata")
    assert status == 200
    assert about["name"] == "Echo"
    assert about["description"] == server.sessions.game.instruction
    status, schema = request_json(server, "GET", "/schema")
    assert schema["action"]["required"] == ["answer"]
    assert {"observation", "reset_observation", "state"} < schema.keys()
    status, api = request_json(server, "GET", "/openapi.json")
    assert {"/reset", "/step", "/state", "/mcp"} < api["paths"].keys()


def test_observations_and_states_are_of_their_schemas(server):
    _, schema = request_json(server, "GET", "/schema")
    with connected(server) as client:
        for name, answer in [
            ("reset_observation", ask(client, "reset", seed=0)),
            ("observation", ask(client, "step", answer="Up")),
        ]:
            data = answer["data"]
            seen = data["observation"] | {k: data[k] for k in ("reward", "done")}
            assert seen.keys() == set(schema[name]["required"])
            for key, value in seen.items():
                kind = schema[name]["properties"][key]["type"]
                assert isinstance(value, KINDS[kind]), (key, value)
        state = ask(client, "state")["data"]
        assert state.keys() == set(schema["state"]["required"])


KINDS = {"string": str, "boolean": bool, "number": float, "null": type(None)}


def test_the_page_says_how_to_connect_and_what_is_played(server):
    wait_for(lambda: server.sessions.num_open == 0)
    status, kind, page = request(server, "GET", "/", Host="machine:1234")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    text = page.decode()
    assert server.sessions.game.instruction in text
    assert "env.host=openenv:ws://machine:1234" in text
    assert "0 of 64 sessions" in text
    _, _, hostile = request(server, "GET", "/", Host="<script>")
    assert b"<script>" not in hostile


def test_stateless_requests(server):
    status, first = request_json(server, "POST", "/reset", {"seed": 3})
    assert (status, first["done"]) == (200, False)
    last = first["observation"]["shown"].split()[-1]
    body = {"action": {"answer": last}, "seed": 3}
    status, answer = request_json(server, "POST", "/step", body)
    assert (status, answer["reward"], answer["done"]) == (200, 1.0, True)
    status, state = request_json(server, "GET", "/state")
    assert (status, state["step_count"], state["episode_id"]) == (200, 0, None)
    status, answer = request_json(server, "POST", "/mcp", {})
    assert (status, answer["error"]["code"]) == (200, -32600)
    assert server.sessions.num_open == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nothing", None, 404),
        ("POST", "/nothing", "{}", 404),
        ("POST", "/reset", "{", 400),
        ("POST", "/reset", "[]", 422),
        ("POST", "/reset", '{"seed": "a"}', 422),
        ("POST", "/step", "{}", 422),
        ("POST", "/step", '{"action": {"answer": 3}}', 422),
        ("POST", "/reset", '{"task": 1}', 500),
        ("POST", "/reset", "x" * 1_000_001, 413),
        ("POST", "/mcp", "{", 200),
    ],
)
def test_requests_that_are_none(server, method, path, body, status):
    found, kind, _ = request(server, method, path, body)
    assert (found, kind) == (status, "application/json")


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_path_that_is_no_address_is_answered(server, method):
    with socket.create_connection(server.server_address[:2]) as client:
        client.sendall(f"{method} http://[x HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert client.makefile("rb").readline().split()[1] == b"404"


def test_a_full_server_refuses_stateless_requests():
    with serving(host_game(), max_sessions=1) as server, connected(server) as client:
        ask(client, "reset")
        status, answer = request_json(server, "POST", "/reset", {})
        assert (status, answer["detail"]["code"]) == (503, "CAPACITY_REACHED")
        assert request_json(server, "GET", "/health")[0] == 200


def test_ipv6():
    with serving(host_game(), host="::1") as server, connected(server) as client:
        assert server.url.startswith("http://[::1]:")
        assert ask(client, "reset")["type"] == "observation"
