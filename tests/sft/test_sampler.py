"""The demonstrations of a step: each is drawn equally often, and is always the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from ragen_jax import rngs
from ragen_jax.program.build import POCKET
from ragen_jax.sft.data import (
    DemoTask,
    build_demo_tasks,
    build_mixtures,
    make_demonstrate,
)
from ragen_jax.sft.sampler import draw_episodes, make_draw
from ragen_jax.text.tokenizer import load_tokenizer
from tests.sft import tiny

ROOT = rngs.root_key(3)


def data_set(step, *, episodes, size, epochs):
    task = DemoTask(None, None, None, episodes, size, None)
    return draw_episodes(ROOT, jnp.int32(step), 0, task, epochs)


@pytest.mark.parametrize(
    ("episodes", "size", "epochs"), [(4, 10, 3), (5, 10, 2), (7, 7, 4), (8, 9, 1)]
)
def test_every_demonstration_is_learned_from_equally_often(episodes, size, epochs):
    num_steps = -(-epochs * size // episodes)
    draws = [
        data_set(step, episodes=episodes, size=size, epochs=epochs)
        for step in range(1, num_steps + 1)
    ]
    numbers = np.concatenate([d.numbers for d in draws])
    mask = np.concatenate([d.mask for d in draws])
    # Only the last step is filled up with episodes outside the mask.
    assert mask[: epochs * size].all()
    assert not mask[epochs * size :].any()
    in_order = numbers[mask].reshape(epochs, size)
    np.testing.assert_array_equal(
        np.sort(in_order, axis=1), np.tile(np.arange(size), (epochs, 1))
    )
    orders = {tuple(epoch) for epoch in in_order.tolist()}
    assert len(orders) == epochs
    assert tuple(range(size)) not in orders


def test_without_epochs_a_data_set_is_repeated_without_end():
    assert data_set(100, episodes=4, size=10, epochs=None).mask.all()


def test_without_a_data_set_every_step_has_other_episodes():
    first, second = (
        data_set(step, episodes=4, size=None, epochs=None) for step in (1, 2)
    )
    assert first.key != second.key
    np.testing.assert_array_equal(first.numbers, np.arange(4))


@pytest.fixture(scope="module")
def lake():
    """A small game with a data set of six demonstrations, and what plays them."""
    config = tiny.demo_config(
        "frozen_lake",
        episodes=4,
        num_demonstrations=6,
        max_turns=2,
        max_actions_per_turn=2,
        max_actions_per_episode=3,
        noise=0.5,
    )
    config.max_reply_tokens = 20
    spec = {"thought": "misreading", "noise": 0.5, "share": 1.0, "first_share": 1.0}
    config.demonstrators = ConfigDict({"player": spec})
    tasks = build_demo_tasks(config, load_tokenizer(POCKET))
    demonstrate = make_demonstrate(tasks, tokenization="symbols", discount=0.95)
    mixture, _ = build_mixtures(config.demonstrators, redraw=0.0)
    dialogues = {name: demo.task.dialogue for name, demo in tasks.items()}
    draw = make_draw(tasks, ROOT, num_epochs=3)
    play = jax.jit(demonstrate)
    return draw, lambda draws: play(draws, mixture, dialogues, {})


@pytest.mark.slow
def test_a_number_is_the_same_episode_in_every_epoch(lake):
    draw, play = lake
    episodes = {}
    for step in range(1, 5):
        draws = draw(step)
        batch, _ = play(draws)
        for number, tokens in zip(
            draws["frozen_lake"].numbers.tolist(), batch.tokens, strict=True
        ):
            episodes.setdefault(number, []).append(np.asarray(tokens).tobytes())
    assert sorted(episodes) == list(range(6))
    assert all(len(set(copies)) == 1 for copies in episodes.values())
    assert max(map(len, episodes.values())) > 1
    # Two of six levels with the same noise in play and thought are not a coincidence.
    assert len({copies[0] for copies in episodes.values()}) == 6


def test_masked_episodes_are_not_learned(lake):
    draw, play = lake
    # 3 epochs of 6 are 4 steps of 4 and one of 2.
    last = draw(5)["frozen_lake"]
    assert last.mask.tolist() == [True, True, False, False]
    batch, success = play({"frozen_lake": last})
    assert not batch.loss_mask[2:].any()
    assert batch.loss_mask[:2].any(axis=1).all()
    assert (batch.lengths[2:] == 0).all()
    assert float(success["frozen_lake"]) in (0.0, 0.5, 1.0)
    empty = last.replace(mask=jnp.zeros(4, bool))
    assert np.isnan(play({"frozen_lake": empty})[1]["frozen_lake"])
