"""Measured tables name their commit, their command and the code they measure."""

import subprocess

import pytest

from benchmarks import tables

LINE = "Measured at commit `1a2b3c4`: `python -m x --y=1` (code: `a`, `b/c.py`)."
TABLE = """| case | seconds |
|---|---|
| one | 1.5 (1.6) |
"""


@pytest.mark.parametrize("page", tables.find_pages(), ids=lambda page: page.name)
def test_tables_of_numbers_say_where_they_come_from(page):
    for table in tables.find_tables(page.read_text("utf-8")):
        measurement = tables.read_measurement(table.above)
        assert measurement or not table.is_measured, (page.name, table.line)
        for path in measurement.code if measurement else ():
            assert (tables.ROOT / path).exists(), path


def test_a_line_is_read():
    expected = tables.Measurement("1a2b3c4", "python -m x --y=1", ("a", "b/c.py"))
    assert tables.read_measurement(LINE) == expected


@pytest.mark.parametrize(
    "line", ["Measured today.", LINE.replace("1a2b3c4", "HEAD"), LINE.split(" (")[0]]
)
def test_other_lines_are_not_of_the_form(line):
    assert tables.read_measurement(line) is None


def test_the_line_stands_directly_above():
    text = f"# Title\n\n{LINE}\n\n<!-- times -->\n{TABLE}\n{TABLE}\n```\n{TABLE}```\n"
    first, second = tables.find_tables(text)
    assert (first.line, first.title, first.above) == (6, "Title", LINE)
    assert first.rows == (("case", "seconds"), ("one", "1.5 (1.6)"))
    assert first.is_measured
    assert second.above == ""


def test_numbers_within_sentences_are_not_measured():
    text = "| loss | weight |\n|---|---|\n| mean | 1 / tokens of the minibatch |\n"
    (table,) = tables.find_tables(text)
    assert not table.is_measured


def test_changes_follow_files_that_moved(tmp_path):
    def git(*words):
        line = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, check=True)
        return done.stdout.decode().strip()

    git("init", "-q")
    (tmp_path / "old").mkdir()
    for name in ("moved.py", "changed.py"):
        lines = [f"{name} = {i}\n" for i in range(20)]
        (tmp_path / "old" / name).write_text("".join(lines))
    git("add", ".")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "HEAD")
    git("mv", "old", "new")
    with (tmp_path / "new/changed.py").open("a") as file:
        file.write("more = 1\n")
    git("commit", "-qam", "two")
    measured = tables.Measurement(commit, "x", ("new",))
    assert tables.find_changed(measured, tmp_path) == {"new/changed.py": 1}
    unknown = tables.Measurement("0123456", "x", ("new",))
    with pytest.raises(ValueError, match="0123456 is not in this history"):
        tables.find_changed(unknown, tmp_path)
