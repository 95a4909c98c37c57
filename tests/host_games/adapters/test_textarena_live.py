"""TextArena's own games through the adapter: all that can be played, and the others."""

import os
import re
import subprocess
import sys

import pytest

from ragen_jax.host_games import contract
from ragen_jax.host_games.adapters.textarena import TextArenaGame
from ragen_jax.host_games.adapters.textarena_games import (
    GAMES,
    REFUSED,
    VARIANTS,
    find_game,
)
from ragen_jax.host_games.adapters.textarena_opponents import ScriptedOpponent
from tests import commands
from tests.host_games import test_contract

commands.need("textarena")

from tests.host_games.adapters import textarena_players as players  # noqa: E402

HERE = __name__
IDS = players.played_ids()
# One of each game: its smallest board, or the one with the shortest id.
ONE_EACH = [
    min(
        (id for id in IDS if players.folder_of(id) == folder),
        key=lambda id: (not id.endswith("-tiny"), len(id)),
    )
    for folder in dict.fromkeys(map(players.folder_of, IDS))
]
# Seeds choose among so few problems, or show so little of them, that those of training
# and validation begin alike now and then.
SHARED = {
    "FrozenLake",
    "Game2048",
    "GameOfPureStrategy",
    "IndianPoker",
    "KuhnPoker",
    "LogicPuzzle",
    "Secretary",
    "Snake",
    "Sokoban",
    "Surround",
    "TruthAndDeception",
    "TwoDollar",
    "UltimateTexasHoldem",
}
# Random moves may take thousands of replies to end them: fewer are played.
LONG = {"LinesOfAction", "Stratego"}
MOST_OF_LONG = 40
# Of another variant of a game that is played to its end.
MOST_OF_VARIANT = 6
SLOW = pytest.mark.slow


def first_free(said):
    """Of tic-tac-toe, from the last board."""
    return re.findall(r"'(\[\d\])'", said.rpartition("Available Moves")[2])[0]


def test_tic_tac_toe_is_won_and_lost():
    game = TextArenaGame(id="TicTacToe-v0", opponent=f"{HERE}:first_free")
    shown = game.reset(0).text
    assert shown.startswith("You are Player 0 in Tic Tac Toe.")
    assert "'[8]'" in shown
    steps = [game.step(reply) for reply in ("4", "[2]", "6")]
    assert [step.reward for step in steps] == [0.0, 0.0, 1]
    assert "[Player 1] [0]" in steps[0].observation.text
    # One board: the one before the opponent's move is gone.
    assert steps[0].observation.text.count("Available Moves") == 1
    assert steps[-1].observation.text.endswith("Player 0 has won!")
    assert steps[-1].info["success"]
    game = TextArenaGame(id="TicTacToe-v0", player=1, opponent=f"{HERE}:first_free")
    game.reset(0)
    steps = [game.step(reply) for reply in ("8", "7")]
    assert [(step.reward, step.terminated) for step in steps] == [
        (0.0, False),
        (-1, True),
    ]
    assert steps[1].observation.text.endswith("Player 0 has won!")
    assert steps[1].info == {"success": False, "valid": True, "opponent_invalid": 0}


def test_frozen_lake_pays_its_share_of_the_way():
    game = TextArenaGame(id="FrozenLake-v0")
    game.reset(3)
    # It says what was wrong, and would end at a second mistake in a row.
    assert not game.step("jump").info["valid"]
    step, replies = None, iter(["up", "down"] * 60)
    while step is None or not step.terminated:
        step = game.step(next(replies))
    assert 0 <= step.reward < 1
    assert not step.info["success"]


def test_every_id_is_played_or_refused_with_a_reason():
    unknown = []
    for id in players.ENV_REGISTRY:
        try:
            find_game(id, players.folder_of(id))
        except ValueError as error:
            if "is not among those that have been tried" in str(error):
                unknown.append(id)
    assert unknown == []
    folders = {players.folder_of(id) for id in players.ENV_REGISTRY}
    plain = {id for id in players.ENV_REGISTRY if not id.endswith(VARIANTS)}
    assert set(GAMES) <= folders
    assert set(REFUSED) <= folders | plain


def test_the_contract_holds(monkeypatch):
    """Of one game: in which the others differ is compared between processes below."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    subject = test_contract.subject("textarena:Nim-v0")
    for check in contract.CHECKS:
        assert list(check(subject)) == []


def sides_of(id):
    return {"player": "both"} if GAMES[players.folder_of(id)].num_players == 2 else {}


@pytest.mark.parametrize(
    "id",
    [
        id if id in ("Nim-v0", "2048-v0") else pytest.param(id, marks=SLOW)
        for id in ONE_EACH
    ],
)
def test_random_replies_reach_an_end(id):
    game = players.make(id, **sides_of(id))
    is_scripted = isinstance(game._opponent, ScriptedOpponent)
    is_long = players.folder_of(id) in LONG
    most = MOST_OF_LONG if is_long else players.MAX_REPLIES
    episodes = [players.play(game, seed, most=most) for seed in (0, 1, 0)]
    for seen, step in episodes:
        assert step.terminated or is_long
        assert -1 <= step.reward <= max(1, len(seen))
        if game._opponent is not None and not is_scripted:
            # Two where no move was legal, which loses.
            assert step.info["opponent_invalid"] in (0, 1, 2)
    # Another time, after another episode.
    assert episodes[0][0] == episodes[2][0]


@SLOW
@pytest.mark.parametrize("id", [id for id in IDS if id not in ONE_EACH])
def test_other_variants_read_legal_replies(id):
    game = players.make(id, **sides_of(id))
    seen, _ = players.play(game, 0, most=MOST_OF_VARIANT)
    if GAMES[players.folder_of(id)].moves is not None:
        assert all(info["valid"] for _, _, info in seen[1:])


@SLOW
def test_episodes_are_the_same_in_another_process():
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    output = subprocess.run(
        [sys.executable, "-m", players.__name__, *ONE_EACH],
        # Sets are in another order there.
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        cwd=commands.ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    expected = [f"digest {id} {players.digest(id)}" for id in ONE_EACH]
    assert re.findall(r"^digest .*", output, re.M) == expected


@SLOW
@pytest.mark.parametrize(
    "id", [id for id in ONE_EACH if players.folder_of(id) not in SHARED]
)
def test_splits_are_apart_or_all_begin_alike(id):
    texts = []
    for split in ("training", "validation"):
        game = players.make(id, split)
        texts.append({game.reset(seed).text for seed in range(24)})
    assert len(texts[0] | texts[1]) == 1 or not texts[0] & texts[1]
