"""Demonstrations of a game that shows images, for a network that sees."""

import re

import jax
import numpy as np
import pytest

from configs import pocket, sft
from ragen_jax import rngs
from ragen_jax.sft.data import build_data_sets, build_mixtures
from ragen_jax.sft.train import build_program
from ragen_jax.types import HOST_PICTURE_IDS
from tests.host_games.games import Corners
from tests.text.sighted import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("sighted") / "model")


def config_of(model):
    config = sft.get_config("world,pocket_vision")
    config.model.path = str(model)
    config.lora.rank = None
    config.max_reply_tokens = 24
    config.evaluation.num_prompts = 4
    config.train.microbatch_episodes = 4
    with config.unlocked():
        config.host.update(max_observation_tokens=24, num_workers=1, image_grid=(2, 2))
        config.games.world.update(
            host="tests.host_games.games:Corners",
            num_demonstrations=8,
            episodes=4,
            max_turns=3,
            max_actions_per_episode=3,
        )
        config.demonstrators = {
            "solver": pocket.demonstrator("none", 0.0, share=1.0, first=1.0)
        }
    return config


@pytest.fixture(scope="module")
def program(model):
    return build_program(config_of(model), new_tokenizer=model)


def test_a_step_sees_the_images_and_trains_the_tower(program):
    before = jax.tree.map(np.array, program.init().params)
    state, metrics = program.step(program.init(), 1)
    # The rate is 0 in the first step of the warm-up.
    state, metrics = program.step(state, 2)
    assert float(metrics["demonstrated/world"]) == 1.0
    moved = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), state.params, before)
    assert min(jax.tree.leaves(moved["visual"])) > 0
    scores = program.score(state.params)
    assert 0 <= scores["world"]["success"] <= 1


def test_replies_name_what_the_images_show(model, program):
    config = config_of(model)
    tokenizer, network = program.model.tokenizer, program.model.config
    mixture, _ = build_mixtures(config.demonstrators, redraw=0.0)
    data = build_data_sets(program.tasks, mixture, rngs.root_key(0), network)["world"]
    images, seen = np.asarray(data.images[0]), []
    for tokens in np.asarray(data.rows.tokens)[:, 0].tolist():
        text = tokenizer.decode([i for i in tokens if i < HOST_PICTURE_IDS])
        sides = re.findall("<answer>(.*?)</answer>", text.rpartition("Where")[2])
        parts = [i - HOST_PICTURE_IDS for i in tokens if i >= HOST_PICTURE_IDS]
        assert len(sides) == len(parts) / 4 == 3
        for side, number in zip(sides, parts[::4], strict=True):
            shown = Corners.image(Corners.sides.index(side), 16)
            np.testing.assert_array_equal(images[number // 4], shown)
        seen += sides
    assert set(seen) == set(Corners.sides)
