"""Write a trained policy as a Hugging Face folder, or its adapters in PEFT's layout.

python -m launch.export --run=runs/sokoban --output=exported/sokoban
python -m launch.export --run=runs/sokoban --checkpoint=best --output=exported/best
python -m launch.export --run=runs/lora --output=exported/adapters --adapters

The folder contains a model card (README.md) that says how to prompt the policy, and
the run's chat template.
"""

from launch import command  # isort: skip, it says what is not installed

import pathlib

from absl import flags

from ragen_jax.runs.progress import working
from ragen_jax.runs.stop import stop_when_clean
from ragen_jax.terminal import say

_RUN = flags.DEFINE_string("run", None, "Run folder, or a folder in its checkpoints/.")
_CHECKPOINT = command.define_checkpoint()
_OUTPUT = flags.DEFINE_string("output", None, "Folder to create.")
_DTYPE = flags.DEFINE_enum(
    "dtype", "float32", ["float32", "bfloat16"], "Number format of the weights."
)
_ADAPTERS = flags.DEFINE_bool(
    "adapters",
    False,
    "Write only the adapters, for PEFT and vLLM, instead of the merged model; for runs "
    "with lora.rank.",
)


def main(_: list[str]) -> int:
    if not _RUN.value or not _OUTPUT.value:
        raise ValueError("give --run=RUN_FOLDER and --output=NEW_FOLDER")
    run, output = command.run_folder(_RUN.value), pathlib.Path(_OUTPUT.value)
    if output.exists():
        raise ValueError(f"{output} exists already; name a folder to create")
    with working("loading JAX and the run"):
        command.enable_compilation_cache()
        from ragen_jax.evaluation.load import open_trained

        trained = open_trained(
            run, None, defaults=command.defaults(), checkpoint=_CHECKPOINT.value
        )
    write = _write_adapters if _ADAPTERS.value else _write_model
    with working(f"writing {output}"):
        write(trained, output)
    what = "adapters of " if _ADAPTERS.value else ""
    say(f"{what}{trained.name} written to {output}")
    return 0


def _write_model(trained, output: pathlib.Path) -> None:
    from ragen_jax.models.hf.weights import save_checkpoint

    texts, model = _texts(trained), trained.program.model
    with stop_when_clean():
        save_checkpoint(output, model, trained.params, texts, dtype=_DTYPE.value)


def _write_adapters(trained, output: pathlib.Path) -> None:
    from ragen_jax.models.hf.adapters import save_adapters
    from ragen_jax.models.lora import read_lora

    if trained.adapters is None:
        raise ValueError(
            f"{trained.name} was trained without adapters (lora.rank is None); leave "
            "out --adapters to export the whole model"
        )
    texts = _texts(trained)
    with stop_when_clean():
        save_adapters(
            output,
            trained.program.model,
            read_lora(**trained.config.lora),
            trained.adapters,
            texts,
            base=_base(trained),
            dtype=_DTYPE.value,
        )


def _texts(trained):
    from ragen_jax.evaluation.export.model_card import model_card
    from ragen_jax.models.hf.weights import Texts
    from ragen_jax.program.build import model_folder

    return Texts(
        tokenizer_folder=model_folder(trained.config.model.path),
        chat_template=trained.program.task.chat_template,
        card=model_card(
            trained,
            command.defaults(),
            base=_base(trained),
            has_adapters_only=_ADAPTERS.value,
        ),
    )


def _base(trained) -> str:
    from ragen_jax.program.build import BUILT_IN

    path = trained.config.model.path
    folder = BUILT_IN.get(path, pathlib.Path(path))
    # Otherwise it is a hub id.
    return str(folder.absolute()) if folder.is_dir() else path


if __name__ == "__main__":
    command.run(main)
