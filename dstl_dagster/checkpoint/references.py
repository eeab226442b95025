"""Which objects checkpoints need: their manifests, the older manifests these name, and changelog files.

Owns this walk. Does not own what is deleted (`garbage`). A subsumed checkpoint still needs its objects during
the grace time for its readers, including those of older checkpoints.

What has to be read follows from how a manifest is built (`record`): it names files of its own attempt, and
what its parent needs, less what a base replaces, for each key group. So among the checkpoints that are needed

* what one of them needs of its *own* objects is what its own manifest names; the others need no more of them;
* what they need of *older* checkpoints, which are not needed themselves, is what their *roots* need: those
  whose parent is not among them.

A job that never restored has one root, the oldest, however many are retained. Releases before step 4 refused
files of another attempt may have written manifests that name some: `of_other_attempts` finds these.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dstl_dagster.errors import ErrorKind, FormatError, NotFoundError
from dstl_dagster.format import JobNames, KeyGroupRange, StreamStateHandle
from dstl_dagster.keyed import Manifest, ManifestLoader, OperatorEntry, OperatorReport, Uncovered
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline import CheckpointEntry, GraceClock, TimelineView

__all__ = ["References", "Walked", "Written", "needed_checkpoints", "roots_of"]

log = logging.getLogger(__name__)

Walked = dict[tuple[str, str], Uncovered]
"""By operator and manifest: the key groups for which it and what is older was walked."""


Written = tuple[int | None, int | None]
"""The length of an object in bytes and its CRC-32C, as far as its writer said."""
_Files = tuple[KeyGroupRange, tuple[str, ...]]
"""A handle: its key groups, and the names of its files."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """What one checkpoint added to one operator: the files of each handle, and what it covers.

    Attributes:
        files: of bases, compactions, and an operator's first changes.
        changes: of other changes, which a newer compaction may hold.
    """

    files: tuple[_Files, ...]
    changes: tuple[_Files, ...]
    based: KeyGroupRange
    compacted: tuple[KeyGroupRange, ...]
    max_parallelism: int

    @classmethod
    def of(cls, report: OperatorReport, *, is_first: bool) -> _Layer:
        files = tuple(
            (handle.key_group_range, tuple({stream.name: None for stream in handle.streams}))
            for handle in report.handles
        )
        before = len(files) if is_first else len(files) - len(report.change_handles)
        compacted = tuple(each.key_group_range for each in report.compacted_handles)
        return cls(files[:before], files[before:], report.based, compacted, report.max_parallelism)

    def needed(self, uncovered: Uncovered) -> Iterator[str]:
        """The files with changes of these key groups."""
        for wanted, handles in ((uncovered, self.files), (uncovered.for_changes(), self.changes)):
            for key_groups, names in handles:
                if wanted.meets(key_groups):
                    yield from names

    def before(self, uncovered: Uncovered) -> Uncovered:
        """What is uncovered before this."""
        return uncovered.before(self.based, self.max_parallelism).compacted_in(self.compacted)


@dataclass(frozen=True, slots=True)
class _Link:
    """What a manifest says of one operator: its layers, newest first, and the manifest of older ones, with
    its name there if that is another one.
    """

    layers: tuple[_Layer, ...]
    previous: str | None
    previous_operator: str

    @classmethod
    def of(cls, entry: OperatorEntry) -> _Link:
        *newer, oldest = (entry.report, *(each.report(entry.report) for each in entry.carried))
        layers = [_Layer.of(report, is_first=False) for report in newer]
        layers.append(_Layer.of(oldest, is_first=entry.begins_with(oldest)))
        return cls(tuple(layers), entry.previous, entry.previous_operator)

    def needed(self, uncovered: Uncovered) -> tuple[list[str], Uncovered]:
        """The files with changes of these key groups, and the key groups that need still older ones."""
        found: list[str] = []
        for layer in self.layers:
            found += layer.needed(uncovered)
            uncovered = layer.before(uncovered)
        return found, uncovered


@dataclass(frozen=True, slots=True)
class _Named:
    """What a manifest names: the files of its own reports, and by operator what is needed of older ones."""

    files: frozenset[str]
    links: dict[str, _Link]


def needed_checkpoints(view: TimelineView, grace: GraceClock) -> list[CheckpointEntry]:
    """Those that can be restored to, or may still have readers; oldest first."""
    subsumed = {entry.subsumed.slot for entry in view.checkpoints.values() if entry.subsumed is not None}
    grace.first_within(sorted(subsumed))  # settles all of them with few requests
    return [
        entry
        for entry in view.checkpoints.values()
        if entry.subsumed is None or not grace.is_over(entry.subsumed.slot)
    ]


def roots_of(needed: Sequence[CheckpointEntry]) -> list[CheckpointEntry]:
    """Those of them that build on none among them. Pure."""
    ids = {entry.checkpoint_id for entry in needed}
    return [entry for entry in needed if entry.completed.builds_on not in ids]


class References:
    """The names that checkpoints need. Caches what each manifest names: a manifest never changes.

    Args:
        threads: manifests read concurrently, at most.
    """

    def __init__(self, store: ObjectStore, names: JobNames, *, threads: int = 8) -> None:
        self._job_names = names
        self._loader = ManifestLoader(store, names, threads=threads)
        self._named: dict[str, _Named] = {}
        self._unreadable: dict[str, FormatError | NotFoundError] = {}
        self._older: dict[tuple[str, ...], frozenset[str]] = {}
        self._of_others: set[str] = set()
        self._written: dict[str, Written] = {}

    def own(self, entries: Iterable[CheckpointEntry]) -> frozenset[str]:
        """The files that the manifests of these checkpoints name themselves.

        Raises: FormatError, NotFoundError if one of them is unreadable.
        """
        names = self.read_ahead(entries)
        return frozenset(file for name in names for file in self._manifest(name).files)

    def older(self, needed: Sequence[CheckpointEntry]) -> frozenset[str]:
        """What the roots of `needed` need: all that `needed` needs of other checkpoints, and more.

        Raises: FormatError, NotFoundError if a manifest of a kept checkpoint is unreadable.
        """
        key = tuple(entry.completed.manifest for entry in roots_of(needed))
        if key not in self._older:
            names: set[str] = set()
            rest = list(needed)
            while rest:
                gone: set[int] = set()
                names.update(self._walk(roots_of(rest), gone))
                if not gone:
                    break
                # Without its root, what the next ones need has to be walked from them.
                rest = [entry for entry in rest if entry.checkpoint_id not in gone]
            self._older[key] = frozenset(names)
        return self._older[key]

    def of_other_attempts(self, entries: Iterable[CheckpointEntry], *, older: bool) -> frozenset[str]:
        """The changelog files that these checkpoints' manifests name, and that another attempt wrote.

        With `older`, also what the manifests name that they build on. Passes over manifests that are lost or
        damaged, of which nothing can be read.

        Raises: FormatError (kind `newer_version`): what a later release needs is not known.
        """
        names = self.read_ahead(entries)
        seen: Walked = {}
        for name in names:
            try:
                if older:
                    for _ in self.needed_by(name, seen):
                        pass
                else:
                    self._manifest(name)
            except (FormatError, NotFoundError) as error:
                if error.kind == ErrorKind.NEWER_VERSION:
                    raise
                log.warning("manifest %s cannot be read: %s", name, error)
        return frozenset(self._of_others)

    def read_ahead(self, entries: Iterable[CheckpointEntry]) -> list[str]:
        """Read the manifests of these checkpoints concurrently, if not read yet; unreadable ones, and those
        that are not what the record names, raise when asked for. Returns their names.
        """
        names = [self._expected(entry) for entry in entries]
        self._loader.fetch([name for name in names if name not in self._named])
        return names

    def needed_by(self, manifest: str, seen: Walked | None = None) -> Iterator[str]:
        """Every name that the checkpoint of this manifest needs; a name may be repeated.

        With `seen`, which it adds to, less what it needed for the other checkpoints that had the same set.

        Raises: FormatError, NotFoundError if a manifest is unreadable, after yielding the names before it.
        """
        return self._needed_by(manifest, {} if seen is None else seen)

    def written(self, name: str) -> Written:
        """What the manifests that were read say of a changelog file."""
        return self._written.get(name, (None, None))

    def was_read(self, name: str) -> bool:
        """Whether this is a manifest that was read: it is there."""
        return name in self._named

    def _walk(self, roots: Iterable[CheckpointEntry], gone: set[int]) -> Iterator[str]:
        # A manifest may be in the chain of one operator and not of another: track them as pairs.
        seen: Walked = {}
        for entry in roots:
            try:
                yield from self._needed_by(self._expected(entry), seen)
            except NotFoundError:
                if entry.subsumed is None:
                    raise
                # A clean-up with a shorter grace time deleted it: there is nothing left to read.
                log.info("checkpoint %d was deleted before its grace time was over", entry.checkpoint_id)
                gone.add(entry.checkpoint_id)

    def _needed_by(self, manifest: str, seen: Walked) -> Iterator[str]:
        yield manifest
        named = self._manifest(manifest)
        yield from named.files
        for operator, link in named.links.items():
            yield from self._older_than(operator, link, seen)

    def _expected(self, entry: CheckpointEntry) -> str:
        self._loader.expect(entry.completed.manifest, entry.completed.manifest_crc32c)
        return entry.completed.manifest

    def _older_than(self, operator: str, newest: _Link, seen: Walked) -> Iterator[str]:
        """What the operator's state needs of older checkpoints, one after another."""
        link: _Link | None = newest
        uncovered = Uncovered()
        while link is not None:
            files, uncovered = link.needed(uncovered)
            yield from files
            name = link.previous
            if name is None:
                return
            operator = link.previous_operator or operator
            walked = seen.get((operator, name), Uncovered(0))
            # Another checkpoint may have needed the manifest for other key groups than this one does.
            uncovered -= walked
            if not uncovered:
                return
            seen[operator, name] = walked | uncovered
            yield name
            link = self._manifest(name).links.get(operator)

    def _manifest(self, name: str) -> _Named:
        if name in self._unreadable:
            raise self._unreadable[name]
        if name not in self._named:
            try:
                manifest = self._loader.load(name)
            except (FormatError, NotFoundError) as error:
                self._unreadable[name] = error
                raise
            self._written.update(
                (stream.name, (stream.stored_bytes, stream.crc32c)) for stream in _streams(manifest)
            )
            files = frozenset(_files(manifest))
            self._of_others.update(file for file in files if not self._is_own(name, file))
            links = {operator: _Link.of(entry) for operator, entry in manifest.operators.items()}
            self._named[name] = _Named(files, links)
        return self._named[name]

    def _is_own(self, manifest: str, file: str) -> bool:
        # What is in no attempt's folder is never garbage.
        writer = self._job_names.attempt_of_folder(file)
        return writer is None or writer == self._job_names.attempt_of_manifest(manifest)


def _streams(manifest: Manifest) -> Iterator[StreamStateHandle]:
    """Every changelog file that it names, those of reports that it repeats too."""
    for entry in manifest.operators.values():
        for report in (entry.report, *(each.report(entry.report) for each in entry.carried)):
            for handle in report.handles:
                yield from handle.streams


def _files(manifest: Manifest) -> Iterator[str]:
    for entry in manifest.operators.values():
        for handle in entry.report.handles:
            for stream in handle.streams:
                yield stream.name
