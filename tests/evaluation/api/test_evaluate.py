"""A model behind an endpoint: paid once, measured like a policy, told nothing else."""

import functools
import json
import os
import signal
import subprocess
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import bandit, endpoint, sokoban
from ragen_jax.evaluation.api import evaluate as remote
from ragen_jax.evaluation.api.client import EndpointError
from ragen_jax.evaluation.api.journal import Journal, Prices
from ragen_jax.evaluation.evaluate import evaluate
from ragen_jax.evaluation.harness import describe, run_evaluations
from ragen_jax.evaluation.results import Results
from ragen_jax.models.kv_cache import init_cache
from ragen_jax.program.build import build_program
from ragen_jax.rollout.decode import Context, Decoding, decode_reply, read
from ragen_jax.rollout.sampling import sample
from ragen_jax.tasks.specs import make_env
from ragen_jax.text.messages import in_markup
from ragen_jax.types import TokenSpan
from tests import commands
from tests.evaluation.api.server import Answer, completion, serve

KEY = "sk-0123456789-secret"
SMALL = {"evaluation.num_prompts": 4, "evaluation.num_samples": 2}
USAGE = {"prompt_tokens": 100, "completion_tokens": 7}
# Metrics that conversations do not have.
NEED_TRAJECTORIES = {
    "solved_of_solvable",
    "excess_actions",
    "optimal_action_share",
    "hallucination_rate",
    "misprediction_rate",
}


def api(url, **changes):
    settings = {"base_url": url, "model": "m", "retry_seconds": 0.01, "max_retries": 1}
    config = endpoint.get_config()
    config.update(settings | {"concurrency": 3} | changes)
    remote.check_api(config)
    return config


def walk(request):
    """Some way to play: what is said depends on how far the dialogue has gone."""
    moves = ["Up || Left", "Right", "Down || Down || Jump"][
        len(request.messages) // 2 % 3
    ]
    text = (
        f"<think>{request.messages[-1]['content'][:9]}</think><answer>{moves}</answer>"
    )
    return completion(text, usage=USAGE)


@pytest.fixture(autouse=True, scope="module")
def games_are_compiled_once():
    """Several commands of one process, for speed."""
    build, built = remote.build_chat, {}

    def build_once(config, entry):
        place = (
            json.dumps(describe(config, entry, make_env(entry)[0]))
            + f"{config.prompt.style} {config.prompt.thinking}"
            + f" {config.rollout.stop_at_answer}"
        )
        if place not in built:
            built[place] = build(config, entry)
        return built[place]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "build_chat", build_once)
        yield


def play(path, url, *, task=sokoban, changes=SMALL, suite=None, **settings):
    """Metrics by game, and the lines of the file."""
    config = remote.prepare(task.get_config(), changes, ())
    results = Results({"policy": "m", "evaluation": {}}, None)
    with Journal(path) as journal:
        evaluations = remote.api_evaluations(
            config, api(url, **settings), journal, suite=suite
        )
        run_evaluations(
            evaluations, results, say=lambda line: None, keep_episodes=False
        )
        journal.tidy()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {score.name: score.metrics for score in results.scores}, lines


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "out.jsonl"
    with serve(walk) as server:
        metrics, lines = play(path, server.url, input_price=2.0, output_price=10.0)
    return metrics["Sokoban"], lines, server.requests


def test_what_is_asked_and_what_is_kept(uninterrupted):
    metrics, lines, requests = uninterrupted
    assert [line["row"] for line in lines] == list(range(8))
    body = requests[0].body
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.5, 400)
    # The wording is full for models that have not seen the game.
    assert requests[0].messages[0]["content"].startswith("You play a game in text")
    # The samples of a prompt play the same level.
    first = [line["turns"][0]["observation"] for line in lines]
    assert first[0::2] == first[1::2]
    assert len(set(first)) == 4
    turns = [turn for line in lines for turn in line["turns"]]
    assert len(turns) == len(requests)
    assert all(turn["reply"].endswith("</answer><|im_end|>") for turn in turns)
    # Three names of which one is unknown cost the penalty, where they were said.
    for line in lines:
        punished = [turn["penalty"] < 0 for turn in line["turns"]]
        assert punished == [turn["listed"] == 3 for turn in line["turns"]]
        total = sum(turn["reward"] for turn in line["turns"])
        assert line["return"] == pytest.approx(total)
        assert line["sampled_tokens"] == 7 * len(line["turns"])
    assert metrics["ceiling"] == 1
    assert metrics["tokens/prompt_tokens"] == 100 * len(turns)
    assert metrics["cost"] == pytest.approx(len(turns) * (200 + 70) / 1e6)
    assert metrics["pass@2_low"] <= metrics["pass@2"] <= metrics["pass@2_high"]
    assert metrics["num_samples"] == 2
    assert metrics["held_out"] == 1


def test_a_thought_in_a_field_of_its_own_changes_nothing(tmp_path, uninterrupted):
    def walk_apart(request):
        answer = walk(request)
        message = answer.body["choices"][0]["message"]
        thought, message["content"] = message["content"].split("</think>")
        message["reasoning_content"] = thought.removeprefix("<think>")
        return answer

    with serve(walk_apart) as server:
        prices = {"input_price": 2.0, "output_price": 10.0}
        metrics, lines = play(tmp_path / "out.jsonl", server.url, **prices)
    assert metrics["Sokoban"] == uninterrupted[0]
    assert lines == uninterrupted[1]


def test_what_follows_the_answer_is_neither_read_nor_shown_again(
    tmp_path, uninterrupted
):
    def walk_and_talk(request):
        answer = walk(request)
        answer.body["choices"][0]["message"]["content"] += " Or <answer>Left</answer>"
        return answer

    def asked(requests):
        return sorted(json.dumps(request.messages) for request in requests)

    with serve(walk_and_talk) as server:
        changes = SMALL | {"rollout.stop_at_answer": True}
        metrics, _ = play(tmp_path / "out.jsonl", server.url, changes=changes)
    alike = ("success", "num_actions", "format", "episodic_return")
    for name in alike:
        assert metrics["Sokoban"][name] == uninterrupted[0][name]
    assert asked(server.requests) == asked(uninterrupted[2])


def test_words_before_the_answer_are_not_its_first_action(tmp_path):
    results = []
    for before in ("", "Let me see. ", "<think>Up!</think>"):

        def answer_alone(request, before=before):
            answer = walk(request).body["choices"][0]["message"]["content"]
            return completion(before + answer.split("</think>")[1], usage=USAGE)

        with serve(answer_alone) as server:
            changes = SMALL | {"prompt.thinking": False}
            path = tmp_path / f"{len(results)}.jsonl"
            results.append(play(path, server.url, changes=changes))
    assert results[0][0]["Sokoban"]["format"] == 1
    assert results[0][0]["Sokoban"]["num_actions"] > 0
    assert results[1] == results[2] == results[0]


def test_no_reply_with_the_form_is_said(tmp_path, capsys):
    with serve(lambda request: completion("Up, I think")) as server:
        metrics, _ = play(tmp_path / "out.jsonl", server.url)
    assert metrics["Sokoban"]["format"] == 0
    (note,) = [x for x in capsys.readouterr().err.splitlines() if "note" in x]
    assert "<think>...</think><answer>...</answer>" in note
    assert "'Up, I think" in note


@pytest.mark.parametrize(
    "words",
    [
        "This model's maximum context length is 512 tokens.",
        '{"error": {"code": "context_length_exceeded"}}',
        "the request exceeds the available context size (512 tokens)",
        "`inputs` must have less than 512 tokens. Given: 513",
        "prompt is too long: 513 tokens > 512 maximum",
        "The input token count (513) exceeds the maximum number of tokens allowed.",
        # llama.cpp's status where a reply does not fit any more.
        (500, "Context size has been exceeded."),
    ],
)
def test_a_dialogue_longer_than_the_context_ends_its_episode(tmp_path, capsys, words):
    asked = []
    status, words = (400, words) if isinstance(words, str) else words

    def run_out(request):
        asked.append(len(request.messages))
        return walk(request) if len(request.messages) < 4 else Answer(words, status)

    with serve(run_out) as server:
        metrics, lines = play(tmp_path / "out.jsonl", server.url)
    assert max(asked) == 4
    assert len(lines) == 8
    long = [line["turns"] for line in lines if len(line["turns"]) > 1]
    assert long
    for turns in long:
        # The first turn was played, and the refused one is the last, an empty reply.
        assert [turn["is_cut"] for turn in turns] == [False, True]
        assert [turn["reply"] == "" for turn in turns] == [False, True]
    assert sum(number == 4 for number in asked) == len(long)
    assert 0 < metrics["Sokoban"]["reply_is_cut"] < 1
    (note,) = [x for x in capsys.readouterr().err.splitlines() if "context" in x]
    assert "--config.rollout.context=last_k" in note


def test_first_messages_of_which_none_fits_are_refused(tmp_path):
    """Or a reply: servers say the same of a `max_tokens` that is too large."""
    words = "max_tokens is too large. This model's maximum context length is 512."
    refused = pytest.raises(EndpointError, match="maximum context length")
    with serve(lambda request: Answer(words, 400)) as server, refused:
        play(tmp_path / "out.jsonl", server.url)


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ("prompt is too long: 513 tokens > 512 maximum", "context and ends"),
        ('{"error": {"code": "content_filter"}}', "a filter of the API refuses"),
    ],
)
def test_a_level_that_the_api_refuses_ends_alone(
    tmp_path, capsys, uninterrupted, words, note
):
    """Its rows are empty, and the others as they would be without it."""
    _, rows, requests = uninterrupted
    first = [request.messages[-1] for request in requests if len(request.messages) < 3]
    opening = first[3]["content"]

    def refuse(request):
        is_opening = request.messages[-1]["content"] == opening
        return Answer(words, 400) if is_opening else walk(request)

    with serve(refuse) as server:
        lines = play(tmp_path / "out.jsonl", server.url)[1]
    is_refused = [opening in row["turns"][0]["observation"] for row in rows]
    assert 0 < sum(is_refused) < len(lines)
    for line, whole, refused in zip(lines, rows, is_refused, strict=True):
        if refused:
            assert [turn["reply"] for turn in line["turns"]] == [""]
            assert not line["success"]
        else:
            assert line == whole
    assert note in capsys.readouterr().err


def test_a_stopped_evaluation_pays_nothing_twice(tmp_path, uninterrupted):
    """The endpoint refuses again and again, in the middle of conversations."""
    path, paid = tmp_path / "out.jsonl", 0
    for allowed in (3, 7):
        left = iter(range(allowed))

        def refuse(request, left=left):
            return Answer("quota", 402) if next(left, None) is None else walk(request)

        refused = pytest.raises(EndpointError, match=r"402, 'quota'.*of 8 conversa")
        with serve(refuse) as server, refused:
            play(path, server.url)
        paid += allowed
    with serve(walk) as server:
        metrics, lines = play(path, server.url, input_price=2.0, output_price=10.0)
    expected, whole, requests = uninterrupted
    assert paid + len(server.requests) == len(requests)
    assert lines == whole
    assert metrics["Sokoban"] == expected
    assert list(tmp_path.iterdir()) == [path]
    # Done is done.
    with serve(walk) as server:
        assert play(path, server.url)[1] == whole
    assert server.requests == []
    # More prompts: only those are asked for.
    with serve(walk) as server:
        more = play(path, server.url, changes=SMALL | {"evaluation.num_prompts": 5})[1]
    assert more[:8] == whole
    assert len(server.requests) == sum(len(line["turns"]) for line in more[8:])


def test_other_settings_are_refused(tmp_path, uninterrupted):
    path = tmp_path / "out.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in uninterrupted[1]))
    colder = SMALL | {"evaluation.temperature": 0.0}
    refused = pytest.raises(ValueError, match=r"temperature: 0\.5 there")
    with serve(walk) as server, refused:
        play(path, server.url, changes=colder)
    assert server.requests == []


def test_a_suite_by_endpoint(tmp_path):
    with serve(walk) as server:
        one = {"evaluation.num_prompts": 2}
        metrics, lines = play(
            tmp_path / "out.jsonl", server.url, task=bandit, changes=one, suite="bandit"
        )
    names = ["Bandit", "Bandit-TestNames", "Bandit-Reversed"]
    assert list(metrics) == names
    assert [line["environment"] for line in lines] == np.repeat(names, 2).tolist()
    assert all(len(line["turns"]) == 1 for line in lines)


def test_requests_can_be_added_to(tmp_path):
    extra = '{"max_tokens": null, "max_completion_tokens": 9, "temperature": 1}'
    with serve(walk) as server:
        one = {"evaluation.num_prompts": 1}
        play(tmp_path / "o.jsonl", server.url, changes=one, extra_body=extra)
    body = server.requests[0].body
    assert "max_tokens" not in body
    assert (body["max_completion_tokens"], body["temperature"]) == (9, 1)


def test_prices():
    tokens = {"prompt_tokens": 1000, "cached_tokens": 400, "sampled_tokens": 10}
    assert Prices(2.0, 8.0, None).cost(tokens) == pytest.approx(2080e-6)
    assert Prices(2.0, 8.0, 0.5).cost(tokens) == pytest.approx(1480e-6)
    assert Prices(None, 8.0, None).cost(tokens) is None
    assert Prices(2.0, 8.0, None).cost(tokens | {"sampled_tokens": None}) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "needs --api.model"),
        ({"concurrency": 0}, "api.concurrency=0"),
        ({"timeout_seconds": -1.0}, "api.timeout_seconds=-1"),
        ({"input_price": 1.0}, "gives no cost"),
        ({"input_price": -1.0, "output_price": 1.0}, "at least 0"),
        ({"extra_body": "{"}, "is not JSON"),
        ({"key_env": KEY}, "name of an environment variable"),
    ],
)
def test_settings_that_make_no_sense(changes, message):
    with pytest.raises(ValueError, match=message) as raised:
        api("http://localhost/v1", **changes)
    assert KEY not in str(raised.value)


@pytest.mark.parametrize("key", ["model.path", "prompt.tokenization", "rollout.top_k"])
def test_keys_that_an_endpoint_does_not_read(key):
    with pytest.raises(ValueError, match=f"config.{key} has no effect with --api"):
        remote.prepare(sokoban.get_config(), {}, [key])


def test_the_wording_is_full_unless_asked_for():
    told = remote.prepare(sokoban.get_config(), {}, [])
    assert (told.prompt.style, told.rollout.max_reply_tokens) == ("full", 400)
    told = remote.prepare(sokoban.get_config(), {}, ["rollout.max_reply_tokens"])
    assert (told.prompt.style, told.rollout.max_reply_tokens) == ("full", 24)
    told = remote.prepare(sokoban.get_config(), {}, ["prompt.style"])
    assert (told.prompt.style, told.rollout.max_reply_tokens) == ("terse", 24)
    told = remote.prepare(sokoban.get_config("qwen2.5-0.5b"), {}, [])
    assert (told.prompt.style, told.rollout.max_turns) == ("full", 5)


class PocketModel:
    """The policy of a program behind the interface: text in, text out, greedy."""

    def __init__(self, program, params, max_reply_tokens):
        self._task, policy = program.task, program.policy
        self._width = self._task.dialogue.max_window_tokens
        greedy = functools.partial(sample, temperature=0.0)

        @jax.jit
        def write(tokens, length):
            cache = init_cache(policy.config, 1, self._width + 1, policy.dtype)
            empty = Context(cache, jnp.zeros((1, policy.config.hidden_size)))
            span, starts = TokenSpan(tokens, length), jnp.zeros(1, jnp.int32)
            context = read(policy, params, empty, span, starts)
            _, reply = decode_reply(
                policy,
                params,
                context,
                length,
                jnp.ones(1, bool),
                jax.random.split(jax.random.key(0), 1),
                Decoding(
                    sampler=greedy,
                    stop_tokens=self._task.dialogue.stop_tokens,
                    max_reply_tokens=max_reply_tokens,
                    chunk_tokens=4,
                ),
            )
            return reply

        self._write = write

    def __call__(self, request):
        """As an endpoint that applies the chat template and forces the prefix."""
        assert request.body["temperature"] == 0
        text = in_markup(request.messages, "<think>")
        ids = self._task.tokenizer.encode(text)
        tokens = np.zeros((1, self._width), np.int32)
        tokens[0, : len(ids)] = ids
        reply = self._write(tokens, np.array([len(ids)], np.int32))
        length = int(reply.length[0])
        written = self._task.tokenizer.decode(np.asarray(reply.tokens)[0, :length])
        is_cut = bool(reply.is_cut[0])
        return completion(
            "<think>" + written.removesuffix("<|im_end|>"),
            finish="length" if is_cut else "stop",
            usage={"prompt_tokens": len(ids), "completion_tokens": length},
        )


@pytest.mark.slow
def test_the_pocket_model_by_http_is_the_pocket_model(tmp_path):
    """Greedy, the same prompts: the same replies, actions, rewards, metrics."""
    changes = {"evaluation.num_prompts": 8, "evaluation.temperature": 0.0}
    config = sokoban.get_config()
    config.update_from_flattened_dict(changes)
    program = build_program(config)
    params = program.play_params(program.state)
    expected, rollouts = evaluate(program, params)
    records = program.episodes(rollouts)
    model = PocketModel(program, params, config.rollout.max_reply_tokens)
    path = tmp_path / "out.jsonl"
    with serve(model) as server, Journal(path) as journal:
        prepared = remote.prepare(sokoban.get_config(), changes, ["prompt.style"])
        (evaluation,) = remote.api_evaluations(
            prepared, api(server.url), journal, suite=None
        )
        metrics, _, make_records = evaluation.play()
        found = make_records()
    only_tokens = ("log_prob", "finish_reason", "prompt_tokens", "cached_tokens")
    # Boards inside a turn are replayed on the device; an API's journal has none.
    only_tokens += ("token_texts", "token_log_probs")
    for ours, theirs in zip(records, found, strict=True):
        shown = {k: v for k, v in theirs.items() if k in ours and k != "turns"}
        assert shown == {k: v for k, v in ours.items() if k != "turns"}
        for turn, other in zip(ours["turns"], theirs["turns"], strict=True):
            turn = {k: v for k, v in turn.items() if k not in only_tokens}
            assert turn == {k: v for k, v in other.items() if k not in only_tokens}
    assert any(record["success"] for record in records)
    assert not all(record["success"] for record in records)
    expected = {k.removeprefix("val-env/Sokoban/"): v for k, v in expected.items()}
    assert expected.keys() - metrics.keys() <= NEED_TRAJECTORIES
    for name in expected.keys() & metrics.keys():
        assert metrics[name] == pytest.approx(expected[name], rel=1e-6), name


def command(url, path, *more):
    return commands.command(
        "evaluate",
        "--config=configs/bandit.py",
        f"--api.base_url={url}",
        "--api.model=m",
        "--num_prompts=4",
        f"--output={path}",
        *more,
    )


@pytest.mark.slow
def test_the_command_killed_and_started_again_and_the_key_nowhere(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    path, table = tmp_path / "out.jsonl", tmp_path / "table.md"
    processes = []

    def kill(request):
        if len(server.requests) == 3:
            os.kill(processes[0].pid, signal.SIGKILL)
            time.sleep(0.5)
        return completion(f"<think>{KEY}</think><answer>Anchor</answer>", usage=USAGE)

    with serve(kill) as server:
        words = command(
            server.url,
            path,
            "--api.concurrency=1",
            "--suite=bandit",
            f"--table={table}",
            f"--json={tmp_path / 'scores.json'}",
        )
        processes.append(subprocess.Popen(words, cwd=commands.ROOT, env=os.environ))
        assert processes[0].wait(timeout=120) == -signal.SIGKILL
        done = commands.call(words)
    assert done.returncode == 0, done.stderr
    assert "4/4 conversations" in done.stderr
    # The reply on its way was lost.
    assert len(server.requests) == 3 * 4 + 1
    assert server.requests[0].headers["Authorization"] == f"Bearer {KEY}"
    rows = [line for line in table.read_text().splitlines() if "| Bandit" in line]
    assert len(rows) == 3
    assert "Chance is 50 %" in rows[2]
    assert "3/3 Bandit-Reversed: success" in done.stdout
    for text in (done.stdout, done.stderr, *_texts(tmp_path)):
        assert KEY not in text
    assert "[key]" in path.read_text()


def _texts(folder):
    return [path.read_text() for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--api.modle=x"], "api.model"),
        (["--api.max_retries=x"], "api.max_retries"),
        (["--run=.", "--config=configs/bandit.py"], "leave out --run"),
    ],
)
def test_bad_words(words, message, tmp_path):
    _, _, _, *given = command("http://localhost/v1", tmp_path / "out.jsonl", *words)
    assert message in commands.refusal("evaluate", *given)
