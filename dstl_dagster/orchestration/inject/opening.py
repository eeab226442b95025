"""The request for step 1 of a run's batch: its owner, its key, its conditions, and when it may be made.

That is at once, in place of a dead attempt, or after one of the same run: two steps of a run may write one
job, but a run does not wait for another run's, which may take days.

Owns the translation of Dagster's run into a request. Does not own opening the attempt: by this process,
which goes on writing (`resources`), or by one that hands it to another process (`pipes_batch`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator, Claim, Opening, ParentCheck
from dstl_dagster.clock import SystemClock
from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError
from dstl_dagster.orchestration.code_location import assets_in, definition_of, step_of
from dstl_dagster.orchestration.inject.renamed_asset import refuse_new_name
from dstl_dagster.orchestration.keys import TAG_TAKE_OVER, JobAssets
from dstl_dagster.orchestration.owners import (
    OwnerRuns,
    owner_of_step,
    root_run_id,
    run_of_owner,
    step_of_owner,
)
from dstl_dagster.orchestration.partition_order import require_next_partition
from dstl_dagster.orchestration.partitions import interval, partition_of, window_key, window_of
from dstl_dagster.orchestration.report.failed_partitions import leave_as_it_was
from dstl_dagster.orchestration.report.shown import Page
from dstl_dagster.orchestration.run_claims import claim_of_op
from dstl_dagster.orchestration.steps import Step, show_again
from dstl_dagster.orchestration.timeline_check import require_shown_timeline
from dstl_dagster.timeline import BatchKey, Opened

_LOOK_AGAIN_SECONDS: Final = 1.0


class _Block(Enum):
    """A block of a step that writes a batch."""

    OPEN = auto()
    HANDED_ON = auto()  # a later step completes it
    COMPLETE = auto()


_Blocks = dict[tuple[str, str, BatchKey], _Block]
_BLOCKS: Final = WeakKeyDictionary[Any, _Blocks]()
"""By the try of a step, those that it has begun: of a store, a job and a batch."""


T = TypeVar("T")


def op_context_of(context: Any) -> dg.OpExecutionContext:
    """The context of the op, where it is that of an asset. Raises: InvalidInputError for any other."""
    found = context.op_execution_context if isinstance(context, dg.AssetExecutionContext) else context
    if not isinstance(found, dg.OpExecutionContext):
        raise InvalidInputError(
            f"a batch is of an op or an asset, and {type(context).__name__} of none: ask for a run of one"
        )
    return found


@dataclass(frozen=True)
class BatchRequest:
    """A batch that is to be opened.

    Attributes:
        step: the context of the run's step; `None`: a test calls the op.
        coordinator: the job's, as the owner that the run is.
        key: names the batch, and its source.
        claim: what the program says of the batch.
        keys: the columns by which it writes, where the program says so.
        follows: the time partition that must be the next one, and its definition; `None`: any may come.
        own_check: what else must hold of the parent.
    """

    step: Any
    coordinator: CheckpointCoordinator
    key: BatchKey
    claim: Claim
    keys: Sequence[str] = ()
    follows: tuple[dg.PartitionsDefinition[Any] | None, str] | None = None
    own_check: ParentCheck | None = None

    def check(self, parent: Checkpoint | None) -> None:
        """Raises: ConflictError, InvalidInputError where the batch may not build on this checkpoint."""
        job, source = self.coordinator.job, self.claim.source
        is_first = self.coordinator.timeline.seen().last_completed is None  # and none that takes its place
        if is_first and self.step is not None:
            refuse_new_name(self.step, self.coordinator, self.claim, self.keys)
        if self.follows is not None:
            known = None if parent is None else parent.manifest.sources.get(source)
            position = None if known is None else known.position
            require_next_partition(*self.follows, position, job=job, source=source)
        if self.own_check is not None:
            self.own_check(parent)

    def taken(self, opens: Callable[[Opening], T], *, anew: bool = False) -> T:
        """Open the attempt once no other step of the run has one open. `anew`: as of `Opening`.

        Raises: ConflictError (kind `attempt_open`) while another run's is open, or one of this run's that a
        later step completes; and as `opens` does.
        """
        opening = Opening(self.key, False, self.check, self.claim, anew)
        if self.step is None:
            return opens(opening)
        while True:
            take_over = self._may_fence()
            try:
                return opens(replace(opening, take_over=take_over))
            except ConflictError as error:
                opened = self.coordinator.timeline.seen().open_attempt
                if error.kind != ErrorKind.ATTEMPT_OPEN or opened is None or not self._is_beside(opened):
                    raise

    def _may_fence(self) -> bool | uuid.UUID:
        """Any attempt, if the run's tag says so. Else the open one, and no other that opens meanwhile, where
        its run has ended with all re-executions, or its step of this run.
        """
        if self.step.dagster_run.tags.get(TAG_TAKE_OVER) == "true":
            return True
        owners = OwnerRuns(self.step.instance)
        waits_for = done = None
        while True:
            opened = self.coordinator.timeline.tail().open_attempt
            if opened is None:
                return False
            if not self._is_beside(opened):
                return opened.attempt if owners.have_ended(opened.owner) else False
            where = f"checkpoint {opened.checkpoint_id} of job {self.coordinator.job!r}"
            other = f"step {step_of_owner(opened.owner)} of this run"
            if owners.are_trying(opened.owner):
                if waits_for != opened.attempt:
                    self.step.log.info(f"{other} makes {where}: waiting for it")
                waits_for = opened.attempt
                SystemClock().sleep_seconds(_LOOK_AGAIN_SECONDS)
            elif not owners.have_done(opened.owner):
                return opened.attempt
            elif done != opened.attempt:
                done = opened.attempt  # its end may have come since it was seen open
            else:
                raise ConflictError(
                    f"{other} has begun {where}, and a later step completes it: let this one depend on that",
                    kind=ErrorKind.ATTEMPT_OPEN,
                )

    def _is_beside(self, opened: Opened) -> bool:
        """Whether another step of this run has opened it."""
        is_own_run = run_of_owner(opened.owner) == root_run_id(self.step.dagster_run)
        return is_own_run and step_of_owner(opened.owner) not in (None, self.step.step.key)


def request_batch(
    context: dg.OpExecutionContext,
    coordinator: CheckpointCoordinator,
    *,
    source: str | None,
    by_definition: bool = False,
    idempotency_key: str | None = None,
    check: ParentCheck | None = None,
    operators: tuple[str, ...] | None = None,
    keys: Sequence[str] = (),
) -> BatchRequest:
    """The request of a run. Arguments as for `ChangelogStorageResource.checkpoint`.

    Args:
        by_definition: time partitions follow one another, whether of a source or not, and no others do.
        operators: all that the op or asset writes, where it says so.
        keys: the columns by which it writes, likewise.

    Raises: InvalidInputError for a `source` in a run without partitions, or in one that covers several;
    ConflictError (kind `timeline_replaced`) where the store is not the one that was shown.
    """
    step, job = step_of(context), coordinator.job
    partition, definition = partition_of(context), definition_of(context)
    is_of_time = isinstance(definition, dg.TimeWindowPartitionsDefinition)
    ordered = is_of_time if by_definition else source is not None
    if step is None and definition is None:
        ordered = False  # an op that a test calls: its partition has no definition
    if by_definition and definition is not None and partition is None:
        raise InvalidInputError(f"job {job!r} has partitions, but this run has none: launch it for one")
    if ordered and partition is None:
        raise InvalidInputError(
            f"job {job!r}: source {source!r} advances by partition, but this run has none: launch it for "
            "a partition, or leave `source` out and call `batch.move_position`"
        )
    # A batch with a key of its own is no partition.
    window = window_of(definition, partition) if ordered or idempotency_key is None else None
    claim = claim_of_op(
        context,
        definition,
        source=source,
        own_key=idempotency_key is not None and not ordered,
        ordered=ordered,
        operators=operators,
    )
    if ordered and window is not None:
        claim = claim.at(window_key(window.end))
    # By the step too: two updates of one job in one run are two batches.
    by = owner_of_step(step)
    by_run = f"call:{uuid.uuid4()}" if by is None else by.removeprefix("dagster-")
    key = replace(claim.key(idempotency_key or partition or by_run, interval(window)), run=by or "")
    if step is not None:
        shown = assets_in(context, JobAssets.defined(job))
        compared = require_shown_timeline(context.run, context.instance, coordinator, shown.checkpoints_key)
        if compared.difference is not None:
            show_again(Step(context, shown, coordinator))
    follows = (definition, partition) if ordered and partition is not None else None
    return BatchRequest(step, coordinator, key, claim, keys, follows, check)


@contextmanager
def only_batch(request: BatchRequest) -> Iterator[None]:
    """Around a batch, from step 1 on: this try of the step opens no other in its place.

    A step fences what an earlier try of it left open, and finds what that completed applied; for a second
    block of the same try this would be a loss of rows.

    Raises: ConflictError (kind `already_applied`).
    """
    if request.step is None:  # a test calls the op, as often as it likes
        yield
        return
    job, key, where = request.coordinator.job, request.key, request.coordinator.store.uri
    blocks = _BLOCKS.setdefault(request.step, {})
    for (of_store, of_job, other), state in blocks.items():
        if (of_store, of_job) != (where, job) or (state is _Block.COMPLETE and other != key):
            continue
        begun = f"this step has begun a batch of job {job!r} in another block"
        raise ConflictError(
            f"{begun}: this one would find it applied, and write nothing. Write both in one block, or give "
            "each an idempotency_key of its own"
            if state is _Block.COMPLETE
            else f"{begun}, and not completed it: this one would end it, with its rows. Write both in one "
            "block, or in two steps",
            kind=ErrorKind.ALREADY_APPLIED,
        )
    _require_output(request.step, blocks, job)
    own = where, job, key
    blocks[own] = _Block.OPEN
    try:
        yield
        last = request.coordinator.timeline.seen().open_attempt
        is_open = last is not None and last.owner == request.coordinator.owner
        if is_open:
            _require_output(request.step, blocks, job)
        blocks[own] = _Block.HANDED_ON if is_open else _Block.COMPLETE
    finally:
        if blocks[own] is _Block.OPEN:  # what is aborted may be written again
            del blocks[own]


def _require_output(step: Any, blocks: _Blocks, job: str) -> None:
    """Pass if a batch can be handed on beside those that are: each by an output. Raises: ConflictError."""
    others = [of_job for (_, of_job, _), state in blocks.items() if state is _Block.HANDED_ON]
    if others and len(others) >= len(step.op_def.output_dict):
        raise ConflictError(
            f"this step hands on its batch of job {others[-1]!r} to a step that completes it, and that of "
            f"job {job!r} would be in no checkpoint: write each in a step of its own",
            kind=ErrorKind.ALREADY_APPLIED,
        )


@contextmanager
def refusing(context: dg.OpExecutionContext | dg.OutputContext, job: str) -> Iterator[None]:
    """Around all that comes before step 1: what is refused here fails the run, and not its partitions."""
    try:
        yield
    except (ConflictError, InvalidInputError):
        step = step_of(context)
        for key, partition in [] if step is None else _written_by(context):
            leave_as_it_was(Page(JobAssets.defined(job), step.instance), key, partition, step.run_id)
        raise


def _written_by(context: dg.OpExecutionContext | dg.OutputContext) -> list[tuple[dg.AssetKey, str]]:
    """The partitions of a run, by asset."""
    if isinstance(context, dg.OutputContext):
        if not (context.has_asset_key and context.has_asset_partitions):
            return []
        return [(context.asset_key, partition) for partition in context.asset_partition_keys]
    with suppress(InvalidInputError):  # of several; they may be what was refused
        partition = partition_of(context)
        if context.has_assets_def and partition is not None:
            return [(key, partition) for key in context.assets_def.keys]
    return []
