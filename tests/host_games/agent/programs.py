"""Programs that call a model, well or badly."""

import concurrent.futures
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

from ragen_jax.host_games.agent.program import Result


def ask(client, messages, **options):
    """The message of a chat completion, by a bare HTTP call."""
    body = {"model": client.model, "messages": messages, **options}
    request = urllib.request.Request(
        f"{client.base_url}/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]


def user(text):
    return {"role": "user", "content": text}


def question(task):
    return user(f"number {task.seed % 97}")


def _wait(task):
    """Tools take their time, which is never the same."""
    if task.options.get("delay"):
        time.sleep(random.SystemRandom().uniform(0, task.options["delay"]))


def chat(task, client):
    """Three calls, or as many as the task says; the reward counts letters."""
    messages, letters = [question(task)], 0
    said = task.options.get("said", [])
    for i in range(task.options.get("num_calls", 3)):
        _wait(task)
        reply = ask(client, messages, **task.options.get("body", {}))
        said.append(reply["content"])
        letters += len(reply["content"])
        messages += [reply, user(f"and {i}")]
    metrics = {"letters": letters} if task.options.get("counts") else {}
    return Result(letters / 100, letters % 2 == 0, metrics=metrics)


async def chat_async(task, client):
    return chat(task, client)


def rewriter(task, client):
    """Begins anew after two calls, and returns to its first dialogue at the end."""
    first = [question(task)]
    first += [ask(client, first), user("more")]
    _wait(task)
    first += [ask(client, first), user("else")]
    ask(client, [user("short"), question(task)])
    ask(client, first, max_tokens=3)
    return 1.0


def parallel(task, client):
    """Three calls at once, one of them twice, then one about all of them."""
    topics = ("red", "blue", "green", "red")
    with concurrent.futures.ThreadPoolExecutor(4) as threads:

        def branch(topic):
            _wait(task)
            return ask(client, [question(task), user(topic)])["content"]

        texts = sorted(threads.map(branch, topics))
    ask(client, [question(task), user("".join(texts))])
    return float(len("".join(texts)))


def transcript_length(task, transcript, returned):
    """A judge that counts calls."""
    return len(transcript) + 100 * (returned is None)


def silent(task, client):
    """Leaves the reward to a judge."""
    ask(client, [question(task)])


def echo(task, client):
    """Earns the length of the reply."""
    return float(len(ask(client, [question(task)])["content"]))


def result(task, client):
    """Returns a `Result` with the options as its fields."""
    ask(client, [question(task)])
    return Result(**task.options)


def faulty(task, client):
    """One call, and then what the options say; some seeds are sound."""
    reply = ask(client, [question(task)])
    if task.seed % 3 == 0:
        return 1.0
    return FAULTS[task.options["fault"]](task, client, reply)


def _raise(task, client, reply):
    raise ZeroDivisionError("a tool broke")


def _hang(task, client, reply):
    time.sleep(600)


def _leave(task, client, reply):
    os._exit(3)


def _text(task, client, reply):
    return "one"


def _many_streams(task, client, reply):
    """A hundred connections that say nothing, left open."""
    host, port = client.base_url.split("/")[2].split(":")
    for _ in range(100):
        task.options.setdefault("kept", []).append(
            socket.create_connection((host, int(port)))
        )
    return 1.0


def _after_the_end(task, client, reply):
    """A thread goes on calling."""

    def go_on():
        for _ in range(20):
            try:
                ask(client, [question(task)])
            except OSError:
                return

    threading.Thread(target=go_on, daemon=True).start()
    return 1.0


def _too_many(task, client, reply):
    """Calls until it is refused."""
    messages = [question(task)]
    while True:
        messages += [ask(client, messages), user("again")]


def _takes_no(task, client, reply):
    """Calls until it is refused, and then returns."""
    try:
        _too_many(task, client, reply)
    except urllib.error.HTTPError as error:
        return 0.5 if error.code == 429 else 0.0


def faulty_start(task, client):
    """Raises before its first call; some seeds are sound."""
    return _raise(task, client, None) if task.seed % 3 else echo(task, client)


FAULTS = {
    "raise": _raise,
    "exit": lambda task, client, reply: exit(),
    "leave": _leave,
    "hang": _hang,
    "text": _text,
    "nan": lambda task, client, reply: float("nan"),
    "streams": _many_streams,
    "after": _after_the_end,
    "too many": _too_many,
    "takes no": _takes_no,
}


def never_calls(task, client):
    return 1.0


def says_too_much(task, client):
    """Some seeds are sound."""
    words = 0 if task.seed % 3 == 0 else 3000
    ask(client, [question(task), user("word " * words)])
    return 1.0


def expert(task, call):
    return f"as {len(call.messages)}"


def _child(task, client, reply):
    """Leaves a process behind, in a session of its own."""
    subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    return 1.0


def _break_off(task, client, reply):
    """A client that is killed in the middle of a call."""
    host, port = client.base_url.split("/")[2].split(":")
    with socket.create_connection((host, int(port))) as gone:
        gone.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 999\r\n\r\n{"
        )
    return 1.0


def _garbage(task, client, reply):
    """Bytes that are no request, and then a sound one."""
    host, port = client.base_url.split("/")[2].split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(bytes(range(256)) * 20)
    ask(client, [question(task)])
    return 1.0


def _bad_call(task, client, reply):
    """A call that is refused, and not caught."""
    ask(client, [{"role": "nobody", "content": 3}])


def _memory(task, client, reply):
    raise MemoryError


def _late(task, client, reply):
    """Two calls at once, the second of which nobody waits for."""
    threading.Thread(
        target=lambda: ask(client, [question(task), user("late")]), daemon=True
    ).start()
    return 1.0


FAULTS |= {
    "child": _child,
    "break off": _break_off,
    "garbage": _garbage,
    "bad call": _bad_call,
    "memory": _memory,
    "late": _late,
    "signal": lambda task, client, reply: os.kill(os.getpid(), signal.SIGKILL),
    "closed output": lambda task, client, reply: os.close(1),
    "no judge": lambda task, client, reply: None,
    "huge": lambda task, client, reply: 1e300,
    "result": lambda task, client, reply: Result(1.0, metrics={"x": "text"}),
}


def chaos(task, client):
    """One fault of every kind after the other, by the seed."""
    kinds = sorted(FAULTS.keys() - {"hang"})
    reply = ask(client, [question(task)])
    return FAULTS[kinds[task.seed % len(kinds)]](task, client, reply)


TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}


def with_tools(task, client):
    """Offers a tool; right if it is called once and its answer comes back."""
    messages = [question(task)]
    reply = ask(client, messages, tools=[TOOL], max_tokens=7, stop=["#"])
    if "tool_calls" not in reply:
        return 0.0
    (call,) = reply["tool_calls"]
    told = {"role": "tool", "tool_call_id": call["id"], "content": "42"}
    return float(ask(client, [*messages, reply, told])["content"] == "42")


def hangs_on(task, client):
    """Its thread calls on, long after the end of the episode."""
    ask(client, [question(task)])

    def go_on():
        while True:
            try:
                ask(client, [user("a call of another episode")])
            except OSError:
                time.sleep(0.01)

    threading.Thread(target=go_on, daemon=True).start()
    return 1.0
