"""The steps of a simulated job, each as a function that a scheduler may run any number of times.

Owns the steps of a batch, and the requests of operators. Does not own their order (`histories`, `rivals`),
the faults, or readers and consumers (`bystanders`).

An action takes a `Process` (a fresh view of the storage with ids of its own) and the notes of earlier steps,
and returns the notes for later ones: like ops, which pass small values and share no memory.
"""

from __future__ import annotations

import json
import uuid
from typing import NamedTuple

from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator, FileReport, OperatorReport
from dstl_dagster.errors import ConflictError, ErrorKind, NotFoundError, UnavailableError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, StreamStateHandle
from dstl_dagster.keyed import AttemptReport, OperatorEntry, Run, Source, load_report, store_report
from dstl_dagster.keyed.documents.runs import Merge
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.storage import ABSENT, ObjectStore
from tests.simulated import batches
from tests.simulated.oracle import JOB, read_ledger
from tests.simulated.process import OWNER, Action, Notes, Process
from tests.simulated.world import BrokenPromiseError, ids_of


class SubsumedCheckpointError(NotFoundError):
    """A restore to a checkpoint that has been subsumed: no retry can succeed."""


class Compacted(NamedTuple):
    """In the place of a merge of all runs: one of all but the oldest, of these key groups."""

    first: int
    last: int


Base = bool | tuple[int, int] | Compacted
"""Whether a batch merges what its operators have: all of it, or the key groups from the first to the last."""

_ALL = KeyGroupRange.of(0, batches.KEY_GROUPS - 1)


def append(batch: int, *, take_over: bool = False, base: Base = False, owner: str = OWNER) -> Action:
    """Steps 1 to 3: trigger, write, and store a report. Skips a batch that is already applied."""

    def act(process: Process, notes: Notes) -> Notes:
        coordinator = process.coordinator(owner)
        attempt = _triggered(coordinator, batch, take_over)
        if attempt is not None:
            store_report(process.store, attempt, _written(process, coordinator, attempt, batch, base=base))
        return {**notes, "attempt": attempt}

    return act


def whole_batch(
    batch: int, *, take_over: bool = False, base: Base = False, owner: str = OWNER, clean: bool = True
) -> Action:
    """Steps 1 to 7 by one process that caches what it has read, as a streaming driver does.

    If confirm raises, it aborts the attempt, as Spark does: from then on only the timeline is trusted.
    """

    def act(process: Process, notes: Notes) -> Notes:
        coordinator = process.coordinator(owner)
        attempt = _triggered(coordinator, batch, take_over)
        if attempt is not None:
            report = _written(process, coordinator, attempt, batch, base=base)
            coordinator.record(attempt, report.operators, report.files, report.positions)
            _confirm_or_abort(coordinator, attempt)
        coordinator.compose_commit()
        if clean:
            coordinator.clean_up()
        return notes

    return act


def _triggered(coordinator: CheckpointCoordinator, batch: int, take_over: bool) -> Attempt | None:
    """An attempt for this batch, on top of the previous one; `None` if it is already applied."""
    key = batches.key_of(batch)
    if coordinator.applied(key) is not None:
        return None
    if batch == batches.LAST:
        return coordinator.trigger(take_over, idempotency_key=key)
    parent = None if batch == 1 else checkpoint_of(coordinator, batch - 1)
    return coordinator.trigger(take_over, idempotency_key=key, expected_parent=parent)


def _confirm_or_abort(coordinator: CheckpointCoordinator, attempt: Attempt) -> None:
    try:
        coordinator.confirm(attempt)
    except UnavailableError:
        try:
            coordinator.abort(attempt)
        except ConflictError as error:
            if error.kind != ErrorKind.ALREADY_COMPLETED:
                raise
        else:
            raise


def _written(
    process: Process, coordinator: CheckpointCoordinator, attempt: Attempt, batch: int, *, base: Base
) -> AttemptReport:
    """What the tasks do: write changelog files and components, and report them."""
    parent = None if attempt.parent is None or not base else coordinator.get(attempt.parent).manifest
    operators = []
    for operator in batches.OPERATORS:
        changes = batches.changes_of(batch, operator)
        entry = None if parent is None else parent.operators.get(operator)
        merges = () if entry is None else _merges(process, attempt, entry, base)
        handles = (_changelog_file(process, attempt, batches.encoded(changes)),) if changes else ()
        if handles or merges:
            operators.append(
                OperatorReport(operator, handles, ("key",), batches.KEY_GROUPS, upserts=1, merges=merges)
            )
    files = [_file(process, attempt, batch, file) for file in batches.FILES]
    return AttemptReport(tuple(operators), tuple(files), {"batch": Source(batch)})


def _merges(process: Process, attempt: Attempt, entry: OperatorEntry, base: Base) -> tuple[Merge, ...]:
    """A merge of all runs of some key groups, or of all but the oldest one, if there are several such."""
    key_groups = KeyGroupRange.of(*base) if isinstance(base, tuple) else _ALL
    newer = entry.runs[1:] if isinstance(base, Compacted) else entry.runs
    if isinstance(base, Compacted) and len(newer) < 2:
        return ()
    rows: dict[str, int] = {}
    for run in newer:
        for handle in run.handles:
            rows.update(rows_of(process.store, handle))
    rows = {key: value for key, value in rows.items() if key_groups.contains(batches.group_of(key))}
    handles = (_changelog_file(process, attempt, batches.encoded(rows), key_groups),) if rows else ()
    first = newer[0].first if isinstance(base, Compacted) else 0
    last = attempt.parent or 0
    return (Merge(key_groups, Run(first, last, handles, merged=True, whole=not first)),)


def record(process: Process, notes: Notes) -> Notes:
    """Step 4, from the stored report."""
    attempt = notes["attempt"]
    if attempt is not None:
        report = load_report(process.store, attempt)
        process.coordinator().record(attempt, report.operators, report.files, report.positions)
    return notes


def confirm(process: Process, notes: Notes) -> Notes:
    """Step 5."""
    attempt = notes["attempt"]
    if attempt is not None:
        process.coordinator().confirm(attempt)
    return notes


def compose_commit(process: Process, notes: Notes) -> Notes:
    """Step 6. A file that a consumer has removed meanwhile is not a failure."""
    try:
        process.coordinator().compose_commit()
    except NotFoundError as error:
        if error.kind not in (ErrorKind.CHECKPOINT_GONE, ErrorKind.STATE_MISSING):
            raise BrokenPromiseError(f"compose-commit raised {error.kind!r}: {error}") from error
        raise
    return notes


def clean_up(process: Process, notes: Notes) -> Notes:
    """Step 7."""
    process.coordinator().clean_up()
    return notes


def abort(owner: str = OWNER) -> Action:
    """The owner aborts its open attempt, if it has one."""

    def act(process: Process, notes: Notes) -> Notes:
        attempt = notes["attempt"]
        if attempt is not None:
            try:
                process.coordinator(owner).abort(attempt)
            except ConflictError as error:
                if error.kind != ErrorKind.ALREADY_COMPLETED:
                    raise
        return {**notes, "attempt": None}

    return act


def savepoint(batch: int, name: str) -> Action:
    """Keep the checkpoint of a batch, unless it has been subsumed."""

    def act(process: Process, notes: Notes) -> Notes:
        coordinator = process.coordinator()
        held = checkpoint_of(coordinator, batch)
        try:
            coordinator.savepoint(held, name, request_id=_request(name, "keep"))
        except NotFoundError as error:
            if held not in read_ledger(process.world, process.setting.num_retained).subsumed:
                raise BrokenPromiseError(f"checkpoint {held} is kept, and a savepoint: {error}") from error
        return notes

    return act


def release(name: str) -> Action:
    """Release a savepoint."""

    def act(process: Process, notes: Notes) -> Notes:
        process.coordinator().release(name, request_id=_request(name, "release"))
        return notes

    return act


def restore(batch: int, request: str) -> Action:
    """Restore to the checkpoint of a batch; repeated after a crash, with the same request id. Batch 0: begin
    anew.

    Does nothing if another restore has abandoned that checkpoint.
    """

    def act(process: Process, notes: Notes) -> Notes:
        coordinator = process.coordinator()
        held = coordinator.applied(batches.key_of(batch)) if batch else 0
        if held is None:
            ledger = read_ledger(process.world, process.setting.num_retained)
            if batches.key_of(batch) in [ledger.completed[each]["batch"]["key"] for each in ledger.abandoned]:
                return notes
            held = checkpoint_of(coordinator, batch)
        try:
            coordinator.restore(held, request_id=_request(request, "restore"))
        except NotFoundError as error:
            if held in read_ledger(process.world, process.setting.num_retained).subsumed:
                raise SubsumedCheckpointError(error.message, ErrorKind(error.kind)) from error
            raise
        return {**notes, "attempt": None}

    return act


def one_after_another(*acts: Action) -> Action:
    """Several actions by one process."""

    def act(process: Process, notes: Notes) -> Notes:
        for each in acts:
            notes = each(process, notes)
        return notes

    return act


def resolve(batch: int, file: str, word: str) -> Action:
    """An operator's resolution of a blocked file. Does nothing if already resolved."""

    def act(process: Process, notes: Notes) -> Notes:
        coordinator = process.coordinator()
        name = batches.file_name(batch, file)
        coordinator.resolve(checkpoint_of(coordinator, batch), name, word, request_id=_request(name, word))
        return notes

    return act


def state_read(
    store: ObjectStore, coordinator: CheckpointCoordinator, checkpoint_id: int, operator: str
) -> dict[str, int]:
    """The state at a checkpoint, read through the protocol."""
    found = coordinator.get(checkpoint_id).manifest.operators.get(operator)
    state: dict[str, int] = {}
    for handle in () if found is None else found.handles:
        state.update(rows_of(store, handle))
    return state


def rows_of(store: ObjectStore, handle: ChangelogStateHandle) -> dict[str, int]:
    """The changes of a handle, of its key groups only."""
    rows: dict[str, int] = {}
    for stream in handle.streams:
        rows.update(json.loads(store.get(stream.name, generation=stream.generation)))
    return {
        key: value for key, value in rows.items() if handle.key_group_range.contains(batches.group_of(key))
    }


def checkpoint_of(coordinator: CheckpointCoordinator, batch: int) -> int:
    """The checkpoint of the current chain that holds the batch."""
    held = coordinator.applied(batches.key_of(batch))
    if held is None:
        raise NotFoundError(
            f"batch {batch} is in no checkpoint of the current chain", kind=ErrorKind.NO_CHECKPOINT
        )
    return held


def _changelog_file(
    process: Process,
    attempt: Attempt,
    payload: bytes,
    key_groups: KeyGroupRange = _ALL,
) -> ChangelogStateHandle:
    name = f"{attempt.names.changelog_base_path(attempt.attempt)}/{JOB}/dstl/{process.new_id()}"
    stat = process.store.put(name, payload, precondition=ABSENT)
    stream = StreamStateHandle(name, len(payload), stat.generation, stat.crc32c, stat.size)
    return ChangelogStateHandle(((stream, 0),), key_groups, len(payload), len(payload))


def _file(process: Process, attempt: Attempt, batch: int, file: str) -> FileReport:
    writer = GSRecoverableWriter(
        process.store,
        process.setting.file_options,
        attempt=attempt.attempt,
        random_bits=lambda bits: process.new_id().int & ((1 << bits) - 1),
    )
    stream = writer.open(process.store.uri_of(batches.file_name(batch, file)))
    for part in batches.file_parts(str(attempt.attempt), batch, file):
        stream.write(part)
        stream.sync()
    committer = stream.close_for_commit()
    return FileReport(committer.recoverable, tuple(committer.components))


def _request(what: str, verb: str) -> uuid.UUID:
    return ids_of(f"request/{what}/{verb}")()
