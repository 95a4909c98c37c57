"""HotpotQA's files: both published forms, splits, and what is not such a file."""

import importlib
import itertools
import random

import pytest

from ragen_jax.host_games.base import SPLITS, TRAINING, VALIDATION
from ragen_jax.host_games.search.game import SearchQA
from ragen_jax.host_games.search.hotpot import load_hotpot, split_of
from ragen_jax.host_games.search.questions import Hop
from tests.commands import need
from tests.host_games.episodes import play
from tests.host_games.files import write_json

TOWN = ["Bray (town)", ["Bray is a town.", " It lies in Wicklow [Ireland]."]]
SINGER = ["Ann Lee", ["Ann Lee is a singer.", " She was born in Bray."]]
FILM = ["Red Sun", ["Red Sun is a film of 1971."]]
FILM_AGAIN = ["Red Sun", ["Red Sun is a novel."]]


def write_row(name, question, answer, facts, context):
    return {
        "_id": name,
        "question": question,
        "answer": answer,
        "supporting_facts": facts,
        "context": context,
        "type": "bridge",
        "level": "hard",
    }


# In the form of hotpot_train_v1.1.json.
ROWS = [
    write_row(
        "5a7a06935542990198eaf050",
        "In which county was Ann Lee born?",
        "County Wicklow, Ireland",
        [["Ann Lee", 1], ["Bray (town)", 1], ["Ann Lee", 0]],
        [FILM, TOWN, SINGER],
    ),
    write_row(
        "5a879ab05542996e4f30887e",
        "Is Red Sun a film?",
        "yes",
        [["Red Sun", 0]],
        [FILM, SINGER],
    ),
    write_row(
        "5a8d7341554299441c6b9fe5",
        "What is Red Sun by [K. Ito]?",
        "a [novel",
        [["Red Sun", 0], ["Gone", 4]],
        [FILM_AGAIN],
    ),
]


def in_columns(row):
    """The row in the form of the parquet files of hotpotqa/hotpot_qa."""
    columns = {key: value for key, value in row.items() if key != "_id"}
    facts, context = row["supporting_facts"], row["context"]
    return columns | {
        "id": row["_id"],
        "supporting_facts": {
            "title": [title for title, _ in facts],
            "sent_id": [number for _, number in facts],
        },
        "context": {
            "title": [title for title, _ in context],
            "sentences": [sentences for _, sentences in context],
        },
    }


def write(folder, rows, name="hotpot.json"):
    return write_json(folder / name, rows)


def all_questions(file):
    found = [question for split in SPLITS for question in file.by_split[split]]
    return sorted(found, key=lambda question: question.id)


def test_a_published_row(tmp_path):
    file = load_hotpot(write(tmp_path, ROWS))
    question, *_ = all_questions(file)
    assert question.id == "5a7a06935542990198eaf050"
    assert question.text == "In which county was Ann Lee born?"
    assert question.answer == "County Wicklow, Ireland"
    texts = {passage.id: (passage.title, passage.text) for passage in file.passages}
    singer, town = question.hops
    assert singer.query == "Ann Lee"
    assert texts[singer.passage_id] == (
        "Ann Lee",
        "Ann Lee is a singer. She was born in Bray.",
    )
    assert texts[town.passage_id][0] == "Bray (town)"


def test_paragraphs_of_all_questions_are_there_once(tmp_path):
    file = load_hotpot(write(tmp_path, ROWS))
    assert [passage.title for passage in file.passages] == [
        "Red Sun",
        "Bray (town)",
        "Ann Lee",
        "Red Sun",
    ]
    assert {
        passage.text for passage in file.passages if passage.title == "Red Sun"
    } == {
        "Red Sun is a film of 1971.",
        "Red Sun is a novel.",
    }


def test_a_fact_without_a_paragraph_is_no_hop(tmp_path):
    """As in a few published rows."""
    last = all_questions(load_hotpot(write(tmp_path, ROWS)))[-1]
    assert [hop.query for hop in last.hops] == ["Red Sun"]


def test_both_forms_say_the_same(tmp_path):
    pairs = load_hotpot(write(tmp_path, ROWS))
    columns = load_hotpot(write(tmp_path, list(map(in_columns, ROWS)), "c.json"))
    assert columns.passages == pairs.passages
    assert columns.by_split == pairs.by_split


def test_a_row_that_is_left_out_leaves_no_paragraphs(tmp_path):
    rows = [
        write_row(f"q{i}", f"Who is {i}?", "me", [["Red Sun", 0]], [FILM])
        for i in range(20)
    ]
    odd = write_row("odd", "Where?", "there", [["Bray (town)"]], [TOWN])
    found = load_hotpot(write(tmp_path, [*rows, odd]))
    assert [passage.title for passage in found.passages] == ["Red Sun"]


@pytest.mark.live
def test_parquet(tmp_path):
    need("pyarrow")
    pyarrow = importlib.import_module("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    path = str(tmp_path / "hotpot.parquet")
    table = pyarrow.Table.from_pylist(list(map(in_columns, ROWS)))
    parquet.write_table(table, path)
    pairs = load_hotpot(write(tmp_path, ROWS))
    assert load_hotpot(path).passages == pairs.passages
    assert load_hotpot(path).by_split == pairs.by_split


def many_rows(count):
    return [
        write_row(f"id{i}", f"Question {i}?", f"answer {i}", [], [])
        for i in range(count)
    ]


def test_splits_share_no_question_and_keep_it(tmp_path):
    rows = many_rows(1_000)
    file = load_hotpot(write(tmp_path, rows))
    texts = {split: {q.text for q in file.questions(split)} for split in SPLITS}
    assert not texts[TRAINING] & texts[VALIDATION]
    assert len(texts[TRAINING]) + len(texts[VALIDATION]) == 1_000
    # A tenth, within five standard deviations of a fair draw.
    assert 52 < len(texts[VALIDATION]) < 148
    # Neither the order of the rows nor the other rows matter.
    random.Random(0).shuffle(rows)
    again = load_hotpot(write(tmp_path, rows[:500], "half.json"))
    for split in SPLITS:
        assert {q.text for q in again.questions(split)} <= texts[split]


def test_a_question_asked_twice_is_in_one_split(tmp_path):
    ids = {split: [] for split in SPLITS}
    for i in range(100):
        ids[split_of(f"id{i}")].append(f"id{i}")
    rows = [
        write_row(ids[TRAINING][0], "Who?", "Ann", [], []),
        write_row(ids[VALIDATION][0], "\x00Who? \n", "Ann", [], []),
    ]
    file = load_hotpot(write(tmp_path, rows))
    assert len(file.questions(TRAINING)) == 1
    with pytest.raises(ValueError, match="falls into the validation split"):
        file.questions(VALIDATION)


def test_only_the_first_questions_and_their_paragraphs(tmp_path):
    file = load_hotpot(write(tmp_path, ROWS), 2)
    assert len(all_questions(file)) == 2
    assert len(file.passages) == 3
    with pytest.raises(ValueError, match="max_questions is 0"):
        load_hotpot(write(tmp_path, ROWS), 0)


def without(field):
    return [{key: value for key, value in ROWS[0].items() if key != field}]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["text"], "row 1 of"),
        (without("_id"), "KeyError: 'id'"),
        (without("answer"), "KeyError: 'answer'"),  # as the published test file
        (without("context"), "KeyError: 'context'"),
        ([ROWS[0] | {"answer": " "}], "its answer is ' ', not a text"),
        ([ROWS[0] | {"question": 7}], "its question is 7, not a text"),
        ([*ROWS, ROWS[0] | {"context": [["title"]]}], "row 4 of"),
        ([ROWS[0] | {"context": [["title", [1]]]}], "TypeError"),
        ([ROWS[0] | {"context": {"title": ["x"], "sentences": []}}], "row 1 of"),
    ],
)
def test_other_files_are_refused(tmp_path, rows, said):
    with pytest.raises(ValueError, match=said) as refused:
        load_hotpot(write(tmp_path, rows))
    assert "hotpot_train_v1.1.json" in str(refused.value)


def test_hops_name_paragraphs(tmp_path):
    file = load_hotpot(write(tmp_path, ROWS))
    ids = {passage.id for passage in file.passages}
    hops = [hop for question in all_questions(file) for hop in question.hops]
    assert len(hops) == 4
    assert all(isinstance(hop, Hop) and hop.passage_id in ids for hop in hops)


# --- played


def hotpot_of(folder, split):
    ids = (f"id{i}" for i in itertools.count())
    mine = (name for name in ids if split_of(name) == split)
    rows = [row | {"_id": name} for row, name in zip(ROWS, mine, strict=False)]
    return write(folder, rows)


@pytest.mark.parametrize("split", SPLITS)
def test_the_oracle_wins_hotpot(tmp_path, split):
    game = SearchQA(split, data=hotpot_of(tmp_path, split))
    assert game.num_tasks == len(ROWS)
    for task, row in enumerate(ROWS):
        assert row["question"] in game.reset(0, task).text
        *searches, last = play(game, game.solution())
        assert searches
        assert last.info["success"]
        assert last.reward == 1


def test_hotpot_passages_and_partial_pay(tmp_path):
    game = SearchQA(data=hotpot_of(tmp_path, TRAINING))
    game.reset(0, task=0)
    (found,) = play(game, ["search[Ann Lee born]"])
    assert found.observation.text.startswith(
        "1. Ann Lee: Ann Lee is a singer. She was born in Bray.\n"
    )
    (last,) = play(game, ["finish[Wicklow]"])
    # One of the words county, wicklow, ireland: 2 / (1 + 3).
    assert last.reward == last.info["f1"] == pytest.approx(0.5)
    assert last.info["success"] is False


def test_only_the_first_questions_of_hotpot(tmp_path):
    data = hotpot_of(tmp_path, TRAINING)
    game = SearchQA(data=data, max_questions=2)
    assert game.num_tasks == 2
    game.reset(0)
    assert "novel" not in game.step("search[novel]").observation.text
    game = SearchQA(data=data)
    game.reset(0)
    assert "novel" in game.step("search[novel]").observation.text
