"""The read side of a job: which checkpoints exist, and what they hold. Writes nothing.

Owns what callers ask of a job. Does not own loading a checkpoint (`job`), or any decision (`coordinator`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from dstl_dagster.checkpoint.inspect.integrity import Problem, raise_unless_damage
from dstl_dagster.checkpoint.inspect.verify import Verification, verify_checkpoint, verify_state
from dstl_dagster.checkpoint.job import Checkpoint, Job
from dstl_dagster.clock import Clock
from dstl_dagster.concurrency import Progress, gather
from dstl_dagster.errors import DstlError, ErrorKind, FormatError, NotFoundError
from dstl_dagster.settings import CheckpointOptions, JobOptions, Options, StoragePrices
from dstl_dagster.storage import (
    COMPOSE_COMMIT,
    CONFIRM,
    CheckpointCost,
    Cost,
    ObjectStore,
    RunningCost,
    cost_from_note,
)
from dstl_dagster.timeline import (
    AsOf,
    AtLike,
    Attempt,
    BatchKey,
    CheckpointEntry,
    Timeline,
    TimelineView,
)

if TYPE_CHECKING:
    from dstl_dagster.keyed import StateScan


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
        self._job = Job(job, store, options, clock=clock, new_id=new_id)

    @property
    def job(self) -> str:
        return self._job.name

    @property
    def store(self) -> ObjectStore:
        """The job's store; what is requested through it counts in `cost`."""
        return self._job.store

    @property
    def timeline(self) -> Timeline:
        return self._job.timeline

    @property
    def job_options(self) -> JobOptions:
        """All options of the job, for its workers in other processes."""
        return self._job.job_options

    @property
    def options(self) -> CheckpointOptions:
        return self._job.options

    @property
    def cost(self) -> Cost:
        """The requests through this object and its `store` so far, by any thread."""
        return self._job.meter.cost

    def running_cost(self) -> RunningCost:
        """Counts what is requested from now on."""
        return self._job.running_cost()

    @property
    def prices(self) -> StoragePrices:
        """Those of the options; none where requests go to this machine."""
        return StoragePrices.free() if self.store.capabilities.is_local else self.options.prices

    def latest(self) -> Checkpoint | None:
        """The checkpoint that the job resumes from; `None` before the first."""
        view = self.timeline.tail()
        return None if view.last_completed is None else self._job.load(view, view.last_completed)

    def get(self, checkpoint_id: int) -> Checkpoint:
        """Raises: NotFoundError (kind `no_checkpoint`: never completed; `checkpoint_gone`), FormatError."""
        return self._job.checkpoint(self.timeline.tail(), checkpoint_id)

    def at(self, at: AtLike = None) -> Checkpoint:
        """The checkpoint that a caller names, by default the last one; of a job that begins anew, and has no
        new one yet, the one that it went back from.

        Args:
            at: its id, a number; a partition, or any idempotency key, that it holds; a savepoint's name; or a
                time (a `datetime`, or text such as "2026-11-22T18:00Z"), for where the job stood then.
                Prefixes distinguish them where that is needed: "partition:KEY", "savepoint:NAME",
                "time:2026-11-22", "checkpoint:12". Text of digits is never an id without one.

        Raises: NotFoundError (kind `no_checkpoint`, `checkpoint_gone`), InvalidInputError, FormatError.
        """
        wanted, view = AsOf.of(at), self.timeline.tail()
        checkpoint_id = wanted.resolved(view, self.job, self.store, self._job.clock.now())
        try:
            return self._job.checkpoint(view, checkpoint_id)
        except NotFoundError as error:
            if str(wanted) == str(checkpoint_id):
                raise
            raise NotFoundError(
                f"{wanted} is checkpoint {checkpoint_id}: {error}", ErrorKind(error.kind)
            ) from error

    def later_cost(self, checkpoint: Checkpoint) -> CheckpointCost:
        """The cost of steps 5 and 6 of a checkpoint, by the try of each that wrote its record.

        As far as it was noted: on a bucket. Two requests.
        """
        entry = checkpoint.entry
        slots = {CONFIRM: entry.completed.slot}
        if entry.committed is not None:
            slots[COMPOSE_COMMIT] = entry.committed.slot
        notes = self.timeline.notes([*slots.values()])
        found = {step: cost_from_note(note) for step, note in zip(slots, notes, strict=True)}
        return CheckpointCost({step: cost for step, cost in found.items() if cost is not None})

    def list(self, problems: dict[int, DstlError] | None = None) -> list[Checkpoint]:
        """Every checkpoint that can be restored to, oldest first.

        Args:
            problems: gets why a checkpoint cannot be read, by its id, in place of raising it.

        Raises: NotFoundError, FormatError for a manifest that is gone or damaged.
        """
        view = self.timeline.tail()

        def load(entry: CheckpointEntry) -> Checkpoint | None:
            try:
                return self._job.load(view, entry)
            except (NotFoundError, FormatError) as error:
                if problems is None:
                    raise
                problems[entry.checkpoint_id] = error
                return None

        looks = [partial(load, entry) for entry in view.retained]
        return [each for each in gather(looks, self._job.lookup_threads, "dstl-list") if each is not None]

    def applied(self, key: str | BatchKey) -> int | None:
        """The id of the completed checkpoint that holds this batch; `None` if none does. A text is a name: of
        the batches of any source that have it, the one that was applied last counts. By the timeline alone:
        also where an operator that the batch wrote was dropped since, which opening the batch again refuses.
        """
        return self.timeline.tail().applied_in(key)

    def applied_attempt(self, key: str | BatchKey) -> Attempt | None:
        """The attempt that completed this batch, by the timeline alone; `None` if none did.

        Known for ever, even after the checkpoint itself has been cleaned up.
        """
        checkpoint_id = self.applied(key)
        if checkpoint_id is None:
            return None
        completed = self.timeline.completed(checkpoint_id)
        made = (completed.batch, *completed.batches)
        batch = next((each for each in made if each is not None and key in (each, each.key)), None)
        return Attempt(
            checkpoint_id=completed.checkpoint_id,
            attempt=completed.attempt,
            parent=completed.parent,
            job=self.job,
            store_uri=self.store.uri,
            batch=batch,
            base=completed.base,
            timeline=self.timeline.seen().timeline_id,
        )

    def require_open(self, attempt: Attempt) -> None:
        """Raises if this attempt may no longer do anything (see `decisions.require_open`)."""
        self._job.require_open(attempt)

    def read_state(self, operator: str, at: AtLike = None, **wanted: Any) -> StateScan:
        """The rows of an operator for Arrow, pandas, Polars and DuckDB. Arguments: as `jobs.read_state`."""
        from dstl_dagster.keyed import StateScan  # Arrow: not for a process that only decides

        manifest = self.at(at).manifest
        return StateScan.of(self.store, manifest, operator, self.job_options, **wanted)

    def verify(self, checkpoint_id: int | None = None, *, progress: Progress | None = None) -> Verification:
        """Read everything that a checkpoint needs, by default the last one, and report what is wrong.

        `progress` is called with (checks done, checks in total). Raises: as `at`; UnavailableError: then
        nothing is known.
        """
        return verify_checkpoint(self._job, self.at(checkpoint_id), progress)

    def newest_verified(self) -> tuple[Checkpoint | None, tuple[Verification, ...]]:
        """The newest checkpoint whose state is undamaged, and what is wrong with each newer one.

        Raises: UnavailableError, FormatError (kind `newer_version`): a later release's bytes are no damage.
        """
        damaged: list[Verification] = []
        view = self.timeline.tail()
        for entry in reversed(view.retained):
            found = self._verify_state(view, entry)
            if found.ok:
                return self._job.load(view, entry), tuple(damaged)
            damaged.append(found)
        return None, tuple(damaged)

    def _verify_state(self, view: TimelineView, entry: CheckpointEntry) -> Verification:
        name = entry.completed.manifest
        try:
            checkpoint = self._job.load(view, entry)
        except (FormatError, NotFoundError) as error:
            raise_unless_damage(error)
            problem = Problem(name, f"cannot be read: {error.message}")
            return Verification(entry.checkpoint_id, (problem,), (), 1, 0)
        return verify_state(self._job, checkpoint.manifest)
