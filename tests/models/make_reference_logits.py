"""Records transformers' logits for machines without torch.

    pip install torch && python -m tests.models.make_reference_logits

Writes `tests/models/reference/<case>.npz`: float32 logits of the tokens that are no
padding. Weights and tokens are not recorded, `random_models` makes them again.
"""

import tempfile
from pathlib import Path

import numpy as np

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
    """Records every case."""
    REFERENCE.mkdir(exist_ok=True)
    for name, hf_config in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            write_folder(Path(folder), hf_config, make_tensors(hf_config))
            logits = torch_logits(Path(folder), make_tokens(hf_config["vocab_size"]))
        path = REFERENCE / f"{name}.npz"
        np.savez(path, logits=real_rows(logits))
        print(f"{path.name}: standard deviation {real_rows(logits).std():.2f}")


if __name__ == "__main__":
    main()
