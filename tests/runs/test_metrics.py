"""Every metric is declared once, and everything shown follows from the declarations."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import metrics_page
from ragen_jax.diagnostics import gradient_buckets, mutual_information
from ragen_jax.diagnostics.early_warning import EACH_GAME, INDICATORS
from ragen_jax.evaluation.api.journal import play_metrics
from ragen_jax.evaluation.statistics import summarize
from ragen_jax.registry.metrics import FIELDS, Metric, View, name_pattern
from ragen_jax.rollout import metrics as rollout
from ragen_jax.runs import figures
from ragen_jax.runs.console import Display
from ragen_jax.runs.metrics import (
    METRICS,
    TimeShares,
    declared,
    tokens_per_second,
    when_compiled,
)
from ragen_jax.runs.sinks import tensorboard
from tests.report import fake_runs
from tests.trajectories import make_trajectory


def test_every_name_is_declared_once():
    for metric in METRICS:
        # The declared name itself, its fields replaced by something they stand for.
        name = re.sub(r"\{(\w+)\}", lambda m: EXAMPLES[m.group(1)], metric.name)
        assert [m.name for m in METRICS if m.matches(name)] == [metric.name]


EXAMPLES = {
    "split": "train",
    "env": "Sokoban",
    "number": "f1",
    "k": "8",
    "turns": "first_turn",
    "form": "",
    "rank": "@2",
    "bucket": "all",
    "part": "kl",
    "loss": "total",
    "statistic": "max",
    "end": "low",
    "stage": "update",
    "indicator": "entropy",
}


def test_fields_stand_for_their_examples():
    assert set(EXAMPLES) == set(FIELDS)
    assert all(re.fullmatch(FIELDS[field], x) for field, x in EXAMPLES.items())
    assert not re.fullmatch(name_pattern("train/{env}/x.y"), "train/a/b/x.y")
    assert not re.fullmatch(name_pattern("train/{env}/x.y"), "train/a/x_y")


def test_views_name_sections_and_metrics_that_exist():
    keys = {section.key for section in figures.SECTIONS}
    for metric in METRICS:
        assert metric.kind in {"number", "share", "seconds"}, metric.name
        for view in metric.views:
            assert (view.section or metric.section) in keys, metric.name
            assert view.style in {"main", "thin", "reference"}, metric.name
            drawn = view.name or metric.name
            example = re.sub(r"\{(\w+)\}", lambda m: EXAMPLES[m.group(1)], drawn)
            assert declared(example) is metric, (metric.name, drawn)
            assert not view.needs or declared(view.needs), (metric.name, view.needs)


def test_report_and_page_call_the_same_regimes_healthy():
    """`collapse/regime` of docs/metrics.md, and the lead of the report's plane."""
    regime = declared("collapse/regime")
    assert regime.healthy == "0 at any time, 2 late in a run that learned"
    assert regime.cure.startswith("1 or 3: stop")
    (plane,) = (s for s in figures.SECTIONS if s.key == "plane")
    healthy, unhealthy = plane.lead.split("Healthy: ")[1].split(" Not healthy: ")
    assert healthy == "diverse (at any time), compressed (late in a run that learned)."
    assert unhealthy == "template collapse, low-entropy collapse."


def test_panels_have_a_unit_from_their_first_metric():
    for section in figures.make_sections(METRICS, with_special=True):
        assert all(panel.unit for panel in section.panels), section.key


def test_the_page_is_made_from_the_declarations():
    page = metrics_page.PAGE.read_text(encoding="utf-8")
    assert metrics_page.fill(page) == page, "run: python -m benchmarks.metrics_page"


def test_a_section_without_a_table_is_refused():
    page = metrics_page.PAGE.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="give every section one pair"):
        metrics_page.fill(page.replace("metrics: timing", "metrics: speed"))


def information_names():
    """Names of the information estimates for three thoughts under two prompts."""
    scores = np.log(np.array([[0.5, 0.1], [0.4, 0.2], [0.1, 0.7]]))
    lengths, prompt_of = np.array([2, 3, 4]), np.array([0, 0, 1])
    metrics = mutual_information.estimates(scores, lengths, prompt_of)
    metrics |= mutual_information.averaged(metrics, {})
    for label in (mutual_information.FIRST_TURNS, mutual_information.ANY_TURNS):
        yield from (label + name for name in metrics)


def bucket_names():
    ones = np.ones(3)
    parts = dict.fromkeys(("task", "entropy", "kl"), ones)
    metrics = gradient_buckets.bucket_metrics(
        np.array([0.0, 1.0, 2.0]),
        np.array([0, 1, 1]),
        4,
        num_tokens=ones,
        norms=parts,
        losses=parts,
        squares=ones,
    )
    return (f"grad_norm/{name}" for name in metrics)


def indicator_names():
    for name, indicator in INDICATORS.items():
        yield f"alarm/{name}"
        yield indicator.metric.replace(EACH_GAME, "train/Sokoban/")


def summary_names():
    success = np.array([[True, False], [False, False]])
    return (f"val-env/Sokoban/{name}" for name in summarize(success, 1.0, [1, 2]))


@pytest.mark.parametrize(
    "names", [information_names, bucket_names, indicator_names, summary_names]
)
def test_what_is_computed_together_is_declared(names):
    names = list(names())
    assert names
    assert [name for name in names if declared(name) is None] == []


def test_conversations_over_an_api_have_the_metrics_of_episodes():
    """They are computed from records, not from a trajectory: by the same names."""
    turn = dict.fromkeys(("effective", "valid", "has_format", "is_cut"), 1)
    turn |= {"actions": [0], "reply_tokens": 3}
    record = dict.fromkeys(("success", "return", "penalty", "bonus", "truncated"), 0)
    metrics = play_metrics([record | {"turns": [turn]}])
    assert set(metrics) == {metric.key for metric in rollout.METRICS} | {"pass@1"}


def test_the_made_up_run_has_declared_metrics_only(tmp_path):
    """It stands for a real run in the tests of the report and of TensorBoard."""
    run = fake_runs.write_run(tmp_path / "run", iterations=2)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    names = {name for line in lines for name in json.loads(line)}
    assert [n for n in names - {"iteration", "time"} if declared(n) is None] == []


def test_a_new_metric_is_one_declaration(monkeypatch, capsys):
    """Declared in one place, it is computed, printed, drawn and documented."""
    metric = Metric(
        "{split}/{env}/last_reward",
        "reward of the last turn",
        section="progress",
        views=(
            View(
                "{env}: last reward",
                "reward",
                name="train/{env}/last_reward",
                console="last",
            ),
        ),
        value=lambda t: (jnp.sum(t.turns.reward[:, -1]), t.turns.reward.shape[0]),
    )
    monkeypatch.setattr(rollout, "METRICS", (*rollout.METRICS, metric))
    episodes = make_trajectory([1.0, 3.0])
    computed = rollout.rollout_metrics(episodes, group_size=1)["last_reward"]
    assert computed == jnp.mean(episodes.turns.reward[:, -1])
    everything = (*METRICS, metric)
    with Display(["Sokoban"], start=0, total=2, metrics=everything) as display:
        display.iteration(1, {"train/Sokoban/last_reward": 2.0})
    assert "last 2.000" in capsys.readouterr().out
    monkeypatch.setattr(tensorboard, "METRICS", everything)
    layout = tensorboard.layout(["Sokoban"])
    assert layout["Progress"]["last reward"][0] == "Multiline"
    progress = figures.make_sections(everything)[0]
    assert progress.panels[-1].title == "{env}: last reward"
    row = "| `<split>/<env>/last_reward` | reward of the last turn |"
    assert row in metrics_page.table(everything)


TIMES = {"timing_s/rollout": 2.0, "timing_s/update": 5.0, "timing_s/testing": 1.0}
TIMES |= {"timing_s/diagnostics": 2.0, "timing_s/gradient_buckets": 1.5}
COUNTS = {"train/Sokoban/response_length": 30.0, "actor/num_tokens": 100.0}


def test_rates_are_tokens_by_seconds():
    assert tokens_per_second(TIMES | COUNTS, 8) == {
        "perf/sampled_tokens_per_second": 30 * 8 / 2,
        "perf/trained_tokens_per_second": 100 / 5,
    }


def test_what_compiles_has_no_rate():
    compiling = TIMES | COUNTS | {"perf/compile_s/update": 3.0}
    rates = tokens_per_second(compiling, 8)
    assert list(rates) == ["perf/sampled_tokens_per_second"]
    left_out = when_compiled(compiling)
    assert left_out == {"timing_s/update", "perf/trained_tokens_per_second"}
    assert when_compiled(TIMES) == set()


def test_shares_of_time_are_of_the_iterations_that_compiled_nothing():
    shares = TimeShares()
    assert shares.add({"timing_s/testing": 70.0}) == {}  # before training
    assert shares.add(TIMES | {"perf/compile_s/metrics": 1.0}) == {}
    # Gradient buckets are a part of the diagnostics, and no stage beside them.
    first = {"rollout": 0.2, "update": 0.5, "diagnostics": 0.2, "testing": 0.1}
    first = {f"perf/time_share/{s}": x for s, x in (first | {"metrics": 0.0}).items()}
    assert shares.add(TIMES) == pytest.approx(first)
    second = shares.add({"timing_s/rollout": 10.0, "timing_s/testing": None})
    assert second["perf/time_share/rollout"] == pytest.approx(12 / 20)
    assert second["perf/time_share/update"] == pytest.approx(5 / 20)
    assert sum(second.values()) == pytest.approx(1)


def test_a_view_in_a_section_that_is_not_drawn_names_the_cure():
    metric = Metric("new", "text", section="nowhere", views=(View("Title"),))
    with pytest.raises(ValueError, match="section 'nowhere', which is not drawn"):
        figures.make_sections([metric])
