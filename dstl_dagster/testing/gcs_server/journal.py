"""The server's objects in a folder, so that a killed server restarts with everything it had acknowledged.

Owns the journal: one line per change, synced before the response, and one file per payload. Does not own
what the changes mean. A line torn by a kill belongs to a change that was never acknowledged: it is dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Journal"]


class Journal:
    """One folder, one server at a time; every call under the server's lock."""

    def __init__(self, folder: Path) -> None:
        self._payloads = folder / "payloads"
        self._payloads.mkdir(parents=True, exist_ok=True)
        self._path = folder / "journal.jsonl"
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def replay(self) -> Iterator[dict[str, Any]]:
        """All changes so far, in order; truncates a torn last line."""
        octets = self._path.read_bytes()
        whole = octets.rfind(b"\n") + 1
        if whole < len(octets):
            os.ftruncate(self._descriptor, whole)
        for line in octets[:whole].splitlines():
            yield json.loads(line)

    def append(self, change: dict[str, Any]) -> None:
        """Make one change durable. Its parts, if several, become durable together."""
        os.write(self._descriptor, json.dumps(change).encode() + b"\n")
        os.fdatasync(self._descriptor)

    def write_payload(self, generation: int, payload: bytes) -> None:
        """Make a payload durable, before the change that refers to it."""
        descriptor = os.open(self._payloads / str(generation), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            view = memoryview(payload)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def read_payload(self, generation: int) -> bytes:
        """The bytes of a generation."""
        return (self._payloads / str(generation)).read_bytes()

    def drop_payload(self, generation: int) -> None:
        """Free the bytes of a generation that is gone."""
        (self._payloads / str(generation)).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
