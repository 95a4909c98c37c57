"""Files of rows for the games that read them."""

import json
import pathlib


def write_json(path: pathlib.Path, rows: list) -> str:
    path.write_text(json.dumps(rows))
    return str(path)


def write_lines(path: pathlib.Path, rows: list) -> str:
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return str(path)
