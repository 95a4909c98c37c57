"""Episode records that a page cannot show, one per way of being malformed."""

import copy
import json

from tests.report import fake_runs


def records(good):
    """Name -> line of a file, made of a good record."""
    lines = {}
    for name, change in CHANGES.items():
        record = copy.deepcopy(good)
        change(record, record["turns"][0])
        lines[name] = json.dumps(record)
    return lines | {
        "torn in the middle": json.dumps(good)[:100],
        "a list": "[1, 2]",
        "a number": "3",
        "nested without end": "[" * 100_000,
        "an infinite number": json.dumps(good).replace('"row": 0', '"row": 1e999', 1),
        "bytes": "\ufffd{",
    }


def put(**values):
    return lambda record, turn: record.update(values)


def put_in_turn(**values):
    return lambda record, turn: turn.update(values)


CHANGES = {
    "no turns": lambda record, turn: record.pop("turns"),
    "turns null": put(turns=None),
    "turns an object": put(turns={}),
    "turns empty": put(turns=[]),
    "a turn missing": lambda record, turn: record["turns"].append(None),
    "too many turns": lambda record, turn: record.update(turns=[turn] * 1_001),
    "return null": put(**{"return": None}),
    "return a text": put(**{"return": "1.0"}),
    "return NaN": put(**{"return": float("nan")}),
    "return beyond every float": put(**{"return": 10**400}),
    "success a text": put(success="yes"),
    "legend a list": put(legend=["wall"]),
    "legend of numbers": put(legend={"#": 1}),
    "environment a number": put(environment=1),
    "group a fraction": put(group=1.5),
    "group a flag": put(group=True),
    "kept a number": put(kept=1),
    "advantage a text": put_in_turn(advantage="1"),
    "advantage infinite": put_in_turn(advantage=float("inf")),
    "tokens null": put(tokens=None),
    "observation missing": lambda record, turn: turn.pop("observation"),
    "observation a number": put_in_turn(observation=1),
    "reply null": put_in_turn(reply=None),
    "window a list": put_in_turn(window=[]),
    "reward null": put_in_turn(reward=None),
    "reward infinite": put_in_turn(reward=float("inf")),
    "penalty a text": put_in_turn(penalty="-0.1"),
    "bonus a list": put_in_turn(bonus=[]),
    "log-probability null": put_in_turn(log_prob=None),
    "actions missing": lambda record, turn: turn.pop("actions"),
    "board empty": put_in_turn(board=[]),
    "board of empty rows": put_in_turn(board=["", ""]),
    "board a number": put_in_turn(board=7),
    "board of numbers": put_in_turn(board=[[1, 2]]),
    "board ragged": put_in_turn(board=["###", "#"]),
    "board huge": put_in_turn(board=["#" * 2_000] * 2_000),
    "no log-probabilities": lambda record, turn: turn.pop("token_log_probs"),
    "a log-probability null": lambda _, turn: turn["token_log_probs"].__setitem__(
        0, None
    ),
    "tokens a text": put_in_turn(token_texts="abc"),
    "tokens of unequal length": lambda record, turn: turn["token_texts"].append("x"),
}

# Values of metrics, the largest and the smallest of which no axis can show.
VALUES = ("1e308", "-1e308", "null", "1e305")


def write_run(folder, *, iterations=2):
    """A run with every malformed record, and metrics of odd values."""
    run = fake_runs.write_run(folder, iterations=iterations)
    path = run / "trajectories" / "iteration_000001.jsonl"
    good = path.read_text(encoding="utf-8").split("\n")[:-1]
    lines = [*good, *records(json.loads(good[0])).values()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    # Behind the malformed ones: they are passed over, not the end of the file.
    with path.open("a", encoding="utf-8") as file:
        file.write(good[0] + "\n")
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        for i, value in enumerate(VALUES, iterations + 1):
            odd = ("actor/entropy", "alarm/entropy", "collapse/regime")
            fields = "".join(f', "{name}": {value}' for name in odd)
            file.write(f'{{"iteration": {i}{fields}}}\n')
        file.write('{"iteration": 30000000, "actor/entropy": 1.0}\n')
    return run
