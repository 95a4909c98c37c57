"""The adapter's own share in TextArena's games: sides, opponents, texts, randomness.

The games are stand-ins (`textarena_stand_in.py`); `test_textarena_live.py` plays the
real ones.
"""

import random
import re
import subprocess
import sys
import types

import numpy as np
import pytest

from ragen_jax.host_games.adapters import textarena_games
from ragen_jax.host_games.adapters.textarena import TextArenaGame
from ragen_jax.host_games.adapters.textarena_opponents import (
    ModelOpponent,
    OpponentError,
    Position,
    RandomOpponent,
    read_answer,
)
from ragen_jax.host_games.base import SPLITS
from ragen_jax.host_games.common.http import HttpError
from tests import commands
from tests.host_games.adapters import textarena_stand_in
from tests.host_games.stub_server import answering

HERE = __name__
NIM = {"id": "Nim-v0"}
GUESS = {"id": "GuessTheNumber-v0"}


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch):
    monkeypatch.setitem(sys.modules, "textarena", textarena_stand_in)


def takes_one(said):
    return "[0 1]"


def takes_what_helps(said):
    """Leaves a multiple of three, from the last count it was told."""
    left = int(re.findall(r"left: (\d+)", said)[-1])
    return f"[0 {left % 3 or 1}]"


def says_nonsense(said):
    return "pass"


def waits(said):
    return "[wait]"


def says_nothing(said):
    return None


def draws(said):
    return f"[0 {random.choice('12')}]"


def play(game, replies, seed=0):
    steps = [game.reset(seed)]
    for reply in replies:
        steps.append(game.step(reply))
        if steps[-1].terminated:
            break
    return steps


# --- what is shown, and what is paid


def test_a_game_from_the_first_side():
    game = TextArenaGame(**NIM, opponent=f"{HERE}:takes_one")
    first, *steps = play(game, ["0 1", "[0 2]", "0 2"])
    assert first.text == "You are side 0.\nleft: 7"
    # The board before the opponent's move is not shown, nor one's own words.
    assert steps[0].observation.text == "[Player 1] [0 1]\nleft: 5"
    assert [step.reward for step in steps] == [0.0, 0.0, 1]
    assert [step.terminated for step in steps] == [False, False, True]
    assert steps[-1].observation.text == "left: 0\nSide 0 took the last."
    assert steps[-1].info == {"success": True, "valid": True, "opponent_invalid": 0}


def test_the_second_side_begins_after_the_opponent():
    game = TextArenaGame(**NIM, player=1, opponent=f"{HERE}:takes_what_helps")
    first, *steps = play(game, ["0 1"] * 3)
    assert first.text == "You are side 1.\n[Player 0] [0 1]\nleft: 6"
    assert (steps[-1].reward, steps[-1].info["success"]) == (-1, False)
    assert steps[-1].observation.text.endswith("Side 0 took the last.")


def test_sides_alternate_by_seed():
    game = TextArenaGame(**NIM, player="both")
    for seed in range(4):
        assert game.reset(seed).text.startswith(f"You are side {seed % 2}.")


def test_rules_may_be_left_out():
    game = TextArenaGame(**NIM, show_rules=False)
    assert game.reset(0).text == "left: 7"


def test_a_reply_that_cannot_be_read_is_said_and_the_second_loses():
    game = TextArenaGame(**NIM)
    _, *steps = play(game, ["take 9", "0 3"])
    assert steps[0].observation.text == "[take 9] is no move."
    assert (steps[0].terminated, steps[0].info["valid"]) == (False, False)
    assert (steps[1].terminated, steps[1].reward) == (True, -1)
    assert steps[1].info["valid"] is False


def test_one_players_success_is_the_full_reward():
    game = TextArenaGame(**GUESS)
    game.reset(3)
    number = game._env.number
    step = game.step(str(number))
    assert step.info == {"success": True, "valid": True}
    assert (step.reward, step.terminated) == (1.0, True)
    game.reset(3)
    step = game.step(str(number + 1))
    assert (step.reward, step.info["success"]) == (0.5, False)


def test_the_instruction_says_whether_brackets_are_added():
    assert "may be left out" in TextArenaGame(**NIM).instruction
    raw = TextArenaGame(id="Nim-v0-raw")
    assert "with its brackets" in raw.instruction
    raw.reset(0)
    assert raw.step("0 1").info["valid"] is False
    assert TextArenaGame(**NIM, instruction="Take.").instruction == "Take."


def test_arguments_of_the_game():
    game = TextArenaGame(**NIM, make_kwargs={"size": 1})
    assert "left: 1" in game.reset(0).text
    assert game.step("0 1").info["success"]


# --- opponents


@pytest.mark.parametrize("seed", range(20))
def test_random_opponents_move_legally(seed):
    game = TextArenaGame(**NIM, player="both")
    steps = play(game, ["0 1"] * 7, seed)[1:]
    assert steps[-1].terminated
    assert steps[-1].info["opponent_invalid"] == 0
    assert steps[-1].info["valid"]


def test_random_moves_come_from_the_seed_and_are_all_of_them():
    seen = set()
    for seed in range(20):
        texts = []
        for split in SPLITS:
            game = TextArenaGame(split, **NIM, player=1)
            texts.append(game.reset(seed).text)
            assert TextArenaGame(split, **NIM, player=1).reset(seed).text == texts[-1]
        seen |= set(texts)
    assert seen == {
        f"You are side 1.\n[Player 0] [0 {n}]\nleft: {7 - n}" for n in (1, 2)
    }


@pytest.mark.parametrize(
    ("moves", "legal", "expected"),
    [
        (["a", "b", "c"], {"b"}, {"b"}),
        (["a", "b", "c"], {"a", "c"}, {"a", "c"}),
        (["a", "b"], set(), {"a", "b"}),
        ([], set(), {""}),
    ],
)
def test_any_legal_move_or_any_at_all(moves, legal, expected):
    opponent = RandomOpponent(lambda env, shown, draw: moves)
    opponent.reset(0)
    position = Position("", "", None, legal.__contains__)
    assert {opponent.reply(position) for _ in range(60)} == expected


def test_allocations_are_complete_and_all_of_them():
    env = types.SimpleNamespace(field_names=["A", "B", "C"], num_total_units=3)
    draw = random.Random(0)
    texts = {textarena_games._blotto(env, "", draw)[0] for _ in range(300)}
    shares = {tuple(map(int, re.findall(r"\d", text))) for text in texts}
    assert len(texts) == len(shares) == 10
    assert all(sum(each) == 3 for each in shares)


def test_an_opponent_that_loses_before_the_first_reply_pays_nothing():
    game = TextArenaGame(**NIM, player=1, opponent=f"{HERE}:says_nonsense")
    with pytest.raises(OpponentError, match=r"10 episodes.*over before.*by 2 invalid"):
        game.reset(0)


@pytest.mark.parametrize(
    ("message", "reply"),
    [
        ({"content": [{"type": "text", "text": "0 1"}]}, "0 1"),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "?"}]},
                    {"type": "text", "text": "<answer>0 2</answer>"},
                ]
            },
            "0 2",
        ),
        ({"content": None, "reasoning_content": "Take 0 1, or"}, ""),
        ({"content": "0 3", "reasoning": "Take 0 1"}, "0 3"),
    ],
)
def test_replies_of_servers_that_part_thoughts(message, reply):
    answer = (200, {"choices": [{"message": {"role": "assistant"} | message}]})
    with answering(lambda path, headers, document: answer) as (url, _):
        opponent = ModelOpponent(url, "m", instruction="Play.", seconds=5)
        opponent.reset(0)
        position = Position("", "Your move.", None, None)
        assert opponent.reply(position) == reply


def test_a_scripted_opponent_must_say_something():
    game = TextArenaGame(**NIM, opponent=f"{HERE}:says_nothing")
    game.reset(0)
    with pytest.raises(OpponentError, match="says_nothing returned NoneType"):
        game.step("0 1")


def test_an_opponent_must_end_its_turn():
    game = TextArenaGame(**NIM, opponent=f"{HERE}:waits")
    game.reset(0)
    with pytest.raises(
        OpponentError, match="moved 200 times in a row, and Nim-v0 asks"
    ):
        game.step("0 1")


def completion(text):
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}


def test_a_model_is_told_what_the_game_says_to_its_side():
    said = "<think>[0 9]</think><answer>0 1</answer>"
    with answering(lambda path, headers, document: completion(said)) as (url, sent):
        game = TextArenaGame(
            **NIM, opponent_url=f"{url}/v1", opponent_model="old", opponent_seconds=5
        )
        assert game.waits
        assert game.max_step_seconds == 5
        steps = play(game, ["0 2", "0 1"], seed=4)[1:]
    assert steps[0].observation.text == "[Player 1] [0 1]\nleft: 4"
    assert [path for path, _ in sent] == ["/v1/chat/completions"] * 2
    document = sent[1][1]
    assert (document["model"], document["seed"]) == ("old", 8)
    roles, texts = zip(
        *((m["role"], m["content"]) for m in document["messages"]), strict=True
    )
    assert roles == ("system", "user", "assistant", "user")
    assert texts[0].startswith(game.instruction)
    assert texts[1:] == (
        "You are side 1.\n[Player 0] [0 2]\nleft: 5",
        said,
        "[Player 0] [0 1]\nleft: 3",
    )


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ((500, b"busy"), HttpError, "status 500: busy"),
        ((200, {"choices": []}), OpponentError, "not a chat completion"),
        (completion(None), OpponentError, "answered with NoneType for a text"),
    ],
)
def test_what_a_server_does_wrong_is_said(answer, error, words):
    with answering(lambda path, headers, document: answer) as (url, _):
        game = TextArenaGame(**NIM, opponent_url=url, opponent_model="m")
        game.reset(0)
        with pytest.raises(error, match=words):
            game.step("0 1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a</think><answer> 4 </answer>", "4"),
        ("<answer>1</answer> or <ANSWER>2</ANSWER>", "2"),
        ("<think><answer>1</answer></think>\n[2]", "[2]"),
        ("[3]", "[3]"),
    ],
)
def test_answers_are_read(text, expected):
    assert read_answer(text) == expected


# --- randomness


def test_games_do_not_share_random_numbers():
    """Neither with each other nor with the process: each has its own states."""
    expected = []
    for seed in (1, 2):
        game = TextArenaGame(**GUESS)
        game.reset(seed)
        expected.append(game.step("0").observation.text)
    games = TextArenaGame(**GUESS), TextArenaGame(**GUESS)
    random.seed(99)
    np.random.seed(99)
    before = random.getstate(), np.random.get_state()[1].tolist()
    games[0].reset(1)
    games[1].reset(2)
    texts = [game.step("0").observation.text for game in games]
    assert texts == expected
    assert texts[0] != texts[1]
    after = random.getstate(), np.random.get_state()[1].tolist()
    assert before == after


def test_scripted_opponents_that_draw_are_repeatable():
    games = [TextArenaGame(**NIM, opponent=f"{HERE}:draws") for _ in range(2)]
    for seed in range(8):
        texts = []
        for game in games:
            random.random()
            texts.append(
                [x.observation.text for x in play(game, ["0 1"] * 3, seed)[1:]]
            )
        assert texts[0] == texts[1]


def test_looking_for_a_legal_move_draws_nothing_from_the_game():
    game = TextArenaGame(**NIM)
    game.reset(0)
    with game._random.running():
        before = random.getstate()
        assert game._is_legal("0 2")
        assert not game._is_legal("0 3")
        assert random.getstate() == before
    assert game._env.left == 7
    assert game._env.state.error_count == 0


# --- demonstrations


def test_an_expert_is_followed_where_it_wins():
    how = NIM | {"opponent": f"{HERE}:takes_one", "expert": f"{HERE}:takes_what_helps"}
    game = TextArenaGame(**how)
    game.reset(0)
    assert game.solution() == ("[0 1]", "[0 2]", "[0 2]")
    # From anywhere; and to look changes nothing.
    game.step("0 2")
    plan = game.solution()
    assert game.solution() == plan == ("[0 1]", "[0 2]")
    assert [game.step(reply).info["success"] for reply in plan] == [False, True]
    assert game.solution() == ()
    # Against one that knows the way, too, no way is known.
    lost = TextArenaGame(**how | {"player": 1, "opponent": f"{HERE}:takes_what_helps"})
    lost.reset(0)
    assert lost.solution() == ()


def test_a_random_expert_knows_some_ways_against_the_moves_to_come():
    game, num_won = TextArenaGame(**NIM, player="both", expert="random"), 0
    for seed in range(24):
        game.reset(seed)
        plan = game.solution()
        num_won += bool(plan)
        steps = [game.step(reply) for reply in plan]
        assert not plan or steps[-1].info["success"]
        assert all(step.info["valid"] for step in steps)
    assert 4 < num_won < 20


def test_nobody_demonstrates_unless_asked():
    game = TextArenaGame(**NIM)
    game.reset(0)
    assert game.solution() == ()


# --- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "Nim-v1"}, "id is 'Nim-v1', which textarena does not have; use one of"),
        ({"id": "Wordle-v0"}, "textarena:Wordle-v0 cannot be played: it downloads"),
        ({"id": "Sudoku-v0-hard-train"}, "it may take minutes to draw a problem"),
        ({"id": "Mine-v0"}, "it is not among those that have been tried"),
        ({"id": "Tak-v0"}, "moves of Tak-v0 are words that cannot be listed"),
        (NIM | {"player": 2}, "player is 2; use 0 or 1 or both"),
        (
            GUESS | {"player": "both"},
            "player is 'both', but GuessTheNumber-v0 is for one",
        ),
        (GUESS | {"opponent": "random"}, "opponent is 'random' but GuessTheNumber-v0"),
        (NIM | {"opponent": "best"}, "opponent is 'best'; use random or package"),
        (NIM | {"opponent": "no_such:f"}, "but there is no module no_such"),
        (NIM | {"opponent": f"{HERE}:no"}, "has no function no"),
        (NIM | {"opponent_model": "m"}, "opponent_model is 'm' without opponent_url"),
        (NIM | {"opponent_seconds": 3}, "opponent_seconds is 3 without opponent_url"),
        (NIM | {"opponent_url": "http://x"}, "opponent_model is None; give the name"),
        (
            NIM | {"opponent_url": "x", "opponent_model": "m"},
            "opponent_url is 'x'; use",
        ),
        (
            NIM | {"opponent_url": "http://x", "opponent": "random"},
            "opponent is 'random' beside opponent_url",
        ),
        (NIM | {"expert": "best"}, "expert is 'best'; use random or package"),
        (GUESS | {"expert": f"{HERE}:no"}, "expert is '.*has no function no"),
        (
            {"id": "Tak-v0", "opponent": f"{HERE}:waits", "expert": "random"},
            "expert is 'random', but moves of Tak-v0 are not listed",
        ),
        (
            NIM
            | {"opponent_url": "http://x", "opponent_model": "m", "expert": "random"},
            "expert is 'random' beside opponent_url, whose model need not repeat",
        ),
        (NIM | {"make_kwargs": [1]}, r"make_kwargs is \[1\]; use a mapping"),
        (NIM | {"show_rules": 1}, "show_rules is 1; use True or False"),
        (NIM | {"split": "test"}, "split is 'test'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TextArenaGame(**options)


def test_some_games_need_a_later_python(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 11))
    with pytest.raises(ValueError, match=r"Chess-v0 cannot be played: it needs Python"):
        textarena_games.find_game("Chess-v0", "Chess")
    monkeypatch.setattr(sys, "version_info", (3, 12))
    assert textarena_games.find_game("Chess-v0", "Chess").num_players == 2


def test_there_are_no_tasks():
    with pytest.raises(ValueError, match="no tasks"):
        TextArenaGame(**NIM).reset(0, task=1)


def test_the_package_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(ImportError, match=r"need the package textarena: .*\[textarena"):
        TextArenaGame(**NIM)


def test_nothing_is_imported_unless_it_is_played():
    code = (
        "import sys, ragen_jax.host_games.adapters.textarena\n"
        "print(sorted({'textarena', 'nltk', 'jax'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=commands.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_nothing_is_both_played_and_refused():
    assert not set(textarena_games.GAMES) & set(textarena_games.REFUSED)
    assert set(textarena_games._NEED_PYTHON_3_12) < set(textarena_games.GAMES)
