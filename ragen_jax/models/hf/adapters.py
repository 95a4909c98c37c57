"""Adapters as a folder in PEFT's layout, which PEFT and vLLM load over the base model.

In: adapters as a run trains them. Out: `adapter_config.json` and
`adapter_model.safetensors`; on request the tokenizer's files and a model card. A matrix
is `[in, out]` here, `[out, in]` there.
"""

import os
from pathlib import Path

import numpy as np

from ragen_jax.models.config import ModelConfig
from ragen_jax.models.hf.weights import (
    Texts,
    check_dtype,
    check_tree,
    flatten,
    replace_folder,
    write_json,
    write_tensors,
)
from ragen_jax.models.lora import LoraConfig, abstract_adapters
from ragen_jax.types import Params

ADAPTER_CONFIG_FILE = "adapter_config.json"
ADAPTER_WEIGHTS_FILE = "adapter_model.safetensors"
# PEFT's names of the two matrices of an adapter.
PEFT_NAMES = {"lora_a": "lora_A", "lora_b": "lora_B"}


def save_adapters(
    folder: str | os.PathLike,
    config: ModelConfig,
    lora: LoraConfig,
    adapters: Params,
    texts: Texts | None = None,
    *,
    base: str,
    dtype: str = "float32",
) -> None:
    """Writes a new folder, whole or not at all.

    Args:
      folder: the target; it must not exist.
      config: of the base model.
      lora: size and place of the adapters.
      adapters: tree of `abstract_adapters(config, lora)`.
      texts: the files beside the matrices; None: none.
      base: folder or hub id of the base model, where PEFT looks for it.
      dtype: of the stored matrices, float32 or bfloat16.

    Raises:
      ValueError: adapters that do not fit the config, an unknown dtype, a tokenizer
        folder without tokenizer, or a target that exists.
    """
    check_dtype(dtype)
    check_tree(adapters, abstract_adapters(config, lora))
    folder = Path(folder)
    if folder.exists():
        raise ValueError(f"{folder} exists already; name a new folder")
    with replace_folder(folder) as fresh:
        write_json(fresh / ADAPTER_CONFIG_FILE, _peft_config(lora, base))
        tensors = {
            _peft_name(path, config): np.ascontiguousarray(
                np.asarray(leaf).astype(dtype).T
            )
            for path, leaf in flatten(adapters)
        }
        write_tensors(fresh / ADAPTER_WEIGHTS_FILE, tensors)
        if texts is not None:
            texts.write(fresh)


def _peft_name(path: tuple[str, ...], config: ModelConfig) -> str:
    *parents, leaf = path
    # In a network that sees the decoder is a part of its own, beside the tower.
    if config.sees and parents[0] != "visual":
        parents = ["language_model", *parents]
    return ".".join(("base_model.model.model", *parents, PEFT_NAMES[leaf], "weight"))


def _peft_config(lora: LoraConfig, base: str) -> dict[str, object]:
    # vLLM declares an integer.
    is_whole = float(lora.alpha).is_integer()
    return {
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": int(lora.alpha) if is_whole else lora.alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": lora.rank,
        "target_modules": list(lora.names),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }
