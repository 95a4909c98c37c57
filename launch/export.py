"""Write a trained policy as a Hugging Face folder, or its adapters in PEFT's layout.

python -m launch.export --run=runs/sokoban --output=exported/sokoban
python -m launch.export --run=runs/lora --output=exported/adapters --adapters
"""

import pathlib

from absl import flags

from launch import command
from ragen_jax.runs.progress import working

_RUN = flags.DEFINE_string(
    "run", None, "Run folder (its newest checkpoint), or a folder in its checkpoints/."
)
_OUTPUT = flags.DEFINE_string("output", None, "Folder to create.")
_DTYPE = flags.DEFINE_enum(
    "dtype", "float32", ["float32", "bfloat16"], "Number format of the weights."
)
_ADAPTERS = flags.DEFINE_bool(
    "adapters",
    False,
    "Write the adapters alone, for PEFT and vLLM, not the merged model; needs a run "
    "with lora.rank.",
)


def main(argv: list[str]) -> int:
    del argv
    if not _RUN.value or not _OUTPUT.value:
        raise ValueError("give --run=RUN_FOLDER and --output=NEW_FOLDER")
    run, output = command.run_folder(_RUN.value), pathlib.Path(_OUTPUT.value)
    if output.exists():
        raise ValueError(f"{output} exists already; name a folder to create")
    with working("loading JAX and the run"):
        command.enable_compilation_cache()
        from ragen_jax.evaluation.load import open_trained

        trained = open_trained(run, None, defaults=command.defaults())
    write = _write_adapters if _ADAPTERS.value else _write_model
    with working(f"writing {output}"):
        write(trained, output)
    what = "adapters of " if _ADAPTERS.value else ""
    print(f"{what}{trained.name} written to {output}")
    return 0


def _write_model(trained, output: pathlib.Path) -> None:
    from ragen_jax.models.hf_weights import save_checkpoint
    from ragen_jax.program import model_folder

    save_checkpoint(
        output,
        trained.program.model,
        trained.params,
        tokenizer_folder=model_folder(trained.config.model.path),
        dtype=_DTYPE.value,
    )


def _write_adapters(trained, output: pathlib.Path) -> None:
    from ragen_jax.models.hf_adapters import save_adapters
    from ragen_jax.models.lora import read_lora
    from ragen_jax.program import POCKET

    if trained.adapters is None:
        raise ValueError(
            f"{trained.name} was trained without adapters (lora.rank is None); leave "
            "out --adapters to export the whole model"
        )
    path = trained.config.model.path
    folder = POCKET if path == "pocket" else pathlib.Path(path)
    save_adapters(
        output,
        trained.program.model,
        read_lora(**trained.config.lora),
        trained.adapters,
        # A hub id stays as it is.
        base=str(folder.absolute()) if folder.is_dir() else path,
        dtype=_DTYPE.value,
    )


if __name__ == "__main__":
    command.run(main)
