"""Whatever a run folder's files hold: they are read, or refused in one sentence."""

import copy
import json
import random

import pytest

from configs import base, sokoban
from ragen_jax.config import to_json
from ragen_jax.runs import reader, writer

METRICS = [
    {"iteration": i, "time": 1.7e9 + i, "a/b": 0.5, "c": None, "d": [1.0, 2.0, 2.5]}
    for i in range(3)
]
TURN = {"observation": "P_O\n", "reply": "Right", "board": ["P_O"], "reward": 1.0}
EPISODE = {
    "turns": [TURN | {"penalty": 0.0, "bonus": 0.5}],
    "return": 1.0,
    "success": True,
    "legend": {"P": "you", "_": "floor", "O": "target"},
}
# Values with the right syntax that files may hold in place of others.
ODD = [None, True, False, -1, 0, 2.5, 10**30, 10**400, 1e300, "", "5", "\0\u2028", "x"]
ODD += [[], {}, [[]], [None], ["a"], [{}], {"": 1}, {"a.b": {}}, [1, "2"], [1e300, -1]]


def mutate(draw: random.Random, value):
    """A copy with one part replaced, taken out, added or nested."""
    value = copy.deepcopy(value)
    places = []

    def walk(node):
        keys = node if isinstance(node, dict) else range(len(node))
        for key in keys:
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(value)
    node, key = draw.choice(places)
    how = draw.randrange(4)
    if how == 0:
        del node[key]
    elif how == 1 and isinstance(node, dict):
        node[draw.choice(["new", "turns", "iteration", "board"])] = draw.choice(ODD)
    elif how == 2:
        node[key] = [node[key]]
    else:
        node[key] = draw.choice(ODD)
    return value


def read_all(workdir):
    """Everything that resuming reads of the files, the event file drawn anew."""
    config = reader.read_config(workdir)
    writer.RunWriter(workdir, after=2, sinks=["tensorboard"]).close()
    return config


def write_all(workdir, config: str, metrics, episodes) -> None:
    (workdir / "trajectories").mkdir(parents=True)
    (workdir / "config.json").write_text(config)
    lines = lambda items: "".join(json.dumps(item) + "\n" for item in items)  # noqa: E731
    (workdir / "metrics.jsonl").write_text(lines(metrics))
    path = workdir / "trajectories" / "iteration_000001.jsonl"
    path.write_text(lines(episodes))


def test_what_is_right_is_read(tmp_path):
    config = sokoban.get_config("qwen2.5-0.5b")
    write_all(tmp_path, to_json(config), METRICS, [EPISODE, EPISODE])
    again = read_all(tmp_path)
    assert to_json(again) == to_json(config)
    assert again.is_locked
    assert reader.read_metrics(tmp_path) == METRICS


@pytest.mark.parametrize("trials", [40, pytest.param(150, marks=pytest.mark.slow)])
def test_no_mutation_ends_in_a_traceback(tmp_path, trials):
    draw, refused = random.Random(0), 0
    config = json.loads(to_json(base.get_config()))
    for trial in range(trials):
        files = [config, METRICS, [EPISODE, EPISODE]]
        which = trial % 3
        files[which] = mutate(draw, files[which])
        workdir = tmp_path / str(trial)
        write_all(workdir, json.dumps(files[0]), *files[1:])
        refused += refusal(workdir) is not None
    assert refused > trials / 8


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", "[]", "config.json is not a JSON object"),
        ("config.json", "{", "config.json is not valid JSON"),
        ("config.json", "[" * 100_000, "config.json is not valid JSON"),
        ("config.json", '{"a": NaN}', "NaN is not JSON"),
        ("config.json", f'{{"seed": {"9" * 5000}}}', "config.json is not valid JSON"),
        ("metrics.jsonl", "3\n", "line 1 is not a JSON object"),
        ("metrics.jsonl", '{"loss": 1}\n', "iteration = null is not a whole"),
        ("metrics.jsonl", '{"iteration": 1.5}\n', "iteration = 1.5 is not a whole"),
        ("metrics.jsonl", '{"iteration": -1}\n', "iteration = -1 is not a whole"),
        ("metrics.jsonl", '{"iteration": 0}\n{"iteration": true}\n', "line 2: iter"),
        ("metrics.jsonl", '{"iteration": 1}\n{"iteration": 1}\n', "line 2: iteration"),
        (
            "metrics.jsonl",
            '{"iteration": 1, "a": "b"}\n',
            'line 1: a = "b" is not a num',
        ),
        ("metrics.jsonl", '{"iteration": 1, "a": 1e999}\n', "line 1: a = Infinity"),
    ],
)
def test_the_sentence_names_file_line_and_value(tmp_path, name, text, message):
    write_all(tmp_path, to_json(base.get_config()), METRICS, [EPISODE])
    (tmp_path / name).write_text(text)
    assert message in refusal(tmp_path)


def test_bytes_that_are_no_text(tmp_path):
    write_all(tmp_path, to_json(base.get_config()), METRICS, [EPISODE])
    (tmp_path / "metrics.jsonl").write_bytes(b'{"iteration": 0, "\xff": 1}\n')
    assert "metrics.jsonl is not UTF-8 text" in refusal(tmp_path)


def refusal(workdir) -> str | None:
    """The sentence with which the folder is refused; any other error is a defect."""
    try:
        read_all(workdir)
    except ValueError as error:
        assert str(workdir) in str(error)  # noqa: PT017
        return str(error)
    return None
