"""The life of one batch, from step 1 to the end of its checkpoint, independent of the writer in between.

Owns the order of a batch's steps, and aborting an attempt that cannot continue. Does not own the steps
(`coordinator`), or what is written (`keyed`, `recoverable`, and Spark on top of them).

    open      1        on the last completed checkpoint, once `check` has passed
    add       2, 3     what tasks made durable; state is read at the parent, which is loaded once
    merge     3        the changes of an operator pay for a merge of its older runs, in this same checkpoint
    hand over 3        the report waits in the store for steps 4 to 7, which Dagster's ops run
    complete  4 to 7   in this process (a stream, the data source, a checkpoint of bases)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

from dstl_dagster.checkpoint.claims import Claim
from dstl_dagster.checkpoint.coordinator import CheckpointCoordinator
from dstl_dagster.checkpoint.job import Checkpoint
from dstl_dagster.checkpoint.steps.trigger import Opening
from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import DstlError, InvalidInputError
from dstl_dagster.format import StateTtl
from dstl_dagster.keyed import (
    AttemptReport,
    FileReport,
    MergeExecutor,
    NameChange,
    OperatorReport,
    SharedFiles,
    Source,
    StateAt,
    schema_of,
    store_report,
    with_due_merges,
)
from dstl_dagster.settings import StateTtlConfig, parse_user_metadata
from dstl_dagster.state import StateSchema, ttl_to_write
from dstl_dagster.storage import (
    OWN_WRITE,
    PERSIST,
    TRIGGER,
    CheckpointCost,
    Cost,
    CostMeter,
    RunningCost,
)
from dstl_dagster.timeline import Attempt

log = logging.getLogger(__name__)


class Counter(Protocol):
    """A sum of requests that only grows."""

    @property
    def cost(self) -> Cost: ...


_MOST_AHEAD = timedelta(hours=1)
"""Of the driver's clock before the store's, where rows expire by it."""


class Batch:
    """An attempt in progress: what it builds on, and what has been made durable for it. Not thread-safe.

    Attributes:
        coordinator: the job's.
        attempt: as returned by step 1.
        parent: the checkpoint whose state it builds on; `None` for a job's first.
        merge_executor: merges older runs that take several ranges; `None`: this process does.

    Args:
        claim: the program's, about the batch; `None`: a driver that says nothing but positions.
        trigger: the cost of step 1.
        cost: of steps 2 and 3, from where this process began with them.
    """

    def __init__(
        self,
        coordinator: CheckpointCoordinator,
        attempt: Attempt,
        parent: Checkpoint | None,
        *,
        clock: Clock | None = None,
        claim: Claim | None = None,
        trigger: Cost | None = None,
        cost: RunningCost | None = None,
    ) -> None:
        self.coordinator = coordinator
        self.attempt = attempt
        self.parent = parent
        self.merge_executor: MergeExecutor | None = None
        self._clock = clock or SystemClock()
        self._began_seconds: float | None = None
        self._time_us: int | None = None
        self._ahead: timedelta | None = None
        self._trigger = trigger or Cost()
        self._running = cost or coordinator.running_cost()
        self._elsewhere = CostMeter()
        self._along: dict[Counter, Cost] = {}
        self._operators: list[OperatorReport] = []
        self._files: list[FileReport] = []
        self._claim = claim
        self._aborted_by: tuple[type[BaseException], ...] = (BaseException,)
        self._positions: dict[str, Any] = {}
        self._names = NameChange()
        self._user_metadata = ""
        self._states: dict[str, StateAt | None] = {}
        self._shared_files: SharedFiles | None = None

    @classmethod
    def open(
        cls,
        coordinator: CheckpointCoordinator,
        opening: Opening | None = None,
        *,
        clock: Clock | None = None,
        cost: RunningCost | None = None,
    ) -> Batch:
        """Step 1, on the checkpoint that the opening's `check` was called with.

        `cost`: of step 1, from where the caller began with the batch.

        Raises: as `CheckpointCoordinator.open`.
        """
        clock = clock or SystemClock()
        began_seconds = clock.monotonic_seconds()
        cost = cost or coordinator.running_cost()
        attempt, parent = coordinator.open(opening)
        claim = None if opening is None else opening.claim
        batch = cls(coordinator, attempt, parent, clock=clock, claim=claim, trigger=cost.so_far())
        batch._began_seconds = began_seconds
        server_now = coordinator.store.server_time()  # in an answer of just now
        batch._ahead = None if server_now is None else clock.now() - server_now
        return batch

    @classmethod
    def on(cls, coordinator: CheckpointCoordinator, parent: Checkpoint) -> Batch:
        """Step 1, on exactly this checkpoint."""
        cost = coordinator.running_cost()
        attempt = coordinator.trigger(expected_parent=parent.checkpoint_id)
        return cls(coordinator, attempt, parent, trigger=cost.so_far())

    @classmethod
    def resume(
        cls,
        coordinator: CheckpointCoordinator,
        attempt: Attempt,
        *,
        claim: Claim | None = None,
        trigger: Cost | None = None,
        cost: RunningCost | None = None,
        clock: Clock | None = None,
        aborted_by: tuple[type[BaseException], ...] = (BaseException,),
    ) -> Batch:
        """The batch of an attempt opened by another process, such as Spark's planner, with nothing added yet.

        `trigger`: the cost of step 1 there. `cost`: as for the class. `clock`: the report's seconds count
        from here. `aborted_by`: after another error the attempt stays open, for the process that opened it.

        Raises: NotFoundError (the parent was cleaned up: the attempt is dead), FormatError.
        """
        cost = cost or coordinator.running_cost()
        coordinator.timeline.start_at(attempt)
        parent = None if attempt.builds_on is None else coordinator.get(attempt.builds_on)
        batch = cls(coordinator, attempt, parent, clock=clock, claim=claim, trigger=trigger, cost=cost)
        batch._began_seconds = None if clock is None else clock.monotonic_seconds()
        batch._aborted_by = aborted_by
        return batch

    def schema(self, operator: str) -> StateSchema | None:
        """The schema of the state of `operator` at the parent; `None` if it has no state. No request."""
        entry = None if self.parent is None else self.parent.manifest.operators.get(operator)
        return None if entry is None else schema_of(entry.report)

    def state(self, operator: str) -> StateAt | None:
        """The state of `operator` at the parent; `None` if it has none. Looked up once.

        Raises: FormatError, InvalidInputError.
        """
        if operator not in self._states:
            parent = self.parent
            coordinator = self.coordinator
            self._states[operator] = (
                None
                if parent is None
                else StateAt.of(coordinator.store, parent.manifest, operator, coordinator.job_options)
            )
        return self._states[operator]

    @property
    def time_us(self) -> int:
        """The batch's processing time: microseconds since 1970 by the driver's clock, the same all along."""
        if self._time_us is None:
            self._time_us = int(self._clock.now().timestamp() * 1_000_000)
        return self._time_us

    def ttl(self, operator: str) -> StateTtl | None:
        """The TTL of `operator` at the parent; `None` if it has none. No request."""
        entry = None if self.parent is None else self.parent.manifest.operators.get(operator)
        return None if entry is None else entry.report.ttl

    def ttl_to_write(
        self, operator: str, schema: StateSchema, config: StateTtlConfig | None = None
    ) -> StateTtl | None:
        """The TTL of this batch's report of `operator`; its watermark does not count the batch's rows yet.

        `config`: what is asked for; `None`: as it is. Raises: as `state.ttl_to_write`.
        """
        ttl = ttl_to_write(config, self.ttl(operator), schema, self.time_us)
        if ttl is not None and ttl.processing_time:
            self._require_clock()
        return ttl

    def _require_clock(self) -> None:
        """Raises: InvalidInputError where the driver's clock is far ahead of the store's."""
        if self._ahead is not None and self._ahead > _MOST_AHEAD:
            raise InvalidInputError(
                f"this machine's clock is {self._ahead - self._ahead % timedelta(seconds=1)} ahead of the "
                f"store's: rows of job {self.coordinator.job!r} would expire before their time, and none "
                "comes back. Nothing was changed: set the clock"
            )

    def add(self, report: OperatorReport | FileReport) -> None:
        """Add what tasks made durable under the attempt. Step 4 checks it against the store."""
        match report:
            case OperatorReport():
                self._operators.append(report)
            case FileReport():
                self._files.append(report)
            case _:
                raise InvalidInputError(f"expected an OperatorReport or a FileReport, not {report!r}")

    def move_position(self, source: str, position: Any) -> None:
        """Set how far `source` has been read once the batch is complete: any plain JSON value."""
        self._positions[source] = position

    def describe(self, user_metadata: str) -> None:
        """Set what the checkpoint says beside its data: up to 4 KiB of text. Raises: InvalidInputError."""
        self._user_metadata = parse_user_metadata("user_metadata", user_metadata)

    def change_names(self, names: NameChange) -> None:
        """Give operators and sources of the parent new names, or let them go, once the batch is complete."""
        self._names = names

    def _sources(self) -> dict[str, Source]:
        """Those that the batch moves; others stay as they are."""
        claim, moved = self._claim, self._positions
        by = "" if claim is None else claim.by
        sources = {name: Source(position, by=by) for name, position in moved.items()}
        if claim is not None:
            sources[claim.source] = claim.at(moved.get(claim.source, claim.position)).moved()
        return sources

    @property
    def shared_files(self) -> SharedFiles:
        """Where small ranges of state wait for the end of step 3, to share files."""
        if self._shared_files is None:
            self._shared_files = SharedFiles(self.coordinator.store, self.attempt)
        return self._shared_files

    def _flush(self) -> None:
        """Make durable what waits to share files."""
        shared = self._shared_files
        if shared is not None:
            shared.flush()
            self._operators = list(map(shared.durable, self._operators))

    @property
    def meter(self) -> CostMeter:
        """Count the requests for the batch that bypass `coordinator`: those of its tasks."""
        return self._elsewhere

    def count_along(self, counter: Counter | None) -> None:
        """Count also what `counter` counts from now on. Asked again for the same one, it changes nothing."""
        if counter is not None and counter not in self._along:
            self._along[counter] = counter.cost

    def cost(self) -> CheckpointCost:
        """The requests of steps 1 to 3 so far, in this process and in its tasks."""
        cost = CheckpointCost()
        if self._trigger.requests:
            cost = cost.with_step(TRIGGER, self._trigger)
        elsewhere = self._elsewhere.cost
        for counter, before in self._along.items():
            elsewhere += counter.cost - before
        return cost.with_step(PERSIST, self._running.so_far() + elsewhere)

    def merge_due_runs(self) -> None:
        """Merge older runs of each operator that the batch writes, as far as they are due (`materialize_*`).

        Raises: NotFoundError, FormatError, UnavailableError; the attempt is aborted then.
        """
        coordinator, parent = self.coordinator, self.parent
        if parent is None:
            return
        with self.aborted_on_error():
            self._flush()  # what is due depends on what the batch itself wrote
            self._operators = with_due_merges(
                parent.manifest,
                self._operators,
                self.shared_files,
                coordinator.job_options,
                self.merge_executor,
            )

    def report(self) -> AttemptReport:
        """What has been added so far. Seconds count from `open`, or from `resume` with a clock; else 0."""
        began = self._began_seconds
        return AttemptReport(
            operators=tuple(map(self._timed, [*self._operators, *self._idle()])),
            files=tuple(self._files),
            sources=self._sources(),
            names=self._names,
            user_metadata=self._user_metadata,
            seconds=0.0 if began is None else self._clock.monotonic_seconds() - began,
            cost=self.cost(),
        )

    def _idle(self) -> Iterator[OperatorReport]:
        """Those of operators that the batch does not write, but whose rows expire as time goes on."""
        own = {report.operator for report in self._operators}
        for name, entry in () if self.parent is None else self.parent.manifest.operators.items():
            if name not in own and entry.report.ttl is not None and entry.report.ttl.processing_time:
                yield entry.report.unchanged()

    def _timed(self, report: OperatorReport) -> OperatorReport:
        ttl = report.ttl
        if ttl is None or not ttl.processing_time:
            return report
        self._require_clock()
        return replace(report, ttl=ttl.at(self.time_us))

    def hand_over(self) -> None:
        """End step 3: store the report, from which another process continues with step 4.

        Raises: ConflictError, UnavailableError; the attempt is aborted then.
        """
        with self.aborted_on_error():
            self._flush()
            report = self.report()
            report = replace(report, cost=self.cost().with_step(PERSIST, OWN_WRITE))
            store_report(self.coordinator.store, self.attempt, report)
        log.info(
            "step 3 persist: %d operators and %d files of attempt %s are durable",
            len(report.operators),
            len(report.files),
            self.attempt.attempt,
        )

    def complete(self, *, clean_up_every: int = 0) -> Checkpoint:
        """Steps 4 to 6, and step 7 after every `clean_up_every`th checkpoint (0: never).

        Raises: as `record` and `confirm`; the attempt is aborted then. As `compose_commit`; the checkpoint is
        complete then, and the next trigger publishes its files.
        """
        attempt = self.attempt
        with self.aborted_on_error():
            self._flush()
            manifest = self.coordinator.record_report(attempt, self.report(), parent=self.parent)
            self.coordinator.confirm(attempt, manifest=manifest)
        (checkpoint,) = self.coordinator.compose_commit(attempt.checkpoint_id, attempt=attempt)
        if clean_up_every and attempt.checkpoint_id % clean_up_every == 0:
            self._clean_up()
        return checkpoint

    @contextmanager
    def aborted_on_error(self) -> Iterator[None]:
        """For work that the batch cannot do without: an error aborts the attempt, and is raised again."""
        try:
            yield
        except Exception as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Abort the attempt for an error of its work, unless it stays open after that."""
        if isinstance(error, self._aborted_by):
            self.abort(f"{type(error).__name__}: {error}")
        else:
            log.info("attempt %s stays open for the process that opened it: %s", self.attempt.attempt, error)

    def abort(self, reason: str) -> None:
        """Abort the attempt, unless its checkpoint is complete. Never raises a `DstlError`.

        A failure to abort is only logged, so that it does not mask the error that led here. Then the owner's
        next trigger fences the attempt.
        """
        try:
            self.coordinator.abort(self.attempt, reason)
        except DstlError as error:
            log.warning("attempt %s was not aborted: %s", self.attempt.attempt, error)

    def _clean_up(self) -> None:
        try:
            self.coordinator.clean_up()
        except DstlError as error:
            # The checkpoint is complete; the next clean-up deletes what this one did not.
            log.warning("step 7 clean up did not finish: %s", error)
