"""Pages: made of records alone, and those in the repository are of its records."""

import dataclasses
import functools
import pathlib

import pytest

from ragen_jax.diagnostics.early_warning import INDICATORS
from ragen_jax.runs import markdown
from studies import pages
from studies.claims import Claim, Difference, Study
from studies.records import KEPT, ArmRecord, RunRecord, arm_file, read_arm, write_arm
from studies.results import read_study
from studies.table import STUDIES
from tests import commands
from tests.studies.runs import ONE, OTHER, SUCCESS, run, runs_of

DOCS = pathlib.Path(__file__).parents[2] / "docs"
STUDY = Study(
    name="pair",
    title="One against another",
    question="Is one better?",
    paper="It is.",
    claims=(Claim("One ends above the other", Difference(ONE, OTHER)),),
    columns=("start", "final", "entropy"),
)


@pytest.fixture
def folder(tmp_path):
    write_arm(tmp_path, ONE.name, ArmRecord({"a.b": 1}, runs_of(0.6, 0.7, 0.8)))
    write_arm(tmp_path, OTHER.name, ArmRecord({"a.b": 2}, runs_of(0.5, 0.4, 0.3)))
    return tmp_path


def test_records_are_read_as_they_were_written(tmp_path):
    first = dataclasses.replace(
        run(1, actor__entropy=[0.5, 0.25]),
        first_alarms={"entropy": 7, "format": None},
        suite={"Bandit-Reversed": 0.5},
        ceiling=0.9,
    )
    record = ArmRecord({"env.name": "bandit", "env.mix": None}, [first, run(2)])
    write_arm(tmp_path, "bandit-one", record)
    assert read_arm(tmp_path, "bandit-one") == record
    assert read_arm(tmp_path, "bandit-other") is None


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"settings":{},"runs":[{"seed":0}]}',
        '{"settings":{},"failed":[],"runs":[]}',
        '{"settings":{},"failed":{},"runs":[{"seed":0,"seconds":1,"curves":[]}]}',
    ],
)
def test_a_damaged_record_is_named(tmp_path, text):
    arm_file(tmp_path, "one").parent.mkdir()
    arm_file(tmp_path, "one").write_text(text)
    with pytest.raises(ValueError, match=r"one\.json is not a record of an arm"):
        read_arm(tmp_path, "one")


def test_the_page_of_a_study(folder):
    page = pages.make_page(read_study(STUDY, folder), is_quick=False)
    assert "| One ends above the other | **reproduced** | +30.0 points [" in page
    assert "| Sokoban, one | 3 | 25.0 % | 70.0 % [60.0, 80.0] |  |" in page
    assert "python -m launch.study --name=pair" in page
    assert "Not run yet" not in page


def test_an_arm_of_several_studies_says_its_value_in_each(folder):
    study = dataclasses.replace(STUDY, values={ONE.name: "8 a prompt"})
    page = pages.make_page(read_study(study, folder), is_quick=False)
    assert "| Sokoban, one, 8 a prompt | 3 |" in page
    assert "| Sokoban, other | 3 |" in page


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_values_are_of_arms_of_the_study(study):
    assert study.values.keys() <= {arm.name for arm in study.arms}
    assert len({study.label(arm) for arm in study.arms}) == len(study.arms)


def test_runs_that_failed_are_counted(folder):
    record = ArmRecord({}, runs_of(0.5, 0.4), {2: "it diverged"})
    write_arm(folder, OTHER.name, record)
    page = pages.make_page(read_study(STUDY, folder), is_quick=False)
    assert "| Sokoban, other | 2, 1 failed | 25.0 % | 45.0 % |" in page


def test_what_has_not_been_run_is_said(folder):
    arm_file(folder, OTHER.name).unlink()
    found = read_study(STUDY, folder)
    page = pages.make_page(found, is_quick=False)
    assert "| One ends above the other | not run yet |  |" in page
    assert "Not run yet: sokoban-other." in page
    assert pages.make_overview([found]).splitlines()[2].endswith("| 1 |  |  |  | 1 |")


def test_the_overview_counts_verdicts(folder):
    overview = pages.make_overview([read_study(STUDY, folder)])
    last = overview.splitlines()[-1]
    assert last == "| [One against another](#pair) | 1 | 1 |  |  |  |"
    text = "# Page\n<!-- verdicts -->\nold\n<!-- end -->\nrest\n"
    assert markdown.replace_marked(text, pages.MARK, overview) == (
        f"# Page\n<!-- verdicts -->\n{overview}<!-- end -->\nrest\n"
    )
    for page in ("# Page\n<!-- end -->\n", "<!-- end --><!-- verdicts -->"):
        with pytest.raises(ValueError, match="<!-- verdicts -->, or <!-- end -->"):
            markdown.replace_marked(page, pages.MARK, overview)


def test_figures_are_drawn(folder):
    commands.need("matplotlib")
    (found,) = pages.write_pages([STUDY], folder, is_quick=True)
    png = (folder / "pair.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert "shortened runs" in (folder / "pair.md").read_text()
    pages.write_pages([STUDY], folder, is_quick=True)
    assert (folder / "pair.png").read_bytes() == png
    assert found.verdicts


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_every_study_has_a_page_and_a_figure(tmp_path, study):
    """Of runs that have every measure, and of one that fell."""
    commands.need("matplotlib")
    metrics = {metric: {1: 0.4, 20: 0.5, 40: 0.6} for metric in KEPT}
    fallen = {0: 0.2, 5: 0.6, 10: 0.6, 15: 0.3, 20: 0.2}
    for arm in study.arms:
        runs = [
            RunRecord(
                seed=seed,
                seconds=30.0,
                curves=metrics | {SUCCESS: fallen if seed == 0 else {0: 0.2, 40: 0.5}},
                first_alarms=dict.fromkeys(INDICATORS, 7 + seed),
                suite=dict.fromkeys(arm.suite, 0.5),
            )
            for seed in arm.seeds
        ]
        write_arm(tmp_path, arm.name, ArmRecord({}, runs))
    (found,) = pages.write_pages([study], tmp_path, is_quick=False)
    assert len(found.verdicts) == len(study.claims)
    assert not found.missing
    assert (tmp_path / f"{study.name}.png").stat().st_size > 5000


@functools.cache
def committed(name):
    """A study by its committed records; its tests of significance take seconds."""
    return read_study(STUDIES[name], DOCS / "study")


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_committed_pages_are_made_of_the_committed_records(study):
    page = DOCS / "study" / f"{study.name}.md"
    found = committed(study.name)
    assert page.is_file() == bool(found.runs)
    if found.runs:
        assert page.read_text() == pages.make_page(found, is_quick=False)
        assert (DOCS / "study" / f"{study.name}.png").is_file()


def test_the_committed_overview_is_that_of_the_records():
    text = (DOCS / "findings.md").read_text()
    found = [committed(name) for name in STUDIES]
    overview = pages.make_overview(found)
    assert text == markdown.replace_marked(text, pages.MARK, overview)
    for study in STUDIES.values():
        assert f'<a id="{study.name}"></a>' in text
