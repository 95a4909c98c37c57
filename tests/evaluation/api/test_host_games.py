"""Host games, played by a model behind an API."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from configs import bandit, lean, world
from ragen_jax.evaluation.api import evaluate as remote
from ragen_jax.evaluation.api.journal import Journal
from ragen_jax.rollout.host.rows import GamesFailed, draw_problems
from ragen_jax.rollout.keys import validation_keys
from tests.evaluation.api.server import completion, serve
from tests.evaluation.api.test_evaluate import SMALL, USAGE, api, play
from tests.host_games.games import Faulty, Pictured

COUNT = re.compile(r"seed (\d+)(?: count (\d))?")


def reply_to(messages) -> str:
    """Words by what the game showed last; a few are not answers, or break the game."""
    shown = COUNT.findall(messages[-1]["content"])
    seed, count = shown[-1] if shown else ("2", "")
    kind = (int(seed) + int(count or 0)) % 5
    if kind == 0 and len(messages) == 2:
        return "<think>nothing</think>"
    return f"<think>x</think><answer>{'break' if kind == 1 else f'go {kind}'}</answer>"


def config_of(broken_word=None):
    config = world.get_config()
    config.env.host = "tests.host_games.games:Faulty"
    if broken_word is not None:
        config.env.kwargs.broken_word = broken_word
    config.rollout.max_turns = config.rollout.max_actions_per_episode = 4
    config.rollout.max_failed_fraction = 0.9
    return config


class Task:
    """A configuration as `play` takes it."""

    def __init__(self, config):
        self.get_config = lambda: config


def played(tmp_path, broken_word=None, **changes):
    """Metrics, and the conversations in the order of their rows."""
    config = config_of(broken_word)
    config.update_from_flattened_dict(changes)
    with serve(
        lambda request: completion(reply_to(request.messages), usage=USAGE)
    ) as server:
        metrics, lines = play(tmp_path / "out.jsonl", server.url, task=Task(config))
    return metrics["Faulty"], lines


def test_every_conversation_is_the_game_played_by_hand(tmp_path):
    metrics, lines = played(tmp_path)
    seeds, _ = draw_problems(validation_keys(config_of().evaluation.seed, 4), None)
    assert [line["row"] for line in lines] == list(range(8))
    num_silent = 0
    for line in lines:
        game = Faulty("validation")
        shown = game.reset(seeds[line["row"] // 2]).text
        for turn in line["turns"]:
            assert f"\n{shown}\n" in turn["observation"]
            answer = re.search("<answer>(.*)</answer>", turn["reply"])
            if answer is None:
                num_silent += 1
                assert (turn["reward"], turn["valid"]) == (0.0, 0)
                continue
            step = game.step(answer[1])
            shown = step.observation.text
            assert turn["reward"] == step.reward
        assert line["success"] == step.terminated
    assert num_silent > 0
    assert metrics["success"] == sum(line["success"] for line in lines) / 8


def test_what_the_game_cannot_read_is_no_valid_action(tmp_path):
    """It has the form and costs no format penalty; `penalize` makes it cost."""
    changes = {"env.host": "tests.host_games.games:Deaf"}
    config = config_of()
    config.update_from_flattened_dict(changes)
    written = "<think>x</think><answer>go</answer>"
    with serve(lambda request: completion(written, usage=USAGE)) as server:
        metrics, _ = play(tmp_path / "out.jsonl", server.url, task=Task(config))
    names = ("action_is_valid", "action_is_effective", "format_penalty", "format")
    assert [metrics["Deaf"][name] for name in names] == [0, 0, 0, 1]


def test_a_game_that_fails_is_lost_and_said(tmp_path, capsys):
    _, sound = played(tmp_path)
    _, lines = played(tmp_path / "broken", "break")
    has_failed = [
        any("<answer>break<" in turn["reply"] for turn in line["turns"])
        for line in lines
    ]
    assert {True, False} == set(has_failed)
    for line, same, failed in zip(lines, sound, has_failed, strict=True):
        if failed:
            assert (line["success"], line["truncated"]) == (False, True)
        else:
            assert line["turns"] == same["turns"]
    said = capsys.readouterr().err
    assert f"warning: {sum(has_failed)} of 8 games failed" in said
    with pytest.raises(GamesFailed, match=r"rollout\.max_failed_fraction = 0\.01"):
        played(tmp_path / "refused", "break", **{"rollout.max_failed_fraction": 0.01})


def test_long_observations_lose_their_middle(tmp_path):
    _, lines = played(tmp_path, **{"host.max_observation_tokens": 3})
    texts = [turn["observation"] for line in lines for turn in line["turns"]]
    # Twelve characters stand for three tokens.
    for text in texts:
        assert any(len(x) == 12 and " [...] " in x for x in text.splitlines())


def _pictures(message) -> list[np.ndarray]:
    """The images of a message of the user, as arrays."""
    if isinstance(message["content"], str):
        return []
    text, *parts = message["content"]
    assert text["type"] == "text"
    assert "seed" in text["text"]
    found = []
    for part in parts:
        head, _, data = part["image_url"]["url"].partition(",")
        assert (part["type"], head) == ("image_url", "data:image/png;base64")
        with Image.open(io.BytesIO(base64.b64decode(data))) as image:
            found.append(np.asarray(image))
    return found


@pytest.mark.parametrize("context", ["full", "single_turn"])
def test_images_go_to_the_model_beside_the_text_of_their_turn(tmp_path, context):
    config = config_of()
    config.env.host = "tests.host_games.games:Pictured"
    config.rollout.context = context
    text = "<think>x</think><answer>go</answer>"
    if context != "full":
        config.rollout.context_turns = 2
    with serve(lambda request: completion(text)) as server:
        _, lines = play(tmp_path / "out.jsonl", server.url, task=Task(config))
    assert {len(line["turns"]) for line in lines} == {3}
    assert len(server.requests) == 3 * len(lines)
    for request in server.requests:
        users = [m for m in request.messages if m["role"] == "user"]
        texts = [m["content"][0]["text"] for m in users]
        seed, count = COUNT.findall(texts[-1])[-1]
        last = int(count or 0)
        if context == "full":
            assert len(users) == last + 1
        shown = range(last + 1) if context == "full" else [last]
        for message, turn in zip(users, shown, strict=True):
            counts = [0, 1] if turn == 0 else [turn]
            pictures = _pictures(message)
            assert len(pictures) == len(counts)
            for picture, i in zip(pictures, counts, strict=True):
                expected = Pictured.picture(int(seed), i)
                np.testing.assert_array_equal(picture, expected)


def test_suites_have_them(tmp_path):
    config = remote.prepare(bandit.get_config(), SMALL, ())
    settings = api("http://localhost/v1")
    with Journal(tmp_path / "out.jsonl") as journal:
        evaluations = remote.api_evaluations(config, settings, journal, suite="all")
    names = {evaluation.name for evaluation in evaluations}
    assert {"Bandit", "LeanGame", "SearchQA"} <= names


def test_proofs_by_an_endpoint(tmp_path):
    with serve(lambda request: completion("<answer>intro h</answer>")) as server:
        changes = {"evaluation.num_prompts": 2}
        metrics, lines = play(
            tmp_path / "out.jsonl", server.url, task=lean, changes=changes
        )
    assert metrics["LeanGame"]["ceiling"] == 1.0
    assert all("|-" in line["turns"][0]["observation"] for line in lines)
