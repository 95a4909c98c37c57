"""Hugging Face folders both ways, and every way in which they can be bad."""

import json
import os
import subprocess

import chex
import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from ragen_jax.models.hf import files as hf_files
from ragen_jax.models.hf import weights as hf_weights
from ragen_jax.models.hf.weights import Texts, load_checkpoint, save_checkpoint
from tests.models.random_models import CASES, make_tensors, write_folder

TIED, UNTIED = CASES["small_tied"], CASES["own_head_size"]
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "model", TIED, make_tensors(TIED))


def stored_bytes(folder):
    """Tensor name -> (dtype, shape, bytes) over all files of a folder."""
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118  (not a dict)
                tensor = file.get_tensor(name)
                found[name] = (str(tensor.dtype), tensor.shape, tensor.tobytes())
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hf_config", [TIED, UNTIED])
def test_import_then_export_gives_the_same_bytes(hf_config, dtype, tmp_path):
    tensors = {k: v.astype(DTYPES[dtype]) for k, v in make_tensors(hf_config).items()}
    before = write_folder(tmp_path / "before", hf_config, tensors)
    config, params = load_checkpoint(before)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype("float32")}
    save_checkpoint(tmp_path / "after", config, params, dtype=dtype)
    assert stored_bytes(tmp_path / "after") == stored_bytes(before)


def test_export_then_import_gives_the_same_bytes(folder, tmp_path):
    config, params = load_checkpoint(folder)
    save_checkpoint(tmp_path / "copy", config, jax.device_put(params))
    config_again, params_again = load_checkpoint(tmp_path / "copy")
    assert config_again == config
    chex.assert_trees_all_equal(params_again, params)


def test_float16_is_read_as_float32(tmp_path):
    tensors = {k: v.astype(np.float16) for k, v in make_tensors(TIED).items()}
    _, params = load_checkpoint(write_folder(tmp_path, TIED, tensors))
    kernel = params["layers"]["0"]["self_attn"]["k_proj"]["kernel"]
    stored = tensors["model.layers.0.self_attn.k_proj.weight"]
    np.testing.assert_array_equal(kernel, stored.T.astype(np.float32))


def test_shards_and_their_index_both_ways(folder, tmp_path):
    config, params = load_checkpoint(folder)
    sharded = tmp_path / "sharded"
    save_checkpoint(sharded, config, params, max_shard_bytes=40_000)
    files = sorted(path.name for path in sharded.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    index = json.loads((sharded / hf_files.INDEX_FILE).read_text())
    size = sum(leaf.size for leaf in jax.tree.leaves(params)) * 4
    assert index["metadata"]["total_size"] == size
    assert stored_bytes(sharded) == stored_bytes(folder)
    chex.assert_trees_all_equal(load_checkpoint(sharded), (config, params))


def test_stop_tokens_are_the_generation_configs(folder):
    assert load_checkpoint(folder)[0].eos_token_ids == (1,)
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    config, params = load_checkpoint(folder)
    assert config.eos_token_ids == (3, 4)
    save_checkpoint(folder, config, params)
    assert load_checkpoint(folder)[0] == config


def test_transformers_reads_our_config(folder, tmp_path):
    from transformers import AutoConfig, GenerationConfig

    config, params = load_checkpoint(folder)
    save_checkpoint(tmp_path / "copy", config, params)
    theirs = AutoConfig.from_pretrained(tmp_path / "copy")
    assert theirs.model_type == "qwen2"
    assert theirs.num_key_value_heads == TIED["num_key_value_heads"]
    assert theirs.rope_parameters["rope_theta"] == TIED["rope_theta"]
    assert theirs.tie_word_embeddings is True
    assert GenerationConfig.from_pretrained(tmp_path / "copy").eos_token_id == [1]


def test_a_stored_copy_of_the_tied_head_is_accepted(tmp_path):
    tensors = make_tensors(TIED)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    _, params = load_checkpoint(write_folder(tmp_path, TIED, tensors))
    assert "lm_head" not in params
    tensors["lm_head.weight"][0, 0] += 1
    write_folder(tmp_path, TIED, tensors)
    with pytest.raises(ValueError, match=r"lm_head.weight differs from"):
        load_checkpoint(tmp_path)


def test_tokenizer_files_are_copied(folder, tmp_path):
    source = tmp_path / "tokenizer"
    source.mkdir()
    config, params = load_checkpoint(folder)
    with pytest.raises(ValueError, match="holds no tokenizer"):
        save_checkpoint(tmp_path / "copy", config, params, Texts(source))
    assert not (tmp_path / "copy").exists()
    (source / "tokenizer.json").write_text("{}")
    (source / "notes.txt").write_text("not a tokenizer file")
    save_checkpoint(tmp_path / "copy", config, params, Texts(source))
    names = {path.name for path in (tmp_path / "copy").iterdir()}
    assert names == {
        "config.json",
        "digests.sha256",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    }


def test_a_failed_save_leaves_the_earlier_one(folder, tmp_path, monkeypatch):
    config, params = load_checkpoint(folder)
    before = stored_bytes(folder)

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(hf_weights, "save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(folder, config, params)
    assert stored_bytes(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_earlier_checkpoint_is_replaced_whole(folder, tmp_path):
    config, params = load_checkpoint(folder)
    save_checkpoint(folder, config, params, max_shard_bytes=40_000)
    assert not (folder / "model.safetensors").exists()
    doubled = jax.tree.map(lambda x: 2 * x, params)
    save_checkpoint(folder, config, doubled)
    assert not (folder / hf_files.INDEX_FILE).exists()
    chex.assert_trees_all_equal(load_checkpoint(folder)[1], doubled)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("name", ["thesis.tex", "config.json"])
def test_other_folders_are_never_replaced(name, folder, tmp_path):
    config, params = load_checkpoint(folder)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / name).write_text("years of work")
    with pytest.raises(ValueError, match=f"holds {name} and so is more than"):
        save_checkpoint(precious, config, params)
    assert (precious / name).read_text() == "years of work"


def test_parameters_must_fit_the_config(folder, tmp_path):
    config, params = load_checkpoint(folder)
    target = tmp_path / "copy"
    with pytest.raises(ValueError, match="has no place for extra"):
        save_checkpoint(target, config, params | {"extra": np.zeros(1)})
    with pytest.raises(ValueError, match="tree lacks norm/scale"):
        save_checkpoint(target, config, params | {"norm": {}})
    wrong = params | {"norm": {"scale": np.zeros(3)}}
    with pytest.raises(ValueError, match=r"norm/scale has shape \(3,\)"):
        save_checkpoint(target, config, wrong)
    with pytest.raises(ValueError, match="dtype = 'int8' cannot be written"):
        save_checkpoint(target, config, params, dtype="int8")
    assert not target.exists()


def test_what_a_killed_process_left_is_removed(tmp_path):
    ended = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True)
    names = [f".model.new-{int(ended.stdout)}", f".model.new-{os.getppid()}", ".other"]
    for name in names:
        (tmp_path / name).mkdir()
    with hf_weights.replace_folder(tmp_path / "model") as fresh:
        (fresh / "file").touch()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"model", *names[1:]}
