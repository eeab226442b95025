"""The server's objects in a folder, so that a killed server restarts with everything it had acknowledged.

Owns the journal: one line per change, synced before the response, and one file per payload. Does not own
what the changes mean. A line torn by a kill belongs to a change that was never acknowledged: it is dropped.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from dstl_dagster.errors import ConflictError

__all__ = ["Journal"]


class Journal:
    """One folder, one server at a time; every call under the server's lock.

    Raises: ConflictError if another server holds the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._payloads = folder / "payloads"
        self._payloads.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ConflictError(f"another server is using {folder}; stop it, or use another folder") from None
        self._folder = folder
        self._path = folder / "journal.jsonl"
        self._descriptor = self._open(self._path)
        self._broken = False
        self.line_count = 0
        """Lines in the journal: those the last compaction wrote, and those appended since."""

    @staticmethod
    def _open(path: Path, flags: int = 0) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | flags, 0o666)

    def replay(self) -> Iterator[dict[str, Any]]:
        """All changes so far, in order; truncates a torn last line."""
        octets = self._path.read_bytes()
        whole = octets.rfind(b"\n") + 1
        if whole < len(octets):
            os.ftruncate(self._descriptor, whole)
        for line in octets[:whole].splitlines():
            self.line_count += 1
            yield json.loads(line)

    def append(self, change: dict[str, Any]) -> None:
        """Make one change durable. Its parts, if several, become durable together.

        Raises: OSError, and on every later call too: how much of a failed write reached the disk is unknown.
        """
        if self._broken:
            raise OSError(errno.EIO, f"an earlier write to {self._path} failed; restart the server")
        try:
            _write_all(self._descriptor, json.dumps(change).encode() + b"\n")
            os.fdatasync(self._descriptor)
        except OSError:
            self._broken = True
            raise
        self.line_count += 1

    def compact(self, changes: Iterable[dict[str, Any]], generations: Collection[int]) -> None:
        """Replace all lines with `changes` atomically, and free the payloads of all other generations."""
        path = self._path.with_suffix(".new")
        descriptor = self._open(path, os.O_TRUNC)
        try:
            lines = [json.dumps(change).encode() + b"\n" for change in changes]
            _write_all(descriptor, b"".join(lines))
            os.fdatasync(descriptor)
            path.replace(self._path)
            self._sync_folder()
        except OSError:
            os.close(descriptor)
            self._broken = True
            raise
        os.close(self._descriptor)
        self._descriptor, self.line_count = descriptor, len(lines)
        for payload in self._payloads.iterdir():
            if not payload.name.isdigit() or int(payload.name) not in generations:
                payload.unlink(missing_ok=True)

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def write_payload(self, generation: int, payload: bytes) -> None:
        """Make a payload durable, before the change that refers to it."""
        descriptor = os.open(self._payloads / str(generation), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            _write_all(descriptor, payload)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def read_payload(self, generation: int) -> bytes:
        return (self._payloads / str(generation)).read_bytes()

    def drop_payload(self, generation: int) -> None:
        """Free the bytes of a generation that is gone."""
        (self._payloads / str(generation)).unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._descriptor)
        os.close(self._lock)


def _write_all(descriptor: int, octets: bytes) -> None:
    view = memoryview(octets)
    while view:
        view = view[os.write(descriptor, view) :]
