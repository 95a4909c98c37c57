"""A tokenizer of a small model that sees: bytes, words of the terse prompts, markup."""

import dataclasses
import functools
import json
import pathlib
import tempfile

import envs
from envs.base import PlayBudget
from ragen_jax.models.families import new_config
from ragen_jax.models.hf.weights import Texts, save_checkpoint
from ragen_jax.models.vision_config import VisionConfig
from ragen_jax.sft.pocket_tokenizer import build_tokenizer, save_tokenizer
from ragen_jax.text.pictures import Picture, show_boards
from ragen_jax.text.prompts import build_prompts
from ragen_jax.text.tokenizer import Tokenizer, load_tokenizer
from tests.models.vision_models import random_params

# Games with boards.
NAMES = ("sokoban", "frozen_lake", "game2048", "sudoku", "cube2x2")


def write_tokenizer(folder: pathlib.Path) -> None:
    """Its files, with the end of a turn as the stop token."""
    budget, texts = PlayBudget(3, 2, 6), []
    for name in NAMES:
        env = show_boards(envs.make(name), "image", 0)
        how = {"style": "terse", "budget": budget, "length_hint_words": 60}
        prompts = build_prompts(env, **how)
        texts += prompts.opening.texts + prompts.following.texts
        texts += env.action_vocabulary
    save_tokenizer(build_tokenizer(texts), str(folder))
    end = load_tokenizer(folder).id_of("<|im_end|>")
    settings = json.dumps({"eos_token_id": end})
    (folder / "generation_config.json").write_text(settings, encoding="utf-8")


@functools.cache
def _plain() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(pathlib.Path(folder))
        return load_tokenizer(folder)


def sighted_tokenizer(picture: Picture | None = None) -> Tokenizer:
    """It, with the text of a picture's ids."""
    if picture is None:
        return _plain()
    return dataclasses.replace(_plain(), picture_texts=picture.texts_of_ids())


def write_model(folder: pathlib.Path, seed: int = 0) -> pathlib.Path:
    """A random network that sees, of cells of 8 pixels, with its tokenizer."""
    words = folder.with_name("tokenizer")
    write_tokenizer(words)
    tokenizer = load_tokenizer(words)
    names = ("image_pad", "vision_start", "vision_end", "video_pad")
    ids = [tokenizer.id_of(f"<|{name}|>") for name in names]
    config = new_config(
        "qwen2_5_vl",
        vocab_size=-(-tokenizer.vocab_size // 8) * 8,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=2048,
        rope_theta=10_000.0,
        tie_word_embeddings=True,
        eos_token_ids=(tokenizer.id_of("<|im_end|>"),),
        vision=VisionConfig(
            depth=2,
            hidden_size=16,
            intermediate_size=24,
            num_heads=2,
            out_hidden_size=32,
            patch_size=4,
            window_size=16,
            fullatt_block_indexes=(1,),
        ),
        mrope_section=(2, 1, 1),
        image_token_id=ids[0],
        vision_start_token_id=ids[1],
        vision_end_token_id=ids[2],
        video_token_id=ids[3],
    )
    save_checkpoint(folder, config, random_params(config, seed), Texts(words))
    return folder
