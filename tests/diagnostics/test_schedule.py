"""Diagnostics of a run: when they are made, and what keys are refused without them."""

import json

import pytest

from configs import bandit, sokoban
from ragen_jax import config as config_lib
from ragen_jax.diagnostics import mutual_information
from ragen_jax.diagnostics.schedule import is_due
from ragen_jax.train import train
from tests import commands


def run(model, workdir, capsys, *, every, total):
    """Digest of the parameters, and metrics by iteration without their times."""
    config = commands.tiny_config(
        bandit,
        model,
        rollout__max_turns=1,
        evaluation__every=None,
        logging__trajectories_every=None,
        diagnostics__every=every,
        diagnostics__num_samples=6,
        train__num_iterations=total,
    )
    assert train(config, workdir) == 0
    digest = capsys.readouterr().out.split("sha256 ")[1].split()[0]
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return (
        digest,
        [
            {
                k: v
                for k, v in record.items()
                if not k.startswith(commands.TIMING_PREFIXES)
            }
            for record in records
        ],
        records[-1],
    )


@pytest.mark.slow
def test_diagnostics_change_nothing_and_resume(model, tmp_path, capsys, monkeypatch):
    """Whole replies in place of thoughts: a random network closes no tag."""
    monkeypatch.setattr(
        mutual_information,
        "count_thoughts",
        lambda parser, batch: batch.turns.reply_length,
    )
    plain, without, _ = run(model, tmp_path / "off", capsys, every=None, total=4)
    digest, records, last = run(model, tmp_path / "on", capsys, every=2, total=4)
    run(model, tmp_path / "cut", capsys, every=2, total=3)
    again, resumed, _ = run(model, tmp_path / "cut", capsys, every=2, total=4)
    assert plain == digest == again
    assert records == resumed
    assert last["timing_s/diagnostics"] > 0
    label = mutual_information.FIRST_TURNS
    learned, wanted = (
        [{k: v for k, v in r.items() if k.startswith(("actor/", "train/"))} for r in rs]
        for rs in (records, without)
    )
    assert learned == wanted
    measured = [r for r in records if f"{label}mi_estimate" in r]
    assert [r["iteration"] for r in measured] == [1, 2, 4]
    # Six of eight rows, of two groups.
    assert measured[0][f"{label}num_samples"] == 6
    assert measured[0][f"{label}num_prompts"] == 2
    assert measured[0]["collapse/valid_thinking_rate"] == 1
    average = None
    for record in measured:
        spread = record[f"{label}marginal_std_seq"]
        average = spread if average is None else 0.9 * average + (1 - 0.9) * spread
        assert record[f"{label}marginal_std_ema_seq"] == average
        zscore = record[f"{label}mi_seq_estimate"] / (average + 1e-3)
        assert record[f"{label}mi_zscore_ema_seq"] == pytest.approx(zscore)


def test_the_first_iteration_and_every_so_many_are_due():
    assert [done for done in range(1, 13) if is_due(5, done)] == [1, 5, 10]
    assert [done for done in range(1, 4) if is_due(1, done)] == [1, 2, 3]


def test_keys_of_diagnostics_that_are_not_made_are_refused():
    """The defaults are not: no override asked for them."""
    changes, words = {"prompt.thinking": False}, "prompt.thinking = False"
    config = sokoban.get_config()
    config.update_from_flattened_dict(changes)
    config_lib.validate(config, list(changes))
    with pytest.raises(ValueError, match=f"diagnostics.every has no effect .*{words}"):
        config_lib.validate(config, [*changes, "diagnostics.every"])
    config.update_from_flattened_dict(commands.TINY | {"diagnostics.every": None})
    config_lib.validate(config, [*changes, "diagnostics.every"])
