"""Model card of an exported policy: what it is, how well it plays, how to prompt it.

In: a policy opened from its run folder. Out: the text of `README.md`, Markdown under
the YAML header that the Hugging Face Hub reads. Numbers are those that the run has
recorded, messages those of the first validation level; what is not recorded is left
out.
"""

import json
import pathlib
from collections.abc import Iterator, Mapping

from huggingface_hub import ModelCardData
from ml_collections import ConfigDict

from ragen_jax.config import changed_keys
from ragen_jax.evaluation.export.prompting import how_to_prompt
from ragen_jax.evaluation.load import Trained, read_run_config
from ragen_jax.evaluation.results import best_possible, interval
from ragen_jax.program.build import BUILT_IN
from ragen_jax.runs import reader
from ragen_jax.runs.markdown import table


def model_card(
    trained: Trained, defaults: ConfigDict, *, base: str, has_adapters_only: bool
) -> str:
    """The text of the card.

    Args:
      trained: a policy of a run folder.
      defaults: values of all keys; the card lists the settings that differ.
      base: folder or hub id of the model that the run began with.
      has_adapters_only: the weights are adapters over `base`, not a whole model.
    """
    parts = [
        _header(trained, base, has_adapters_only),
        _introduction(trained, base, has_adapters_only),
        _success(trained),
        *how_to_prompt(trained, base if has_adapters_only else None),
        _settings(trained, defaults),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _header(trained: Trained, base: str, has_adapters_only: bool) -> str:
    names = [task.name.lower() for task in trained.program.tasks]
    data = ModelCardData(
        library_name="peft" if has_adapters_only else "transformers",
        pipeline_tag="text-generation",
        base_model=base if _is_hub_id(base) else None,
        tags=["ragen_jax", "reinforcement-learning", *names],
    )
    return f"---\n{data.to_yaml()}\n---"


def _is_hub_id(base: str) -> bool:
    return not pathlib.Path(base).is_dir()


def _introduction(trained: Trained, base: str, has_adapters_only: bool) -> str:
    names = " and ".join(task.name for task in trained.program.tasks)
    kind = (
        "LoRA adapters of a language model" if has_adapters_only else "Language model"
    )
    origin = f"`{base}`"
    if trained.config.model.path in BUILT_IN:
        origin = f"the model `{trained.config.model.path}` of `ragen_jax`"
    elif not _is_hub_id(base):
        origin = f"`{pathlib.Path(base).name}`, a folder"
    rows = [
        ("run", f"`{trained.workdir.resolve().name}`"),
        ("iteration", f"{trained.iteration}"),
        ("started from", origin),
        *_recorded(trained),
    ]
    return "\n".join(
        [
            f"# {trained.workdir.resolve().name}: {names}",
            "",
            f"{kind}, trained with `ragen_jax` by reinforcement learning on whole "
            f"episodes of {names} in text.",
            "",
            table(("", ""), rows),
        ]
    )


def _recorded(trained: Trained) -> Iterator[tuple[str, str]]:
    """The command of the run, and the code that made the weights."""
    recorded = reader.read_recorded(trained.workdir)
    if recorded.command is not None:
        yield "command", f"`{recorded.command}`"
    machines = [m for m in recorded.machines if _began(m) < trained.iteration]
    for name, title in (("ragen_jax", "ragen_jax version"), ("commit", "git commit")):
        if machines and name in machines[-1]:
            yield title, f"`{machines[-1][name]}`"


def _began(machine: Mapping[str, object]) -> int:
    """Iterations done before the run came to a machine."""
    return int(machine.get("from_iteration", 0))


def _success(trained: Trained) -> str:
    """Success on validation levels at this iteration; empty if it was not measured."""
    records = reader.read_metrics(trained.workdir)
    metrics = next((r for r in records if r["iteration"] == trained.iteration), {})
    rows = []
    for task in trained.program.tasks:
        prefix = f"val-env/{task.name}/"
        values = {
            name.removeprefix(prefix): value
            for name, value in metrics.items()
            if name.startswith(prefix) and value is not None
        }
        if values.keys() >= _MEASURED:
            rows.append(_score(task.name, values))
    if not rows:
        return ""
    names = "game", "success", "best possible", "levels", "episodes", "temperature"
    return "\n".join(
        [
            "## Success",
            "",
            "On validation levels, measured by the run at this iteration; in brackets "
            "the 95 % interval over levels. Best possible: what exact best play "
            "expects on the same levels; (ref.): what a strong player reaches.",
            "",
            table(names, rows),
        ]
    )


_MEASURED = {
    "success",
    "success_low",
    "success_high",
    "num_prompts",
    "num_samples",
    "temperature",
    "held_out",
}


def _score(name: str, values: Mapping[str, float]) -> tuple[str, ...]:
    levels, samples = int(values["num_prompts"]), int(values["num_samples"])
    return (
        name,
        interval(values, "success"),
        best_possible(values),
        f"{levels}{', held out' if values['held_out'] else ''}",
        f"{levels * samples}",
        f"{values['temperature']:g}",
    )


def _settings(trained: Trained, defaults: ConfigDict) -> str:
    """Settings of the run that differ from the defaults."""
    config = read_run_config(trained.workdir, defaults)
    changes = changed_keys(defaults, config, free=())
    values = {key: value for key, (_, value) in changes.items()}
    if not values:
        return "All settings of the run are the defaults of `configs/base.py`."
    return "\n".join(
        [
            "## Settings",
            "",
            "Settings of the run other than the defaults of `configs/base.py`:",
            "",
            "```json",
            json.dumps(values, indent=2, ensure_ascii=False),
            "```",
        ]
    )
