"""The search game: replies, pay, ends, and an oracle that always wins."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.host_games.base import SPLITS
from ragen_jax.host_games.common.bm25 import Passage
from ragen_jax.host_games.search.game import (
    FINISH,
    MAX_REPLY_CHARS,
    SEARCH,
    SearchQA,
    read_reply,
    show_passages,
    write_reply,
)
from ragen_jax.host_games.search.scores import exact_match
from tests.host_games.episodes import play

# --- replies


@pytest.mark.parametrize(
    ("reply", "read"),
    [
        ("search[Nemo age]", (SEARCH, "Nemo age")),
        ("finish[42]", (FINISH, "42")),
        ("  Search [ Nemo ]\n", (SEARCH, "Nemo")),
        ("FINISH[two\nlines]", (FINISH, "two\nlines")),
        ("search[a [b] c]", (SEARCH, "a [b] c")),
        ("finish[ñandú 東京]", (FINISH, "ñandú 東京")),
    ],
)
def test_replies_that_are_read(reply, read):
    assert read_reply(reply) == read


@pytest.mark.parametrize(
    "reply",
    [
        "",
        " ",
        "Nemo",
        "search",
        "search[]",
        "finish[ \t]",
        "search[Nemo",
        "search Nemo]",
        "search[a] finish[b]",
        "search[a]]",
        "search[[a]",
        "I search[Nemo]",
        "search[Nemo].",
        "searches[Nemo]",
        "find[Nemo]",
        "[Nemo]",
        "\x00search[Nemo]",
        f"search[{'x' * MAX_REPLY_CHARS}]",
    ],
)
def test_replies_that_are_not_read(reply):
    assert read_reply(reply) is None
    game = SearchQA()
    game.reset(0)
    step = game.step(reply)
    assert step.info["valid"] is False
    assert step.reward == 0
    assert step.observation.text == (
        "Write search[words] or finish[answer].\n4 searches left."
    )


@settings(deadline=None)
@given(st.sampled_from([SEARCH, FINISH]), st.text(max_size=50))
def test_written_replies_are_read(keyword, content):
    read = read_reply(write_reply(keyword, content))
    assert read is not None
    assert read[0] == keyword
    assert exact_match(read[1], content)


# --- the oracle


@pytest.mark.parametrize("num_hops", [1, 2])
@pytest.mark.parametrize("split", SPLITS)
def test_the_oracle_wins_every_question(split, num_hops):
    """With one passage per search, so that each of its searches must be the best."""
    game = SearchQA(split, num_hops=num_hops, top_k=1)
    assert game.is_solvable
    assert game.num_tasks > 900
    for task in range(game.num_tasks):
        game.reset(seed=7, task=task)
        *searches, finish = play(game, game.solution())
        assert len(searches) == num_hops
        assert finish.info == {
            "success": True,
            "valid": True,
            "f1": 1.0,
            "searches": float(num_hops),
        }
        assert (finish.reward, finish.terminated, finish.truncated) == (
            1.0,
            True,
            False,
        )


REPLIES = (
    st.text()
    | st.text("[]searchfini ")
    | st.builds("{}[{}]".format, st.sampled_from(["search", "FINISH "]), st.text())
    | st.sampled_from(["search[age]", "search[born town]", "x" * 1_000_000, "search["])
)


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**31 - 1),
    replies=st.lists(REPLIES, min_size=1, max_size=6),
    loose=st.booleans(),
)
def test_any_text_is_a_reply(seed, replies, loose):
    game = SearchQA(loose=loose)
    game.reset(seed)
    for number, reply in enumerate(replies, start=1):
        # Whatever came before, the oracle knows a way out.
        assert game.solution()[-1].startswith("finish[")
        assert len(game.solution()) <= 6 - number + 1
        step = game.step(reply)
        readable = read_reply(reply) is not None
        answered = loose and 0 < len(reply.strip()) <= MAX_REPLY_CHARS
        assert step.info["valid"] is (readable or answered)
        assert 0 <= step.reward <= 1
        assert set(step.info) == {"success", "valid", *game.metrics}
        assert len(step.observation.text) < 200
        if step.terminated or step.truncated:
            assert game.solution() == ()
            break
    else:
        assert len(replies) < 6
        *_, last = play(game, game.solution())
        assert last.info["success"] is True


def test_a_server_has_the_passages_of_one_world():
    with pytest.raises(ValueError, match=r"num_worlds.*beside retriever"):
        SearchQA(num_worlds=2, retriever="http://127.0.0.1:9")


def test_the_oracle_does_not_search_twice():
    game = SearchQA()
    game.reset(0)
    first, second, finish = game.solution()
    game.step(first)
    assert game.solution() == (second, finish)
    # The same passage by other words.
    game.reset(0)
    assert second == "search[Tisa age]"
    game.step("search[age of Tisa]")
    assert game.solution() == (first, finish)


# --- ends


def test_the_game_ends_after_one_reply_more_than_searches():
    game = SearchQA(max_searches=2)
    game.reset(3)
    steps = play(game, ["search[age]", "nonsense", "search[age]"])
    assert [step.truncated for step in steps] == [False, False, True]
    assert not any(step.terminated for step in steps)
    assert steps[0].observation.text.endswith("\n1 search left.")
    assert steps[1].observation.text.endswith("\nNo searches left: finish[answer].")
    assert (
        steps[2].observation.text == "No search was left.\nThe question is unanswered."
    )
    # The search of the last reply was not run.
    assert [step.info["searches"] for step in steps] == [1, 1, 1]
    assert [step.info["valid"] for step in steps] == [True, False, True]


def test_the_last_reply_can_answer():
    game = SearchQA(max_searches=1)
    game.reset(3)
    search, finish = game.solution()
    assert search.startswith("search[")
    *_, last = play(game, ["nothing", finish])
    assert last.info["success"]
    assert last.terminated


def test_wrong_answers_end_and_pay_nothing():
    game = SearchQA()
    game.reset(0)
    (step,) = play(game, ["finish[Nobody]"])
    assert (step.reward, step.terminated) == (0.0, True)
    assert step.info["success"] is False
    assert step.observation.text == "Wrong."


def test_loose_games_take_any_text_for_the_answer():
    game = SearchQA(loose=True)
    game.reset(0)
    truth = game.solution()[-1][len("finish[") : -1]
    (step,) = play(game, [f" {truth}.\n"])
    assert step.info["success"]
    game.reset(0)
    (step,) = play(game, [f"It is {truth}"])
    assert step.info["success"] is False
    # One word of three: 2 / (3 + 1).
    assert step.reward == step.info["f1"] == pytest.approx(0.5)
    assert step.observation.text == "Partly right."
    assert step.info["valid"]
    game.reset(0)
    assert play(game, ["  "])[0].info["valid"] is False


# --- what is shown


def test_an_episode_as_it_is_read():
    game = SearchQA(top_k=2)
    question = game.reset(0, task=4)
    replies = game.solution()
    told = [step.observation.text for step in play(game, replies)]
    assert question.text == (
        "Question: In which land lies the town where Dete was born?\n5 searches left."
    )
    assert list(zip(replies, told, strict=True)) == [
        (
            "search[Dete born]",
            "1. Dete was born in Noka.\n2. Dete works for Baru.\n4 searches left.",
        ),
        (
            "search[Noka lies]",
            "1. Noka lies in Pude.\n2. Vusi was born in Noka.\n3 searches left.",
        ),
        ("finish[Pude]", "Right."),
    ]


def test_passages_are_cut_and_kept_to_a_line():
    passages = [
        Passage("1", "a\n\nb\x00\x1b[31mc\u202e\ud800 " + "d" * 100),
        Passage("2", "short", title="A\ttitle"),
    ]
    first, second = show_passages(passages, 40).split("\n")
    assert first == "1. a b [31mc " + "d" * (40 - 3 - len("a b [31mc ")) + "..."
    assert second == "2. A title: short"
    assert not any(unicodedata.category(c).startswith("C") for c in first)


def test_the_instruction_says_the_limits():
    instruction = SearchQA(top_k=4, max_searches=9).instruction
    assert "up to 4 passages" in instruction
    assert "at most: 9." in instruction


def test_top_k_passages_are_shown():
    for top_k in (1, 5):
        game = SearchQA(top_k=top_k)
        game.reset(0)
        *passages, left = game.step("search[age]").observation.text.split("\n")
        assert len(passages) == top_k
        assert left == "4 searches left."
    assert game.step("search[zebra]").observation.text.startswith("No passage has")


# --- tasks and seeds


def test_seeds_ask_all_questions_in_turn():
    game = SearchQA()
    first = [game.reset(seed).text for seed in range(game.num_tasks)]
    assert len(set(first)) == game.num_tasks
    assert game.reset(game.num_tasks).text == first[0]
    assert game.reset(2**31 - 1, task=5).text == first[5]
