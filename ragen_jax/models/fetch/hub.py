"""Models of the Hugging Face hub, as checkpoint folders.

In: a hub id. Out: a folder with the digest of each of its files, as an export has.
Until it is complete it is a hidden folder beside its place, from which a later call
goes on.
"""

from collections.abc import Callable
from pathlib import Path

from ragen_jax.models.hf.digests import write_digests
from ragen_jax.models.hf.files import (
    HUB_FILES,
    TOKENIZER_FILES,
    hub_snapshot,
    is_hub_id,
    model_files,
)
from ragen_jax.models.hf.weights import load_config


def fetch_hub(
    hub_id: str, folder: Path, *, check_tokenizer: Callable[[Path], object]
) -> None:
    """Downloads a model of the hub; what is small is checked before the weights come.

    Args:
      hub_id: OWNER/NAME.
      folder: to create.
      check_tokenizer: called with a folder that holds the tokenizer's files; raises
        ValueError if it cannot be used.

    Raises:
      ValueError: the folder exists, the hub does not have the model or cannot be
        reached, the model or its tokenizer cannot be used, or there are no weights that
        are read.
    """
    if not is_hub_id(hub_id):
        raise ValueError(
            f"{hub_id!r} is not a hub id such as Qwen/Qwen2.5-0.5B-Instruct"
        )
    refuse_existing(folder)
    partial = folder.absolute()
    partial = partial.with_name(f".{partial.name}.{hub_id.replace('/', '--')}.part")
    partial.parent.mkdir(parents=True, exist_ok=True)
    configs = [name for name in HUB_FILES if name.endswith(".json")]
    hub_snapshot(hub_id, [*configs, *TOKENIZER_FILES], partial)
    load_config(partial)
    check_tokenizer(partial)
    hub_snapshot(hub_id, [*HUB_FILES, *TOKENIZER_FILES], partial)
    if not any(partial.glob("*.safetensors")):
        raise ValueError(
            f"{hub_id} has no *.safetensors files, and weights in other formats are "
            "not read; convert them to safetensors, or name another model"
        )
    write_digests(partial, model_files(partial))
    partial.rename(folder)


def refuse_existing(folder: Path) -> None:
    """Raises ValueError unless the folder is absent or empty."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ValueError(
            f"{folder} exists already and is something else; name a folder to create: "
            "--output=FOLDER"
        )
