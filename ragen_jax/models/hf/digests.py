"""SHA-256 digests of a folder's files, kept beside them in `digests.sha256`.

In: a folder that this program writes, a checkpoint or a model. Out: one line
`<digest>  <path>` per file, the format of `sha256sum --check`, and on opening a
description of the first file that is not the one that was written. A folder without
`digests.sha256` (written elsewhere, or by an earlier version) is not verified.
"""

import hashlib
import re
from collections.abc import Collection
from pathlib import Path

DIGESTS_FILE = "digests.sha256"
_LINE = re.compile(r"([0-9a-f]{64})  (\S[^\n]*)")


def write_digests(folder: Path, names: Collection[str]) -> None:
    """Write `digests.sha256` for these files of the folder (paths relative to it)."""
    lines = [f"{_digest(folder / name)}  {name}\n" for name in sorted(names)]
    (folder / DIGESTS_FILE).write_text("".join(lines), encoding="utf-8")


def has_digests(folder: Path) -> bool:
    """Whether the folder's files can be verified."""
    return (folder / DIGESTS_FILE).exists()


def find_damage(folder: Path, names: Collection[str]) -> str | None:
    """Description of the first of these files that is damaged.

    Args:
      folder: holds the files and, unless it is older than that, their digests.
      names: files to verify, relative to the folder. Every listed file must exist,
        whether it is verified or not.

    Returns:
      A clause such as "model.safetensors does not match its digest"; None if every
      file matches, or the folder has no digests.
    """
    if not has_digests(folder):
        return None
    try:
        text = (folder / DIGESTS_FILE).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return f"{DIGESTS_FILE} is not text"
    except OSError as error:
        return f"{DIGESTS_FILE} cannot be read ({error.strerror})"
    lines = text.split("\n")
    matches = [_LINE.fullmatch(line) for line in lines[:-1]]
    if lines[-1] or not matches or not all(matches):
        return f"{DIGESTS_FILE} is not a list of digests"
    digests = {match.group(2): match.group(1) for match in matches}
    for name in digests:
        # A damaged path may be anything, too long or with a null character included.
        if "\0" in name or not (folder / name).is_file():
            return f"{name!r}, which {DIGESTS_FILE} lists, does not exist"
    for name in sorted(names):
        if name not in digests:
            return f"{name} is not listed in {DIGESTS_FILE}"
        try:
            if _digest(folder / name) != digests[name]:
                return f"{name} does not match its digest in {DIGESTS_FILE}"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
