"""Agents whose calls a model behind an API answers."""

import pytest

from configs import agent
from tests.evaluation.api.server import Answer, completion, serve
from tests.evaluation.api.test_evaluate import USAGE, play
from tests.evaluation.api.test_host_games import Task
from tests.host_games.agent.programs import TOOL

CALL = {
    "id": "abc",
    "type": "function",
    "function": {"name": "look", "arguments": "{}"},
}


def config_of(program):
    config = agent.get_config()
    config.env.host = f"agent:tests.host_games.agent.programs:{program}"
    config.rollout.max_turns = config.rollout.max_actions_per_episode = 4
    config.rollout.max_failed_fraction = 0.9
    return config


def played(tmp_path, program, answer):
    with serve(answer) as server:
        config = config_of(program)
        metrics, lines = play(tmp_path / "out.jsonl", server.url, task=Task(config))
    return metrics[program], lines, server.requests


def call_the_tool(request):
    if request.messages[-1]["role"] == "tool":
        return completion(request.messages[-1]["content"], usage=USAGE)
    answer = completion(None, finish="tool_calls", usage=USAGE)
    answer.body["choices"][0]["message"]["tool_calls"] = [CALL]
    return answer


def test_tools_are_offered_called_and_answered(tmp_path):
    metrics, lines, requests = played(tmp_path, "with_tools", call_the_tool)
    assert metrics["success"] == 1.0
    assert [len(line["turns"]) for line in lines] == [2] * 8
    first, second = requests[0].body, requests[-1].body
    assert first["tools"] == [TOOL]
    assert (first["max_tokens"], first["stop"]) == (7, ["#"])
    assert "tools" not in second
    assert [m["role"] for m in second["messages"]] == ["user", "assistant", "tool"]
    assert second["messages"][1]["tool_calls"][0]["function"]["name"] == "look"


def test_replies_without_a_call_are_the_program_s_business(tmp_path):
    say = lambda request: completion("no", usage=USAGE)  # noqa: E731
    metrics, lines, _ = played(tmp_path, "with_tools", say)
    assert metrics["success"] == 0.0
    assert {turn["reply"] for line in lines for turn in line["turns"]} == {
        "no<|im_end|>"
    }


def test_the_dialogue_is_the_program_s_own(tmp_path):
    """Nothing of ours stands around its messages."""
    words = lambda request: completion(f"{len(request.messages)}", usage=USAGE)  # noqa: E731
    metrics, _, requests = played(tmp_path, "chat", words)
    assert all(r.messages[0]["content"].startswith("number ") for r in requests)
    longest = max(requests, key=lambda r: len(r.messages)).messages
    assert [m["content"] for m in longest[1:]] == ["1", "and 0", "3", "and 1"]
    assert metrics["success"] == 0.0


@pytest.mark.parametrize("words", ["context length exceeded"])
def test_a_dialogue_without_room_is_refused_as_in_training(tmp_path, words):
    def answer(request):
        if len(request.messages) > 1:
            return Answer({"error": {"message": words}}, status=400)
        return completion("x", usage=USAGE)

    metrics, lines, _ = played(tmp_path, "chat", answer)
    assert metrics["success"] == 0.0
    # The program raises at the refusal, which ends its episode and no more.
    assert all(line["truncated"] for line in lines)


def test_no_model_is_asked_about_an_episode_that_failed_at_its_start(tmp_path, capsys):
    say = lambda request: completion("no", usage=USAGE)  # noqa: E731
    metrics, lines, requests = played(tmp_path, "faulty_start", say)
    num_sound = len(requests)
    assert 0 < num_sound < len(lines) == 8
    assert metrics["success"] == num_sound / 8
    assert f"warning: {8 - num_sound} of 8 games failed" in capsys.readouterr().err
