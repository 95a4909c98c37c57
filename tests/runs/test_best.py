"""The best checkpoint: found by evaluations, kept beside the newest, found again."""

import json
import re

import pytest

from configs import base
from ragen_jax import config as config_lib
from ragen_jax.evaluation import load
from ragen_jax.runs import reader
from ragen_jax.runs.best import BEST, best_iteration, describe, is_best, judge
from ragen_jax.runs.run import Run
from tests import commands
from tests.runs.test_checkpoint import IDENTITY, is_equal, tiny_state
from tests.runs.test_run import HEALTHY

SUCCESS = "val-env/Sokoban/success"


def evaluations(*values, metric=SUCCESS, every=10):
    """Records of evaluations, the first of the start, and of iterations between."""
    records = []
    for i, value in enumerate(values):
        if i:
            records.append({"iteration": i * every - 1, "train/Sokoban/success": 1.0})
        records.append({"iteration": i * every, metric: value})
    return records


def test_other_settings_of_evaluation_begin_anew():
    """At another temperature a lower value may be the better policy."""
    records = evaluations(0.9, 0.5, 0.25, 0.5)
    for record, temperature in zip(records[::2], (0.5, 1.0, 1.0, 1.0), strict=True):
        record["val-env/Sokoban/temperature"] = temperature
    found = [r.get(BEST) for r in judged(records)[::2]]
    assert found == [0.0, 10.0, 10.0, 10.0]


def judged(records, metric="success", games=("Sokoban",)):
    """Records as a run leaves them, with the best iteration so far."""
    done = []
    for record in records:
        done.append(dict(record))
        done[-1] |= judge(done, metric, games)
    return done


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ((0.25,), 0),
        ((0.25, 0.5), 10),
        ((0.25, 0.5, 0.375), 10),
        ((0.25, 0.5, 0.5), 10),  # a tie keeps the earlier
        ((0.25, 0.125, 0.0), 0),
        ((None, 0.125, 0.25), 20),
        ((0.25, None), 0),
        ((None,), None),
    ],
)
@pytest.mark.parametrize("metric", ["success", SUCCESS])
def test_the_highest_evaluation_is_the_best(values, best, metric):
    records = judged(evaluations(*values), metric)
    assert best_iteration(records) == best
    assert is_best(records) == (best == records[-1]["iteration"])
    assert not any(BEST in record for record in records if record["iteration"] % 10)


def test_a_short_name_is_the_mean_over_the_environments():
    first = {"iteration": 0, SUCCESS: 0.5, "val-env/Bandit/success": 0.5}
    second = {"iteration": 1, SUCCESS: 0.875, "val-env/Bandit/success": 0.25}
    games = ("Sokoban", "Bandit")
    assert best_iteration(judged([first, second], "success", games)) == 1
    assert best_iteration(judged([first, second], SUCCESS, games)) == 1
    worse = second | {"val-env/Bandit/success": 0.125}  # the mean is a tie
    assert best_iteration(judged([first, worse], "success", games)) == 0
    said = describe(judged([first, second], "success", games), "success", games)
    assert said == (
        "best checkpoint by success: iteration 1 (56.2% against 56.2%, at the last "
        "evaluation)"
    )


def test_a_metric_that_evaluations_do_not_measure_is_named():
    with pytest.raises(ValueError, match=r"no val-env/Sokoban/sucess\. Did you mean"):
        judged(evaluations(0.5), "sucess")
    with pytest.raises(ValueError, match=r"They measure val-env/Sokoban/success$"):
        judged(evaluations(0.5), "val-env/Bandit/success")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"evaluation.every": None}, "evaluation.every = None asks for none"),
        ({"checkpoint.keep_best": "train/Sokoban/success"}, "before the update"),
        ({"checkpoint.keep_best": "actor/entropy"}, "before the update"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes, words):
    config = base.get_config()
    with config.ignore_type():
        config.update_from_flattened_dict({"checkpoint.keep_best": "success"} | changes)
    with pytest.raises(ValueError, match=re.escape(words)):
        config_lib.validate(config)


def open_run(workdir, keep_best="success", every=100, keep=2):
    config = base.get_config()
    config.logging.sinks = ()
    with config.ignore_type():
        config.checkpoint.keep_best = keep_best
    config.checkpoint.every, config.checkpoint.keep = every, keep
    return Run(config, workdir, tiny_state(), IDENTITY, ["Sokoban"])


def advance(run, values, saved=()):
    """Record iterations, and save as `train` does."""
    for iteration, value in values.items():
        metrics = HEALTHY if value is None else HEALTHY | {SUCCESS: value}
        run.record(iteration, metrics)
        if run.is_best or iteration in saved:
            run.save(iteration, tiny_state(iteration))
    run.finish()


def saved(workdir):
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())


def best_of(workdir):
    return load._locate(workdir, "best")[1]


def test_the_best_is_kept_beside_the_newest(tmp_path):
    with open_run(tmp_path, keep=1) as run:
        advance(run, {0: 0.1, 1: None, 2: 0.5, 3: None})
        assert saved(tmp_path) == [2]
        advance(run, {4: 0.4, 5: None, 6: 0.5}, saved=(4, 6))
        assert saved(tmp_path) == [2, 6]
        said = run.conclude(tiny_state(6))
    assert "iteration 2 (50.0% against 50.0%, at the last evaluation)\n" in said
    assert f"evaluate --run={tmp_path} --checkpoint=best\n" in said
    assert best_of(tmp_path) == 2
    # The state that was evaluated, to the bit.
    restored = load.Checkpointer(tmp_path, keep=None)
    assert is_equal(restored.restore(2, tiny_state(), IDENTITY), tiny_state(2))
    with open_run(tmp_path, keep=1) as run:
        advance(run, {7: None, 8: 0.6})
        assert saved(tmp_path) == [8]


def test_a_killed_run_resumes_to_the_same_best(tmp_path):
    """Also where it was killed between an evaluation and the end of its save."""
    with open_run(tmp_path) as run:
        advance(run, {0: 0.1, 2: 0.5, 4: 0.3}, saved=(4,))
        run.record(5, HEALTHY)
        run.record(6, HEALTHY | {SUCCESS: 0.75})
        assert run.is_best
    assert best_of(tmp_path) == 2
    with open_run(tmp_path) as run:
        assert run.start == 4
        assert [r["iteration"] for r in run.records] == [0, 2, 4]
        advance(run, {5: None, 6: 0.5})
        assert not run.is_best
        advance(run, {7: None, 8: 0.75})
    assert best_of(tmp_path) == 8
    assert saved(tmp_path) == [4, 8]


def test_an_unknown_metric_is_refused_before_a_resumed_run_goes_on(tmp_path):
    with open_run(tmp_path) as run:
        advance(run, {0: 0.1, 2: 0.5})
    with pytest.raises(ValueError, match=r"keep_best = 'sucess'.*Did you mean"):
        open_run(tmp_path, keep_best="sucess")


def test_a_start_that_nothing_beats_is_the_best_and_is_not_evaluated_again(tmp_path):
    with open_run(tmp_path) as run:
        advance(run, {0: 0.0, 1: None, 2: 0.0})
    assert saved(tmp_path) == [0]
    with open_run(tmp_path) as run:
        assert (run.start, run.is_resumed) == (0, True)
        assert [r["iteration"] for r in run.records] == [0]


def test_the_best_outlives_the_key_and_may_be_looked_for_later(tmp_path):
    with open_run(tmp_path, keep_best=None, keep=1) as run:
        advance(run, {0: 0.9, 1: 0.8}, saved=(1,))
    with pytest.raises(ValueError, match="no best checkpoint"):
        best_of(tmp_path)
    with open_run(tmp_path, keep=1) as run:
        advance(run, {2: 0.5, 3: 0.4}, saved=(3,))
    # The start evaluated better, but is not there.
    assert best_of(tmp_path) == 2
    with open_run(tmp_path, keep_best=None, keep=1) as run:
        advance(run, {4: 0.7}, saved=(4,))
        assert "checkpoint=best" not in run.conclude(tiny_state(4))
    assert saved(tmp_path) == [2, 4]
    assert best_of(tmp_path) == 2


def test_a_best_checkpoint_that_was_deleted_is_looked_for_anew(tmp_path):
    with open_run(tmp_path) as run:
        advance(run, {2: 0.5, 4: 0.3}, saved=(4,))
    (tmp_path / "checkpoints" / "2").rename(tmp_path / "elsewhere")
    with open_run(tmp_path) as run:
        assert any("of iteration 2, is not in" in note for note in run.notes)
        advance(run, {5: None, 6: 0.2})
    assert best_of(tmp_path) == 6


def test_checkpoints_have_names(tmp_path):
    with open_run(tmp_path) as run:
        advance(run, {2: 0.5, 4: 0.3}, saved=(4,))
    names = {None: None, "last": None, "best": 2, "4": 4}
    for name, iteration in names.items():
        assert load._locate(tmp_path, name) == (tmp_path, iteration)
    with pytest.raises(ValueError, match="must be last, best or the iteration"):
        load._locate(tmp_path, "newest")
    with pytest.raises(ValueError, match="is a checkpoint already"):
        load._locate(tmp_path / "checkpoints" / "4", "best")
    with pytest.raises(ValueError, match=r"add --run=RUN_FOLDER"):
        load.open_trained(None, base.get_config(), checkpoint="best")


@pytest.mark.parametrize("name", ["evaluate", "play", "export"])
def test_commands_open_a_checkpoint_by_its_name(tmp_path, name):
    (tmp_path / "checkpoints").mkdir()
    words = [f"--run={tmp_path}", "--checkpoint=best"]
    if name == "export":
        words.append(f"--output={tmp_path / 'exported'}")
    assert "has no best checkpoint" in commands.refusal(name, *words)


def test_a_player_without_weights_has_no_checkpoint(tmp_path):
    words = ["--config=configs/bandit.py", "--player=random", "--checkpoint=best"]
    assert "no effect with --player=random" in commands.refusal("evaluate", *words)


def test_the_record_says_which_is_best(tmp_path):
    with open_run(tmp_path) as run:
        advance(run, {0: 0.1, 1: None, 2: 0.5, 3: 0.2}, saved=(3,))
    marks = [record.get(BEST) for record in reader.read_metrics(tmp_path)]
    assert marks == [0, None, 2, 2]
    assert json.loads((tmp_path / "config.json").read_text())["checkpoint"] == {
        "every": 100,
        "keep": 2,
        "keep_best": "success",
    }
