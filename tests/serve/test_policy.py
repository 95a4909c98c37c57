"""A policy behind the API, for the clients that agents use."""

import concurrent.futures
import functools
import json
import socket

import jax
import numpy as np
import openai
import pytest

from ragen_jax.host_games.agent.program import ClientSettings, Task
from ragen_jax.host_games.common.http_server import LOCAL_HOST
from ragen_jax.rollout.host.rows import draw_problems
from ragen_jax.rollout.keys import rollout_keys
from ragen_jax.serve.policy import PolicyServer, ServedPolicy
from tests.host_games.agent import programs
from tests.rollout import players
from tests.rollout.host import test_agents as agents

MESSAGES = [{"role": "user", "content": "number 7"}]


@functools.cache
def served():
    words = players.tokenizer()
    return ServedPolicy("speaker", players.speaker(), agents.params(), words)


@pytest.fixture(scope="module")
def server():
    sizes = {"max_calls": 4, "context_tokens": 300, "max_reply_tokens": 10}
    server = PolicyServer(served(), host=LOCAL_HOST, port=0, **sizes)
    yield server
    server.server_close()


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url, api_key="x", max_retries=0) as client:
        yield client


def reply(client, messages=MESSAGES, **options):
    choice = client.chat.completions.create(
        model="speaker", messages=messages, **options
    ).choices[0]
    return choice.message.content, choice.finish_reason


def test_greedy_replies_are_those_of_an_evaluation(server):
    """The same program on the same problems, played by both."""
    trajectory = agents.collect(agents.agent("chat"), 6, 1, temperature=0.0)
    seeds, _ = draw_problems(rollout_keys(jax.random.key(5), 6, 1), None)
    settings = ClientSettings(server.url, "x", "speaker")
    decode = players.tokenizer().decode

    def play(seed):
        options = {"said": [], "body": {"temperature": 0}}
        programs.chat(Task(seed, None, "training", options), settings)
        return options["said"]

    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        played = list(threads.map(play, seeds))
    for row, texts in enumerate(played):
        starts = trajectory.turns.reply_start[row]
        lengths = trajectory.turns.reply_length[row]
        for text, start, length in zip(texts, starts, lengths, strict=False):
            sampled = decode(trajectory.tokens[row, start : start + length])
            assert sampled in (text, f"{text}<|im_end|>", f"{text}<|endoftext|>")
    assert len({text for texts in played for text in texts}) > 3


def test_a_seed_repeats_a_sample_and_others_differ(client):
    first, again = (reply(client, seed=3) for _ in range(2))
    assert first == again
    assert len({reply(client, seed=i) for i in range(8)}) > 2
    assert len({reply(client) for _ in range(8)}) > 2


def test_small_top_p_is_nearly_greedy(client):
    greedy = reply(client, temperature=0)
    assert {reply(client, top_p=1e-6) for _ in range(4)} == {greedy}
    # Others beside it stay as they were.
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        both = [
            threads.submit(reply, client, seed=3, **options)
            for options in ({}, {"top_p": 1e-6})
        ]
        assert [x.result() for x in both] == [reply(client, seed=3), greedy]


def test_more_calls_than_rows_wait_for_one(client):
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        replies = list(threads.map(lambda i: reply(client, seed=i), range(32)))
    assert replies[:4] == [reply(client, seed=i) for i in range(4)]


def test_token_ids_and_log_probabilities_are_the_sampler_s(client):
    answer = client.chat.completions.create(
        model="speaker",
        messages=MESSAGES,
        temperature=0,
        logprobs=True,
        extra_body={"return_token_ids": True},
    )
    choice = answer.choices[0]
    decode = players.tokenizer().decode
    assert decode(answer.prompt_token_ids).endswith("<|im_start|>assistant\n")
    assert decode(choice.token_ids).startswith(choice.message.content)
    log_probs = [x.logprob for x in choice.logprobs.content]
    assert len(log_probs) == len(choice.token_ids) == answer.usage.completion_tokens
    assert np.all(np.array(log_probs) <= 0)


def test_limits_are_sentences(client):
    assert reply(client, max_tokens=2)[1] == "length"
    with pytest.raises(openai.BadRequestError, match="context holds 300"):
        reply(client, [{"role": "user", "content": "7 " * 400}])
    with pytest.raises(openai.BadRequestError, match="temperature"):
        reply(client, temperature=-1)


def test_a_client_that_leaves_harms_nobody(server, client):
    body = json.dumps({"model": "speaker", "messages": MESSAGES}).encode()
    host, port = server.url.split("/")[2].split(":")
    path = "/v1/chat/completions"
    for _ in range(8):
        with socket.create_connection((host, int(port))) as gone:
            head = f"POST {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
            gone.sendall(head.encode() + body)
    assert reply(client, seed=1) == reply(client, seed=1)
