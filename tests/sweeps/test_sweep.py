"""Sweeps: their runs are those of `train` alone, and share what they compile."""

import json
import re
import threading
import time

import pytest

from configs import bandit, sokoban
from ragen_jax.config import to_json
from ragen_jax.diagnostics.timing import compilations
from ragen_jax.program.build import LEARNING, bind_policy, build_program, renumber
from ragen_jax.runs import reader
from ragen_jax.sweeps import sweep as sweeps
from ragen_jax.sweeps.grid import check_cells, make_cells, parse_grid
from ragen_jax.sweeps.programs import Programs, play_key, program_key
from ragen_jax.sweeps.results import run_folder
from ragen_jax.tasks.build import build_task
from ragen_jax.tasks.specs import env_specs
from ragen_jax.train import run_program, train
from tests import commands

GRID = ("optimizer.learning_rate=1e-3,2e-3",)
SEEDS = (0, 1)
# With a critic, whose head is drawn from the seed; rollouts in two parts.
CHANGES = {
    "algo.advantage": "gae",
    "rollout.part_rows": 4,
    "train.num_iterations": 2,
    "logging.sinks": ("tensorboard",),
    "diagnostics.every": 1,
    "diagnostics.num_samples": 4,
}


def make_config(model, task=bandit, **changes):
    changes = CHANGES | commands.dotted(changes)
    return commands.tiny_config(task, model, **changes).lock()


def cells_of(model, *grid, task=bandit, **changes):
    return make_cells(make_config(model, task, **changes), parse_grid(grid))


@pytest.fixture(scope="module")
def swept(tmp_path_factory, model):
    """A finished sweep of two learning rates and two seeds: two runs at a time."""
    workdir = tmp_path_factory.mktemp("swept") / "sweep"
    assert sweeps.sweep(cells_of(model, *GRID), SEEDS, workdir) == 0
    return workdir


def result_of(folder):
    return reader.read_recorded(folder).result


@pytest.mark.parametrize(("index", "seed"), [(0, 1), (1, 0)])
def test_runs_are_those_of_train_alone(swept, model, tmp_path, index, seed):
    cell = cells_of(model, *GRID)[index]
    assert train(cell.with_seed(seed), tmp_path / "alone") == 0
    folder = run_folder(swept, cell.name, seed)
    assert commands.record_of(folder) == commands.record_of(tmp_path / "alone")
    assert result_of(folder) == result_of(tmp_path / "alone")
    files = [
        {
            re.sub(r"tfevents\..*", "tfevents", str(path.relative_to(root)))
            for path in root.rglob("*")
            if "checkpoints/" not in str(path)
        }
        for root in (folder, tmp_path / "alone")
    ]
    assert files[0] == files[1]


@pytest.mark.slow
def test_runs_differ_from_each_other(swept, model):
    digests = {
        result_of(run_folder(swept, cell.name, seed))["params_sha256"]
        for cell in cells_of(model, *GRID)
        for seed in SEEDS
    }
    assert len(digests) == 4


def test_another_seed_and_other_numbers_compile_nothing(model, tmp_path):
    """Nor do the diagnostics; and the run is the one of `train` alone."""
    programs = Programs()
    shared = {"kl.placement": "loss", "diagnostics.gradient_every": 1}
    numbers = {
        "optimizer.learning_rate": 0.1,
        "optimizer.beta2": 0.95,
        "loss.clip_high": 0.1,
        "loss.entropy_coeff": 0.0,
        "kl.coeff": 0.1,
        "filter.keep_fraction": 0.5,
        "critic.warmup_updates": 1,
    }
    first = make_config(model, **shared)
    other = make_config(model, seed=1, **shared | numbers)
    assert program_key(first) == program_key(other)
    assert run_program(first, programs.start(first), tmp_path / "first") == 0
    with compilations() as compiled:
        assert run_program(other, programs.start(other), tmp_path / "other") == 0
    assert compiled.num_programs == 0
    results = [result_of(tmp_path / name) for name in ("first", "other")]
    assert results[0] != results[1]
    assert train(other, tmp_path / "alone") == 0
    records = [commands.record_of(tmp_path / name) for name in ("other", "alone")]
    assert records[0] == records[1]
    assert result_of(tmp_path / "alone") == results[1]


def test_another_way_to_learn_plays_by_the_same_programs(
    model, tmp_path, compiled_names
):
    """Only the update is compiled; and the run is the one of `train` alone."""
    programs = Programs()
    first = make_config(model, diagnostics__every=None)
    changes = {
        "algo.advantage": "grpo",
        "rollout.format_penalty": -0.5,
        "evaluation.temperature": 0.7,
        "diagnostics.every": None,
    }
    other = make_config(model, seed=1, **changes)
    assert program_key(first) != program_key(other)
    assert play_key(first) == play_key(other)
    assert run_program(first, programs.start(first), tmp_path / "first") == 0
    before = compiled_names()
    assert {"rollout", "update", "_look"} <= set(before)
    assert run_program(other, programs.start(other), tmp_path / "other") == 0
    compiled = set(compiled_names()[len(before) :])
    assert "update" in compiled
    assert not compiled & {"rollout", "_look"}
    assert train(other, tmp_path / "alone") == 0
    records = [commands.record_of(tmp_path / name) for name in ("other", "alone")]
    assert records[0] == records[1]
    assert result_of(tmp_path / "alone") == result_of(tmp_path / "other")


def test_rollouts_read_nothing_of_how_a_run_learns(model):
    """So `play_key` may leave these sections out."""
    config = make_config(model)
    whole = build_program(config)
    config = config.unlock()
    for section in LEARNING:
        del config[section]
    (spec,) = env_specs(config)
    task = build_task(config, spec, whole.task.tokenizer)
    mesh = whole.batch_sharding.mesh
    sizes = {"index": 0, "num_groups": spec.num_groups}
    task = bind_policy(config, task, whole.policy, mesh, **sizes)
    assert renumber(config, whole.task, whole.model.vocab_size).rules == task.rules


@pytest.mark.parametrize("key", ["learner.epochs=1,2", "loss.dual_clip=3.0,None"])
def test_what_is_compiled_into_a_program_is_not_shared(model, key):
    first, other = cells_of(model, key)
    check_cells([first, other])
    assert program_key(first.config) != program_key(other.config)


@pytest.mark.slow
def test_a_finished_sweep_trains_nothing_again(swept, model, monkeypatch, capsys):
    written = {name: (swept / name).read_text() for name in ("sweep.md", "sweep.json")}

    def refuse(*_, **__):
        raise AssertionError("a finished run was trained again")

    monkeypatch.setattr(sweeps, "run_program", refuse)
    (swept / "sweep.md").unlink()
    assert sweeps.sweep(cells_of(model, *GRID), SEEDS, swept) == 0
    assert {name: (swept / name).read_text() for name in written} == written
    told = capsys.readouterr().out
    rows = [r for r in written["sweep.md"].splitlines() if r.startswith("| optimizer")]
    assert len(rows) == len(cells_of(model, *GRID))
    for row in rows:
        assert all(cell.strip() in told for cell in row.strip("|").split(" | ")), row


def test_a_failed_run_is_reported_and_the_others_continue(model, tmp_path, capsys):
    """A run folder belongs to other settings."""
    keys = {"evaluation__every": None, "diagnostics__every": None}
    cells = cells_of(model, **keys)
    folder = run_folder(tmp_path, "", 0)
    folder.mkdir()
    settings = json.loads(to_json(make_config(model, **keys)))
    settings["rollout"]["temperature"] = 0.7
    (folder / "config.json").write_text(json.dumps(settings))
    assert sweeps.sweep(cells, (0, 1), tmp_path) == 1
    out, err = capsys.readouterr()
    assert "run 1/2: seed 0: failed: " in out
    assert "runs that failed: 1" in err
    assert "holds a run with other settings (rollout.temperature: 0.7 -> 1.0)" in err
    assert result_of(run_folder(tmp_path, "", 1)) is not None
    (row,) = json.loads((tmp_path / "sweep.json").read_text())["rows"]
    assert [run["seed"] for run in row["runs"]] == [1]


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ("algo.gamma=0.9,1.5", "gamma=1.5: algo.gamma = 1.5"),
        ("env.kwargs.num_boxes=1,99", "num_boxes=99: env: "),
        (
            "rollout.max_reply_tokens=8,1000",
            "max_reply_tokens=1000: an episode",
        ),
    ],
)
def test_bad_cells_are_refused_before_the_first_run(model, tmp_path, grid, words):
    cells = cells_of(model, grid, task=sokoban)
    with pytest.raises(ValueError, match=re.escape(words)):
        sweeps.sweep(cells, SEEDS, tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


@pytest.mark.slow
def test_a_finished_run_refuses_other_evaluations(swept, model):
    cells = cells_of(model, *GRID, evaluation__num_prompts=8)
    with pytest.raises(ValueError, match=r"evaluated with evaluation.num_prompts = 4"):
        sweeps.sweep(cells, SEEDS, swept)


def test_unusable_folders_are_refused_before_the_runs(model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file; name a folder"):
        sweeps.sweep(cells_of(model), SEEDS, tmp_path / "file")
    (tmp_path / "seed-9").mkdir()
    (tmp_path / "seed-9/config.json").write_text("")
    with pytest.raises(ValueError, match=r"seed-9.config.json is not valid JSON"):
        sweeps.sweep(cells_of(model), SEEDS, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "seed-9"}


def test_runs_with_the_same_rollouts_follow_each_other(model, tmp_path):
    cells = cells_of(model, "learner.epochs=1,2", "rollout.max_turns=1,2")
    runs = sweeps.plan([(cell, (0,)) for cell in cells], tmp_path)
    order = [(r.config.rollout.max_turns, r.config.learner.epochs) for r in runs]
    assert order == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_the_next_program_is_compiled_ahead_of_its_turn(model, tmp_path):
    cells = cells_of(model, "learner.epochs=1,2")
    runs = sweeps.plan([(cell, (0, 1, 2)) for cell in cells], tmp_path)
    order = [(run.cell.label, run.seed) for run in sweeps._pipelined(runs)]
    first, second = (cell.label for cell in cells)
    assert order[:2] == [(first, 0), (second, 0)]
    assert order[2:] == [(first, 1), (first, 2), (second, 1), (second, 2)]


def test_programs_compile_one_after_the_other(model, tmp_path):
    """Runs at the same time would compile the parts that their programs share twice."""
    cells = cells_of(model, "learner.epochs=1,2,3")
    runs = sweeps.plan([(cell, SEEDS) for cell in cells], tmp_path)
    compiling, most, seen = [], [], set()

    class Session(sweeps._Session):
        def _train(self, run, on_iteration, wait):
            if wait is not None:
                wait()
            if run.cell.label not in seen:
                seen.add(run.cell.label)
                compiling.append(run)
                time.sleep(0.05)
                most.append(len(compiling))
                compiling.remove(run)
            on_iteration()

    Session(display=None, stop=None).train(runs, 4)
    assert most == [1, 1, 1]


def test_a_sweep_that_was_stopped_begins_no_further_program(model, tmp_path):
    """Two programs, two seeds each: the second program's runs wait for the first's."""

    class Stopped:
        requested, exit_status = True, 143

    runs = sweeps.plan([(cell, SEEDS) for cell in cells_of(model)], tmp_path)
    session = sweeps._Session(display=None, stop=Stopped())
    thread = threading.Thread(target=session.train, args=(runs, 2), daemon=True)
    thread.start()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert not list(tmp_path.iterdir())
