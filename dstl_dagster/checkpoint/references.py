"""Which objects checkpoints need: their manifests, older ones that these name, and changelog files.

Owns this walk. Reads each manifest once, however many checkpoints build on it. A checkpoint that was given
up needs its objects as long as readers have their grace time: also those of older checkpoints.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from dstl_dagster.errors import NotFoundError
from dstl_dagster.format import JobNames
from dstl_dagster.keyed import Manifest, ManifestLoader
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline import CheckpointEntry, GraceClock, TimelineView

__all__ = ["References"]

log = logging.getLogger(__name__)


class References:
    """The names that checkpoints need. Remembers what each manifest names: a manifest never changes."""

    def __init__(self, store: ObjectStore, names: JobNames) -> None:
        self._loader = ManifestLoader(store, names)
        self._named: dict[str, tuple[frozenset[str], dict[str, str]]] = {}
        self._readable: tuple[str, ...] | None = None
        self._names: frozenset[str] = frozenset()

    def of(self, view: TimelineView, grace: GraceClock) -> frozenset[str]:
        """Every name that a checkpoint of this view needs.

        Raises: FormatError, NotFoundError where a manifest of a kept checkpoint is unreadable.
        """
        readable = [
            entry
            for entry in view.checkpoints.values()
            if entry.subsumed is None or not grace.is_over(entry.subsumed.slot)
        ]
        manifests = tuple(entry.completed.manifest for entry in readable)
        if manifests != self._readable:
            self._names = frozenset(self._walk(readable))
            self._readable = manifests
        return self._names

    def needed_by(self, manifest: str) -> Iterator[str]:
        """Every name that the checkpoint of this manifest needs; a name may come twice.

        Raises: FormatError, NotFoundError where a manifest is unreadable, after the names found before it.
        """
        return self._needed_by(manifest, set())

    def _walk(self, entries: Iterable[CheckpointEntry]) -> Iterator[str]:
        # One manifest may be reached for one operator and passed over for another: walk by both.
        seen: set[tuple[str, str]] = set()
        for entry in entries:
            try:
                yield from self._needed_by(entry.completed.manifest, seen)
            except NotFoundError:
                if entry.subsumed is None:
                    raise
                # A clean-up with a shorter grace was here: there is nothing left to read.
                log.info("checkpoint %d is gone before its grace is over", entry.checkpoint_id)

    def _needed_by(self, manifest: str, seen: set[tuple[str, str]]) -> Iterator[str]:
        yield manifest
        files, previous = self._manifest(manifest)
        yield from files
        waiting = list(previous.items())
        while waiting:
            operator, name = waiting.pop()
            if (operator, name) in seen:
                continue
            seen.add((operator, name))
            yield name
            files, previous = self._manifest(name)
            yield from files
            if operator in previous:
                waiting.append((operator, previous[operator]))

    def _manifest(self, name: str) -> tuple[frozenset[str], dict[str, str]]:
        """The changelog files that it names, and for each operator the next older manifest."""
        if name not in self._named:
            manifest = self._loader.load(name)
            self._named[name] = (
                frozenset(_files(manifest)),
                {
                    operator: entry.previous
                    for operator, entry in manifest.operators.items()
                    if entry.previous is not None
                },
            )
        return self._named[name]


def _files(manifest: Manifest) -> Iterator[str]:
    for entry in manifest.operators.values():
        for handle in entry.report.handles:
            for stream, _offset in handle.handles_and_offsets:
                yield stream.name
