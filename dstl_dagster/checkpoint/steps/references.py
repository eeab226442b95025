"""The objects that checkpoints need: those that their manifests name.

Owns reading these manifests. Does not own what is deleted (`garbage`). A subsumed checkpoint still needs its
objects during the grace time for its readers.

What has to be read follows from how a manifest is built (`record`): it names what its attempt wrote, and what
its parent needs, less what was merged. So among the checkpoints that are needed

* what one of them needs of its *own* objects is what its own manifest names; the others need no more of them;
* what they need of *older* checkpoints, which are not needed themselves, is what their *roots* name: those
  whose parent is not among them.

A job that never restored has one root, the oldest, however many are retained.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from dstl_dagster.concurrency import gather
from dstl_dagster.errors import FormatError, NotFoundError
from dstl_dagster.keyed import RunLists, load_manifest
from dstl_dagster.recoverable import GSBlobIdentifier
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline import CheckpointEntry

log = logging.getLogger(__name__)

Written = tuple[int | None, int | None]
"""The length of an object in bytes and its CRC-32C, as far as its writer said."""


def roots_of(needed: Sequence[CheckpointEntry]) -> list[CheckpointEntry]:
    """Those of them that build on none among them. Pure."""
    ids = {entry.checkpoint_id for entry in needed}
    return [entry for entry in needed if entry.completed.builds_on not in ids]


class References:
    """The names that checkpoints need. Caches what each manifest names: a manifest never changes.

    Args:
        threads: manifests read concurrently, at most.
    """

    def __init__(self, store: ObjectStore, *, threads: int = 8) -> None:
        self._store = store
        self._threads = store.capabilities.lookup_threads(threads)
        self._lists = RunLists()
        self._named: dict[str, frozenset[str] | FormatError | NotFoundError] = {}
        self._there: set[str] = set()
        self._written: dict[str, Written] = {}
        self._files: dict[str, dict[GSBlobIdentifier, int]] = {}

    def own(self, entries: Iterable[CheckpointEntry]) -> frozenset[str]:
        """The objects that the manifests of these checkpoints name.

        Raises: FormatError, NotFoundError if one of them is unreadable.
        """
        found = list(entries)
        self.read_ahead(found)
        return frozenset(name for entry in found for name in self._named_by(entry))

    def older(
        self, needed: Sequence[CheckpointEntry], may_be_damaged: Callable[[int], bool] = lambda _: False
    ) -> frozenset[str]:
        """What the roots of `needed` need: all that `needed` needs of other checkpoints, and more.

        `may_be_damaged`: of these ids, which needs nothing if its manifest is unreadable.

        Raises: FormatError, NotFoundError if a manifest of another stored checkpoint is unreadable.
        """
        names: set[str] = set()
        rest = list(needed)
        while rest:
            gone: set[int] = set()
            roots = roots_of(rest)
            self.read_ahead(roots)
            for entry in roots:
                try:
                    names.update(self.needed_by(entry))
                except (NotFoundError, FormatError) as error:
                    # Deleted by a clean-up with a shorter grace time: there is nothing left to read.
                    is_deleted = entry.subsumed is not None and isinstance(error, NotFoundError)
                    if not (is_deleted or may_be_damaged(entry.checkpoint_id)):
                        raise
                    log.info("what checkpoint %d needs is not known: %s", entry.checkpoint_id, error)
                    gone.add(entry.checkpoint_id)
            if not gone:
                break
            # Without its root, what the next ones need has to be read of them.
            rest = [entry for entry in rest if entry.checkpoint_id not in gone]
        return frozenset(names)

    def read_ahead(self, entries: Iterable[CheckpointEntry]) -> None:
        """Read the manifests of these checkpoints concurrently, if not read yet; unreadable ones, and those
        that are not what the record names, raise when asked for.
        """
        missing = [entry for entry in entries if entry.completed.manifest not in self._named]
        gather([partial(self._read, entry) for entry in missing], self._threads, "dstl-read-ahead")

    def needed_by(self, entry: CheckpointEntry) -> frozenset[str]:
        """Every name that the checkpoint needs, its manifest's among them.

        Raises: FormatError, NotFoundError if its manifest, or a list of runs that this names, is unreadable.
        """
        return self._named_by(entry) | {entry.completed.manifest}

    def written(self, name: str) -> Written:
        """What the manifests that were read say of a changelog file."""
        return self._written.get(name, (None, None))

    def files(self, entry: CheckpointEntry) -> dict[GSBlobIdentifier, int]:
        """The lengths of the checkpoint's published files; none where its manifest is unreadable."""
        published = () if entry.committed is None else entry.committed.published
        found = self._files.get(entry.completed.manifest, {})
        return {file: size for file, size in found.items() if file.object_name in published}

    def was_read(self, name: str) -> bool:
        """Whether this is a manifest, or a list of runs, that was read: it is there."""
        return name in self._there or isinstance(self._named.get(name), frozenset)

    def _named_by(self, entry: CheckpointEntry) -> frozenset[str]:
        name = entry.completed.manifest
        if name not in self._named:
            self._read(entry)
        found = self._named[name]
        if not isinstance(found, frozenset):
            raise found
        return found

    def _read(self, entry: CheckpointEntry) -> None:
        name = entry.completed.manifest
        try:
            manifest = load_manifest(self._store, name, entry.completed.manifest_crc32c, self._lists)
        except (FormatError, NotFoundError) as error:
            self._named[name] = error
        else:
            self._there.update(manifest.lists)
            self._files[name] = {file.recoverable.final_blob_identifier: file.size for file in manifest.files}
            self._written.update(
                (each.name, (each.stored_bytes, each.crc32c)) for each in manifest.changelog_files
            )
            self._named[name] = frozenset(manifest.needs())
