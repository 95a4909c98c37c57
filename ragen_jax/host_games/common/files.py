"""Reads files of data: JSON, JSON lines and parquet.

In: a path. Out: its content, or an error that names the file. What the content means is
the games' business.
"""

import contextlib
import gzip
import importlib.util
import json
import logging
import pathlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from ragen_jax import install_command
from ragen_jax.host_games.common.texts import compose

# Share of the rows of a file that may be of another form and are left out.
MAX_ODD_SHARE = 0.1

_log = logging.getLogger(__name__)
Record = TypeVar("Record")


def parse_json(text: str | bytes, *, allow_nan: bool = True) -> Any:
    """The value of a JSON text of any origin.

    Args:
      text: str, or bytes in UTF-8.
      allow_nan: also reads NaN and Infinity, which Python writes and JSON lacks.

    Raises:
      ValueError: the text is not JSON, not UTF-8, or nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=None if allow_nan else _refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_json(path: str, kind: type, *, option: str, form: str) -> Any:
    """The list or object in a JSON file.

    Args:
      path: of the file.
      kind: `list` or `dict`.
      option: that names the file, for errors.
      form: the file that is wanted, for errors.

    Raises:
      ValueError: there is no such file, or it holds something else.
    """
    content = _parse(_read(path, option), path)
    if not isinstance(content, kind):
        raise ValueError(
            f"{path} holds a {type(content).__name__}, but {option} has to be a "
            f"{kind.__name__}; use {form}"
        )
    return content


def read_rows(path: str, option: str = "path") -> list:
    """The rows of a .json, .jsonl or .parquet file; the first two also as .gz.

    For a line that is not JSON stands the `ValueError` that says so: to `read_each` it
    is a row of another form.

    Raises:
      ValueError: there is no such file, it is of another kind, or not a list of rows.
      ImportError: a .parquet file without pyarrow.
    """
    file = pathlib.Path(path)
    suffix = (file.with_suffix("") if file.suffix == ".gz" else file).suffix
    data = _read(path, option)
    if file.suffix == ".parquet":
        if importlib.util.find_spec("pyarrow") is None:
            raise ImportError(
                f"{path} needs pyarrow, which is not installed; run "
                f"{install_command('parquet')} or give a .json or .jsonl file."
            )
        import pyarrow.parquet

        try:
            return pyarrow.parquet.read_table(pyarrow.BufferReader(data)).to_pylist()
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(f"{path} is no parquet file: {error}") from error
    if suffix not in (".json", ".jsonl"):
        raise ValueError(
            f"{option}={path} ends in {file.suffix!r}; allowed are .json, .jsonl, "
            ".parquet and, packed by gzip, .json.gz and .jsonl.gz."
        )
    if file.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is not packed by gzip: {error}") from error
    if suffix == ".jsonl":
        return [row for _, row in _parse_lines(data, path)]
    rows = _parse(data, path)
    if not isinstance(rows, list):
        raise ValueError(
            f"{path} does not hold a list; give a list of rows or JSON lines."
        )
    return rows


def read_lines(path: str, option: str) -> list[tuple[int, Any]]:
    """Line numbers and values of a file of JSON lines; blank lines are skipped.

    For a line that is not JSON stands the `ValueError` that says so.

    Raises:
      ValueError: there is no such file.
    """
    return _parse_lines(_read(path, option), path)


@contextlib.contextmanager
def reading(record: str, cure: str) -> Iterator[None]:
    """Turns what goes wrong with a record of another form into one sentence.

    Args:
      record: names it and says that it is not of its form.
      cure: what to do.

    Raises:
      ValueError: what is read inside has fields that are missing or of other types.
    """
    try:
        yield
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise ValueError(
            f"{record}: {type(error).__name__}: {error}; {cure}"
        ) from error


def read_each(
    rows: Sequence[Any],
    read: Callable[[Any], Record],
    path: str,
    *,
    form: str,
    kind: str = "row",
    names: Sequence[str] | None = None,
) -> list[Record]:
    """What `read` makes of every row of a file.

    Rows of another form are left out, counted and the first of them named, up to a
    share of `MAX_ODD_SHARE`: real files have a few.

    Args:
      rows: of `read_rows`.
      read: raises what `reading` turns into a sentence.
      path: of the file.
      form: what the file must be.
      kind: what a row is called.
      names: of the rows; None: their numbers in the file.

    Raises:
      ValueError: more rows are of another form.
    """
    records, odd = [], []
    for number, row in enumerate(rows, 1):
        try:
            name = f"{kind} {number} of {path}" if names is None else names[number - 1]
            with reading(f"{name} is of another form", form):
                if isinstance(row, ValueError):
                    raise row
                records.append(read(row))
        except ValueError as error:
            odd.append(error)
    if len(odd) > MAX_ODD_SHARE * len(rows):
        raise ValueError(
            f"{odd[0]} ({len(odd)} of {len(rows)} {kind}s are; up to "
            f"{MAX_ODD_SHARE:.0%} are left out)"
        ) from odd[0]
    if odd:
        left_out = f"{len(odd)} of {len(rows)} {kind}s"
        _log.warning("%s are left out: %s", left_out, odd[0])
    return records


def one_line(text: str) -> str:
    """A text of unknown origin, control characters and runs of blanks as one blank,
    letters composed (NFC)."""
    printable = "".join(c if c.isprintable() else " " for c in compose(text))
    return " ".join(printable.split())


def _read(path: str, option: str) -> bytes:
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise ValueError(
            f"{option}={path} cannot be read ({error.strerror}); give the path of a "
            f"file, or leave {option} out."
        ) from error


def _parse(data: bytes, place: str) -> Any:
    try:
        return parse_json(data)
    except ValueError as error:
        raise ValueError(f"{place} is not JSON: {error}") from error


def _parse_lines(data: bytes, path: str) -> list[tuple[int, Any]]:
    return [
        (number, _value_or_error(line, f"{path}, line {number},"))
        for number, line in enumerate(data.split(b"\n"), start=1)
        if line.strip()
    ]


def _value_or_error(line: bytes, place: str) -> Any:
    try:
        return _parse(line, place)
    except ValueError as error:
        return error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
