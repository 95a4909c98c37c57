"""Networks that see, side by side with transformers.

Needs torch, as `test_parity_live`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.base import PlayBudget
from envs.pictures import draw_cells
from ragen_jax.models.families import read_config
from ragen_jax.models.hf.weights import load_checkpoint, save_checkpoint
from ragen_jax.models.kv_cache import init_cache
from ragen_jax.models.policy import build_policy
from ragen_jax.models.vision import _patches
from ragen_jax.models.vision_config import BoardPictures
from ragen_jax.models.vision_decoder import Sight, spread
from ragen_jax.program.build import BUILT_IN
from ragen_jax.text.dialogue import build_dialogue
from ragen_jax.text.tokenizer import load_tokenizer
from ragen_jax.types import PICTURE_IDS
from tests import commands
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

pytestmark = pytest.mark.live
NAMES = ["small", "other"]


@pytest.fixture(scope="module", autouse=True)
def _torch():
    commands.need("torch")


def write(folder, name):
    config = read_config(hf_config(name))
    save_checkpoint(folder, config, random_params(config))
    return folder


def their_inputs(tokens, pictures):
    import torch
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
        Qwen2VLImageProcessorPil,
    )

    sizes = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 1280}
    processor = Qwen2VLImageProcessorPil(size=sizes)
    images = list(pictures.reshape(-1, *pictures.shape[-3:]))
    seen = processor(images=images, return_tensors="pt")
    ids = torch.tensor(tokens).long()
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == PICTURE).int(),
        **seen,
    }


def their_model(folder):
    from transformers import Qwen2_5_VLForConditionalGeneration

    return Qwen2_5_VLForConditionalGeneration.from_pretrained(folder).eval()


def our_sight(policy, params, tokens, pictures, num_pictures):
    flat = pictures[:, :num_pictures].reshape(-1, *PICTURE_SIZE, 3)
    seen = policy.see(params, flat)
    seen = seen.reshape(len(pictures), num_pictures, NUM_PARTS, -1)
    return Sight(spread(seen, tokens == PICTURE), GRID)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [(168, 168), (112, 252), (336, 140), (28, 56)])
def test_towers_agree_on_pixels_and_embeddings(name, size, tmp_path):
    import torch

    folder = write(tmp_path / "model", name)
    config, params = load_checkpoint(folder)
    pictures = np.random.RandomState(3).randint(0, 256, (2, 1, *size, 3))
    pictures = pictures.astype(np.uint8)
    theirs = their_inputs(make_rows(), pictures)
    patches = theirs["pixel_values"].numpy().reshape(2, -1, 3, 2, 14 * 14)
    ours = np.asarray(_patches(jnp.asarray(pictures[:, 0]), config.vision))
    for frame in range(2):
        expected = patches[:, :, :, frame].reshape(ours.shape)
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)
    tower = their_model(folder).model.visual
    with torch.no_grad():
        out = tower(theirs["pixel_values"], theirs["image_grid_thw"]).pooler_output
    seen = build_policy(config).see(params, pictures[:, 0])
    expected = out.numpy().reshape(seen.shape)
    assert expected.std() > 0.3
    np.testing.assert_allclose(seen, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_pictures", [0, 1, 2])
def test_logits_and_greedy_replies_equal_those_of_transformers(
    name, num_pictures, tmp_path
):
    import torch

    folder = write(tmp_path / "model", name)
    config, params = load_checkpoint(folder)
    policy, tokens = build_policy(config), make_rows()
    ends = {0: 5, 1: 24, 2: tokens.shape[1]}
    tokens, pictures = tokens[:, : ends[num_pictures]], make_pictures()
    theirs = their_inputs(tokens, pictures[:, : max(num_pictures, 1)])
    if not num_pictures:
        theirs = {k: theirs[k] for k in ("input_ids", "attention_mask")}
    model, num_new = their_model(folder), 6
    with torch.no_grad():
        expected = model(**theirs).logits.numpy()
        replies = model.generate(
            **theirs, max_new_tokens=num_new, do_sample=False, eos_token_id=None
        )
    length = tokens.shape[1]
    positions = np.broadcast_to(np.arange(length + num_new), (2, length + num_new))
    sight = None
    if num_pictures:
        sight = our_sight(policy, params, tokens, pictures, num_pictures)
    hidden, _ = policy.forward(params, tokens, positions[:, :length], None, sight)
    logits = policy.logits(params, hidden)
    assert expected.std() > 0.5
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)

    cache = init_cache(config, 2, length + num_new, jnp.float32)
    hidden, cache = policy.forward(params, tokens, positions[:, :length], cache, sight)
    np.testing.assert_allclose(
        policy.logits(params, hidden), expected, rtol=0, atol=1e-4
    )
    ours = [jnp.argmax(policy.logits(params, hidden)[:, -1], axis=-1)]
    if sight is not None:
        sight = Sight(None, GRID)
    for i in range(num_new - 1):
        at = positions[:, length + i : length + i + 1]
        token = ours[-1][:, None].astype(jnp.int32)
        hidden, cache = policy.forward(params, token, at, cache, sight)
        ours.append(jnp.argmax(policy.logits(params, hidden)[:, -1], axis=-1))
    np.testing.assert_array_equal(np.stack(ours, axis=1), replies[:, length:].numpy())


@pytest.mark.parametrize("name", NAMES)
def test_checkpoints_of_transformers_are_read(name, tmp_path):
    folder = write(tmp_path / "model", name)
    their_model(folder).save_pretrained(tmp_path / "theirs")
    config, params = load_checkpoint(folder)
    again, read = load_checkpoint(tmp_path / "theirs")
    assert again.vision == config.vision
    assert again.mrope_section == config.mrope_section
    for ours, theirs in zip(*map(jax.tree.leaves, (params, read)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_shipped_model_replies_as_in_transformers():
    import torch
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
        Qwen2VLImageProcessorPil,
    )

    folder = BUILT_IN["pocket_vision"]
    config, params = load_checkpoint(folder)
    tokenizer = load_tokenizer(folder)
    env, num_new = envs.make("sokoban"), 24
    how = {"style": "terse", "tokenization": "symbols", "length_hint_words": 60}
    dialogue = build_dialogue(
        env,
        tokenizer,
        budget=PlayBudget(3, 4, 10),
        max_reply_tokens=num_new,
        observation="image",
        **how,
    )
    cells = draw_cells(env.symbols, env.meanings, config.vision.cell)
    policy = build_policy(config, pictures=(BoardPictures(0, cells, (6, 6), 3),))
    state = env.draw_level(jax.random.key(3), env.default_params, jnp.bool_(False))
    fields = env.text_fields(state, env.default_params)
    fields |= {"turn": jnp.int32(1), "actions_left": jnp.int32(10)}
    span = dialogue.opening.tokens(fields)
    tokens = np.asarray(span.tokens)[None, : int(span.length)]
    pixels = env.pixels(state, env.default_params, config.vision.cell)

    side = config.vision.cell
    processor = Qwen2VLImageProcessorPil(
        patch_size=config.vision.patch_size,
        size={"shortest_edge": side**2, "longest_edge": side**2 * 1280},
    )
    seen = processor(images=[np.asarray(pixels)], return_tensors="pt")
    is_cell = tokens >= PICTURE_IDS
    ids = torch.tensor(np.where(is_cell, config.image_token_id, tokens)).long()
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == config.image_token_id).int(),
        **seen,
    }
    model = their_model(folder)
    with torch.no_grad():
        expected = model(**inputs).logits.numpy()
        reply = model.generate(**inputs, max_new_tokens=num_new, do_sample=False)
    positions = np.arange(tokens.shape[1])[None]
    hidden, _ = policy.forward(params, tokens, positions, None)
    logits = policy.logits(params, hidden)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-3)
    ours = tokens
    for _ in range(reply.shape[1] - tokens.shape[1]):
        positions = np.arange(ours.shape[1])[None]
        hidden, _ = policy.forward(params, ours, positions, None)
        best = np.argmax(policy.logits(params, hidden)[0, -1])
        ours = np.append(ours, best.astype(np.int32)[None, None], axis=1)
    written = reply[0, tokens.shape[1] :].numpy()
    np.testing.assert_array_equal(ours[0, tokens.shape[1] :], written)
    assert "</think><answer>" in tokenizer.decode(written)
