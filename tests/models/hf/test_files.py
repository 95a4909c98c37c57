"""Every way in which a checkpoint folder can be bad is one clear sentence."""

import json
import os
import pickle
import shutil

import chex
import numpy as np
import pytest
from safetensors.numpy import save_file

from ragen_jax.models.hf import files as hf_files
from ragen_jax.models.hf.weights import load_checkpoint
from tests.models.random_models import CASES, make_tensors, write_folder

TIED = CASES["small_tied"]
NORM = "model.norm.weight"


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "model", TIED, make_tensors(TIED))


def _without_norm(tensors):
    del tensors[NORM]


def _with_extra(tensors):
    tensors["model.surprise"] = np.zeros(2, np.float32)


def _with_wrong_shape(tensors):
    tensors[NORM] = np.zeros(63, np.float32)


def _with_float64(tensors):
    tensors[NORM] = tensors[NORM].astype(np.float64)


def _with_transposed_mlp(tensors):
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name] = np.ascontiguousarray(tensors[name].T)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without_norm, "lacks model.norm.weight"),
        (_with_extra, "holds model.surprise"),
        (_with_wrong_shape, r"norm.weight has shape \(63,\).* asks for \(64,\)"),
        (_with_float64, "dtype F64, only F32, F16, BF16"),
        (_with_transposed_mlp, r"has shape \(64, 96\).* asks for \(96, 64\)"),
    ],
)
def test_tensors_must_match_exactly(spoil, message, tmp_path):
    tensors = make_tensors(TIED)
    spoil(tensors)
    with pytest.raises(ValueError, match=message):
        load_checkpoint(write_folder(tmp_path, TIED, tensors))


def _content(replace):
    def spoil(path):
        path.write_bytes(replace(path.read_bytes()))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_content(lambda data: data[:-1]), "cut short"),
        (_content(lambda data: data[:100]), "cut short"),
        (_content(lambda data: data[:5]), "cut short"),
        (_content(lambda data: b""), "cut short"),
        (_content(lambda data: data + b"more"), "damaged"),
        (_content(lambda data: data[:8] + b"[" + data[9:]), "damaged"),
        (_content(lambda data: (1 << 40).to_bytes(8, "little")), "claims a header"),
        (_content(lambda data: pickle.dumps({"a": 1})), "pickle under another name"),
        (_content(lambda data: b"PK\x03\x04" + bytes(50)), "pickle under another"),
    ],
)
def test_damaged_weights_are_refused(spoil, message, folder):
    spoil(folder / "model.safetensors")
    with pytest.raises(ValueError, match=message) as caught:
        load_checkpoint(folder)
    assert "model.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.pt"])
def test_pickled_weights_are_refused(name, folder):
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(ValueError, match=f"pickled weights .{name}.*never read"):
        load_checkpoint(folder)


def test_a_folder_without_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has neither model.safetensors nor"):
        load_checkpoint(folder)


def write_index(folder, weight_map):
    content = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / hf_files.INDEX_FILE).write_text(content)


@pytest.fixture
def sharded(folder):
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    write_index(folder, dict.fromkeys(make_tensors(TIED), "part.safetensors"))
    load_checkpoint(folder)
    return folder


@pytest.mark.parametrize(
    ("file_name", "message"),
    [
        ("../outside.safetensors", "not a plain file name"),
        ("/etc/outside.safetensors", "not a plain file name"),
        ("a/../part.safetensors", "not a plain file name"),
        ("..\\outside.safetensors", "not a plain file name"),
        ("absent.safetensors", "has no file absent.safetensors"),
        ("pytorch_model.bin", "only .safetensors files are read"),
        (7, "names 7; only .safetensors"),
    ],
)
def test_an_index_cannot_name_other_files(file_name, message, sharded):
    shutil.copy(sharded / "part.safetensors", sharded.parent / "outside.safetensors")
    write_index(sharded, dict.fromkeys(make_tensors(TIED), file_name))
    with pytest.raises(ValueError, match=message):
        load_checkpoint(sharded)


def test_whole_weights_beside_shards_are_refused(sharded):
    shutil.copy(sharded / "part.safetensors", sharded / "model.safetensors")
    with pytest.raises(ValueError, match="may hold different weights"):
        load_checkpoint(sharded)


def test_an_index_must_agree_with_its_files(sharded):
    names = list(make_tensors(TIED))
    write_index(sharded, dict.fromkeys(names[:-1], "part.safetensors"))
    with pytest.raises(ValueError, match=f"disagree about {names[-1]}"):
        load_checkpoint(sharded)
    write_index(sharded, dict.fromkeys([*names, "phantom"], "part.safetensors"))
    with pytest.raises(ValueError, match="disagree about phantom"):
        load_checkpoint(sharded)
    write_index(sharded, {})
    with pytest.raises(ValueError, match="has no weight_map"):
        load_checkpoint(sharded)


def test_a_missing_shard_is_named(sharded):
    tensors = make_tensors(TIED)
    norm = tensors.pop(NORM)
    save_file(tensors, sharded / "part.safetensors")
    save_file({NORM: norm}, sharded / "rest.safetensors")
    where = dict.fromkeys(tensors, "part.safetensors")
    write_index(sharded, where | {NORM: "rest.safetensors"})
    load_checkpoint(sharded)
    (sharded / "rest.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no file rest.safetensors"):
        load_checkpoint(sharded)


def test_links_out_of_the_folder_are_refused(folder):
    outside = folder.parent / "outside.safetensors"
    (folder / "model.safetensors").rename(outside)
    (folder / "model.safetensors").symlink_to(outside)
    with pytest.raises(ValueError, match="is a link out of its folder"):
        load_checkpoint(folder)


def test_links_of_the_hubs_cache_are_followed(folder, tmp_path):
    blobs, snapshot = tmp_path / "repo/blobs", tmp_path / "repo/snapshots/abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in folder.iterdir():
        shutil.copy(path, blobs / f"hash-{path.name}")
        target = os.path.join("..", "..", "blobs", f"hash-{path.name}")
        (snapshot / path.name).symlink_to(target)
    chex.assert_trees_all_equal(load_checkpoint(snapshot), load_checkpoint(folder))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ("[1]", "must hold a JSON object, not list"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"model_type": "gpt2"}', "config.json: model_type = 'gpt2'"),
    ],
)
def test_bad_configs_are_refused(content, message, folder):
    (folder / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_checkpoint(folder)


def test_huge_json_is_refused(folder, monkeypatch):
    monkeypatch.setattr(hf_files, "MAX_JSON_BYTES", 10)
    with pytest.raises(ValueError, match="at most 10 are read"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no_such_folder", "there is no folder no_such_folder"),
        ("/no/such/folder", "there is no folder"),
        ("./nowhere", "there is no folder"),
        ("models/nowhere", "launch.fetch nowhere .of the hub: OWNER/nowhere. makes it"),
        ("owner/model", "owner/model is neither a folder nor a model that could be"),
        ("bad owner/model", "neither a folder nor a model that could be"),
    ],
)
def test_absent_checkpoints_are_one_sentence(source, message):
    with pytest.raises(ValueError, match=message) as caught:
        load_checkpoint(source)
    assert "\n" not in str(caught.value)


def test_a_file_is_no_folder(folder):
    with pytest.raises(ValueError, match="is a file; give the folder"):
        load_checkpoint(folder / "model.safetensors")
