"""Arms that are run: what is kept of them, and that nothing is run twice."""

import dataclasses
import json
import pathlib
import shutil
import types

import pytest

from configs import bandit
from ragen_jax.runs import reader
from ragen_jax.sweeps.sweep import Failure
from studies import configs, table
from studies import run as studies
from studies.arms import Arm
from studies.measures import MEASURES
from studies.records import arm_file, read_arm
from tests import commands
from tests.sft import tiny

LEARNED = Arm("bandit-learned", "Bandit, learned", "bandit", num_seeds=2,
              suite=("Bandit-Reversed",))  # fmt: skip
MARKS = "<!-- verdicts --><!-- end -->"
TUNED = Arm("bandit-tuned", "Bandit, tuned", "bandit", num_seeds=1, is_sft=True)


def learned_config(model, **changes):
    config = bandit.get_config("study,starpo_s,grpo")
    keys = commands.TINY | {
        "model.path": str(model),
        "rollout.max_turns": 1,
        "train.num_iterations": 3,
        "diagnostics.every": 1,
        "diagnostics.num_samples": 4,
    }
    config.update_from_flattened_dict(keys | changes)
    return config.lock()


@pytest.mark.slow
def test_arms_are_run_kept_and_not_run_again(model, tmp_path, monkeypatch):
    checkpoint = tiny.write_checkpoint(tmp_path / "checkpoint")
    arms = [
        (LEARNED, learned_config(model)),
        (TUNED, tiny.tuning_config(checkpoint).lock()),
    ]
    workdir, output = tmp_path / "runs", tmp_path / "study"
    assert studies.run_arms(arms, workdir, output) == 0

    learned = read_arm(output, LEARNED.name)
    assert [run.seed for run in learned.runs] == [0, 1]
    assert learned.settings["train"]["num_iterations"] == 3
    for run in learned.runs:
        assert list(run.curve("val-env/*/success")) == [0, 2, 3]
        assert list(run.curve("actor/entropy")) == [1, 2, 3]
        assert run.first_alarms.keys() >= {"entropy", "in_group_reward_std"}
        assert 0 <= run.suite["Bandit-Reversed"] <= 1
        assert run.ceiling == 1
        for name in ("final", "entropy", "suite:Bandit-Reversed"):
            assert MEASURES[name].value(run) is not None
    folder = workdir / LEARNED.name / "seed-1"
    metrics = reader.read_metrics(folder)
    entropy = learned.runs[1].curve("actor/entropy")
    assert entropy[3] == pytest.approx(metrics[-1]["actor/entropy"], rel=1e-3)
    assert not (folder / "checkpoints").exists()

    (tuned,) = read_arm(output, TUNED.name).runs
    scores = json.loads((workdir / TUNED.name / "seed-0" / "scores.json").read_text())
    expected = [scores[when]["bandit"]["success"] for when in ("before", "after")]
    assert list(tuned.curve("val-env/*/success").items()) == list(
        zip((0, 6), expected, strict=True)
    )
    assert tuned.seconds > 0

    def never(*_):
        raise AssertionError("it was run again")

    monkeypatch.setattr(studies, "fine_tune", never)
    monkeypatch.setattr(studies, "_play_suite", never)
    assert studies.run_arms(arms, workdir, output) == 0

    changed = learned_config(model, **{"rollout.max_reply_tokens": 6})
    with pytest.raises(ValueError, match=r"made with rollout.max_reply_tokens = 8"):
        studies.run_arms([(LEARNED, changed)], workdir, output)


def failing(workdir, *seeds, has_diverged=True):
    """What `train_cells` returns where these seeds have failed."""
    runs = [
        types.SimpleNamespace(title=f"run {seed}", folder=workdir / f"seed-{seed}")
        for seed in seeds
    ]
    return lambda *_: (1, [Failure(run, "it diverged", has_diverged) for run in runs])


@pytest.mark.parametrize(("seeds", "has_diverged"), [([0], True), ([0, 1], False)])
def test_nothing_is_kept_of_an_arm_with_runs_to_come(
    model, tmp_path, monkeypatch, seeds, has_diverged
):
    """Nor of one whose runs failed for another reason, such as a full disk."""
    workdir, output = tmp_path / "runs", tmp_path / "study"
    checkpoints = workdir / LEARNED.name / "seed-0" / "checkpoints"
    checkpoints.mkdir(parents=True)
    fail = failing(workdir / LEARNED.name, *seeds, has_diverged=has_diverged)
    monkeypatch.setattr(studies, "train_cells", fail)
    arms = [(LEARNED, learned_config(model))]
    assert studies.run_arms(arms, workdir, output) == 1
    assert not arm_file(output, LEARNED.name).exists()
    assert checkpoints.exists()


def test_runs_that_diverged_are_kept_as_such(model, tmp_path, monkeypatch, capsys):
    workdir, output = tmp_path / "runs", tmp_path / "study"
    monkeypatch.setattr(studies, "train_cells", failing(workdir / LEARNED.name, 0, 1))
    arms = [(LEARNED, learned_config(model))]
    assert studies.run_arms(arms, workdir, output) == 1
    record = read_arm(output, LEARNED.name)
    assert record.failed == {0: "it diverged", 1: "it diverged"}
    assert not record.runs
    assert studies.is_kept(output, *arms[0])
    assert "run 1: it diverged" in capsys.readouterr().err


# Fewer rows and shorter replies than the preset's, which take minutes.
SMALL = {
    "rollout.num_groups": 4,
    "rollout.group_size": 4,
    "rollout.max_reply_tokens": 8,
    "rollout.decode_chunk_tokens": 4,
    "learner.minibatch_rows": 8,
    "learner.microbatch_rows": 4,
    "evaluation.num_prompts": 4,
    "diagnostics.gradient_every": 2,
}


@pytest.mark.slow
def test_a_study_from_the_command_line(tmp_path, monkeypatch):
    """Of the two arms of a study whose game is the one compiled soonest."""
    monkeypatch.setattr(configs, "_SHORT", configs._SHORT | SMALL)
    whole = table.STUDIES["division"]
    claims = [c for c in whole.claims if all(a.game == "bandit" for a in c.test.arms)]
    study = dataclasses.replace(whole, claims=tuple(claims))
    monkeypatch.setitem(table.STUDIES, study.name, study)
    folder = tmp_path / "quick"
    words = commands.command(
        "study", f"--name={study.name}", "--quick", f"--workdir={folder}"
    )
    done = commands.call(words)
    assert done.returncode == 0, done.stderr
    page = (folder / "division.md").read_text()
    assert "Of shortened runs" in page
    assert "| Bandit, GRPO, vanilla, divided | 1 |" in page
    assert page.count("reproduced") == len(study.claims) == 2
    assert (folder / "division.png").is_file()
    assert len(study.arms) == 2
    for arm in study.arms:
        (run,) = read_arm(folder, arm.name).runs
        assert MEASURES["regulariser_growth"].value(run) is not None
    again = commands.call(words)
    assert "run 1/2" not in again.stdout
    pages = commands.command("study", "--pages", f"--output={folder}")
    done = commands.call(pages)
    assert done.returncode == 2
    assert "was made with diagnostics.every = 1, now it is 10" in done.stderr
    assert "Of shortened runs" in (folder / "division.md").read_text()


def test_bad_names_are_one_sentence(tmp_path):
    done = commands.call(commands.command("study", "--name=colapse"))
    assert done.returncode == 2
    assert "no study 'colapse'. Did you mean 'collapse'" in done.stderr
    done = commands.call(commands.command("study", "--name=keep , foo"))
    assert "no study 'foo'" in done.stderr
    done = commands.call(commands.command("study"))
    assert "no study named; add e.g. --name=starpo_s" in done.stderr


def test_bad_folders_are_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    for flag in ("workdir", "output"):
        words = ("--name=sft", "--quick", f"--{flag}={tmp_path / 'file'}")
        done = commands.call(commands.command("study", *words))
        assert done.returncode == 2
        assert f"--{flag}={tmp_path / 'file'} is a file; name a folder" in done.stderr
    findings = tmp_path / "findings.md"
    findings.write_text(f"[page](study/sft.md) {MARKS}")
    done = commands.call(
        commands.command("study", "--pages", f"--output={tmp_path / 'stduy'}")
    )
    assert done.returncode == 2
    assert f"there are no records in {tmp_path / 'stduy/runs'}" in done.stderr
    assert findings.read_text() == f"[page](study/sft.md) {MARKS}"


def test_only_the_findings_that_show_the_results_are_renewed(tmp_path):
    """The records of the repository, in a folder of another name."""
    commands.need("matplotlib")
    docs = pathlib.Path(__file__).parents[2] / "docs"
    text = f"[page](study/sft.md)\n{MARKS}\n"
    (tmp_path / "findings.md").write_text(text)
    for name, is_renewed in (("mine", False), ("study", True)):
        runs = tmp_path / name / "runs"
        runs.mkdir(parents=True)
        shutil.copy(docs / "study/runs/sokoban-sft.json", runs)
        words = ("--name=sft", "--pages", f"--output={tmp_path / name}")
        done = commands.call(commands.command("study", *words))
        assert done.returncode == 0, done.stderr
        assert "sft, 2 claims: 2 not run yet" in done.stdout
        page = (tmp_path / name / "sft.md").read_text()
        assert "Not run yet: " in page
        assert ((tmp_path / "findings.md").read_text() != text) == is_renewed
