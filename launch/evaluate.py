"""Measure a policy on the fixed validation prompts.

python -m launch.evaluate --run=runs/sokoban
python -m launch.evaluate --config=configs/sokoban.py --config.model.path=FOLDER
"""

import json
import pathlib
from collections.abc import Mapping

from absl import flags

from launch import command

_CONFIG = command.define_config()
_RUN = flags.DEFINE_string("run", None, "Run folder, or a folder in its checkpoints/.")
_OUTPUT = flags.DEFINE_string("output", None, "JSONL file for all episodes.")
_NUM_PROMPTS = flags.DEFINE_integer("num_prompts", None, "Instead of the config's.")
_TEMPERATURE = flags.DEFINE_float("temperature", None, "Same; 0 is greedy.")


def main(argv: list[str]) -> int:
    config = command.read_optional_config(_CONFIG, argv)
    run = command.run_folder(_RUN.value)
    command.enable_compilation_cache()
    from ragen_jax.evaluate import evaluate
    from ragen_jax.trained import open_trained
    from ragen_jax.writer import write_text_atomically

    changes = {
        "evaluation.num_prompts": _NUM_PROMPTS.value,
        "evaluation.temperature": _TEMPERATURE.value,
    }
    changes = {key: value for key, value in changes.items() if value is not None}
    trained = open_trained(
        run, config, changes=changes, overrides=command.overridden_keys(argv)
    )
    program = trained.program
    metrics, rollouts = evaluate(program, trained.params)
    print(f"{trained.name}: {', '.join(program.names)}, {len(rollouts[0].success)}")
    for name in program.names:
        prefix = f"{name}: " if len(program.names) > 1 else ""
        print(prefix + _sentence(metrics, f"val-env/{name}/"))
    print(json.dumps(metrics, indent=2, sort_keys=True))
    if _OUTPUT.value:
        path = pathlib.Path(_OUTPUT.value)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = program.episodes(rollouts)
        text = "".join(json.dumps(e, ensure_ascii=False) + "\n" for e in lines)
        write_text_atomically(path, text)
        print(f"episodes written to {path}")
    return 0


def _sentence(metrics: Mapping[str, float], prefix: str) -> str:
    """An environment's success next to what is possible."""
    success, low, high, ceiling, regret = (
        metrics[prefix + name]
        for name in ("success", "success_low", "success_high", "ceiling", "regret")
    )
    return (
        f"success {success:.1%} (95 % interval {low:.1%} to {high:.1%}), "
        f"best possible {ceiling:.1%}, regret {regret:.1%}"
    )


if __name__ == "__main__":
    command.run(main)
