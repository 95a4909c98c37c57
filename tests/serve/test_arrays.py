"""Environments of arrays, served: the same episodes and words as over an API."""

import asyncio
import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import frozen_lake, sudoku
from ragen_jax.rollout.host.text import ChatReply
from ragen_jax.rollout.keys import RolloutKeys
from ragen_jax.serve.build import build_game
from ragen_jax.serve.games import GameError, ServedArrayGame, read_answer
from ragen_jax.tasks.chat import build_chat
from ragen_jax.tasks.specs import env_specs


def make(module, **rollout):
    """A task with full wording and limits of its own."""
    config = module.get_config()
    config.prompt.style = "full"
    config.rollout.update(rollout)
    return config


@pytest.fixture(scope="module")
def lake():
    config = make(frozen_lake, max_turns=4, max_actions_per_turn=3)
    chat = build_chat(config, env_specs(config)[0])[1]
    return chat, ServedArrayGame("FrozenLake", chat)


REPLIES = ["Up || Left", "nonsense", "Right", "", "Down||Down||Down||Down", "right"]


def test_the_words_are_those_that_a_model_behind_an_api_is_sent(lake):
    chat, game = lake
    player, num_over = game.player(), 0
    for seed in range(20):
        level, noise = game.keys(np.uint32(seed))
        levels = chat.levels(RolloutKeys(level, noise, noise, jnp.zeros(1, bool)))
        episode = chat.episode(jax.tree.map(lambda x: x[0], levels), noise[0])
        shown = player.reset(seed, None, "training")
        for turn, answer in enumerate(np.random.default_rng(seed).permutation(REPLIES)):
            system, *_, last = episode.prompt(turn)
            words = (
                last["content"] if turn else f"{system['content']}\n\n{last['content']}"
            )
            assert shown.text == words
            assert shown.shown in words
            assert not shown.done
            reply = f"<think>a</think><answer>{answer}</answer>"
            said = ChatReply(reply, "stop", 1, 0, 1, "model")
            goes_on = asyncio.run(episode.step(turn, said))
            # With tags and without.
            shown = player.step(reply if turn % 2 else str(answer))
            if not goes_on or turn + 1 == episode.max_turns:
                break
        assert shown.done
        assert shown.truncated == (not shown.terminated)
        num_over += shown.terminated
    assert 0 < num_over < 20


def test_the_splits_share_no_level(lake):
    _, game = lake
    player = game.player()
    boards = [
        {player.reset(seed, None, split).shown for seed in range(100)}
        for split in ("training", "validation")
    ]
    assert len(boards[0]) > 50
    assert not boards[0] & boards[1]


def test_threads_share_the_programs(lake):
    _, game = lake

    def play(seed):
        player = game.player()
        first = player.reset(seed, None, "training")
        return [first, player.step("Left || Down"), player.step("Right")]

    alone = [play(seed) for seed in range(16)]
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert [*threads.map(play, range(16))] == alone


def test_levels_have_no_numbers(lake):
    _, game = lake
    with pytest.raises(GameError, match="levels of FrozenLake are made from seeds"):
        game.player().reset(0, 1, "training")


def test_a_game_that_reads_answers_itself():
    game = build_game(make(sudoku))
    player = game.player()
    assert player.reset(1, None, "training").shown == "3.1.\n.123\n2341\n...2"
    first = player.step("1,2,2 || 1,4,4 || 2,1,4 || no cell")
    assert (first.valid, first.done) == (True, False)
    assert first.shown == "3214\n4123\n2341\n...2"
    assert not player.step("no cell").valid
    last = player.step("<answer>4,1,1||4,2,4||4,3,3</answer>")
    assert (last.valid, last.terminated, last.success) == (True, True, True)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Up", "Up"),
        ("  Up \n", "Up"),
        ("", ""),
        ("<answer>Up</answer>", "Up"),
        (" <answer>Up || Left</answer> and more", "Up || Left"),
        ("<think>a <answer>b</think> <answer>Up</answer>", "Up"),
        ("a</think><answer>Up</answer>", "Up"),
        ("if a </answer>", "if a </answer>"),
        ("if a </answer> b", "if a </answer> b"),
        ("Let me see. <answer>Up || Left</answer>", "Up || Left"),
        ("<think>x</think> So: <answer>Up</answer> or", "Up"),
        ("<think>x <answer>Up</answer> but", "<think>x <answer>Up</answer> but"),
        ("<answer>open", "<answer>open"),
        ("\ud800", "?"),
    ],
)
def test_answers_are_found(text, answer):
    assert read_answer(text) == answer
