"""One job, as this process works on it: its store, timeline and options, and loading its checkpoints.

Owns what all steps share, and what this process knows without asking again: the manifest that it wrote last,
and the lists of runs that it read. Does not own what callers ask of a job (`reader`), or what is decided
(`steps`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.concurrency import both
from dstl_dagster.errors import ConflictError, ErrorKind, FencedError, NotFoundError
from dstl_dagster.format import JobNames
from dstl_dagster.keyed import (
    Manifest,
    RunLists,
    Source,
    load_manifest,
    require_same_document,
    store_manifest,
)
from dstl_dagster.settings import CheckpointOptions, JobOptions, Options
from dstl_dagster.storage import CostMeter, ObjectStore, RunningCost, metered
from dstl_dagster.timeline import (
    Attempt,
    BlockedFile,
    CheckpointEntry,
    Timeline,
    TimelineView,
    decisions,
    gone_checkpoint,
    missing_object,
    refuse_renamed,
)


@dataclass(frozen=True)
class Checkpoint:
    """One completed checkpoint, as of the timeline when it was read.

    Attributes:
        entry: its records.
        manifest: what it holds.
        abandoned: a restore abandoned it; its state can be read, its files are retracted.
        savepoints: the names that keep it, ascending.
        savepoint_ends: when clean-up releases those of them that end, by name.
    """

    entry: CheckpointEntry
    manifest: Manifest
    abandoned: bool = False
    savepoints: tuple[str, ...] = ()
    savepoint_ends: Mapping[str, datetime] = field(default_factory=dict)

    @property
    def checkpoint_id(self) -> int:
        return self.entry.checkpoint_id

    @property
    def attempt(self) -> uuid.UUID:
        return self.entry.completed.attempt

    @property
    def parent(self) -> int | None:
        return self.entry.completed.parent

    @property
    def positions(self) -> Mapping[str, Any]:
        return self.manifest.positions

    @property
    def idempotency_key(self) -> str | None:
        return self.entry.completed.idempotency_key

    @property
    def source(self) -> Source | None:
        """The one that the checkpoint's batch is of, even if renamed since; `None` if it names none."""
        batch = self.entry.completed.batch
        known = self.manifest.sources.values()
        return next((each for each in known if batch is not None and each.id == batch.source), None)

    @property
    def committed(self) -> bool:
        """Step 6 is complete: every file is published, or listed in `blocked`."""
        return self.entry.committed is not None

    @property
    def blocked(self) -> tuple[BlockedFile, ...]:
        return self.entry.committed.blocked if self.entry.committed is not None else ()


ParentCheck = Callable[[Checkpoint | None], None]
"""Called with the parent before an attempt opens (`None` before a job's first checkpoint); raises if the
batch must not run on it."""


class Job:
    """Cheap to create; thread-safe. Arguments as for `CheckpointCoordinator`.

    Attributes:
        store: what is requested through it counts in `meter`.
        timeline: with the view that this process saw last.
        threads: concurrent requests of one step, at most.
        recorded: the manifest that this process wrote last.
        run_lists: those that it wrote or read last.
    """

    def __init__(
        self,
        name: str,
        store: ObjectStore,
        options: Options | CheckpointOptions | None = None,
        *,
        clock: Clock | None = None,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self.names = JobNames(name)
        self.meter = CostMeter()
        self.store = store = metered(store, self.meter)
        self.job_options = JobOptions.of(options)
        self.options = self.job_options.checkpoint
        self.files = self.job_options.files
        self.threads = self.options.commit_threads
        self.clock = clock or SystemClock()
        self.new_id = new_id
        self.recorded: Manifest | None = None
        self.run_lists = RunLists()
        self.timeline = Timeline(
            name,
            store,
            clock=self.clock,
            new_id=new_id,
            snapshot_interval=self.options.snapshot_interval,
            reader_grace=self.options.reader_grace,
            threads=self.threads,
        )

    @property
    def name(self) -> str:
        return self.names.job

    @property
    def lookup_threads(self) -> int:
        return self.store.capabilities.lookup_threads(self.threads)

    def running_cost(self) -> RunningCost:
        """Counts what is requested from now on."""
        return RunningCost(lambda: self.meter.cost, self.clock)

    def checkpoint(
        self, view: TimelineView, checkpoint_id: int, manifest: Manifest | None = None
    ) -> Checkpoint:
        """The checkpoint of this id in this view. `manifest`: its own, if the caller has read it.

        Raises: NotFoundError (kind `no_checkpoint`: never completed; `checkpoint_gone`), FormatError.
        """
        entry = view.checkpoints.get(checkpoint_id)
        if entry is not None:
            return self.load(view, entry, manifest)
        if 1 <= checkpoint_id <= view.highest_id:
            raise gone_checkpoint(self.timeline, checkpoint_id)
        there = ", ".join(str(entry.checkpoint_id) for entry in view.retained[-10:]) or "none"
        said = f"job {self.name!r} has no completed checkpoint {checkpoint_id}; it has {there}"
        raise NotFoundError(said, kind=ErrorKind.NO_CHECKPOINT)

    def last(self, view: TimelineView) -> Checkpoint | None:
        """The checkpoint that the next one builds on. Reads no manifest that this process wrote."""
        last = view.last_completed
        return None if last is None else self.load(view, last, self.recorded_of(view, last.checkpoint_id))

    def load(
        self, view: TimelineView, entry: CheckpointEntry, manifest: Manifest | None = None
    ) -> Checkpoint:
        """Raises: NotFoundError (kind `checkpoint_gone`; another one for a damaged store), FormatError."""
        name, crc32c = entry.completed.manifest, entry.completed.manifest_crc32c
        try:
            manifest = manifest or load_manifest(self.store, name, crc32c, self.run_lists)
            require_same_document(f"manifest {name}", crc32c, manifest.crc32c)
        except NotFoundError as error:
            refuse_renamed(self.store, self.name, name)
            what = f"checkpoint {entry.checkpoint_id} of job {self.name!r}"
            missing = error  # a list of runs says so itself
            if error.kind != ErrorKind.STATE_MISSING:
                missing = NotFoundError(f"manifest {name} is missing", kind=ErrorKind.STATE_MISSING)
            attempt = entry.completed.attempt
            raise missing_object(
                self.store, self.name, entry.checkpoint_id, attempt, what, missing
            ) from error
        names = sorted(name for name, kept in view.savepoints.items() if kept == entry.checkpoint_id)
        return Checkpoint(
            entry,
            manifest,
            abandoned=view.is_abandoned(entry.checkpoint_id),
            savepoints=tuple(names),
            savepoint_ends={name: view.savepoint_ends[name] for name in names if name in view.savepoint_ends},
        )

    def store_manifest(self, attempt: Attempt, manifest: Manifest) -> Manifest:
        """Write it, and remember it as stored. Raises: as `Timeline.while_it_is_there`."""
        write = partial(store_manifest, self.store, attempt, manifest, self.run_lists)
        # In a job that is gone, or is another one by now, it would be a trace of lost records.
        name = self.names.manifest(attempt.checkpoint_id, attempt.attempt)
        self.recorded = recorded = self.timeline.while_it_is_there(write, name)
        return recorded

    def recorded_by(self, attempt: uuid.UUID) -> Manifest | None:
        """The manifest of this attempt, if this process wrote it last."""
        last = self.recorded
        return last if last is not None and last.attempt == attempt else None

    def recorded_of(self, view: TimelineView, checkpoint_id: int) -> Manifest | None:
        """The same by the checkpoint, for the last one alone: nothing of that is ever cleaned up."""
        entry = view.last_completed
        if entry is None or entry.checkpoint_id != checkpoint_id:
            return None
        return self.recorded_by(entry.completed.attempt)

    def manifest_with_tail(self, attempt: Attempt) -> Manifest:
        """The attempt's manifest, which is read beside the tail if this object has not read that before."""
        self.timeline.start_at(attempt)
        name = self.names.manifest(attempt.checkpoint_id, attempt.attempt)
        load = partial(load_manifest, self.store, name, lists=self.run_lists)
        with self.if_still_open(attempt):
            _, manifest = both(self.timeline.seen, load, self.lookup_threads)
        return manifest

    def require_open(self, attempt: Attempt) -> None:
        """Raises if this attempt may no longer do anything (see `decisions.require_open`)."""
        self.timeline.start_at(attempt)
        decisions.require_open(self.timeline.tail(), attempt)

    @contextmanager
    def if_still_open(self, attempt: Attempt) -> Iterator[None]:
        """A dead attempt's objects were cleaned up, its names taken by others: raise that it ended."""
        try:
            yield
        except FencedError:
            raise
        except (NotFoundError, ConflictError):
            self.require_open(attempt)
            raise
