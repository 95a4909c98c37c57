"""The measured tables of the docs: commit, command, and what changed since.

    python -m benchmarks.tables

In: the pages and git's history. Out: a line per measured table, with the files and
lines of the code it measures that changed since its commit; exit status 1 if a table of
numbers does not say where it comes from, or names an unknown commit.

Directly above such a table stands one line of this form, whose paths are today's:

    Measured at commit `1a2b3c4`: `python -m benchmarks.update` (code: `ragen_jax/algo`)
"""

import dataclasses
import functools
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parent.parent
# Made by commands that write the provenance themselves, or not measured.
GENERATED = ("leaderboard.md", "metrics.md")
_LINE = re.compile(
    r"Measured at commit `(?P<commit>[0-9a-f]{7,40})`: `(?P<command>[^`]+)` "
    r"\(code: (?P<code>`[^`]+`(?:, `[^`]+`)*)\)"
)
# A table is measured if more than this share of its cells are numbers.
_NUMBER_SHARE = 0.5


@dataclasses.dataclass(frozen=True)
class Table:
    """A Markdown table.

    line: number of its first line, from 1.
    title: the heading above it.
    above: the last line of text before it, comments excepted.
    rows: the cells of its rows, without the line below the header.
    """

    line: int
    title: str
    above: str
    rows: tuple[tuple[str, ...], ...]

    @property
    def is_measured(self) -> bool:
        """Whether most cells beside the first column are numbers."""
        cells = [cell for row in self.rows[1:] for cell in row[1:] if cell]
        return sum(map(_is_number, cells)) > _NUMBER_SHARE * len(cells)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Where the numbers of a table come from; `code` are paths below the repository."""

    commit: str
    command: str
    code: tuple[str, ...]


def find_pages() -> list[pathlib.Path]:
    """The pages that are written by hand, and those of the built-in models."""
    docs = sorted((ROOT / "docs").glob("*.md"))
    models = sorted((ROOT / "ragen_jax").glob("*/README.md"))
    pages = [ROOT / "README.md", *docs, *models]
    return [page for page in pages if page.name not in GENERATED]


def find_tables(text: str) -> Iterator[Table]:
    """The tables of a page, those in blocks of code excepted."""
    title, above, rows, is_code = "", "", [], False
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if line.startswith("|") and not is_code:
            cells = tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
            rows.append(cells)
            continue
        if rows:
            yield Table(number - len(rows), title, above, (rows[0], *rows[2:]))
            rows, above = [], ""
        if line.startswith("```"):
            is_code = not is_code
        elif line.startswith("#") and not is_code:
            title, above = line.lstrip("# "), ""
        elif line.strip() and not line.startswith("<!--"):
            above = line


def read_measurement(line: str) -> Measurement | None:
    """What the line above a table says; None if it is not of the form."""
    match = _LINE.match(line)
    if match is None:
        return None
    code = tuple(re.findall(r"`([^`]+)`", match["code"]))
    return Measurement(match["commit"], match["command"], code)


@functools.cache
def read_changes(commit: str, root: pathlib.Path = ROOT) -> dict[str, int]:
    """Changed lines of every file since a commit; a file that only moved is not in it.

    Raises:
      ValueError: the history has no such commit.
    """
    words = ["git", "diff", "--numstat", "-z", "-M", "-l10000", commit, "HEAD"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(
            f"commit {commit} is not in this history ({done.stderr.strip()}); fetch "
            f"the whole history, or correct the page"
        )
    changes = {}
    fields = iter(done.stdout.split("\0"))
    for field in fields:
        if not field:
            continue
        added, deleted, path = field.split("\t")
        if not path:  # A renamed file: its old and its new path follow.
            next(fields)
            path = next(fields)
        # Binary files have no count of lines.
        num_lines = 1 if added == "-" else int(added) + int(deleted)
        if num_lines:
            changes[path] = num_lines
    return changes


def find_changed(measurement: Measurement, root: pathlib.Path = ROOT) -> dict[str, int]:
    """Changed lines of the files that a table measures."""
    changes = read_changes(measurement.commit, root)
    return {
        path: num_lines
        for path, num_lines in changes.items()
        if any(path == one or path.startswith(f"{one}/") for one in measurement.code)
    }


def _is_number(cell: str) -> bool:
    """A number with its unit or interval, not a sentence that has a number."""
    num_digits = sum(character.isdigit() for character in cell)
    return num_digits > 0 and num_digits >= sum(map(str.isalpha, cell))


def main() -> int:
    """Print the list; the exit status."""
    problems = []
    for page in find_pages():
        for table in find_tables(page.read_text("utf-8")):
            place = f"{page.relative_to(ROOT)}:{table.line} {table.title}"
            measurement = read_measurement(table.above)
            if measurement is None:
                if table.is_measured:
                    problems.append(f"{place}: no line 'Measured at commit ...' above")
                continue
            try:
                changed = find_changed(measurement)
            except ValueError as error:
                problems.append(f"{place}: {error}")
                continue
            since = "unchanged"
            if changed:
                lines = sum(changed.values())
                since = f"older than its code: {len(changed)} files, {lines} lines"
            print(f"{place}\n    {measurement.command}")
            print(f"    {measurement.commit}, {since}")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
