"""Write a trained policy as a Hugging Face folder.

python -m launch.export --run=runs/sokoban --output=exported/sokoban
"""

import pathlib

from absl import flags

from launch import command

_RUN = flags.DEFINE_string("run", None, "Run folder, or a folder in its checkpoints/.")
_OUTPUT = flags.DEFINE_string("output", None, "Folder to create.")
_DTYPE = flags.DEFINE_enum(
    "dtype", "float32", ["float32", "bfloat16"], "Number format of the weights."
)


def main(argv: list[str]) -> int:
    del argv
    if not _RUN.value or not _OUTPUT.value:
        raise ValueError("give --run=RUN_FOLDER and --output=NEW_FOLDER")
    run, output = command.run_folder(_RUN.value), pathlib.Path(_OUTPUT.value)
    if output.exists():
        raise ValueError(f"{output} exists already; name a folder to create")
    command.enable_compilation_cache()
    from ragen_jax.evaluation.load import open_trained
    from ragen_jax.models.hf_weights import save_checkpoint
    from ragen_jax.program import model_folder

    trained = open_trained(run, None, defaults=command.defaults())
    save_checkpoint(
        output,
        trained.program.model,
        trained.params,
        tokenizer_folder=model_folder(trained.config.model.path),
        dtype=_DTYPE.value,
    )
    print(f"{trained.name} written to {output}")
    return 0


if __name__ == "__main__":
    command.run(main)
