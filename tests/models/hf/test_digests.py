"""Digests beside a folder's files: any damage to either is found."""

import shutil

import numpy as np
import pytest

from ragen_jax.models.hf.digests import DIGESTS_FILE, find_damage, write_digests
from ragen_jax.models.hf.files import model_files, resolve_checkpoint
from ragen_jax.models.hf.weights import load_config
from ragen_jax.program.build import POCKET


@pytest.fixture
def model(tmp_path):
    return shutil.copytree(POCKET, tmp_path / "model")


def test_the_pocket_model_is_listed_and_whole():
    assert (POCKET / DIGESTS_FILE).exists()
    assert find_damage(POCKET, model_files(POCKET)) is None
    assert resolve_checkpoint(POCKET) == POCKET


def test_a_folder_without_digests_is_not_verified(model):
    (model / DIGESTS_FILE).unlink()
    (model / "generation_config.json").write_text('{"eos_token_id": 2}')
    assert resolve_checkpoint(model) == model


def test_a_changed_file_is_named_with_the_way_out(model):
    (model / "config.json").write_text((model / "config.json").read_text() + " ")
    with pytest.raises(ValueError, match=r"config.json does not match.* or delete .*"):
        resolve_checkpoint(model)
    (model / DIGESTS_FILE).unlink()
    assert load_config(resolve_checkpoint(model)) == load_config(POCKET)


def test_an_added_and_a_removed_file_are_found(model):
    (model / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(ValueError, match=r"chat_template\.jinja is not listed"):
        resolve_checkpoint(model)
    (model / "chat_template.jinja").unlink()
    (model / "notes.txt").write_text("no file of the model")
    assert resolve_checkpoint(model) == model
    (model / "generation_config.json").unlink()
    with pytest.raises(ValueError, match=r"generation_config\.json.* does not exist"):
        resolve_checkpoint(model)


@pytest.mark.parametrize("trials", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_every_damage_is_found(model, trials):
    """One flipped bit, a zeroed block or a cut, in any file, the digests' included."""
    draw = np.random.default_rng(0)
    names = [*model_files(model), DIGESTS_FILE]
    for trial in range(trials):
        path = model / names[trial % len(names)]
        data = path.read_bytes()
        damaged, start = bytearray(data), int(draw.integers(len(data)))
        kind = trial // len(names) % 3
        if kind == 0:
            damaged[start] ^= 1 << draw.integers(8)
        elif kind == 1:
            damaged[start : start + 64] = bytes(len(damaged[start : start + 64]))
        else:
            damaged = damaged[:start]
        if damaged == data:
            continue
        path.write_bytes(damaged)
        assert find_damage(model, model_files(model)) is not None, (path.name, start)
        path.write_bytes(data)
    assert find_damage(model, model_files(model)) is None


def test_names_may_lie_in_folders(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c d").write_bytes(b"1")
    write_digests(tmp_path, ["a/b/c d"])
    assert find_damage(tmp_path, ["a/b/c d"]) is None
    (tmp_path / "a" / "b" / "c d").write_bytes(b"2")
    assert find_damage(tmp_path, ["a/b/c d"]).startswith("a/b/c d does not match")
