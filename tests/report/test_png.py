"""The figures as PNG files."""

import sys

import pytest
from matplotlib import image

from ragen_jax.report.contents import make_contents
from ragen_jax.report.png import write_figures
from ragen_jax.report.runs import read_runs
from ragen_jax.report.series import make_series
from ragen_jax.runs import figures
from tests.report import fake_runs


def contents_of(folders):
    runs = read_runs(folders)
    return make_contents(runs, make_series(runs), max_episodes=0)


def test_a_file_per_section(tmp_path):
    folders = [
        fake_runs.write_run(tmp_path / name, collapses=c, iterations=6)
        for name, c in (("a", True), ("b", False))
    ]
    paths = write_figures(contents_of(folders), tmp_path / "png")
    assert [p.stem for p in paths] == [section.key for section in figures.SECTIONS]
    for path in paths:
        pixels = image.imread(path)
        assert pixels.shape[0] > 300
        assert pixels.shape[1] > 500
        assert pixels[..., :3].std() > 0.02


def test_sections_without_metrics_have_no_file(tmp_path):
    run = fake_runs.write_run(tmp_path / "run", diagnostics=False, iterations=2)
    paths = write_figures(contents_of([run]), tmp_path / "png")
    assert [p.stem for p in paths] == ["progress", "indicators", "update", "timing"]


def test_without_matplotlib_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run = fake_runs.write_run(tmp_path / "run", iterations=1)
    with pytest.raises(ValueError, match=r"pip install .*\[report\]"):
        write_figures(contents_of([run]), tmp_path / "png")
