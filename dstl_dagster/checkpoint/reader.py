"""The read side of a job: which checkpoints exist, and what they hold. Writes nothing.

Owns finding and loading checkpoints. Does not own any decision (`coordinator`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from dstl_dagster.checkpoint.verify import (
    Problem,
    Verification,
    raise_unless_damage,
    verify_checkpoint,
    verify_state,
)
from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.concurrency import both, gather
from dstl_dagster.errors import ConflictError, ErrorKind, FencedError, FormatError, NotFoundError
from dstl_dagster.format import JobNames
from dstl_dagster.keyed import Manifest, RunLists, load_manifest, require_same_manifest
from dstl_dagster.settings import CheckpointOptions, JobOptions, Options, StoragePrices
from dstl_dagster.storage import (
    COMPOSE_COMMIT,
    CONFIRM,
    CheckpointCost,
    Cost,
    CostMeter,
    ObjectStore,
    RunningCost,
    cost_from_note,
    metered,
)
from dstl_dagster.timeline import (
    AsOf,
    AtLike,
    Attempt,
    BatchKey,
    BlockedFile,
    CheckpointEntry,
    Timeline,
    TimelineView,
    decisions,
    find_completed,
    gone_checkpoint,
    missing_object,
    refuse_renamed,
)

if TYPE_CHECKING:
    from dstl_dagster.keyed import StateScan

__all__ = ["Checkpoint", "CheckpointReader"]


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
    def committed(self) -> bool:
        """Step 6 is complete: every file is published, or listed in `blocked`."""
        return self.entry.committed is not None

    @property
    def blocked(self) -> tuple[BlockedFile, ...]:
        return self.entry.committed.blocked if self.entry.committed is not None else ()


class CheckpointReader:
    """The checkpoints of one job. Cheap to create; thread-safe. Arguments as for `CheckpointCoordinator`."""

    def __init__(
        self,
        job: str,
        store: ObjectStore,
        options: Options | CheckpointOptions | None = None,
        *,
        clock: Clock | None = None,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self._names = JobNames(job)
        self._meter = CostMeter()
        self._store = store = metered(store, self._meter)
        self._job_options = JobOptions.of(options)
        self._options = self._job_options.checkpoint
        self._clock = clock or SystemClock()
        self._new_id = new_id
        self._recorded: Manifest | None = None  # that this object wrote last
        self.run_lists = RunLists()  # that this object wrote or read last
        self.timeline = Timeline(
            job,
            store,
            clock=self._clock,
            new_id=new_id,
            snapshot_interval=self._options.snapshot_interval,
            reader_grace=self._options.reader_grace,
            threads=self._options.commit_threads,
        )

    @property
    def job(self) -> str:
        return self._names.job

    @property
    def store(self) -> ObjectStore:
        """The job's store; what is requested through it counts in `cost`."""
        return self._store

    @property
    def job_options(self) -> JobOptions:
        """All options of the job, for whoever works for it in another process."""
        return self._job_options

    @property
    def options(self) -> CheckpointOptions:
        return self._options

    @property
    def cost(self) -> Cost:
        """What was requested through this object and its `store` so far, by whichever thread."""
        return self._meter.cost

    def running_cost(self) -> RunningCost:
        """Counts what is requested from now on."""
        return RunningCost(lambda: self._meter.cost, self._clock)

    @property
    def prices(self) -> StoragePrices:
        """Those of the options; none where requests go to this machine."""
        local = self._store.capabilities.is_local
        return StoragePrices.free() if local else self._options.prices

    def latest(self) -> Checkpoint | None:
        """The checkpoint that the job resumes from; `None` before the first."""
        return self._latest(self.timeline.tail())

    def _latest(self, view: TimelineView) -> Checkpoint | None:
        return None if view.last_completed is None else self._checkpoint(view, view.last_completed)

    def get(self, checkpoint_id: int) -> Checkpoint:
        """Raises: NotFoundError (kind `no_checkpoint`: never completed; `checkpoint_gone`), FormatError."""
        return self._get(self.timeline.tail(), checkpoint_id)

    def at(self, at: AtLike = None) -> Checkpoint:
        """The checkpoint that a caller names, by default the last one.

        Args:
            at: its id, a number; a partition, or any idempotency key, that it holds; a savepoint's name; or a
                time (a `datetime`, or text such as "2026-11-22T18:00Z"), for where the job stood then.
                Prefixes tell them apart where that is needed: "partition:KEY", "savepoint:NAME",
                "time:2026-11-22", "checkpoint:12". Text of digits is never an id without one.

        Raises: NotFoundError (kind `no_checkpoint`, `checkpoint_gone`), InvalidInputError, FormatError.
        """
        wanted, view = AsOf.of(at), self.timeline.tail()
        checkpoint_id = wanted.resolved(view, self.job, self._store)
        try:
            return self._get(view, checkpoint_id)
        except NotFoundError as error:
            if str(wanted) == str(checkpoint_id):
                raise
            raise NotFoundError(
                f"{wanted} is checkpoint {checkpoint_id}: {error}", ErrorKind(error.kind)
            ) from error

    def _get(self, view: TimelineView, checkpoint_id: int, manifest: Manifest | None = None) -> Checkpoint:
        """`get` in this view. `manifest`: the checkpoint's, if the caller has read it; it never changes."""
        entry = view.checkpoints.get(checkpoint_id)
        if entry is not None:
            return self._checkpoint(view, entry, manifest)
        if 1 <= checkpoint_id <= view.highest_id:
            raise gone_checkpoint(self.timeline, checkpoint_id)
        there = ", ".join(str(entry.checkpoint_id) for entry in view.retained[-10:]) or "none"
        said = f"job {self.job!r} has no completed checkpoint {checkpoint_id}; it has {there}"
        raise NotFoundError(said, kind=ErrorKind.NO_CHECKPOINT)

    def later_cost(self, checkpoint: Checkpoint) -> CheckpointCost:
        """What steps 5 and 6 of a checkpoint cost, by the try of each that wrote its record.

        As far as it was noted: on a bucket, by this release or a later one. Two requests.
        """
        entry = checkpoint.entry
        slots = {CONFIRM: entry.completed.slot}
        if entry.committed is not None:
            slots[COMPOSE_COMMIT] = entry.committed.slot
        notes = self.timeline.notes([*slots.values()])
        found = {step: cost_from_note(note) for step, note in zip(slots, notes, strict=True)}
        return CheckpointCost({step: cost for step, cost in found.items() if cost is not None})

    def list(self) -> list[Checkpoint]:
        """Every checkpoint that can be restored to, oldest first."""
        view = self.timeline.tail()
        threads = self._store.capabilities.lookup_threads(self._options.commit_threads)
        looks = [partial(self._checkpoint, view, entry) for entry in view.retained]
        return gather(looks, threads, "dstl-list")

    def applied(self, key: str | BatchKey) -> int | None:
        """The id of the completed checkpoint that holds this batch; `None` if none does. A text is a name: of
        the batches of any source that have it, the one that was applied last counts.
        """
        return self.timeline.tail().applied_in(key)

    def applied_attempt(self, key: str | BatchKey) -> Attempt | None:
        """The attempt that completed this batch, by the timeline alone; `None` if none did.

        Known for ever, even after the checkpoint itself has been cleaned up.
        """
        checkpoint_id = self.applied(key)
        if checkpoint_id is None:
            return None
        completed = find_completed(self.timeline, checkpoint_id)
        return Attempt(
            checkpoint_id=completed.checkpoint_id,
            attempt=completed.attempt,
            parent=completed.parent,
            job=self.job,
            store_uri=self._store.uri,
            batch=completed.batch,
            base=completed.base,
            timeline=self.timeline.seen().timeline_id,
        )

    def require_open(self, attempt: Attempt) -> None:
        """Raises if this attempt may no longer do anything (see `decisions.require_open`)."""
        self.timeline.start_at(attempt)
        decisions.require_open(self.timeline.tail(), attempt)

    def _read_with_tail(self, attempt: Attempt) -> Manifest:
        """The attempt's manifest, which is read beside the tail if this object has not read that before."""
        self.timeline.start_at(attempt)
        load = partial(
            load_manifest,
            self._store,
            self._names.manifest(attempt.checkpoint_id, attempt.attempt),
            lists=self.run_lists,
        )
        with self._if_still_open(attempt):
            threads = self._store.capabilities.lookup_threads(self._options.commit_threads)
            _, manifest = both(self.timeline.seen, load, threads)
        return manifest

    def _recorded_by(self, attempt: Attempt) -> Manifest | None:
        """The manifest of this attempt, if this object wrote it last."""
        last = self._recorded
        return last if last is not None and last.attempt == attempt.attempt else None

    def _own_manifest(self, view: TimelineView, checkpoint_id: int) -> Manifest | None:
        """The same by the checkpoint, for the last one alone: nothing of that is ever cleaned up."""
        last, entry = self._recorded, view.last_completed
        if last is None or entry is None or entry.checkpoint_id != checkpoint_id:
            return None
        return last if last.attempt == entry.completed.attempt else None

    def _parent(self, view: TimelineView) -> Checkpoint | None:
        """The checkpoint that the next one builds on."""
        last = view.last_completed_id
        return None if last is None else self._get(view, last, self._own_manifest(view, last))

    def _base(self, view: TimelineView, checkpoint_id: int) -> Checkpoint | None:
        """What a batch that is applied anew builds on; `None` for 0, before the first."""
        if not checkpoint_id:
            return None
        decisions.refuse_gone(decisions.entry_of(view, checkpoint_id))
        return self._get(view, checkpoint_id)

    @contextmanager
    def _if_still_open(self, attempt: Attempt) -> Iterator[None]:
        """A dead attempt's objects were cleaned up, its names taken by others: raise that it ended."""
        try:
            yield
        except FencedError:
            raise
        except (NotFoundError, ConflictError):
            self.require_open(attempt)
            raise

    def read_state(self, operator: str, at: AtLike = None, **wanted: Any) -> StateScan:
        """The rows of an operator for Arrow, pandas, Polars and DuckDB. Arguments: as `jobs.read_state`."""
        from dstl_dagster.keyed import StateScan  # Arrow: not for a process that only decides

        manifest = self.at(at).manifest
        return StateScan.of(self._store, manifest, operator, self._job_options, **wanted)

    def verify(
        self, checkpoint_id: int | None = None, *, progress: Callable[[int, int], None] | None = None
    ) -> Verification:
        """Read everything that a checkpoint needs, by default the last one, and report what is wrong.

        `progress` is called with (checks done, checks in total). Raises: as `get`; NotFoundError (kind
        `no_checkpoint`) before the first one; UnavailableError: then nothing is known.
        """
        checkpoint = self.latest() if checkpoint_id is None else self.get(checkpoint_id)
        if checkpoint is None:
            raise NotFoundError(
                f"job {self.job!r} has no completed checkpoint yet", kind=ErrorKind.NO_CHECKPOINT
            )
        return verify_checkpoint(
            self._store,
            checkpoint.manifest,
            checkpoint.entry.committed,
            origin=checkpoint.entry.completed.origin,
            abandoned=checkpoint.abandoned,
            options=self._job_options.changelog,
            threads=self._options.commit_threads,
            progress=progress,
        )

    def newest_verified(self) -> tuple[Checkpoint | None, tuple[Verification, ...]]:
        """The newest checkpoint whose state is undamaged, and what is wrong with each newer one.

        Raises: UnavailableError, FormatError (kind `newer_version`): a later release's bytes are no damage.
        """
        damaged: list[Verification] = []
        view = self.timeline.tail()
        for entry in reversed(view.retained):
            found = self._verify_state(view, entry)
            if found.ok:
                return self._checkpoint(view, entry), tuple(damaged)
            damaged.append(found)
        return None, tuple(damaged)

    def _verify_state(self, view: TimelineView, entry: CheckpointEntry) -> Verification:
        name = entry.completed.manifest
        try:
            checkpoint = self._checkpoint(view, entry)
        except (FormatError, NotFoundError) as error:
            raise_unless_damage(error)
            problem = Problem(name, f"cannot be read: {error.message}")
            return Verification(entry.checkpoint_id, (problem,), (), 1, 0)
        return verify_state(self._store, checkpoint.manifest, threads=self._options.commit_threads)

    def _checkpoint(
        self, view: TimelineView, entry: CheckpointEntry, manifest: Manifest | None = None
    ) -> Checkpoint:
        name, crc32c = entry.completed.manifest, entry.completed.manifest_crc32c
        try:
            manifest = manifest or load_manifest(self._store, name, crc32c, self.run_lists)
            require_same_manifest(name, crc32c, manifest.crc32c)
        except NotFoundError as error:
            refuse_renamed(self._store, self.job, name)
            what = f"checkpoint {entry.checkpoint_id} of job {self.job!r}"
            missing = error  # a list of runs says so itself
            if error.kind != ErrorKind.STATE_MISSING:
                missing = NotFoundError(f"manifest {name} is missing", kind=ErrorKind.NO_MANIFEST)
            raise missing_object(self._store, self.job, entry.checkpoint_id, what, missing) from error
        names = sorted(name for name, kept in view.savepoints.items() if kept == entry.checkpoint_id)
        return Checkpoint(
            entry,
            manifest,
            abandoned=view.is_abandoned(entry.checkpoint_id),
            savepoints=tuple(names),
            savepoint_ends={name: view.savepoint_ends[name] for name in names if name in view.savepoint_ends},
        )
