r"""Measure a policy, or a model behind an API, on the fixed validation prompts.

python -m launch.evaluate --run=runs/sokoban
python -m launch.evaluate --run=runs/sokoban --checkpoint=best
python -m launch.evaluate --run=runs/sokoban --suite=sokoban --table=suite.md
python -m launch.evaluate --config=configs/sokoban.py --config.model.path=FOLDER
python -m launch.evaluate --config=configs/sokoban.py --output=runs/api.jsonl \
    --api.base_url=http://localhost:8000/v1 --api.model=NAME
python -m launch.evaluate --config=configs/sokoban.py --player=solver --suite=all

See `docs/evaluation.md`.
"""

from launch import command  # isort: skip, it says what is not installed

import json
import pathlib
import re
import shlex
import sys
from collections.abc import Mapping, Sequence

from absl import flags
from ml_collections import ConfigDict

from configs import endpoint
from launch import written
from ragen_jax.runs.progress import working
from ragen_jax.runs.stop import prompt_interrupt
from ragen_jax.terminal import columns, say

_CONFIG = command.define_config()
_API = command.define_section("api", endpoint.get_config(), endpoint.HELP)
_RUN = flags.DEFINE_string("run", None, "Run folder, or a folder in its checkpoints/.")
_CHECKPOINT = command.define_checkpoint()
_SUITE = flags.DEFINE_string(
    "suite",
    None,
    "Suite to play: the name of a game (its generalisation suite), or all.",
)
_PLAYER = flags.DEFINE_enum(
    "player",
    "policy",
    ["policy", "solver", "random"],
    "Player: the policy or the model behind the API; or one that reads no text.",
)
_OUTPUT = flags.DEFINE_string("output", None, "JSONL file to write every episode to.")
_TABLE = flags.DEFINE_string("table", None, "Markdown file to write the scores to.")
_JSON = flags.DEFINE_string(
    "json", None, "JSON file to write the scores to; an existing file is continued."
)
_NUM_PROMPTS = flags.DEFINE_integer(
    "num_prompts", None, "Number of prompts (overrides evaluation.num_prompts)."
)
_NUM_SAMPLES = flags.DEFINE_integer(
    "num_samples", None, "Samples per prompt (overrides evaluation.num_samples)."
)
_TEMPERATURE = flags.DEFINE_float(
    "temperature",
    None,
    "Sampling temperature; 0 is greedy (overrides evaluation.temperature).",
)
_PASS_AT = flags.DEFINE_list(
    "pass_at",
    None,
    "Values of k for pass@k, e.g. 1,4,8 (overrides evaluation.pass_at).",
)


def main(argv: list[str]) -> int:
    config = command.read_optional_config(_CONFIG, argv)
    run = command.run_folder(_RUN.value)
    written.check_files(_OUTPUT, _TABLE, _JSON, is_renamed=True)
    command.enable_compilation_cache()
    overrides = command.overridden_keys(argv)
    if _API().base_url is None:
        for word in argv:
            if re.match(r"--?api\.", word):
                raise ValueError(
                    f"{word} has no effect without --api.base_url; leave it out or "
                    "add the address"
                )
        if _PLAYER.value != "policy":
            _refuse_checkpoint(f"--player={_PLAYER.value}")
            return _evaluate_player(run, config, overrides, argv)
        return _evaluate_policy(run, config, overrides, argv)
    if _PLAYER.value != "policy":
        raise ValueError(
            f"--player={_PLAYER.value} plays without a model; leave out --api.base_url"
        )
    if run is not None or config is None:
        raise ValueError(
            "--api.base_url evaluates the model behind the API on the tasks of "
            "--config=FILE; add --config and leave out --run"
        )
    _refuse_checkpoint("--api.base_url")
    return _evaluate_endpoint(config, overrides, argv)


def _refuse_checkpoint(player: str) -> None:
    if _CHECKPOINT.value is not None:
        raise ValueError(
            f"--checkpoint={_CHECKPOINT.value} has no effect with {player}; leave it "
            "out"
        )


def _changes() -> dict[str, object]:
    changes = {
        "evaluation.num_prompts": _NUM_PROMPTS.value,
        "evaluation.num_samples": _NUM_SAMPLES.value,
        "evaluation.temperature": _TEMPERATURE.value,
    }
    if _PASS_AT.value is not None:
        if not all(word.strip().isdigit() for word in _PASS_AT.value):
            raise ValueError(
                f"--pass_at={','.join(_PASS_AT.value)} must be whole numbers with "
                "commas between them, e.g. --pass_at=1,4,8"
            )
        changes["evaluation.pass_at"] = tuple(map(int, _PASS_AT.value))
    return {key: value for key, value in changes.items() if value is not None}


def _evaluate_policy(
    run: pathlib.Path | None,
    config: ConfigDict | None,
    overrides: Sequence[str],
    argv: Sequence[str],
) -> int:
    with working("loading JAX, the model and the games"):
        from ragen_jax.evaluation.harness import (
            evaluations_at_once,
            policy_evaluations,
        )
        from ragen_jax.evaluation.load import open_trained
        from ragen_jax.evaluation.suites import find_suite
        from ragen_jax.runs.run import digest
        from ragen_jax.runs.writer import write_text_atomically

        if _SUITE.value is not None:
            find_suite(_SUITE.value)  # a typing error is refused before the model loads
        trained = open_trained(
            run,
            config,
            changes=_changes(),
            overrides=overrides,
            defaults=command.defaults(),
            checkpoint=_CHECKPOINT.value,
        )
        evaluations = policy_evaluations(trained, _SUITE.value, overrides)
        weights = digest(trained.params) if _JSON.value else None
    about = _about(trained.name, trained.config, weights=weights)
    records = _measure(
        evaluations,
        about,
        argv,
        keep=_OUTPUT.value is not None,
        run_concurrently=evaluations_at_once(trained),
    )
    if _OUTPUT.value:
        path = pathlib.Path(_OUTPUT.value)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps(record, ensure_ascii=False) for record in records)
        write_text_atomically(path, "".join(f"{line}\n" for line in lines))
        say(f"episodes written to {path}")
    return 0


def _evaluate_player(
    run: pathlib.Path | None,
    config: ConfigDict | None,
    overrides: Sequence[str],
    argv: Sequence[str],
) -> int:
    from ragen_jax.evaluation.players import player_evaluations, prepare

    name, changes = _PLAYER.value, _changes()
    if run is not None or config is None:
        raise ValueError(
            f"--player={name} plays without a model, within the limits of "
            "--config=FILE; add --config and leave out --run"
        )
    if _OUTPUT.value is not None:
        raise ValueError(
            f"--output has no effect with --player={name}, which writes no replies; "
            "leave it out"
        )
    with working("loading JAX and the games"):
        prepare(config, changes, overrides)
        evaluations = player_evaluations(config, name, _SUITE.value, overrides)
    settings = ("num_prompts", "num_samples", "pass_at", "seed")
    about = {
        "policy": name,
        "player": name,
        "suite": _SUITE.value,
        "evaluation": {key: config.evaluation[key] for key in settings},
    }
    _measure(evaluations, about, argv, keep=False)
    return 0


def _evaluate_endpoint(
    config: ConfigDict, overrides: Sequence[str], argv: Sequence[str]
) -> int:
    from ragen_jax.evaluation.api.evaluate import (
        api_evaluations,
        check_api,
        prepare,
    )
    from ragen_jax.evaluation.api.journal import Journal

    api = _API()
    check_api(api)
    if _OUTPUT.value is None:
        raise ValueError(
            "--api.base_url needs --output=FILE.jsonl, which records every reply, so "
            "that none is paid for twice"
        )
    config = prepare(config, _changes(), overrides)
    about = _about(f"{api.model} at {api.base_url}", config, extra_body=api.extra_body)
    path = pathlib.Path(_OUTPUT.value)
    try:
        # Replies on their way are waited for: they are paid.
        with prompt_interrupt(None), Journal(path) as journal:
            evaluations = api_evaluations(
                config, api, journal, suite=_SUITE.value, overrides=overrides
            )
            _measure(evaluations, about, argv, keep=False)
            journal.tidy()
    except KeyboardInterrupt:
        say(f"stopped; {path} keeps the replies, and the same command resumes")
        return 130
    say(f"conversations written to {path}")
    return 0


def _about(policy: str, config: ConfigDict, **more: object) -> dict[str, object]:
    names = ("num_prompts", "num_samples", "pass_at", "temperature", "seed")
    return {
        "policy": policy,
        "suite": _SUITE.value,
        "evaluation": {name: config.evaluation[name] for name in names},
        "prompt": config.prompt.to_dict(),
        "context": [config.rollout.context, config.rollout.context_turns],
        **more,
    }


def _measure(
    evaluations: Sequence,
    about: Mapping[str, object],
    argv: Sequence[str],
    *,
    keep: bool,
    run_concurrently: int = 1,
) -> list[dict]:
    from ragen_jax.evaluation.harness import run_evaluations
    from ragen_jax.evaluation.results import Results
    from ragen_jax.runs.console import command_name
    from ragen_jax.runs.machine import describe_versions
    from ragen_jax.runs.writer import write_text_atomically

    made = {
        "command": f"{command_name('evaluate')} {shlex.join(argv[1:])}",
        **describe_versions(),
    }
    results = Results(about, pathlib.Path(_JSON.value) if _JSON.value else None, made)
    names = ", ".join(evaluation.name for evaluation in evaluations)
    say(f"{about['policy']}: {names}, {about['evaluation']['num_prompts']} prompts")
    records = run_evaluations(
        evaluations,
        results,
        say=say,
        keep_episodes=keep,
        run_concurrently=run_concurrently,
    )
    if _SUITE.value is None:
        metrics = {
            f"val-env/{score.name}/{name}": value
            for score in results.scores
            for name, value in score.metrics.items()
        }
        print(json.dumps(metrics, indent=2, sort_keys=True))
    else:
        say(results.plain(columns(sys.stdout)))
    if _TABLE.value:
        path = pathlib.Path(_TABLE.value)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, results.markdown())
        say(f"table written to {path}")
    return records


if __name__ == "__main__":
    command.run(main, config="training")
