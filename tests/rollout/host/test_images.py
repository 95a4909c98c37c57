"""Rollouts and updates of a network that sees the images of games in Python."""

import contextlib
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import world
from ragen_jax.memory.plan import make_plan
from ragen_jax.models.hf.weights import load_config
from ragen_jax.models.vision_decoder import Sight, spread
from ragen_jax.program.build import build_program
from ragen_jax.tasks.build import build_collect
from ragen_jax.text.tokenizer import load_tokenizer
from ragen_jax.types import HOST_PICTURE_IDS
from tests import commands
from tests.host_games.games import Corners
from tests.rollout.test_pictures import sampler_gap
from tests.text.sighted import write_model

GAME = "tests.host_games.games:Corners"
# Of the network's cells, 8 pixels each.
GRID = (2, 2)
LEARNS = {"loss__entropy_coeff": 0.1}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("sighted") / "model")


@pytest.fixture(scope="module")
def program(model):
    """One for all tests that change no setting."""
    with built(tiny_config(model, **LEARNS)) as program:
        yield program


def tiny_config(model, game=GAME, **changes):
    config = world.get_config()
    config.model.path = str(model)
    config.env.host = game
    config.host.num_workers = 1
    config.host.max_observation_tokens = 24
    config.rollout.num_groups, config.rollout.group_size = 2, 2
    config.rollout.max_turns, config.rollout.max_reply_tokens = 3, 8
    config.rollout.max_actions_per_episode = 3
    config.learner.minibatch_rows = config.learner.microbatch_rows = 4
    config.filter.keep_fraction = 1.0
    config.filter.keep_zero = True
    config.evaluation.every = None
    with config.unlocked(), config.host.ignore_type():
        config.host.image_grid = GRID
        for key, value in changes.items():
            section, name = key.split("__")
            config[section][name] = value
    return config


@contextlib.contextmanager
def built(config):
    program = build_program(config)
    yield program
    program.task.stop_games()


def play(program, seed=0):
    params = program.play_params(program.state)
    key = jax.random.key(seed)
    return program.task.training.play(params, program.task.dialogue, key)


def shown_to(program, rollout):
    """The gap to the learner that is given the rollout's images."""
    policy = program.policy.shown(rollout.images)
    return sampler_gap(program, rollout, policy)


@pytest.mark.slow
@pytest.mark.parametrize("turns", [None, 2])
def test_the_learner_sees_what_the_sampler_saw(model, program, turns):
    """In whole dialogues, and in windows of some turns."""
    if turns is None:
        rollout = play(program)
    else:
        window = {"rollout__context": "last_k", "rollout__context_turns": turns}
        with built(tiny_config(model, **window)) as program:
            rollout = play(program)
    assert [x.most for x in program.policy.pictures] == [turns or 3]
    parts = np.asarray(rollout.tokens) >= HOST_PICTURE_IDS
    played = np.asarray(rollout.turns.played).sum(axis=1)
    np.testing.assert_array_equal(parts.sum(axis=1), 4 * played)
    assert not (parts & np.asarray(rollout.loss_mask)).any()
    assert shown_to(program, rollout) < 1e-4
    # Other images: other probabilities of the same replies.
    inverted = {kind: 255 - x for kind, x in rollout.images.items()}
    assert shown_to(program, rollout.replace(images=inverted)) > 0.01


def test_tokens_name_the_images_that_the_game_showed(program):
    rollout, again = play(program), play(program)
    images = np.asarray(rollout.images[0])
    assert images.shape == (16, 16, 16, 3)
    tokens = np.asarray(rollout.tokens)
    numbers = (tokens[tokens >= HOST_PICTURE_IDS] - HOST_PICTURE_IDS) // 4
    sides = [Corners.image(side, 16) for side in range(4)]
    # Equal images are one, so that rows of a group begin with the same tokens.
    count = numbers.max() + 1
    assert set(numbers) == set(range(count))
    assert count <= 4
    for image in images[:count]:
        assert any(np.array_equal(image, side) for side in sides)
    assert not images[count:].any()
    for x, y in zip(jax.tree.leaves(rollout), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_token_shows_the_image_that_it_names(program):
    """As the same pixels do that are given beside anonymous tokens."""
    policy, picture = program.policy, program.task.dialogue.picture
    params = program.play_params(program.state)
    images = np.stack([Corners.image(side, 16) for side in range(4)])
    shown = [2, 0, 3]
    row = [5]
    for number in shown:
        row += [7, *picture.ids(number), 9]
    tokens = np.array([row], np.int32)
    is_part = tokens >= HOST_PICTURE_IDS
    seen = spread(policy.see(params, images[shown])[None], is_part)
    positions = np.arange(len(row), dtype=np.int32)[None]
    anonymous = np.where(is_part, policy.config.image_token_id, tokens)
    sight = Sight(seen, GRID)
    expected, _ = policy.forward(params, anonymous, positions, None, sight)
    seeing = policy.shown({0: jnp.asarray(images)})
    found, _ = seeing.forward(params, tokens, positions, None)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def updated(program, rollout):
    """Parameters after an update; the program keeps its own."""
    start = jax.tree.map(jnp.copy, program.state)
    state, _ = program.update(start, rollout, jax.random.key(1))[:2]
    return jax.device_get(state.params)


@pytest.fixture(scope="module")
def learned(program):
    """A rollout, and the parameters before and after an update on it."""
    rollout = jax.device_get(play(program))
    before = jax.tree.map(np.array, program.state.params)
    return rollout, before, updated(program, rollout)


def gaps(x, y):
    return jax.tree.map(lambda x, y: float(np.abs(x - y).max()), x, y)


def test_an_update_learns_from_images(program, learned):
    rollout, before, after = learned
    assert min(jax.tree.leaves(gaps(after, before)["visual"])) > 0
    # Learned from other images it is another network.
    blank = rollout.replace(images={0: np.zeros_like(rollout.images[0])})
    others = updated(program, blank)
    assert max(jax.tree.leaves(gaps(after, others)["layers"])) > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{"learner__share_prompts": True}, {"mesh__data": 2, "mesh__fsdp": 2}]
)
def test_shared_prompts_and_several_devices_learn_the_same(model, learned, how):
    rollout, _, after = learned
    with built(tiny_config(model, **LEARNS, **how)) as program:
        assert shown_to(program, play(program)) < 1e-4
        found = updated(program, rollout)
    assert max(jax.tree.leaves(gaps(found, after))) < 1e-5


def test_other_sizes_are_fitted_and_records_show_where_images_were(model):
    config = tiny_config(model)
    with config.unlocked():
        config.env.kwargs = {"size": 40, "text": ""}
    with built(config) as program:
        rollout = play(program)
    image = np.asarray(rollout.images[0])[0]
    assert image.shape == (16, 16, 3)
    assert {20, 230} <= set(np.unique(image).tolist())
    ids, tokenizer = np.asarray(rollout.tokens)[0].tolist(), program.task.tokenizer
    assert "".join(tokenizer.spell(ids)) == tokenizer.decode(ids)
    (record,) = program.task.records(rollout, 1)
    sign = "<|vision_start|>▦▦▦▦<|vision_end|>"
    assert str(record).count(sign) >= 3, record["turns"][0].keys()


def test_a_game_that_shows_several_images_fails_with_the_remedy(model):
    config = tiny_config(model, game="tests.host_games.games:Pictured")
    with built(config) as program, pytest.raises(ValueError, match="shows 2 images"):
        play(program)
    config = tiny_config(
        model,
        game="tests.host_games.games:Pictured",
        host__wrappers=(("images", 1),),
    )
    with built(config) as program:
        rollout = play(program)
    assert int(jnp.sum(rollout.tokens >= HOST_PICTURE_IDS)) > 0


def test_a_network_of_text_is_refused():
    config = tiny_config("pocket_host")
    with pytest.raises(ValueError, match=r"host.image_grid=\(2, 2\), but model.path"):
        build_program(config)


@pytest.mark.parametrize("grid", [(2,), (0, 2), ("a", 2), (2.0, 2)])
def test_a_bad_grid_is_refused(model, grid):
    config = tiny_config(model, host__image_grid=grid)
    with pytest.raises(ValueError, match="two whole numbers"):
        build_program(config)


def test_several_processes_are_refused(model, monkeypatch):
    config = tiny_config(model)
    program = build_program(config)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    of_whom = program.task, program.policy, program.players
    with pytest.raises(ValueError, match="one process numbers the images"):
        build_collect(config, *of_whom, num_groups=2, group_size=2)


def test_the_plan_counts_the_images(model):
    plan = make_plan(tiny_config(model), load_config(model), load_tokenizer(model))
    assert list(plan.pictures.values()) == [(3, 4)]
    images = 4 * 4 * 16 * 16 * 3
    without = tiny_config(model, host__image_grid=(1, 1))
    fewer = make_plan(without, load_config(model), load_tokenizer(model))
    assert plan.holdings["trajectories"] > fewer.holdings["trajectories"] + images / 2


@pytest.mark.slow
def test_a_run_trains_measures_and_is_evaluated(model, tmp_path):
    """By the commands, with adapters, information and gradient buckets."""
    changes = {
        "env__host": GAME,
        "host__image_grid": GRID,
        "host__num_workers": 1,
        "host__max_observation_tokens": 24,
        "lora__rank": 2,
        "diagnostics__every": 1,
        "diagnostics__num_samples": 4,
        "diagnostics__gradient_every": 1,
    }
    folder = tmp_path / "run"
    words = commands.train_command(model, folder, "world", **changes)
    done = commands.call(words)
    assert done.returncode == 0, done.stderr
    done = commands.call(commands.command("evaluate", f"--run={folder}"))
    assert done.returncode == 0, done.stderr
    of_plan = [w for w in words[3:] if not w.startswith("--workdir")]
    done = commands.call(commands.command("plan", *of_plan))
    assert "of 4 tokens" in done.stdout, done.stdout + done.stderr


def test_the_game_of_the_page_keeps_the_contract(tmp_path, monkeypatch, capsys):
    page = pathlib.Path("docs/visual.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (block,) = (block for block in blocks if "class Sides" in block)
    (tmp_path / "my_sides.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    done = commands.call(commands.command("check", "my_sides:Sides"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "my_sides:Sides keeps the contract" in done.stdout
