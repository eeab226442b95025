"""Step 7, the act: find what retained checkpoints need, list the job's objects, delete the garbage.

Owns the order of reading and deleting. Does not own what garbage is (`garbage`).

Why this is safe. Objects are listed before the timeline is read, so whatever an attempt that opens later
writes is not in the listing, and whatever the listing holds has a fate on the timeline. Every deletion
carries the generation that was listed. A manifest goes after the objects that only it names.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from dstl_dagster.checkpoint.garbage import Garbage, plan_garbage
from dstl_dagster.checkpoint.manifest import load_manifest
from dstl_dagster.checkpoint.restore import manifest_chain
from dstl_dagster.checkpoint.timeline import Timeline
from dstl_dagster.checkpoint.view import CheckpointEntry, TimelineView
from dstl_dagster.errors import ConflictError
from dstl_dagster.format.names import COMPONENTS_PREFIX, JobNames
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import ANY, Generation, ObjectStore

__all__ = ["CleanUp", "collect_garbage"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CleanUp:
    """What step 7 did, or with `dry_run` would do.

    Attributes:
        subsumed: checkpoints given up by this run.
        deleted: names of the objects deleted.
        deleted_bytes: their sizes summed.
        reasons: how many objects went for each reason.
        dry_run: nothing was written or deleted.
    """

    subsumed: tuple[int, ...] = ()
    deleted: tuple[str, ...] = ()
    deleted_bytes: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    dry_run: bool = False


def collect_garbage(
    store: ObjectStore,
    timeline: Timeline,
    names: JobNames,
    file_options: GSFileSystemOptions,
    *,
    reader_grace: timedelta,
    dry_run: bool,
) -> CleanUp:
    """Delete every object of the job that nothing needs.

    Raises: FormatError, NotFoundError where a retained manifest is unreadable: then nothing is deleted,
    since what it needs is unknown.
    """
    listings = [(place, list(place.home.list(place.prefix))) for place in _places(store, names, file_options)]
    view = timeline.tail()
    referenced = frozenset(_references(store, view))
    grace = _GraceClock(store, names, reader_grace)
    deleted: list[Garbage] = []
    for place, listed in listings:
        plan = plan_garbage(names, listed, view, referenced, grace_is_over=grace.is_over)
        deleted += [garbage for garbage in plan if dry_run or _delete(place.home, garbage)]
    reasons: dict[str, int] = {}
    for garbage in deleted:
        reasons[garbage.reason] = reasons.get(garbage.reason, 0) + 1
    return CleanUp(
        deleted=tuple(garbage.stat.name for garbage in deleted),
        deleted_bytes=sum(garbage.stat.size for garbage in deleted),
        reasons=reasons,
        dry_run=dry_run,
    )


@dataclass(frozen=True)
class _Place:
    """A prefix under which objects of the job lie."""

    home: ObjectStore
    prefix: str


def _places(store: ObjectStore, names: JobNames, file_options: GSFileSystemOptions) -> list[_Place]:
    """In the order of deletion: what manifests name, then manifests."""
    bucket_name = file_options.writer_temporary_bucket_name or store.bucket_name
    # With entropy a name begins with a UUID, so only the whole bucket holds them all; the writer insists
    # on a temporary bucket of its own then.
    prefix = "" if file_options.filesink_entropy_enabled else COMPONENTS_PREFIX
    return [
        _Place(store.in_bucket(bucket_name), prefix),
        _Place(store, names.attempts_prefix),
        _Place(store, names.manifests_prefix),
    ]


def _references(store: ObjectStore, view: TimelineView) -> Iterator[str]:
    """Every name that a retained checkpoint needs: its manifest, the older ones, their changelog files."""
    manifests: set[str] = set()
    for entry in view.retained:
        manifest = load_manifest(store, entry.completed.manifest)
        manifests |= {entry.completed.manifest} | manifest_chain(store, manifest)
    for name in manifests:
        yield name
        for operator in load_manifest(store, name).operators.values():
            for handle in operator.report.handles:
                for stream, _offset in handle.handles_and_offsets:
                    yield stream.name


def _delete(home: ObjectStore, garbage: Garbage) -> bool:
    name = garbage.stat.name
    try:
        gone = home.delete(name, precondition=Generation(garbage.stat.generation))
    except ConflictError:
        # Written again since the listing: not the object that was judged. The next run judges it.
        return False
    log.info("deleted %s: %s", name, garbage.reason)
    return gone


class _GraceClock:
    """Whether readers had their grace time, by the server's clock alone."""

    def __init__(self, store: ObjectStore, names: JobNames, grace: timedelta) -> None:
        self._store = store
        self._names = names
        self._grace = grace
        self._now: datetime | None = None

    def is_over(self, entry: CheckpointEntry) -> bool:
        if entry.subsumed is None:
            return False
        if not self._grace:
            return True
        said = self._store.stat(self._names.slot(entry.subsumed.slot))
        return said is not None and self._server_now() - said.updated >= self._grace

    def _server_now(self) -> datetime:
        # Any clock but the one that stamped the record could be an hour off. A fresh object asks it.
        if self._now is None:
            self._now = self._store.put(self._names.server_clock, b"", precondition=ANY).updated
        return self._now
