"""The server on bare connections: kept ones, hostile ones, and clients that die."""

import contextlib
import socket
import threading

import pytest

from ragen_jax.host_games.agent import api
from ragen_jax.host_games.agent.calls import ChatAnswer
from tests.host_games.agent.serving import (
    HI,
    MODEL,
    Model,
    address,
    ask,
    complete,
    connected,
    read_answer,
    serving,
    write_request,
)

PATH = "/v1/chat/completions"
# Of a client, for those that say nothing.
PATIENCE_SECONDS = 0.5


@pytest.fixture(scope="module")
def impatient(model):
    with serving(model, patience_seconds=PATIENCE_SECONDS) as server:
        yield server


def is_alive(server):
    return complete(server)[0] == 200


def test_its_address(server):
    host, port = address(server)
    assert host == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{port}/v1"
    with pytest.raises(OSError, match="in use"):
        serving(Model(), port=port)
    with pytest.raises(ValueError, match="max_connections=0 must be at least 1"):
        serving(Model(), max_connections=0)


def test_health(server):
    status, _, said = ask(server, "/health", b"", "GET")
    assert (status, said) == (200, {"status": "healthy"})


def test_a_connection_is_kept(server):
    """Also after errors, streams and a GET with a body."""
    with connected(server) as client:
        for request, wanted in (
            (write_request(PATH, HI), 200),
            (write_request(PATH, HI | {"n": 2}), 400),
            (write_request(PATH, b"{"), 400),
            (write_request("/v1/models", {"a": 1}, "GET"), 200),
            (write_request("/v1/nothing", HI), 404),
            (write_request(PATH, HI | {"stream": True}), 200),
            (write_request(PATH, {}, "PUT"), 405),
            (write_request(PATH + "/?a=b", HI), 200),
        ):
            client.sendall(request)
            status, headers, _ = read_answer(client)
            assert status == wanted
            assert "connection" not in headers


def test_requests_in_a_row_are_answered_in_order(server, model):
    model.answer = lambda call: ChatAnswer(call.messages[0]["content"])
    texts = [f"n{i}" for i in range(5)]
    bodies = [HI | {"messages": [{"role": "user", "content": t}]} for t in texts]
    with connected(server) as client:
        client.sendall(b"".join(write_request(PATH, body) for body in bodies))
        client.shutdown(socket.SHUT_WR)
        data = b"".join(iter(lambda: client.recv(65_536), b""))
    places = [data.index(f'"content": "{text}"'.encode()) for text in texts]
    assert places == sorted(places)


def test_a_connection_ends_where_its_client_wants(server):
    with connected(server) as client:
        client.sendall(write_request(PATH, HI, Connection="close"))
        status, headers, _ = read_answer(client)
        assert (status, headers["connection"], client.recv(1)) == (200, "close", b"")


@pytest.mark.parametrize("lines", [b"GET /health HTTP/1.0\r\n\r\n"])
def test_old_clients(server, lines):
    with connected(server) as client:
        client.sendall(lines)
        assert read_answer(client)[0] == 200
        assert client.recv(1) == b""


def test_head_has_no_body(server):
    with connected(server) as client:
        client.sendall(b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        with client.makefile("rb") as file:
            assert file.readline().split()[1] == b"405"
            while file.readline().strip():
                pass
            # The next answer follows at once.
            client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert file.readline().split()[1] == b"200"


def head(*lines, method="POST", path=PATH):
    first = f"{method} {path} HTTP/1.1"
    return "\r\n".join([first, "Host: x", *lines, "", ""]).encode("latin-1")


def body(text):
    return write_request(PATH, text if isinstance(text, bytes) else text.encode())


def message(text):
    """A request whose only message has a JSON text as content."""
    return body(f'{{"messages": [{{"role": "user", "content": {text}}}]}}')


# Bytes, the status of the answer, and a part of its sentence.
HOSTILE = {
    "no_bytes_of_http": (b"\x00\xff\xfe\r\n\r\n", 400, "no HTTP request"),
    "one_word": (b"hello\r\n\r\n", 400, "no HTTP request"),
    "four_words": (b"GET / HTTP/1.1 x\r\n\r\n", 400, "no HTTP request"),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\r\n", 400, "no HTTP"),
    "version_3": (b"GET / HTTP/3.0\r\n\r\n", 505, "no HTTP request"),
    "version_x": (b"GET / HTTP/x\r\n\r\n", 400, "no HTTP request"),
    "old_post": (b"POST /v1/models\r\n\r\n", 400, "no HTTP request"),
    "method_foo": (head(method="FOO"), 501, "no HTTP request"),
    "long_path": (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 414, "no HTTP"),
    "many_headers": (head(*(f"X{i}: y" for i in range(200))), 431, "no HTTP"),
    "long_header": (head("X: " + "y" * 70_000), 431, "no HTTP request"),
    "no_length": (head(), 411, "no Content-Length"),
    "empty_length": (head("Content-Length: "), 411, "no Content-Length"),
    "length_minus_1": (head("Content-Length: -1"), 411, "no Content-Length"),
    "length_plus_1": (head("Content-Length: +1"), 411, "no Content-Length"),
    "length_hex": (head("Content-Length: 0x10"), 411, "no Content-Length"),
    "length_squared": (head("Content-Length: \xb2"), 411, "no Content-Length"),
    "length_1_2": (head("Content-Length: 1, 2"), 411, "no Content-Length"),
    "length_huge": (head("Content-Length: " + "9" * 5_000), 413, "send at most"),
    "length_large": (head("Content-Length: 8000001"), 413, "send at most 8000000"),
    "two_lengths": (
        head("Content-Length: 2", "Content-Length: 3") + b"{}",
        400,
        "several Content-Lengths",
    ),
    "chunked": (
        head("Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n\r\n",
        411,
        "no Content-Length",
    ),
    "chunked_and_length": (
        head("Transfer-Encoding: chunked", "Content-Length: 2") + b"{}",
        411,
        "no Content-Length",
    ),
    "cut_body": (head("Content-Length: 100") + b"{", 400, "ends after 1 bytes"),
    "get_with_cut_body": (
        head("Content-Length: 9", method="GET", path="/health"),
        400,
        "ends after 0 bytes",
    ),
    "empty_body": (body(""), 400, "not JSON"),
    "open_object": (body("{"), 400, "not JSON"),
    "not_utf8": (body(b'{"a": "\xff"}'), 400, "not JSON"),
    "null_byte": (body(b'{"a": "\x00"}'), 400, "not JSON"),
    "gzip": (body(b"\x1f\x8b\x08\x00\x00"), 400, "not JSON"),
    "form": (body("messages=hi&model=x"), 400, "not JSON"),
    "two_objects": (body("{}{}"), 400, "not JSON"),
    "a_list": (body("[]"), 400, "no JSON object"),
    "a_text": (body('"hi"'), 400, "no JSON object"),
    "null": (body("null"), 400, "no JSON object"),
    "deep_lists": (body("[" * 500_000), 400, "not JSON"),
    "deep_objects": (body('{"a":' * 500_000), 400, "not JSON"),
    "closed_deep_lists": (body('{"a":%s}' % ("[" * 900 + "]" * 900)), 400, "nested"),
    "deep_message": (message("[" * 80 + "]" * 80), 400, "nested more than 64 deep"),
    "lone_surrogate": (message('"\\ud800"'), 400, "not Unicode"),
    "lone_low_surrogate": (message('"a\\udc00b"'), 400, "not Unicode"),
    "surrogate_as_name": (body('{"\\ud800": 1}'), 400, "not Unicode"),
    "nan": (body('{"temperature": NaN}'), 400, "the number nan"),
    "infinity": (body('{"temperature": -Infinity}'), 400, "the number -inf"),
    "huge_float": (body('{"temperature": 1e999}'), 400, "the number inf"),
    "huge_integer": (body('{"seed": %s}' % ("9" * 5_000)), 400, "not JSON"),
    "long_integer": (body('{"seed": %s}' % ("9" * 4_000)), 400, "`seed` is 999"),
    "no_messages": (body("{}"), 400, "`messages` is no list"),
    "number_as_message": (body('{"messages": [1]}'), 400, "`messages[0]` is 1"),
    "empty_name": (body('{"": 1}'), 400, "`` is not supported"),
    "unknown_path": (write_request("/v1/completions", HI), 404, "nothing at /v1/com"),
    "no_v1": (write_request("/chat/completions", HI), 404, "URL ends in /v1"),
    "up_the_tree": (write_request("/v1/../../etc/passwd", b"", "GET"), 404, "nothing"),
    "absolute_path": (write_request("http://x:y/health", b"", "GET"), 200, "healthy"),
    "bad_address": (write_request("http://[x/health", b"", "GET"), 404, "nothing"),
    "get_chat": (write_request(PATH, b"", "GET"), 405, "use POST"),
    "post_models": (write_request("/v1/models", HI), 405, "use GET"),
    "delete_model": (write_request("/v1/models", b"", "DELETE"), 405, "use GET"),
    "options": (write_request(PATH, b"", "OPTIONS"), 405, "use POST"),
    "other_site": (
        write_request(PATH, HI, Origin="http://evil.example"),
        403,
        "pages of other sites",
    ),
    "odd_site": (write_request(PATH, HI, Origin="http://[x"), 403, "other sites"),
}


def test_there_are_many():
    assert len(HOSTILE) > 50


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_requests_are_answered(server, name, caplog):
    sent, wanted, said = HOSTILE[name]
    with connected(server) as client:
        client.sendall(sent)
        # Half-closed: what was announced will not come.
        client.shutdown(socket.SHUT_WR)
        status, headers, answer = read_answer(client)
        assert (status, headers["content-type"]) == (wanted, "application/json")
        assert said in answer.decode()
        assert status == 200 or headers["x-should-retry"] == "false"
        # The rest of what was sent is no further request that is completed.
        with contextlib.suppress(ConnectionError):
            assert b" 200 " not in client.recv(65_536)
    assert not caplog.records
    assert is_alive(server)


def test_large_bodies_are_refused(model):
    with serving(model, max_body_bytes=1_000) as server:
        status, _, said = ask(server, PATH, b" " * 12_000_000)
        assert status == 413
        assert "has 12000000 bytes; send at most 1000" in said["error"]["message"]
        fits = write_request(PATH, HI)
        assert len(fits) < 1_000
        assert is_alive(server)


@pytest.mark.parametrize("lines", [head(), b"no request\r\n\r\n"], ids=len)
def test_a_client_can_send_all_before_it_reads_why(server, lines):
    """Otherwise it sees a broken connection, not the sentence."""
    with connected(server) as client:
        client.sendall(lines)
        for _ in range(500):
            client.sendall(b"x" * 10_000)
        client.shutdown(socket.SHUT_WR)
        assert read_answer(client)[0] in (400, 411)
    assert is_alive(server)


def test_a_long_dialogue_fits(server, model):
    model.answer = ChatAnswer("hello")
    text = "x" * (api.MAX_BODY_BYTES - 1_000)
    status, _ = complete(server, messages=[{"role": "user", "content": text}])
    assert status == 200
    assert len(model.calls[-1].messages[0]["content"]) == len(text)


@pytest.mark.parametrize("sent", [b"", b"POST /v1/mod", head("Content-Length: 9")])
def test_silent_clients_are_let_go(impatient, sent):
    with connected(impatient) as client:
        client.sendall(sent)
        said = b"".join(iter(lambda: client.recv(1_000), b""))
    assert said == b"" or said.split()[1] == b"408"
    assert is_alive(impatient)


def test_slow_clients_are_let_go(impatient):
    """A byte now and then does not count as progress."""
    gone = threading.Event()

    def drip(client):
        with contextlib.suppress(OSError):
            while not gone.wait(PATIENCE_SECONDS / 10):
                client.sendall(b"x")

    with connected(impatient) as client:
        client.sendall(head("Content-Length: 1000000"))
        thread = threading.Thread(target=drip, args=(client,))
        thread.start()
        try:
            assert read_answer(client)[0] == 408
        finally:
            gone.set()
            thread.join()
    assert is_alive(impatient)


def test_a_model_may_take_longer_than_clients(impatient, model):
    """Patience is for requests; an answer takes what it takes."""
    waited = threading.Event()

    def answer(call):
        waited.wait(2 * PATIENCE_SECONDS)
        return ChatAnswer("late")

    model.answer = answer
    try:
        status, said = complete(impatient)
    finally:
        model.answer = ChatAnswer("hello")
    assert (status, said["choices"][0]["message"]["content"]) == (200, "late")


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_die_meanwhile_harm_nobody(model, stream, caplog):
    """Before the answer is there, or with most of it unread."""
    large = ChatAnswer("x" * 20_000_000)
    reached, gone, done = (threading.Event() for _ in range(3))

    def answer(call):
        reached.set()
        assert gone.wait(20)
        done.set()
        return large

    with serving(Model(answer)) as server:
        with connected(server) as client:
            client.sendall(write_request(PATH, HI | {"stream": stream}))
            assert reached.wait(20)
            # Closed by a reset, as when its process is killed.
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        gone.set()
        assert done.wait(20)
        with connected(server) as client:
            client.sendall(write_request(PATH, HI | {"stream": stream}))
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        model.answer = ChatAnswer("hello")
        assert is_alive(server)
    assert not caplog.records


def test_closing_ends_connections_and_waits_for_no_call():
    reached, gone = threading.Event(), threading.Event()

    def answer(call):
        reached.set()
        assert gone.wait(20)
        return ChatAnswer("hello")

    server = serving(Model(answer))
    with connected(server) as client, connected(server) as idle:
        idle.sendall(write_request("/health", b"", "GET"))
        assert read_answer(idle)[0] == 200
        client.sendall(write_request(PATH, HI))
        assert reached.wait(20)
        server.close()
        assert client.recv(1) == b""
        assert idle.recv(1) == b""
        gone.set()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address(server), timeout=20).close()


def test_more_connections_than_allowed_are_told(monkeypatch, model):
    monkeypatch.setattr(api, "SPARE_CONNECTIONS", 1)
    model.answer = ChatAnswer("hello")
    with (
        serving(model, max_connections=2) as server,
        contextlib.ExitStack() as stack,
    ):
        first, second = (stack.enter_context(connected(server)) for _ in range(2))
        for client in (first, second):
            client.sendall(b"GET /health HTTP/1.1\r\n")
        third = stack.enter_context(connected(server))
        third.sendall(write_request(PATH, HI))
        status, headers, body = read_answer(third)
        assert (status, headers["retry-after"]) == (503, "1")
        assert b"has 2 connections, which is its limit" in body
        assert third.recv(1) == b""
        # One beyond those that are told is closed.
        fourth, fifth = (stack.enter_context(connected(server)) for _ in range(2))
        assert fifth.recv(1) == b""
        fourth.close()
        # Who was there first is answered, but not kept: half of all is reached.
        first.sendall(b"\r\n")
        status, headers, _ = read_answer(first)
        assert (status, headers["connection"]) == (200, "close")


def test_connections_that_end_leave_room(model):
    model.answer = ChatAnswer("hello")
    with serving(model, max_connections=1) as server:
        for _ in range(50):
            with connected(server) as client:
                client.sendall(write_request(PATH, HI))
                status, headers, _ = read_answer(client)
                assert (status, headers["connection"]) == (200, "close")
                # Its place is free before its end can be seen.
                assert client.recv(1) == b""


def test_servers_are_apart(model):
    with serving(Model(ChatAnswer("a"))) as one, serving(Model(ChatAnswer("b"))) as two:
        for server, text in ((one, "a"), (two, "b")):
            _, said = complete(server)
            assert said["choices"][0]["message"]["content"] == text
            assert said["model"] == MODEL
