"""Records transformers' and PEFT's logits for machines without torch.

    pip install torch peft && python -m tests.models.make_reference_logits

Writes `tests/models/reference/<case>.npz` and `peft_<case>.npz`: float32 logits of the
tokens that are not padding. Weights and tokens are not recorded, `random_models` and
`random_adapters` make them again.
"""

import tempfile
from pathlib import Path

import numpy as np

from tests.models.peft_logits import peft_logits
from tests.models.random_adapters import ALPHA, PEFT_CASES, RANK, make_adapters
from tests.models.random_models import (
    CASES,
    make_tensors,
    make_tokens,
    real_rows,
    write_folder,
)
from tests.models.torch_logits import torch_logits

REFERENCE = Path(__file__).parent / "reference"


def main() -> None:
    REFERENCE.mkdir(exist_ok=True)
    for name, hf_config in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            write_folder(Path(folder), hf_config, make_tensors(hf_config))
            logits = torch_logits(Path(folder), make_tokens(hf_config["vocab_size"]))
        _record(f"{name}.npz", logits)
    for name, names in PEFT_CASES.items():
        hf_config = CASES[name]
        with tempfile.TemporaryDirectory() as folder:
            logits = peft_logits(
                write_folder(Path(folder), hf_config, make_tensors(hf_config)),
                make_adapters(hf_config, names),
                names,
                rank=RANK,
                alpha=ALPHA,
                tokens=make_tokens(hf_config["vocab_size"]),
            )
        _record(f"peft_{name}.npz", logits)


def _record(name: str, logits: np.ndarray) -> None:
    np.savez(REFERENCE / name, logits=real_rows(logits))
    print(f"{name}: standard deviation {real_rows(logits).std():.2f}")


if __name__ == "__main__":
    main()
