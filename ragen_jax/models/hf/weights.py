"""Parameters from and to Hugging Face checkpoint folders.

The folder is what transformers and vLLM read: `config.json`, `generation_config.json`,
`model.safetensors` (or shards and their index), the tokenizer's files, and the digest
of each of them (`digests.sha256`); an export also has a model card for people.
Parameters are float32 here for files of any dtype; a matrix is `[in, out]` here,
`[out, in]` there. Nothing is guessed: tensors and config must match exactly.
"""

import contextlib
import dataclasses
import glob
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors.numpy import save_file

from ragen_jax.models.config import ModelConfig, token_ids
from ragen_jax.models.families import read_config
from ragen_jax.models.hf.digests import DIGESTS_FILE, write_digests
from ragen_jax.models.hf.files import (
    INDEX_FILE,
    PREPROCESSOR_FILE,
    TEMPLATE_FILE,
    TOKENIZER_FILES,
    TOKENIZER_SETTINGS_FILE,
    WEIGHTS_FILE,
    model_files,
    read_json,
    read_tensors,
    resolve_checkpoint,
    safe_file,
)
from ragen_jax.models.policy import abstract_params
from ragen_jax.types import Params

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
CARD_FILE = "README.md"
WRITABLE_DTYPES = ("float32", "bfloat16")
# As transformers' save_pretrained splits.
MAX_SHARD_BYTES = 5_000_000_000


def load_checkpoint(folder_or_hub_id: str | os.PathLike) -> tuple[ModelConfig, Params]:
    """Config and float32 parameters of a checkpoint.

    The parameters are NumPy arrays in host memory: the caller decides how they are laid
    out over devices (`jax.device_put(params, shardings)`).

    Raises:
      ValueError: the checkpoint is absent, unsafe, damaged, incomplete, or of a model
        that is not implemented.
    """
    folder = resolve_checkpoint(folder_or_hub_id)
    config = load_config(folder)
    expected = abstract_params(config)
    names = hf_names(expected)
    shapes = {
        name: leaf.shape[::-1]  # a matrix is stored transposed, see _is_kernel
        if _is_kernel(path)
        else leaf.shape
        for name, (path, leaf) in zip(names, flatten(expected), strict=True)
    }
    copies = {}
    if config.tie_word_embeddings:
        copies = {"lm_head.weight": "model.embed_tokens.weight"}
    tensors = read_tensors(folder, shapes, copies)
    leaves = []
    for name, (path, _) in zip(names, flatten(expected), strict=True):
        tensor = tensors.pop(name).astype(np.float32)
        leaves.append(np.ascontiguousarray(tensor.T) if _is_kernel(path) else tensor)
    return config, jax.tree.unflatten(jax.tree.structure(expected), leaves)


def load_config(folder: Path) -> ModelConfig:
    """Config of a checkpoint folder; the stop tokens are the generation config's.

    Raises:
      ValueError: `config.json` is missing, or it or the generation config cannot be
        used.
    """
    hf = read_json(folder, CONFIG_FILE)
    with _naming(folder / CONFIG_FILE):
        config = read_config(hf)
    if not (folder / GENERATION_FILE).exists():
        return config
    stop = read_json(folder, GENERATION_FILE).get("eos_token_id")
    with _naming(folder / GENERATION_FILE):
        ids = config.eos_token_ids if stop is None else token_ids(stop)
        return dataclasses.replace(config, eos_token_ids=ids)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


@dataclasses.dataclass(frozen=True)
class Texts:
    """The files beside the weights of a written folder.

    Attributes:
      tokenizer_folder: its tokenizer files are copied; None writes none.
      chat_template: Jinja template that replaces the tokenizer's; None keeps that.
      card: text of the model card; None writes none. It has no digest and may be
        edited, so a folder with a card is not replaced.
    """

    tokenizer_folder: str | os.PathLike | None = None
    chat_template: str | None = None
    card: str | None = None

    def write(self, folder: Path) -> None:
        """Write the files; ValueError if the tokenizer's folder holds none."""
        if self.tokenizer_folder is not None:
            _copy_tokenizer(Path(self.tokenizer_folder), folder, self.chat_template)
        if self.card is not None:
            (folder / CARD_FILE).write_text(self.card, encoding="utf-8")


def save_checkpoint(
    folder: str | os.PathLike,
    config: ModelConfig,
    params: Params,
    texts: Texts | None = None,
    *,
    dtype: str = "float32",
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Writes a checkpoint folder, whole or not at all.

    Everything goes to a hidden folder beside the target, which is then renamed. An
    earlier checkpoint in the target is replaced.

    Args:
      folder: the target.
      config: of the model.
      params: parameter tree of that model, any float dtype.
      texts: the files beside the weights; None: none.
      dtype: of the stored weights, float32 or bfloat16.
      max_shard_bytes: weights beyond that are split over several files.

    Raises:
      ValueError: parameters that do not fit the config, an unknown dtype, a tokenizer
        folder without tokenizer, or a target that holds anything but a checkpoint.
    """
    check_dtype(dtype)
    check_tree(params, abstract_params(config))
    folder = Path(folder)
    _check_replaceable(folder)
    with replace_folder(folder) as fresh:
        write_configs(fresh, config, dtype)
        _write_weights(fresh, params, dtype, max_shard_bytes)
        if texts is not None:
            texts.write(fresh)
        write_digests(fresh, model_files(fresh))


def check_dtype(dtype: str) -> None:
    """Raises ValueError for a dtype that is not written."""
    if dtype not in WRITABLE_DTYPES:
        raise ValueError(
            f"dtype = {dtype!r} cannot be written; use {' or '.join(WRITABLE_DTYPES)}"
        )


@contextlib.contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """A hidden folder to write to; it takes the place of `folder` if all goes well."""
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = folder.with_name(f".{folder.name}.new-{os.getpid()}")
    # And those of processes that were killed while they wrote.
    for path in folder.parent.glob(f".{glob.escape(folder.name)}.new-*"):
        if path == fresh or not _is_alive(path.name.rpartition("-")[2]):
            shutil.rmtree(path, ignore_errors=True)
    try:
        fresh.mkdir()
        yield fresh
        _replace(folder, fresh)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _is_alive(process: str) -> bool:
    if not process.isdecimal():
        return True
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def hf_names(params: Params) -> list[str]:
    """Hugging Face's name of every leaf, in the order of `jax.tree.leaves`."""
    names = []
    for path, _ in flatten(params):
        parents, leaf = path[:-1], path[-1]
        root = [] if path[0] in ("lm_head", "visual") else ["model"]
        names.append(
            ".".join([*root, *parents, "bias" if leaf == "bias" else "weight"])
        )
    return names


def flatten(params: Params) -> list[tuple[tuple[str, ...], jax.Array]]:
    """Every leaf with the names on the way to it, in the order of `jax.tree.leaves`."""
    leaves, _ = jax.tree.flatten_with_path(params)
    return [(tuple(entry.key for entry in path), leaf) for path, leaf in leaves]


def _is_kernel(path: tuple[str, ...]) -> bool:
    """The leaf is a matrix [in, out], which torch stores as [out, in]."""
    return path[-1] == "kernel"


def check_tree(params: Params, abstract: Params) -> None:
    """Raises ValueError unless parameters have the names and shapes of `abstract`."""
    expected = {path: leaf.shape for path, leaf in flatten(abstract)}
    given = {path: leaf.shape for path, leaf in flatten(params)}
    for path in sorted(expected.keys() ^ given.keys()):
        problem = "lacks" if path in expected else "has no place for"
        tree, model = "the parameter tree", "a model of this config"
        raise ValueError(
            f"{tree if path in expected else model} {problem} {'/'.join(path)}"
        )
    for path, shape in expected.items():
        if given[path] != shape:
            raise ValueError(
                f"parameter {'/'.join(path)} has shape {given[path]}, the config asks "
                f"for {shape}"
            )


def write_configs(folder: Path, config: ModelConfig, dtype: str) -> None:
    """Writes `config.json` of weights in `dtype`, and the settings beside it."""
    hf = config.to_hf() | {"torch_dtype": dtype}  # the key old and new readers know
    write_json(folder / CONFIG_FILE, hf)
    ids = {
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "pad_token_id": config.pad_token_id,
    }
    present = {name: value for name, value in ids.items() if value is not None}
    write_json(folder / GENERATION_FILE, present)
    if config.sees:
        write_json(folder / PREPROCESSOR_FILE, config.vision.to_preprocessor())


def write_json(path: Path, content: dict) -> None:
    """Writes an object, its keys sorted."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def write_tensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes a new safetensors file that torch's libraries read too."""
    # The library makes files that only their owner may read. An ordinary one shows
    # which mode the user's umask and the folder ask for.
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    # Readers refuse files that do not name a format.
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(mode)


def _write_weights(
    folder: Path, params: Params, dtype: str, max_shard_bytes: int
) -> None:
    leaves = dict(zip(hf_names(params), flatten(params), strict=True))
    stored = np.dtype(dtype)
    split = split_state_dict_into_shards_factory(
        leaves,
        get_storage_size=lambda item: item[1].size * stored.itemsize,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard_bytes,
    )
    for file_name, names in split.filename_to_tensors.items():
        tensors = {}
        for name in names:
            path, leaf = leaves[name]
            tensor = np.asarray(leaf).astype(stored)
            tensor = tensor.T if _is_kernel(path) else tensor
            tensors[name] = np.ascontiguousarray(tensor)
        write_tensors(folder / file_name, tensors)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_json(folder / INDEX_FILE, index)


def _copy_tokenizer(source: Path, target: Path, chat_template: str | None) -> None:
    present = [name for name in TOKENIZER_FILES if (source / name).exists()]
    if not present:
        raise ValueError(f"{source} holds no tokenizer (looked for {TOKENIZER_FILES})")
    for name in present:
        shutil.copyfile(safe_file(source, name), target / name)
    if chat_template is None:
        return
    (target / TEMPLATE_FILE).write_text(chat_template, encoding="utf-8")
    if TOKENIZER_SETTINGS_FILE in present:
        settings = read_json(target, TOKENIZER_SETTINGS_FILE)
        # Some readers know only one of the two places: both must agree.
        settings["chat_template"] = chat_template
        write_json(target / TOKENIZER_SETTINGS_FILE, settings)


def _check_replaceable(folder: Path) -> None:
    """Raises ValueError unless the folder is absent, empty or a checkpoint."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a new folder")
    replaceable = {
        CONFIG_FILE,
        DIGESTS_FILE,
        GENERATION_FILE,
        INDEX_FILE,
        PREPROCESSOR_FILE,
        *TOKENIZER_FILES,
    }
    names = sorted(path.name for path in folder.iterdir())
    others = [
        n for n in names if n not in replaceable and not n.endswith(".safetensors")
    ]
    is_checkpoint = WEIGHTS_FILE in names or INDEX_FILE in names
    if others or (names and not is_checkpoint):
        raise ValueError(
            f"{folder} holds {(others or names)[0]} and so is more than a checkpoint "
            "to replace; name a new folder"
        )


def _replace(folder: Path, fresh: Path) -> None:
    old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
