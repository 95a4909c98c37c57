"""The vision tower and its decoder: windows, positions, embeddings, descriptions."""

import dataclasses
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragen_jax.models.config import ModelConfig
from ragen_jax.models.families import (
    check_reads_text_alone,
    new_config,
    read_config,
)
from ragen_jax.models.hf.weights import save_checkpoint
from ragen_jax.models.kv_cache import init_cache
from ragen_jax.models.lora import LoraConfig, build_lora_policy
from ragen_jax.models.policy import build_policy
from ragen_jax.models.vision import find_windows, picture_shift
from ragen_jax.models.vision_config import VisionConfig
from ragen_jax.models.vision_decoder import Sight, spread
from tests.models.vision_models import (
    GRID,
    NUM_PARTS,
    PICTURE,
    PICTURE_SIZE,
    hf_config,
    make_pictures,
    make_rows,
    random_params,
)


@pytest.mark.parametrize(
    ("rows", "cols", "side"), [(4, 4, 4), (6, 6, 4), (3, 9, 2), (1, 1, 4), (5, 2, 8)]
)
def test_patches_attend_within_their_window(rows, cols, side):
    unit = 4
    windows = find_windows(rows, cols, side, unit)
    place_of = {}
    for number, window in enumerate(windows.index):
        for patch in window[windows.is_patch[number]]:
            assert patch not in place_of
            place_of[patch] = number
    for patch in range(rows * cols * unit):
        row, col = divmod(patch // unit, cols)
        others = -(-cols // side)
        assert place_of[patch] == row // side * others + col // side
    flat = windows.index.reshape(-1)
    np.testing.assert_array_equal(flat[windows.place], np.arange(rows * cols * unit))


def positions_of(is_picture, grid):
    """The rule of the model's page, token by token."""
    rows, cols = grid
    positions, following, part = [], 0, 0
    for token in is_picture:
        if not token:
            positions.append((following,) * 3)
            following += 1
            continue
        row, col = divmod(part, cols)
        positions.append((following, following + row, following + col))
        part += 1
        if part == rows * cols:
            following, part = following + max(grid), 0
    return np.array(positions).T


@pytest.mark.parametrize("grid", [(2, 3), (3, 2), (1, 1)])
@pytest.mark.parametrize("cuts", [(), (4,), (6, 7, 20)])
def test_positions_follow_the_models_rule(grid, cuts):
    size = grid[0] * grid[1]
    row = [0] * 3 + [1] * size + [0] * 4 + [1] * size * 2 + [0] * 5
    is_picture = jnp.array([row, [0] * len(row)], bool)
    slots = jnp.broadcast_to(jnp.arange(len(row)), is_picture.shape)
    counts = is_picture.astype(jnp.int32)
    earlier = jnp.cumsum(counts, axis=1) - counts
    pieces = []
    for first, end in zip((0, *cuts), (*cuts, len(row)), strict=True):
        part = slice(first, end)
        shift = picture_shift(is_picture[:, part], earlier[:, part], grid)
        pieces.append(slots[None, :, part] + shift)
    got = np.concatenate(pieces, axis=2)
    np.testing.assert_array_equal(got[:, 0], positions_of(row, grid))
    np.testing.assert_array_equal(got[:, 1], positions_of([0] * len(row), grid))


def test_calls_that_split_a_picture_give_what_one_call_gives():
    config = read_config(hf_config("small"))
    policy, params = build_policy(config), random_params(config)
    tokens, pictures = make_rows(), make_pictures()
    num_rows, length = tokens.shape
    positions = np.broadcast_to(np.arange(length), tokens.shape)
    seen = policy.see(params, pictures.reshape(-1, *PICTURE_SIZE, 3))
    seen = seen.reshape(num_rows, 2, NUM_PARTS, -1)
    sight = spread(seen, tokens == PICTURE)
    whole, _ = policy.forward(params, tokens, positions, None, Sight(sight, GRID))
    cache, parts = init_cache(config, num_rows, length, jnp.float32), []
    for first, end in ((0, 10), (10, 30), (30, length)):
        hidden, cache = policy.forward(
            params,
            tokens[:, first:end],
            positions[:, first:end],
            cache,
            Sight(sight[:, first:end], GRID),
        )
        parts.append(hidden)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, rtol=0, atol=1e-4)
    # A picture that is not looked at changes nothing; one that is, does.
    swapped = Sight(spread(seen[:, ::-1], tokens == PICTURE), GRID)
    other = policy.forward(params, tokens, positions, None, swapped)[0]
    first = int(np.argmax(tokens[0] == PICTURE))
    np.testing.assert_array_equal(other[:, :first], whole[:, :first])
    assert np.abs(np.asarray(other - whole)[:, -1]).max() > 0.01


def test_without_pictures_it_is_a_qwen2_to_the_bit():
    config = read_config(hf_config("small"))
    names = (field.name for field in dataclasses.fields(ModelConfig))
    text = new_config("qwen2", **{name: getattr(config, name) for name in names})
    params = random_params(config)
    tokens = make_rows()
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    ours = build_policy(config).forward(params, tokens, positions, None)[0]
    plain = {key: value for key, value in params.items() if key != "visual"}
    theirs = build_policy(text).forward(plain, tokens, positions, None)[0]
    np.testing.assert_array_equal(ours, theirs)
    forward = build_policy(text).forward
    sight = Sight(None, GRID)
    with pytest.raises(ValueError, match="'qwen2' sees no pictures"):
        forward(plain, tokens, positions, None, sight)


def test_gradients_reach_the_tower():
    config = read_config(hf_config("small"))
    policy, params = build_policy(config), random_params(config)
    tokens, pictures = make_rows(), make_pictures()
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)

    def loss(params):
        seen = policy.see(params, pictures.reshape(-1, *PICTURE_SIZE, 3))
        seen = spread(seen.reshape(2, 2, NUM_PARTS, -1), tokens == PICTURE)
        sight = Sight(seen, GRID)
        hidden, _ = policy.forward(params, tokens, positions, None, sight)
        return jnp.mean(policy.logits(params, hidden)[:, -1] ** 2)

    gradients = jax.jit(jax.grad(loss))(params)["visual"]
    assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(gradients))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 36}, "4 x num_heads = 8"),
        ({"window_size": 100}, "multiple of 28"),
        ({"depth": 0}, "depth = 0; it must be a whole number of at least 1"),
        ({"hidden_act": "gelu"}, "only 'silu' is implemented"),
        ({"out_hidden_size": 10}, "must be hidden_size = 48"),
    ],
)
def test_towers_that_make_no_sense_are_refused(changes, message):
    hf = hf_config("small")
    hf["vision_config"] = hf["vision_config"] | changes
    with pytest.raises(ValueError, match=message):
        read_config(hf)


def test_descriptions_that_lack_something_are_refused():
    hf = hf_config("small")
    with pytest.raises(ValueError, match="lacks vision_config"):
        read_config({key: value for key, value in hf.items() if key != "vision_config"})
    sizes = {k: v for k, v in hf["vision_config"].items() if k != "num_heads"}
    with pytest.raises(ValueError, match="vision_config lacks num_heads"):
        read_config(hf | {"vision_config": sizes})
    with pytest.raises(ValueError, match="whose sum is half of head_dim, 6"):
        read_config(hf | {"rope_scaling": {"type": "mrope", "mrope_section": [2, 2]}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vision_config": [1]}, "must be an object"),
        ({"text_config": 3}, "text_config = 3 must be an object"),
        ({"rope_scaling": [2]}, "must be an object"),
        ({"rope_scaling": {"mrope_section": 6}}, "must be three whole numbers"),
        ({"rope_scaling": {"mrope_section": [2, 2, "2"]}}, "three whole numbers"),
        ({"image_token_id": "x"}, "must be token ids"),
    ],
)
def test_descriptions_of_the_wrong_kind_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        read_config(hf_config("small") | changes)


def test_models_of_text_import_no_tower():
    code = (
        "import sys, ragen_jax.program.build, ragen_jax.models.policy\n"
        "print([x for x in sys.modules if 'models.vision' in x])"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[-2] == "['ragen_jax.models.vision_config']"


@pytest.mark.parametrize("name", ["small", "other"])
def test_a_description_survives_the_way_out_and_in(name):
    config = read_config(hf_config(name))
    assert read_config(config.to_hf()) == config


def test_pictures_of_other_sizes_are_refused():
    config = VisionConfig.from_hf(hf_config("small")["vision_config"])
    with pytest.raises(ValueError, match="30 x 28 pixels; both"):
        config.grid(30, 28)


def test_adapters_of_text_and_tower_equal_the_merged_network():
    config = read_config(hf_config("small"))
    lora = LoraConfig(rank=2, alpha=4.0, targets="all")
    policy, base = build_lora_policy(config, lora=lora), random_params(config)
    adapters = jax.tree.map(lambda x: 0.1 + x, policy.init_adapters(jax.random.key(0)))
    assert {"visual", "layers"} <= adapters.keys()
    plain, merged = build_policy(config), policy.merge(base, adapters)
    tokens, pictures = make_rows(), make_pictures()
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)

    def hidden(policy, params):
        seen = policy.see(params, pictures.reshape(-1, *PICTURE_SIZE, 3))
        seen = spread(seen.reshape(2, 2, NUM_PARTS, -1), tokens == PICTURE)
        sight = Sight(seen, GRID)
        return policy.forward(params, tokens, positions, None, sight)[0]

    ours = hidden(policy, {"base": base, "adapters": adapters})
    expected = hidden(plain, merged)
    assert np.abs(expected - hidden(plain, base)).max() > 0.1
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-3)


def test_the_code_of_the_page_gives_the_logits(tmp_path):
    page = pathlib.Path("docs/visual.md").read_text(encoding="utf-8")
    code: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (block,) = (block for block in blocks if "def next_token_logits" in block)
    exec(block, code)
    config = read_config(hf_config("small"))
    params, tokens, pictures = random_params(config), make_rows(), make_pictures()
    save_checkpoint(tmp_path / "model", config, params)
    ours = code["next_token_logits"](tmp_path / "model", tokens[0], pictures[0])
    policy = build_policy(config)
    seen = policy.see(params, pictures[0])[None]
    sight = Sight(spread(seen, tokens[:1] == PICTURE), GRID)
    positions = np.arange(tokens.shape[1])[None]
    hidden, _ = policy.forward(params, tokens[:1], positions, None, sight)
    np.testing.assert_allclose(ours, policy.logits(params, hidden)[0, -1], atol=1e-5)


def test_clients_are_not_served_by_a_network_that_sees():
    with pytest.raises(ValueError, match="which clients cannot send here"):
        check_reads_text_alone(read_config(hf_config("small")))
    check_reads_text_alone(new_config(**SIZES))


SIZES = {
    "vocab_size": 20,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
}
