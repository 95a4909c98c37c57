"""Models of the hub, whose client is replaced by a copy of a folder."""

import fnmatch
import json
import shutil

import huggingface_hub
import pytest

from ragen_jax.models.hf.digests import DIGESTS_FILE
from ragen_jax.models.hf.weights import load_checkpoint
from ragen_jax.program.build import POCKET
from tests import commands

ID = "someone/tiny"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Copies files of the pocket model; returns the names it was asked for, by call."""
    calls = []

    def snapshot_download(hub_id, *, allow_patterns, local_dir):
        assert hub_id == ID
        local_dir.mkdir(exist_ok=True)
        names = [p.name for p in POCKET.iterdir() if p.name != DIGESTS_FILE]
        names = [n for n in names if any(fnmatch.fnmatch(n, p) for p in allow_patterns)]
        calls.append(names)
        for name in names:
            if not (local_dir / name).exists():
                shutil.copyfile(POCKET / name, local_dir / name)
        return str(local_dir)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return calls


def test_a_model_of_the_hub_gets_its_folder(hub, tmp_path):
    folder = tmp_path / "models" / "tiny"
    done = commands.call(commands.command("fetch", ID, f"--output={folder}"))
    assert done.returncode == 0, done.stderr
    assert f"{ID} written to {folder}" in done.stdout
    assert "model.safetensors" not in hub[0]
    assert "model.safetensors" in hub[1]
    assert (folder / DIGESTS_FILE).is_file()
    assert [p.name for p in folder.parent.iterdir()] == ["tiny"]
    config, _ = load_checkpoint(folder)
    assert config == load_checkpoint(POCKET)[0]
    said = commands.refusal("fetch", ID, f"--output={folder}")
    assert "exists already and is something else" in said


def test_a_model_that_is_not_implemented_costs_no_weights(hub, tmp_path):
    partial = tmp_path / ".tiny.someone--tiny.part"
    partial.mkdir()
    hf = json.loads((POCKET / "config.json").read_text())
    (partial / "config.json").write_text(json.dumps(hf | {"model_type": "gpt2"}))
    said = commands.refusal("fetch", ID, f"--output={tmp_path / 'tiny'}")
    assert "model_type = 'gpt2' is not implemented" in said
    assert len(hub) == 1


def test_a_model_without_safetensors_gets_no_folder(hub, tmp_path, monkeypatch):
    whole = huggingface_hub.snapshot_download

    def without_weights(*words, allow_patterns, **options):
        patterns = [x for x in allow_patterns if x != "*.safetensors"]
        return whole(*words, allow_patterns=patterns, **options)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", without_weights)
    said = commands.refusal("fetch", ID, f"--output={tmp_path / 'tiny'}")
    assert f"{ID} has no *.safetensors files" in said
    assert not (tmp_path / "tiny").exists()


def test_a_fetch_goes_on_where_it_stopped(hub, tmp_path, monkeypatch):
    whole = huggingface_hub.snapshot_download

    def interrupted(*words, **options):
        if hub:
            raise ConnectionError("the network is gone\nmore lines")
        return whole(*words, **options)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", interrupted)
    words = (ID, f"--output={tmp_path / 'tiny'}")
    said = commands.refusal("fetch", *words)
    assert "could be fetched from the hub (the network is gone)" in said
    assert not (tmp_path / "tiny").exists()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", whole)
    assert commands.call(commands.command("fetch", *words)).returncode == 0
