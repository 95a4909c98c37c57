"""Logits of transformers' model under PEFT's own LoRA. Needs torch and peft."""

from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from tests.models.random_models import LENGTHS


def peft_logits(
    folder: Path, adapters, names, *, rank: int, alpha: float, tokens: np.ndarray
) -> np.ndarray:
    """Float32 logits [B, Q, V] of a right-padded batch, adapters not merged."""
    model = _base(folder)
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(names))
    model = get_peft_model(model, config).eval()
    state = {}
    for name, (a, b) in adapters.items():
        path = f"base_model.model.{name.removesuffix('.weight')}"
        state[f"{path}.lora_A.default.weight"] = torch.tensor(a)
        state[f"{path}.lora_B.default.weight"] = torch.tensor(b)
    known = {name for name, _ in model.named_parameters() if "lora_" in name}
    assert known == set(state)
    model.load_state_dict(state, strict=False)
    return _logits(model, tokens)


def logits_of_folders(base: Path, adapters: Path, tokens: np.ndarray) -> np.ndarray:
    """The same, of adapters that PEFT reads from their folder itself."""
    return _logits(PeftModel.from_pretrained(_base(base), adapters).eval(), tokens)


def _base(folder: Path):
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )


def _logits(model, tokens: np.ndarray) -> np.ndarray:
    mask = np.arange(tokens.shape[1])[None] < np.array(LENGTHS)[:, None]
    with torch.no_grad():
        out = model(
            input_ids=torch.tensor(tokens, dtype=torch.long),
            attention_mask=torch.tensor(mask, dtype=torch.long),
        )
    return out.logits.numpy()
