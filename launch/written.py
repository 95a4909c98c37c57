"""Flags that name what a command writes at its end are checked before its work."""

import os
import pathlib

from absl import flags


def check_files(*holders: flags.FlagHolder, is_renamed: bool = False) -> None:
    """Refuse flags that name files which cannot be written at the end of the work.

    Args:
      holders: of the flags.
      is_renamed: the file is a renamed neighbour (`write_text_atomically`), for which
        the folder has to be writable.

    Raises:
      ValueError: names the flag.
    """
    taken: dict[pathlib.Path, str] = {}
    for holder in holders:
        if not holder.value:
            continue
        path = pathlib.Path(holder.value)
        other = taken.setdefault(path.resolve(), holder.name)
        if other != holder.name:
            raise ValueError(
                f"--{holder.name}={path} is also the file of --{other}; name another "
                "file to write"
            )
        if path.is_dir():
            raise ValueError(f"--{holder.name}={path} is a folder; name a file in it")
        is_opened = path.exists() and not is_renamed
        _check_written(holder, path.absolute() if is_opened else path.absolute().parent)


def check_folder(holder: flags.FlagHolder) -> None:
    """Refuse a flag that names a folder in which no files can be written.

    Raises:
      ValueError: names the flag.
    """
    if holder.value:
        path = pathlib.Path(holder.value)
        if path.exists() and not path.is_dir():
            raise ValueError(f"--{holder.name}={path} is a file; name a folder")
        _check_written(holder, path.absolute())


def _check_written(holder: flags.FlagHolder, place: pathlib.Path) -> None:
    """Refuse a file or folder that this user may not write or create."""
    there = next(path for path in (place, *place.parents) if path.exists())
    flag = f"--{holder.name}={holder.value}"
    if there != pathlib.Path(holder.value).absolute() and not there.is_dir():
        raise ValueError(f"{flag}: {there} is a file, not a folder")
    if not os.access(there, os.W_OK):
        raise ValueError(
            f"{flag}: {there} may not be written by this user; name another"
        )
