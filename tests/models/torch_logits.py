"""Logits of transformers' own model of a folder. Needs torch."""

from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from tests.models.random_models import LENGTHS


def torch_logits(folder: Path, tokens: np.ndarray) -> np.ndarray:
    """Float32 logits [B, Q, V] of a right-padded batch, padding masked."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    mask = np.arange(tokens.shape[1])[None] < np.array(LENGTHS)[:, None]
    with torch.no_grad():
        out = model(
            input_ids=torch.tensor(tokens, dtype=torch.long),
            attention_mask=torch.tensor(mask, dtype=torch.long),
        )
    return out.logits.numpy()
