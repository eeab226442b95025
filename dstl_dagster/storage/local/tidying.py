"""Forgetting the records of files that are gone: a consumer that takes a file leaves its record behind.

Owns which records those are, and the walk over all. Does not own a record's bytes (`local.records`).

Why no writer is raced: one writes its record and places its file under the lock of the name, and a record is
removed under that lock, where no file has the name. Its generation is not given out again: the root's count
only rises.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from dstl_dagster.errors import DstlError
from dstl_dagster.storage.local.files import HiddenFolder
from dstl_dagster.storage.local.paths import object_path
from dstl_dagster.storage.local.records import Records

__all__ = ["forget_taken"]


def forget_taken(root: Path, hidden: HiddenFolder, records: Records, *, dry_run: bool) -> Iterator[str]:
    """Remove the record of each name that has no file, or with `dry_run` only name it.

    Holds the names of a sixteenth of the records at a time.

    A damaged record stays: whoever reads its object is told of it.
    """
    for record_path in _files_below(hidden.path / "records"):
        name = records.name_in(record_path)
        if name is None:
            continue
        try:
            path = object_path(root, name)
            if not _is_gone(path):
                continue
            if not dry_run:
                with hidden.locked([name]):
                    if not _is_gone(path):
                        continue
                    records.remove(name)
        except (DstlError, OSError):
            continue  # locked for long, or not to be decided: the next walk meets it again
        yield name


def _is_gone(path: Path) -> bool:
    """Raises: OSError where that cannot be told, for want of rights, say."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


def _files_below(folder: Path) -> Iterator[str]:
    try:
        groups = sorted(entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return
    for group in groups:
        # Read to its end first: what is removed meanwhile must not disturb the scan.
        with os.scandir(group) as scan:
            paths = [entry.path for entry in scan if entry.is_file(follow_symlinks=False)]
        yield from paths
