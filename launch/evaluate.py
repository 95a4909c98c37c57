"""Measure a policy on the fixed validation prompts.

python -m launch.evaluate --run=runs/sokoban
python -m launch.evaluate --config=configs/sokoban.py --config.model.path=FOLDER
"""

import json
import pathlib

from absl import flags

from launch import command

_CONFIG = command.define_config()
_RUN = flags.DEFINE_string("run", None, "Run folder, or a folder in its checkpoints/.")
_OUTPUT = flags.DEFINE_string("output", None, "JSONL file for all episodes.")
_NUM_PROMPTS = flags.DEFINE_integer("num_prompts", None, "Instead of the config's.")
_TEMPERATURE = flags.DEFINE_float("temperature", None, "Same; 0 is greedy.")


def main(argv: list[str]) -> int:
    config = command.read_optional_config(_CONFIG, argv)
    command.enable_compilation_cache()
    from ragen_jax.evaluate import evaluate
    from ragen_jax.rollout.episodes import episodes
    from ragen_jax.trained import open_trained
    from ragen_jax.writer import write_text_atomically

    changes = {
        "evaluation.num_prompts": _NUM_PROMPTS.value,
        "evaluation.temperature": _TEMPERATURE.value,
    }
    changes = {key: value for key, value in changes.items() if value is not None}
    run = pathlib.Path(_RUN.value) if _RUN.value else None
    trained = open_trained(run, config, changes)
    metrics, trajectory = evaluate(trained.program, trained.params)
    name = f"val-env/{trained.program.game.env.name}/"
    shown = {key.removeprefix(name): value for key, value in metrics.items()}
    print(f"{trained.name}: {trained.program.game.env.name}, {len(trajectory.success)}")
    print(
        f"success {shown['success']:.1%} "
        f"(95 % interval {shown['success_low']:.1%} to {shown['success_high']:.1%}), "
        f"best possible {shown['ceiling']:.1%}, regret {shown['regret']:.1%}"
    )
    print(json.dumps(metrics, indent=2, sort_keys=True))
    if _OUTPUT.value:
        path = pathlib.Path(_OUTPUT.value)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = episodes(trajectory, trained.program.game.tokenizer)
        text = "".join(json.dumps(e, ensure_ascii=False) + "\n" for e in lines)
        write_text_atomically(path, text)
        print(f"episodes written to {path}")
    return 0


if __name__ == "__main__":
    command.run(main)
