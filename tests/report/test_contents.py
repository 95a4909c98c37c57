"""What a report says, and that text of models stays text."""

import html.parser
import json
import random

import numpy as np
import pytest

from ragen_jax.report.alarms import alarms, regime_borders, success_fell
from ragen_jax.report.contents import make_contents
from ragen_jax.report.episodes import choose_episodes, episode_problem
from ragen_jax.report.page import escape_json, make_page
from ragen_jax.report.runs import RunData, read_runs
from ragen_jax.report.series import make_series
from ragen_jax.runs import figures
from ragen_jax.runs.metrics import METRICS
from tests.report import fake_runs, malformed


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return read_runs(fake_runs.write_two_series(folder, seeds=2))


@pytest.fixture(scope="module")
def contents(runs):
    return make_contents(runs, make_series(runs), max_episodes=50)


class Reader(html.parser.HTMLParser):
    """Elements and the text inside scripts, as a browser's parser finds them."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.scripts, self._inside = [], [], False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.scripts[-1] += data


def test_the_page_holds_exactly_the_contents(contents):
    page = make_page(contents)
    reader = Reader(page)
    data, cells, _ = reader.scripts
    assert json.loads(data) == json.loads(json.dumps(contents))
    assert "wall" in json.loads(cells)
    replies = [t["reply"] for e in contents["episodes"]["chosen"] for t in e["turns"]]
    assert any(fake_runs.HOSTILE in reply for reply in replies)
    assert not {"img", "iframe", "object"} & {tag for tag, _ in reader.tags}
    page.encode("utf-8")


def test_the_page_names_no_other_file_and_allows_none(contents):
    reader = Reader(make_page(contents))
    for _, attributes in reader.tags:
        assert "src" not in attributes
        assert attributes.get("href", "data:,").startswith(("data:", "#"))
    (policy,) = (
        a["content"]
        for _, a in reader.tags
        if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    "text",
    ["</script>", "<!--<script>", "\u2028&", "\ud800", "<", "{{data}}", "\\u003c"],
)
def test_escaped_json_is_the_same_value_without_markup(text):
    escaped = escape_json(json.dumps([text], ensure_ascii=False))
    assert json.loads(escaped) == [text]
    assert not set("<>&\u2028\ud800") & set(escaped)


def test_equal_runs_give_equal_pages(runs, contents):
    again = make_contents(runs, make_series(runs), max_episodes=50)
    assert make_page(again) == make_page(contents)


def test_the_summary_has_the_ends_and_the_best(runs, contents):
    collapsed, learned = contents["summary"]
    assert (collapsed["num_runs"], collapsed["last"]["at"]) == (2, 40)
    metric = "val-env/Sokoban/success"
    last = [run.curve(metric)[40] for run in runs[:2]]
    assert collapsed["last"]["mean"] == pytest.approx(sum(last) / 2, rel=1e-4)
    assert collapsed["last"]["ends"] == pytest.approx([min(last), max(last)], rel=1e-4)
    assert collapsed["best"]["mean"] > 10 * collapsed["last"]["mean"]
    assert 5 <= collapsed["best"]["at"] <= 15 < learned["best"]["at"]
    assert learned["ceiling"] == 0.992
    assert learned["source"] == "held-out"


def test_a_run_without_evaluations_reports_training(tmp_path):
    folder = fake_runs.write_run(tmp_path / "run", iterations=4)
    (run,) = read_runs([folder])
    records = [r for r in run.records if r["iteration"]]
    run = RunData(run.name, run.folder, run.settings, records)
    (row,) = make_contents([run], make_series([run]), max_episodes=0)["summary"]
    assert row["source"] == "training"
    assert row["ceiling"] is None


def test_the_best_of_a_long_run_is_among_all_its_points(tmp_path):
    folder = fake_runs.write_run(tmp_path / "run", iterations=1)
    (run,) = read_runs([folder])
    metric = "train/Sokoban/success"
    records = [{"iteration": i, metric: 0.3 + 0.6 * (i == 501)} for i in range(1, 1001)]
    run = RunData(run.name, run.folder, run.settings, records)
    (row,) = make_contents([run], make_series([run]), max_episodes=0)["summary"]
    assert (row["best"]["at"], row["best"]["mean"]) == (501, 0.9)


def test_every_section_is_there_and_older_runs_lack_some(contents, tmp_path):
    def drawn(found):
        return {s["key"] for s in found["sections"] if s["panels"] or s["special"]}

    assert drawn(contents) == {section.key for section in figures.SECTIONS}
    old = read_runs(
        [fake_runs.write_run(tmp_path / "old", diagnostics=False, iterations=3)]
    )
    found = drawn(make_contents(old, make_series(old), max_episodes=0))
    assert found == {"progress", "indicators", "update", "timing"}
    lacking = make_contents(old, make_series(old), max_episodes=0)["sections"]
    absent = {s["key"] for s in lacking if s["absent"]}
    assert absent == {"plane", "alarms", "buckets", "update"}  # the last without KL
    assert not any(s["absent"] for s in contents["sections"])
    assert all(section.absent for section in figures.SECTIONS)


def test_panels_name_every_game():
    sections = {s.key: s.panels for s in figures.make_sections(METRICS)}
    _, returns, *_ = sections["progress"]
    (panel,) = figures.expand([returns], ["A"])
    assert panel.lines[0].metric == "train/A/episodic_return"
    assert len(figures.expand([returns], ["A", "B"])) == 2
    (entropy,) = (
        p for p in sections["indicators"] if p.lines[0].metric == "actor/entropy"
    )
    assert len(figures.expand([entropy], ["A", "B"])) == 1


def test_alarms_and_the_fall_of_success(runs):
    collapsed, learned = alarms(runs[0]), alarms(runs[2])
    assert collapsed["first"]["grad_norm"] == 15
    assert learned["fell"] is None
    assert not any(learned["at"].values())
    # By hand: the first mean over five below half of the best mean so far.
    success = list(runs[0].curve("train/Sokoban/success").values())
    means = [sum(success[i - 4 : i + 1]) / 5 for i in range(4, len(success))]
    fell = next(i for i, x in enumerate(means) if x < 0.5 * max(means[: i + 1]))
    assert collapsed["fell"] == fell + 5  # iterations count from 1, the first has 5
    assert collapsed["first"]["in_group_reward_std"] < collapsed["fell"]
    assert [at for at, _ in collapsed["regimes"]] == [1, *range(5, 41, 5)]


def test_success_at_chance_does_not_fall():
    records = [
        {"iteration": i, "train/X/success": 0.04 * (i < 8)} for i in range(1, 20)
    ]
    assert success_fell(RunData("a", None, {}, records)) == (None, False)
    records[3]["train/X/success"] = 1.0
    fell, is_judged = success_fell(RunData("a", None, {}, records))
    assert fell is not None
    assert is_judged


def test_regimes_begin_at_half_of_what_was_first(runs):
    series = make_series(runs)
    borders = regime_borders(series)
    firsts = [run.curve(figures.PLANE_Y)[1] for run in runs]
    assert borders["y"] == pytest.approx(0.5 * sum(firsts) / 4)
    own = {"warning.information_regime_low": 0.25}
    changed = [RunData(r.name, r.folder, r.settings | own, r.records) for r in runs]
    assert regime_borders(make_series(changed))["y"] == pytest.approx(borders["y"] / 2)


def test_many_series_share_the_points_of_a_page(runs, monkeypatch):
    monkeypatch.setattr("ragen_jax.report.contents.MAX_POINTS_TOGETHER", 20)
    found = make_contents(runs, make_series(runs), max_episodes=0)
    for metric, curves in found["curves"].items():
        last = {"perf/compile_s/testing": 0, "perf/compile_s/rollout": 1}.get(
            metric, 40
        )
        assert all(len(c["at"]) <= 10 and c["at"][-1] == last for c in curves if c)


def test_buckets_are_means_over_the_run(runs, contents):
    found = contents["buckets"]
    assert found["names"] == [f"bucket_{i}" for i in range(1, 5)]
    assert found["parts"] == ["task", "entropy", "kl"]
    assert found["has_snr"]
    curves = [run.curve("grad_norm/bucket_2/task") for run in runs[:2]]
    means = [sum(c.values()) / len(c) for c in curves]
    assert found["means"][0]["task"][1] == pytest.approx(
        [sum(means) / 2, min(means), max(means)], rel=1e-4
    )


@pytest.mark.parametrize("limit", [0, 1, 3, 7, 50, 10_000])
def test_episodes_are_bounded_and_spread(runs, limit):
    found = choose_episodes(runs, limit)
    chosen, total = found.chosen, found.total
    assert not found.skipped
    assert total == 4 * 40 * 4
    assert len(chosen) == min(limit, total)
    if limit >= 8:
        for number in range(4):
            own = [e["iteration"] for e in chosen if e["run"] == number]
            assert {1, 40} <= set(own)
    if limit == 50:
        sizes = [sum(e["run"] == i for e in chosen) for i in range(4)]
        assert sizes == [13, 13, 12, 12]


def test_a_page_stays_small_whatever_is_asked(runs, monkeypatch):
    monkeypatch.setattr("ragen_jax.report.episodes.MAX_CHARACTERS", 20_000)
    found = choose_episodes(runs, 10_000)
    chosen, total = found.chosen, found.total
    assert 0 < len(chosen) < total
    assert len(json.dumps(chosen)) < 21_000


def test_a_small_page_has_episodes_of_all_runs_and_iterations(runs, monkeypatch):
    monkeypatch.setattr("ragen_jax.report.episodes.MAX_CHARACTERS", 1_000_000)
    chosen = choose_episodes(runs, 10_000).chosen
    places = {(episode["run"], episode["iteration"]) for episode in chosen}
    assert len(places) == 4 * 40 < len(chosen) < 4 * 40 * 4


def test_iterations_that_are_unevenly_filled(tmp_path):
    run = fake_runs.write_run(tmp_path / "run", iterations=6)
    rng = random.Random(0)
    for path in (run / "trajectories").iterdir():
        lines = path.read_text(encoding="utf-8").split("\n")[: rng.randint(0, 4)]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    runs = read_runs([run])
    total = choose_episodes(runs, 1).total
    for limit in range(total + 3):
        assert len(choose_episodes(runs, limit).chosen) <= limit
    assert len(choose_episodes(runs, total * 4).chosen) == total


GOOD = fake_runs._episode(1, 0, np.random.default_rng(0), 0.5, True)


@pytest.mark.parametrize("tokens", [True, False])
def test_recorded_episodes_can_be_shown(tokens):
    rng = np.random.default_rng(0)
    for row in range(4):
        assert episode_problem(fake_runs._episode(1, row, rng, 0.5, tokens)) is None


@pytest.mark.parametrize("name", malformed.CHANGES)
def test_malformed_episodes_cannot(name):
    assert episode_problem(json.loads(malformed.records(GOOD)[name]))


def test_malformed_episodes_are_skipped_and_counted(tmp_path):
    runs = read_runs([malformed.write_run(tmp_path / "run", iterations=2)])
    found = choose_episodes(runs, 1_000)
    assert len(found.chosen) == 4 + 1 + 4
    assert sum(found.skipped.values()) == len(malformed.records(GOOD))
    assert found.total == len(found.chosen) + len(malformed.records(GOOD))
    page = make_page(make_contents(runs, make_series(runs), max_episodes=1_000))
    assert "NaN" not in page.split('id="data">')[1].split("</script>")[0]
