"""What is on disk: whole lines, nothing lost, nothing mixed."""

import json

import pytest

from ragen_jax.evaluation.api.journal import Journal
from ragen_jax.rollout.host.text import ChatReply

SETTINGS = {"model": "m", "temperature": 0.5}
REPLIES = [ChatReply(f"reply {i} é\u2028", "stop", 10, None, i, "m") for i in range(4)]


def conversation(row, game="Walk"):
    turn = {
        "actions": [1],
        "effective": 1,
        "valid": 1,
        "has_format": True,
        "is_cut": False,
        "reply_tokens": None,
    }
    return {
        "environment": game,
        "row": row,
        "settings": SETTINGS,
        "success": True,
        "truncated": False,
        "return": 1.0,
        "penalty": 0.0,
        "bonus": 0.0,
        "prompt_tokens": 10,
        "cached_tokens": None,
        "sampled_tokens": None,
        "turns": [turn],
    }


def files(path):
    return path, path.with_name(f"{path.name}.replies")


def begin(path):
    """Three replies of one conversation, one of another, one conversation finished."""
    with Journal(path) as journal:
        journal.begin("Walk", SETTINGS)
        for place, reply in zip([0, 2, 0, 0], REPLIES, strict=True):
            journal.add_reply(("Walk", place), reply)
        journal.add_conversation(("Walk", 2), conversation(2))


def test_all_is_there_again(tmp_path):
    path = tmp_path / "deep/out.jsonl"
    begin(path)
    with Journal(path) as journal:
        journal.begin("Walk", SETTINGS)
        assert journal.finished == {("Walk", 2): conversation(2)}
        assert journal.replies(("Walk", 0)) == [REPLIES[0], *REPLIES[2:]]
        assert journal.replies(("Walk", 5)) == []


@pytest.mark.parametrize("lost_bytes", [1, 2, 30])
def test_torn_lines_are_cut_off(tmp_path, lost_bytes):
    path = tmp_path / "out.jsonl"
    begin(path)
    for file in files(path):
        file.write_bytes(file.read_bytes()[:-lost_bytes])
    with Journal(path) as journal:
        journal.begin("Walk", SETTINGS)
        assert journal.finished == {}
        assert journal.replies(("Walk", 0)) == [REPLIES[0], REPLIES[2]]
        journal.add_reply(("Walk", 0), REPLIES[1])
    for file in files(path):
        assert file.read_text() == "" or file.read_text().endswith("}\n")
    with Journal(path) as journal:
        assert journal.replies(("Walk", 0)) == [REPLIES[0], REPLIES[2], REPLIES[1]]


def test_tidied_up(tmp_path):
    path = tmp_path / "out.jsonl"
    with Journal(path) as journal:
        for game in ("Walk", "Run"):
            journal.begin(game, SETTINGS)
            for row in (2, 0, 10, 1):
                journal.add_conversation((game, row), conversation(row, game))
        journal.tidy()
    assert list(tmp_path.iterdir()) == [path]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    told = [(line["environment"], line["row"]) for line in lines]
    assert told == [(game, row) for game in ("Walk", "Run") for row in (0, 1, 2, 10)]
    with Journal(path) as journal:
        assert len(journal.finished) == 8


def test_replies_of_rows_that_are_left_out_stay(tmp_path):
    """Such as those of an evaluation of fewer prompts, between two of more."""
    path = tmp_path / "out.jsonl"
    begin(path)
    with Journal(path) as journal:
        journal.begin("Run", SETTINGS)
        journal.add_conversation(("Run", 0), conversation(0, "Run"))
        journal.tidy()
    with Journal(path) as journal:
        journal.begin("Walk", SETTINGS)
        assert journal.finished.keys() == {("Walk", 2), ("Run", 0)}
        assert journal.replies(("Walk", 0)) == [REPLIES[0], *REPLIES[2:]]


@pytest.mark.parametrize("is_finished", [True, False])
def test_other_settings_are_refused(tmp_path, is_finished):
    path = tmp_path / "out.jsonl"
    begin(path)
    with Journal(path) as journal:
        if is_finished:
            journal.tidy()
    with Journal(path) as journal:
        changed = SETTINGS | {"temperature": 0.7}
        with pytest.raises(ValueError, match=r"temperature: 0\.5 there, 0\.7 here"):
            journal.begin("Walk", changed)
        journal.begin("Run", changed)


def test_settings_that_nothing_was_played_under_bind_nobody(tmp_path):
    """A misspelt model that the server did not know, say."""
    path, changed = tmp_path / "out.jsonl", SETTINGS | {"temperature": 0.7}
    with Journal(path) as journal:
        journal.begin("Walk", SETTINGS)
    with Journal(path) as journal:
        journal.begin("Walk", changed)
        journal.add_reply(("Walk", 0), REPLIES[0])
    with Journal(path) as journal:
        with pytest.raises(ValueError, match=r"temperature: 0\.7 there, 0\.5 here"):
            journal.begin("Walk", SETTINGS)
        journal.begin("Walk", changed)
        assert journal.replies(("Walk", 0)) == [REPLIES[0]]


def test_one_process_at_a_time(tmp_path):
    path = tmp_path / "out.jsonl"
    busy = pytest.raises(ValueError, match="another process is writing")
    with Journal(path), busy:
        Journal(path)
    Journal(path).__exit__()


def test_other_files_are_left_alone(tmp_path):
    path = tmp_path / "out.jsonl"
    for text in ('{"row": 0}\n', "hello\n", "[]\n", "3\n", "\n", "no end", '{"row'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"line 1 of .* name another --output"):
            Journal(path)
        assert path.read_text() == text


@pytest.mark.parametrize("field", conversation(0))
def test_a_conversation_with_a_field_of_another_type_is_refused(tmp_path, field):
    path, record = tmp_path / "out.jsonl", conversation(0)
    lacking = {name: value for name, value in record.items() if name != field}
    for changed in (record | {field: [None]}, lacking):
        path.write_text(f"{json.dumps(record)}\n{json.dumps(changed)}\n")
        with pytest.raises(ValueError, match=r"line 2 of .* name another --output"):
            Journal(path)


def test_a_reply_with_a_field_of_another_type_is_refused(tmp_path):
    path = tmp_path / "out.jsonl"
    begin(path)
    journal = files(path)[1]
    whole = journal.read_text().split("\n")
    reply = json.loads(whole[1])
    for field in reply:
        lacking = {name: value for name, value in reply.items() if name != field}
        for changed in (reply | {field: [1]}, lacking):
            journal.write_text("\n".join([whole[0], json.dumps(changed), ""]))
            with pytest.raises(ValueError, match="line 2 of"):
                Journal(path)
    journal.write_text("\n".join([whole[0], json.dumps(reply | {"more": 1}), ""]))
    with pytest.raises(ValueError, match="line 2 of"):
        Journal(path)
