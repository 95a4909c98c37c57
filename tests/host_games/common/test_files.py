"""Files of rows: their kinds, and what is refused."""

import gzip
import json
import pathlib
import sys

import pytest

from ragen_jax.host_games.common.files import (
    one_line,
    parse_json,
    read_each,
    read_json,
    read_lines,
    read_rows,
)
from tests.commands import need

ROWS = [{"a": 1, "b": "x"}, {"a": 2, "b": "ñ"}]
LINES = "\n".join(map(json.dumps, ROWS)) + "\n\n"


# Without the time, which would stand in the names of tests.
PACKED = gzip.compress(b"[1, 2]", mtime=0)


@pytest.mark.parametrize("suffix", ["json", "jsonl", "json.gz", "jsonl.gz"])
def test_rows(tmp_path, suffix):
    path = tmp_path / f"data.{suffix}"
    data = (LINES if "jsonl" in suffix else json.dumps(ROWS)).encode()
    path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    assert read_rows(str(path)) == ROWS


@pytest.mark.live
def test_rows_of_parquet(tmp_path):
    need("pyarrow")
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    assert read_rows(str(path)) == ROWS
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"data\.parquet is no parquet file"):
        read_rows(str(path))


def test_a_missing_pyarrow_is_said(tmp_path, monkeypatch):
    path = tmp_path / "data.parquet"
    path.touch()
    monkeypatch.delitem(sys.modules, "pyarrow", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install .*\[parquet\]"):
        read_rows(str(path))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("data.csv", "a,b", "allowed are .json, .jsonl, .parquet"),
        ("data.json", "{}", "give a list of rows"),
        ("data.json", "[", "is not JSON"),
        ("data.json", "[" * 100_000, "nested too deeply"),
        ("data.json", b"\xff", "is not JSON"),
        ("data.json.gz", "[]", "is not packed by gzip"),
        (
            "data.json.gz",
            PACKED[:-9],
            "is not packed by gzip",
        ),
        ("none.json", None, "path=.*none.json cannot be read"),
    ],
)
def test_files_that_are_refused(tmp_path: pathlib.Path, name, text, words):
    path = tmp_path / name
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=words):
        read_rows(str(path))


def test_lines_have_numbers(tmp_path):
    path = tmp_path / "any name"
    path.write_text("\n1\n \n[2]")
    assert read_lines(str(path), "data") == [(2, 1), (4, [2])]


def test_one_value(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("[1]")
    assert read_json(str(path), list, option="data", form="a list") == [1]
    with pytest.raises(ValueError, match="holds a list, but data has to be a dict"):
        read_json(str(path), dict, option="data", form="an object")


def test_nan_is_not_json():
    assert parse_json("[NaN]")
    with pytest.raises(ValueError, match="NaN is not JSON"):
        parse_json("[NaN]", allow_nan=False)


def test_one_line():
    assert one_line("a\n\nb\x00\x1b\tc ") == "a b c"


ODD_FILE = [{"n": i} for i in range(20)]


def test_a_few_rows_of_another_form_are_left_out_and_the_first_is_named(caplog):
    rows = [*ODD_FILE[:7], {"m": 1}, {"n": "x"}, *ODD_FILE[7:]]
    records = read_each(rows, lambda row: row["n"] + 1, "a.json", form="give ns")
    assert records == list(range(1, 21))
    (line,) = caplog.messages
    assert line.startswith("2 of 22 rows are left out: row 8 of a.json is of another")
    assert "KeyError: 'n'; give ns" in line


def test_a_broken_line_is_a_row_of_another_form(tmp_path, caplog):
    path = tmp_path / "cut.jsonl"
    # The last line of a download that was cut.
    path.write_text("\n".join(map(json.dumps, ODD_FILE)) + '\n{"n": 2')
    rows = read_rows(str(path))
    records = read_each(rows, lambda row: row["n"], str(path), form="give ns")
    assert records == list(range(20))
    (line,) = caplog.messages
    assert line.startswith("1 of 21 rows are left out: row 21 of")
    assert "cut.jsonl, line 21, is not JSON" in line
    path.write_text('{"n": 1}\n{')
    with pytest.raises(ValueError, match=r"line 2, is not JSON.*\(1 of 2 rows are"):
        read_each(read_rows(str(path)), lambda row: row["n"], str(path), form="ns")


def test_a_file_of_another_form_is_refused():
    rows = [*ODD_FILE, *[{"m": 1}] * 3]
    with pytest.raises(ValueError, match=r"row 21 of a\.json .*\(3 of 23 rows are"):
        read_each(rows, lambda row: row["n"] + 1, "a.json", form="give ns")
