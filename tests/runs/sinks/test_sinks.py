"""Sinks: told what is recorded, under one id, and never the end of a run."""

import json
import re
import sys
import types

import pytest

from configs import base
from ragen_jax import install_command
from ragen_jax.config import changed_keys, renew, validate
from ragen_jax.runs import progress, reader, writer
from ragen_jax.runs.folder import RunFolder
from ragen_jax.runs.run import Run
from ragen_jax.runs.sinks import SINKS, opened
from tests import commands
from tests.runs.sinks import my_sink
from tests.runs.test_checkpoint import IDENTITY, tiny_state

LINES = "tests.runs.sinks.my_sink:Lines"
FAILING = "tests.runs.sinks.my_sink:Failing"
UNREACHABLE = "tests.runs.sinks.my_sink:Unreachable"


def record(workdir, iterations, *sinks, saved=0):
    """A start of a run: these iterations, then a checkpoint."""
    with RunFolder(workdir, base.get_config(), IDENTITY, keep=2) as folder:
        folder.open_record(sinks=sinks, settings={"seed": 3}, games=["Sokoban"])
        for i in iterations:
            folder.write_metrics(i, {"a": i / 2, "b": float("nan")}, {"c": [1.0, 2.0]})
        if saved:
            folder.save(saved, tiny_state(saved))
        folder.finish()


def said(workdir):
    return [json.loads(x) for x in (workdir / "lines.jsonl").read_text().splitlines()]


def test_a_users_sink_is_told_everything_under_one_id(tmp_path):
    record(tmp_path, [1, 2], LINES, saved=2)
    record(tmp_path, [3, 4], LINES)
    record(tmp_path, [3], LINES)  # killed after iteration 4
    lines = said(tmp_path)
    run_id = reader.read_recorded(tmp_path).run_id
    assert [line for line in lines if line[0] == "open"] == [
        ["open", run_id, 0, 3],
        ["open", run_id, 2, 3],
        ["open", run_id, 2, 3],
    ]
    written = [line[1:] for line in lines if line[0] == "write"]
    assert written == [[i, {"a": i / 2}] for i in (1, 2, 3, 4, 3)]
    assert [line[0] for line in lines].count("close") == 3
    other = tmp_path / "other"
    record(other, [1], LINES)
    assert reader.read_recorded(other).run_id != run_id


def test_a_sink_that_fails_warns_once_and_the_run_goes_on(tmp_path, capsys):
    my_sink.Failing.num_calls = my_sink.Failing.num_closed = 0
    record(tmp_path, [1, 2, 3], UNREACHABLE, FAILING, LINES, saved=3)
    unreachable, failing = capsys.readouterr().err.splitlines()
    assert f"sink {UNREACHABLE} failed (TimeoutError: no answer)" in unreachable
    assert f"sink {FAILING} failed (ConnectionError: no route to host)" in failing
    assert my_sink.Failing.num_calls == my_sink.Failing.num_closed == 1
    assert [x["iteration"] for x in reader.read_metrics(tmp_path)] == [1, 2, 3]
    assert [line[1] for line in said(tmp_path) if line[0] == "write"] == [1, 2, 3]


def test_a_sink_that_cannot_be_closed_is_closed_once(tmp_path, capsys):
    my_sink.BadEnd.num_closed = 0
    record(tmp_path, [1], f"{my_sink.__name__}:BadEnd")
    (warning,) = capsys.readouterr().err.splitlines()
    assert "BadEnd failed (OSError: disk full)" in warning
    assert my_sink.BadEnd.num_closed == 1


def test_a_sink_that_keeps_a_run_waiting_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "SILENT_SECONDS", 0.02)
    slow = f"{my_sink.__name__}:Slow"
    record(tmp_path, [1], slow, LINES)
    assert capsys.readouterr().err == f"waiting for the sink {slow} ...\n"


def test_sinks_are_shown_episodes_as_in_the_files(tmp_path):
    written = writer.RunWriter(tmp_path, after=-1, sinks=[LINES])
    written.episodes(1, [{"return": float("nan"), "turns": [{"reward": 0.5}]}])
    written.close()
    (shown,) = [x[2] for x in said(tmp_path) if x[0] == "episodes"]
    assert shown == [{"return": None, "turns": [{"reward": 0.5}]}]
    (path,) = (tmp_path / "trajectories").iterdir()
    assert shown == [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tests.runs.sinks.my_sink:function", "is not a sink; derive a class"),
        ("tests.runs.sinks.my_sink:Nothing", "my_sink has no Nothing"),
        ("no_such_module:Sink", "there is no module no_such_module"),
    ],
)
def test_a_name_that_is_no_sink_is_refused_before_anything_is_written(
    tmp_path, name, words
):
    config = base.get_config()
    config.logging.sinks = (name,)
    with pytest.raises(ValueError, match=re.escape(words)):
        Run(config, tmp_path / "run", tiny_state(), IDENTITY, ["Sokoban"])
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_an_absent_package_is_named_with_its_install_command(monkeypatch, name):
    monkeypatch.setattr(opened.importlib.util, "find_spec", lambda _: None)
    command = re.escape(install_command(name))
    with pytest.raises(ValueError, match=rf"names {name}, .*run: {command}, or"):
        opened.load_sinks([name])


def test_names_of_sinks_are_checked_with_the_configuration():
    config = base.get_config()
    config.logging.sinks = ("tensorboard", "wandbb")
    with pytest.raises(
        ValueError, match=r"'wandbb' is neither .* Did you mean 'wandb'"
    ):
        validate(config)
    for sinks in ((), ("mlflow", "my.own:Sink"), tuple(SINKS)):
        config.logging.sinks = sinks
        validate(config)


def test_the_former_switch_is_answered_with_the_key_of_today():
    words = ["--config=configs/sokoban.py", "--config.logging.tensorboard=False"]
    said = commands.refusal("plan", *words)
    assert "Did you mean 'logging.sinks'?" in said


@pytest.mark.parametrize(("switch", "sinks"), [(True, ("tensorboard",)), (False, ())])
def test_older_runs_open_and_resume(tmp_path, switch, sinks):
    """Of before `logging.sinks`, and of before ids and ends of replies."""
    record(tmp_path, [1], saved=1)
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    del content["logging"]["sinks"], content["recorded"]["run_id"]
    del content["rollout"]["stop_at_answer"], content["checkpoint"]["keep_best"]
    content["logging"]["tensorboard"] = switch
    path.write_text(json.dumps(content))
    config = reader.read_config(tmp_path)
    assert tuple(config.logging.sinks) == sinks
    assert "tensorboard" not in config.logging
    assert renew(config) == config
    changed = changed_keys(config, base.get_config(), free=())
    assert set(changed) == (set() if switch else {"logging.sinks"})
    record(tmp_path, [2], LINES)
    assert said(tmp_path)[0][2] == 1


@pytest.mark.parametrize(
    ("switch", "sinks", "then"),
    [
        (False, ("tensorboard",), ()),
        (True, ("tensorboard",), ("tensorboard",)),
        (False, ("wandb",), ("wandb",)),  # of the command line
        (True, (), ("tensorboard",)),
    ],
)
def test_a_file_with_the_former_switch_still_means_it(switch, sinks, then):
    config = base.get_config()
    config.logging.tensorboard, config.logging.sinks = switch, sinks
    validate(config.lock())
    assert config.logging.sinks == then
    assert "tensorboard" not in config.logging


class FakeWandb(types.ModuleType):
    """As much of wandb as is used."""

    def __init__(self):
        super().__init__("wandb")
        self.inits, self.logged, self.num_finished = [], [], 0

    def init(self, **options):
        self.inits.append(options)
        return self

    def log(self, values, step):
        self.logged.append((step, values))

    def finish(self):
        self.num_finished += 1

    Settings = staticmethod(dict)
    Histogram = staticmethod(lambda values: ("histogram", *values))


@pytest.fixture
def fake_wandb(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delitem(sys.modules, "ragen_jax.runs.sinks.wandb", raising=False)
    monkeypatch.setattr(opened, "_is_installed", lambda _: True)
    yield fake
    sys.modules.pop("ragen_jax.runs.sinks.wandb", None)


def test_wandb_resumes_its_run_and_gets_the_record_where_it_is_new(
    tmp_path, fake_wandb, monkeypatch
):
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    record(tmp_path, [1], saved=1)
    record(tmp_path, [2], "wandb", saved=2)
    run_id = reader.read_recorded(tmp_path).run_id
    # As their library leaves it.
    (tmp_path / "wandb" / f"offline-run-20260101_000000-{run_id}").mkdir(parents=True)
    record(tmp_path, [3], "wandb")
    assert [(x["id"], x["resume"]) for x in fake_wandb.inits] == [(run_id, "allow")] * 2
    assert fake_wandb.inits[0]["config"] == {"seed": 3}
    assert fake_wandb.inits[0]["project"] == "ragen_jax"
    histogram = ("histogram", 1.0, 2.0)
    expected = [(i, {"a": i / 2, "c": histogram}) for i in (1, 2, 3)]
    assert fake_wandb.logged == expected
    assert fake_wandb.num_finished == 2


def test_wandb_offline_is_a_folder_of_the_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for i in (1, 2):
        record(tmp_path, [i], "wandb", saved=i)
    run_id = reader.read_recorded(tmp_path).run_id
    folders = list((tmp_path / "wandb").glob(f"offline-run-*-{run_id}"))
    assert folders
    assert all(list(folder.glob("*.wandb")) for folder in folders)


@pytest.mark.parametrize("store", ["sqlite:///{}/mlflow.db", "file:{}/mlruns"])
def test_mlflow_in_a_local_store_resumes_its_run(tmp_path, monkeypatch, store):
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow")
    uri = store.format(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    workdir = tmp_path / "run"
    record(workdir, [1], saved=1)
    record(workdir, [2], "mlflow", saved=2)
    record(workdir, [3], "mlflow")
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("ragen_jax")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params == {"seed": "3"}
    assert run.info.run_name == "run"
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "a")
    assert [(x.step, x.value) for x in history] == [(1, 0.5), (2, 1.0), (3, 1.5)]


def test_a_name_that_mlflow_refuses_is_spelled_with_underscores():
    pytest.importorskip("mlflow", reason="needs mlflow")
    from ragen_jax.runs.sinks.mlflow import _allowed

    assert _allowed("val-env/Sokoban/pass@8") == "val-env/Sokoban/pass_8"


def test_launch_check_shows_a_sink_a_run():
    done = commands.call(commands.command("check", LINES))
    assert done.returncode == 0, done.stdout
    assert f"{LINES} keeps the contract" in done.stdout
    assert "It opens a resumed run" in done.stdout
    done = commands.call(commands.command("check", FAILING))
    assert done.returncode == 1
    assert "ConnectionError: no route to host" in done.stdout


def test_the_writer_alone_has_no_sink(tmp_path):
    written = writer.RunWriter(tmp_path, after=-1)
    written.scalars(1, {"a": 1.0})
    written.close()
    assert not list(tmp_path.glob("events.*"))
