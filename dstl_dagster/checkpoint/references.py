"""Which objects checkpoints need: their manifests, the older manifests these name, and changelog files.

Owns this walk. Does not own what is deleted (`garbage`). Each manifest is read once, however many checkpoints
build on it. A subsumed checkpoint still needs its objects during the grace time for its readers, including
those of older checkpoints.
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
    """The names that checkpoints need. Caches what each manifest names: a manifest never changes."""

    def __init__(self, store: ObjectStore, names: JobNames) -> None:
        self._loader = ManifestLoader(store, names)
        self._named: dict[str, tuple[frozenset[str], dict[str, str]]] = {}
        self._readable: tuple[str, ...] | None = None
        self._names: frozenset[str] = frozenset()

    def of(self, view: TimelineView, grace: GraceClock) -> frozenset[str]:
        """Every name that a checkpoint of this view needs.

        Raises: FormatError, NotFoundError if a manifest of a kept checkpoint is unreadable.
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
        """Every name that the checkpoint of this manifest needs; a name may be repeated.

        Raises: FormatError, NotFoundError if a manifest is unreadable, after yielding the names before it.
        """
        return self._needed_by(manifest, set())

    def _walk(self, entries: Iterable[CheckpointEntry]) -> Iterator[str]:
        # A manifest may be in the chain of one operator and not of another: track them as pairs.
        seen: set[tuple[str, str]] = set()
        for entry in entries:
            try:
                yield from self._needed_by(entry.completed.manifest, seen)
            except NotFoundError:
                if entry.subsumed is None:
                    raise
                # A clean-up with a shorter grace time deleted it: there is nothing left to read.
                log.info("checkpoint %d was deleted before its grace time was over", entry.checkpoint_id)

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
        """The changelog files that the manifest names, and the next older manifest of each operator."""
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
