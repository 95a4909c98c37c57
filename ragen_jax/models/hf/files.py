"""Files of a Hugging Face checkpoint folder, read with suspicion.

In: a folder or a hub id. Out: parsed JSON and NumPy arrays by tensor name. Knows
nothing of models. A checkpoint may come from anywhere, so nothing here executes what it
reads (no pickle, ever) or follows a path out of the folder, and every error is a
`ValueError` of one sentence that names the file and says what to do.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from ragen_jax.models.config import ModelConfig
from ragen_jax.models.hf.digests import DIGESTS_FILE, find_damage

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TOKENIZER_SETTINGS_FILE = "tokenizer_config.json"
# Of models that see: how transformers prepares their pictures.
PREPROCESSOR_FILE = "preprocessor_config.json"
TEMPLATE_FILE = "chat_template.jinja"
TOKENIZER_FILES = (
    "tokenizer.json",
    TOKENIZER_SETTINGS_FILE,
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    TEMPLATE_FILE,
)
# Everything a model needs; what else a hub repository holds is not fetched.
HUB_FILES = ("config.json", "generation_config.json", "*.safetensors", INDEX_FILE)
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
READABLE_DTYPES = ("F32", "F16", "BF16")
# The format's own limit (safetensors README), checked before anything is allocated.
MAX_HEADER_BYTES = 100_000_000
# Far above any real config or index (the index of a 72B model has 90 kB).
MAX_JSON_BYTES = 50_000_000
# Longest name of a file on common file systems.
MAX_NAME_BYTES = 255
# Largest absolute value of a weight. Products of larger ones overflow in float32; the
# weights of published models stay below float16's maximum of 65,504.
MAX_WEIGHT = 1e6
# Names shown in a message before it is cut off.
MAX_NAMES_SHOWN = 4
# Where `launch.fetch` puts models, in the folder that it is run in.
FETCHED = Path("models")


def resolve_checkpoint(
    folder_or_hub_id: str | os.PathLike,
    files: Sequence[str] = (*HUB_FILES, *TOKENIZER_FILES),
) -> Path:
    """The folder of a checkpoint, fetched from the hub first unless it is local.

    Args:
      folder_or_hub_id: either.
      files: names or patterns of the files to fetch.

    Raises:
      ValueError: no such folder, and the hub does not have it or cannot be reached; or
        a file of the folder does not match the digest that was written with it.
    """
    path = Path(folder_or_hub_id)
    if path.is_dir():
        if damage := find_damage(path, model_files(path)):
            raise ValueError(
                f"the model in {path} is damaged: {damage}; copy, export or install it "
                f"again, or delete {path / DIGESTS_FILE} if it was edited on purpose"
            )
        return path
    name = os.fspath(folder_or_hub_id)
    if path.exists():
        raise ValueError(f"{name} is a file; give the folder that holds config.json")
    if path.parent == FETCHED:
        raise ValueError(
            f"there is no folder {name} (model.path); python -m launch.fetch "
            f"{path.name} (of the hub: OWNER/{path.name}) makes it"
        )
    if not is_hub_id(name):
        raise ValueError(f"there is no folder {name} (model.path)")
    return hub_snapshot(name, files)


def is_hub_id(name: str) -> bool:
    """Whether a name could be a repository of the hub: owner/model."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def hub_snapshot(hub_id: str, files: Sequence[str], folder: Path | None = None) -> Path:
    """The folder of a hub repository's files; what is there is not fetched again.

    Args:
      hub_id: of the repository.
      files: names or patterns of the files to fetch.
      folder: to fetch to; None: the hub's cache.

    Raises:
      ValueError: the hub does not have it or cannot be reached.
    """
    # Imported here: it is slow, and not needed for a local folder.
    from huggingface_hub import snapshot_download

    try:
        snapshot = snapshot_download(
            hub_id, allow_patterns=list(files), local_dir=folder
        )
    except (OSError, ValueError) as error:  # all of the hub's errors are one of these
        reason = str(error).strip().splitlines()[0] if str(error) else repr(error)
        raise ValueError(
            f"{hub_id} is neither a folder nor a model that could be fetched from the "
            f"hub ({reason}); give a local folder in Hugging Face layout"
        ) from error
    return Path(snapshot)


def model_files(folder: Path) -> list[str]:
    """Names of the folder's files that belong to a model or its tokenizer."""
    names = {"config.json", "generation_config.json", INDEX_FILE, PREPROCESSOR_FILE}
    names.update(TOKENIZER_FILES)
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.name in names or path.suffix == ".safetensors"
    )


def safe_file(folder: Path, name: str) -> Path:
    """Path of a regular file of a checkpoint folder.

    Symlinks may stay in the folder or, in the hub's own cache, lead to the blobs of the
    same repository.

    Raises:
      ValueError: the name is not a plain file name, the file does not exist, or it
        lies elsewhere.
    """
    if not isinstance(name, str) or name in ("", ".", "..") or set(name) & set("/\\\0"):
        raise ValueError(
            f"{folder}: {name!r} is not a plain file name; a checkpoint may only name "
            "files in its folder"
        )
    path = folder / name
    is_nameable = len(name.encode(errors="replace")) <= MAX_NAME_BYTES
    if not is_nameable or not path.is_file():
        raise ValueError(f"{folder} has no file {name[:MAX_NAME_BYTES]}")
    home = folder.resolve()
    allowed = [home]
    if home.parent.name == "snapshots":
        allowed.append(home.parent.parent / "blobs")
    target = path.resolve()
    if not any(target.is_relative_to(root) for root in allowed):
        raise ValueError(f"{path} is a link out of its folder, to {target}; copy it in")
    return path


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object from a file of the folder.

    Raises:
      ValueError: see `safe_file`; too large; not JSON; not an object.
    """
    path = safe_file(folder, name)
    size = path.stat().st_size
    if size > MAX_JSON_BYTES:
        raise ValueError(f"{path} has {size} bytes; at most {MAX_JSON_BYTES} are read")
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} must hold a JSON object, not {type(content).__name__}"
        )
    return content


def _refuse_constant(name: str) -> None:
    """Python reads NaN and Infinity, which are not JSON."""
    raise ValueError(f"it holds {name}")


def weights_digest(folder: Path) -> str:
    """SHA-256 over the files that hold a folder's weights, in the order of their names.

    Raises:
      ValueError: see `read_tensors`.
    """
    sha = hashlib.sha256()
    for name in sorted(_tensor_names(folder)):
        with safe_file(folder, name).open("rb") as file:
            sha.update(hashlib.file_digest(file, "sha256").digest())
    return sha.hexdigest()


def read_tensors(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    copies: Mapping[str, str],
) -> dict[str, np.ndarray]:
    """The weights of a folder, exactly those in `shapes`, in the dtype they are stored.

    Args:
      folder: holds `model.safetensors`, or an index and its shards.
      shapes: tensor that the model needs -> shape.
      copies: optional tensor -> the tensor it must equal; it is not returned (the
        output head that some writers store though it is tied).

    Raises:
      ValueError: a file is unsafe, damaged or a pickle; a tensor is missing, left
        over, of another shape, of a dtype that is not read, or not finite.
    """
    names_in = _tensor_names(folder)
    stored = [name for names in names_in.values() for name in names]
    missing = sorted(set(shapes) - set(stored))
    if missing:
        raise ValueError(
            f"{folder} lacks {_some(missing)}, which its config.json asks for"
        )
    unexpected = sorted(set(stored) - set(shapes) - set(copies))
    if unexpected:
        raise ValueError(
            f"{folder} holds {_some(unexpected)}, which a model of its config.json "
            "does not have"
        )
    if len(stored) != len(set(stored)):
        twice = sorted({name for name in stored if stored.count(name) > 1})
        raise ValueError(f"{folder} holds {_some(twice)} in more than one file")
    wanted = dict(shapes) | {
        copy: shapes[source] for copy, source in copies.items() if copy in stored
    }
    tensors = {}
    for file_name, names in names_in.items():
        tensors |= _read_file(folder / file_name, {n: wanted[n] for n in names})
    for copy, source in copies.items():
        if copy in tensors and not np.array_equal(tensors.pop(copy), tensors[source]):
            raise ValueError(
                f"{folder}: {copy} differs from {source}, but config.json ties them; "
                "set tie_word_embeddings to false there"
            )
    return tensors


def _tensor_names(folder: Path) -> dict[str, list[str]]:
    """File name -> names of its tensors, checked against the index if there is one."""
    if (folder / WEIGHTS_FILE).exists():
        if (folder / INDEX_FILE).exists():
            raise ValueError(
                f"{folder} has {WEIGHTS_FILE} and {INDEX_FILE}, which may hold "
                "different weights; remove the one that is out of date"
            )
        return {WEIGHTS_FILE: _names_in_file(safe_file(folder, WEIGHTS_FILE))}
    if not (folder / INDEX_FILE).exists():
        _refuse_folder_without_weights(folder)
    weight_map = read_json(folder, INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{folder / INDEX_FILE} has no weight_map")
    for file_name in weight_map.values():
        if not isinstance(file_name, str) or not file_name.endswith(".safetensors"):
            raise ValueError(
                f"{folder / INDEX_FILE} names {file_name!r}; only .safetensors files "
                "are read"
            )
    names_in = {}
    for file_name in sorted(set(weight_map.values())):
        try:
            path = safe_file(folder, file_name)
        except ValueError as error:
            raise ValueError(f"{folder / INDEX_FILE}: {error}") from error
        stored = set(_names_in_file(path))
        listed = {name for name, where in weight_map.items() if where == file_name}
        if stored != listed:
            raise ValueError(
                f"{folder / INDEX_FILE} and {file_name} disagree about "
                f"{_some(sorted(stored ^ listed))}; fetch or export both again"
            )
        names_in[file_name] = sorted(stored)
    return names_in


def _refuse_folder_without_weights(folder: Path) -> None:
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise ValueError(
            f"{folder} holds only pickled weights ({_some(pickles)}), which can run "
            "code when loaded and are never read; convert them to safetensors"
        )
    raise ValueError(f"{folder} has neither {WEIGHTS_FILE} nor {INDEX_FILE}")


def _names_in_file(path: Path) -> list[str]:
    _check_header(path)
    try:
        with safe_open(path, framework="numpy") as file:
            return list(file.keys())
    except SafetensorError as error:
        raise _damaged(path, error) from error


def _check_header(path: Path) -> None:
    """Refuse files that the library would reject without a remedy."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
    if start[:2] in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        raise ValueError(
            f"{path} is a pickle under another name, which can run code when loaded "
            "and is never read; convert it to safetensors"
        )
    header_bytes = int.from_bytes(start, "little")
    if len(start) == 8 and header_bytes > MAX_HEADER_BYTES:
        raise ValueError(
            f"{path} claims a header of {header_bytes} bytes, the format allows "
            f"{MAX_HEADER_BYTES}; it is not a safetensors file"
        )
    if len(start) < 8 or 8 + header_bytes > size:
        raise ValueError(
            f"{path} is cut short ({size} bytes); fetch or export it again"
        )


def _damaged(path: Path, error: SafetensorError) -> ValueError:
    return ValueError(
        f"{path} is damaged or cut short ({error}); fetch or export it again"
    )


def _read_file(
    path: Path, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    tensors = {}
    try:
        with safe_open(path, framework="numpy") as file:
            for name, shape in shapes.items():
                header = file.get_slice(name)
                stored, dtype = tuple(header.get_shape()), header.get_dtype()
                if stored != tuple(shape):
                    raise ValueError(
                        f"{path}: {name} has shape {stored}, its config.json asks for "
                        f"{tuple(shape)}"
                    )
                if dtype not in READABLE_DTYPES:
                    raise ValueError(
                        f"{path}: {name} has dtype {dtype}, only "
                        f"{', '.join(READABLE_DTYPES)} are read"
                    )
                tensors[name] = file.get_tensor(name)
                _check_values(path, name, tensors[name])
    except SafetensorError as error:
        raise _damaged(path, error) from error
    return tensors


def _check_values(path: Path, name: str, tensor: np.ndarray) -> None:
    wide = np.asarray(tensor, np.float32)
    # Extremes are NaN where one element is.
    lowest, highest = (float(f(wide, initial=0.0)) for f in (np.min, np.max))
    if not -MAX_WEIGHT <= lowest <= highest <= MAX_WEIGHT:
        worst = next(x for x in (lowest, highest) if not abs(x) <= MAX_WEIGHT)
        raise ValueError(
            f"{path}: {name} holds {worst:g}; weights must be finite and at most "
            f"{MAX_WEIGHT:g} in absolute value. The model diverged or the file is "
            "damaged: use an earlier checkpoint or fetch it again"
        )


def _some(names: list[str]) -> str:
    first = ", ".join(names[:MAX_NAMES_SHOWN])
    more = len(names) - MAX_NAMES_SHOWN
    return f"{first} and {more} more" if more > 0 else first


TOKENIZER_DIGEST = "tokenizer_sha256"
BASE_DIGEST = "base_weights_sha256"


def identity(
    model: ModelConfig,
    tokenizer_folder: Path,
    stop_ids: Sequence[int],
    base_digest: str | None = None,
) -> dict[str, Any]:
    """Identity of a model's weights: its `config.json` and its tokenizer's digest.

    The digest is over the bytes of the files that define the ids, and the stop tokens.

    Args:
      model: the model's description.
      tokenizer_folder, stop_ids: its tokenizer's files and stop tokens.
      base_digest: digest of weights that the state needs but does not hold: the frozen
        model under adapters, the reference of a KL penalty. None if it needs none.
    """
    folder, names = tokenizer_folder, ("tokenizer.json",)
    if not (folder / "tokenizer.json").is_file():
        names = ("vocab.json", "merges.txt", "added_tokens.json")
    sha = hashlib.sha256()
    for name in names:
        if (folder / name).is_file():
            sha.update((folder / name).read_bytes())
    sha.update(json.dumps(stop_ids).encode())
    owner = model.to_hf() | {TOKENIZER_DIGEST: sha.hexdigest()}
    return owner if base_digest is None else owner | {BASE_DIGEST: base_digest}
