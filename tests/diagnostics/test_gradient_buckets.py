"""Gradients by reward spread in a run: they are there, and change nothing."""

import json

import pytest

from configs import bandit, sokoban
from ragen_jax.config import validate
from ragen_jax.train import train
from tests import commands


def run(model, workdir, capsys, **changes):
    usual = {"evaluation__every": None, "train__num_iterations": 3}
    config = commands.tiny_config(bandit, model, **usual | changes)
    assert train(config, workdir) == 0
    digest = capsys.readouterr().out.split("sha256 ")[1].split()[0]
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return digest, [json.loads(line) for line in lines]


@pytest.mark.slow
def test_a_run_is_the_same_with_them(model, tmp_path, capsys):
    plain, without = run(model, tmp_path / "off", capsys)
    digest, records = run(
        model,
        tmp_path / "on",
        capsys,
        diagnostics__gradient_every=3,
        diagnostics__gradient_buckets=2,
    )
    assert digest == plain
    names = ("grad_norm/", *commands.TIMING_PREFIXES)

    def others(records):
        return [
            {k: x for k, x in record.items() if not k.startswith(names)}
            for record in records
        ]

    assert others(records) == others(without)
    measured = [r for r in records if "grad_norm/all/task" in r]
    assert [r["iteration"] for r in measured] == [1, 3]
    record = measured[0]
    # Two groups of four that earned nothing: no task, and everything regularised.
    for bucket, count in (("bucket_1", 4), ("bucket_2", 4), ("all", 8)):
        assert record[f"grad_norm/{bucket}/sample_count"] == count
        assert record[f"grad_norm/{bucket}/task"] == 0
        assert record[f"grad_norm/{bucket}/entropy"] > 0
    assert record["grad_norm/all/snr"] == 0
    # One pass over everything: the update saw the same policy and tokens.
    update = 2 * record["grad_norm/all/entropy"] / 2
    assert record["actor/num_minibatches"] == 2
    assert 0.5 * update < record["actor/grad_norm"] < 2 * update
    assert record["timing_s/gradient_buckets"] > 0


def test_refused_where_they_are_not_made():
    config, key = sokoban.get_config(), "diagnostics.gradient_buckets"
    with pytest.raises(ValueError, match=f"{key} has no effect.*every = None"):
        validate(config, [key])
    config.diagnostics.gradient_every = 5
    validate(config, [key])
    config.diagnostics.gradient_bucket_mode = "other"
    with pytest.raises(ValueError, match="choose one of fixed, quantile"):
        validate(config)
