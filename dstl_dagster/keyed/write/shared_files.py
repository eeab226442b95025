"""Small ranges of key groups share files: many operators, or many tasks, do not make as many files.

Owns which range is small, which of them share a file, and their handles. Does not own how a file is written
(`changelog`), or when a batch ends (`checkpoint.batch`).

A task with few changes hands them to the driver instead of writing a file. There they wait, in memory, for
others of their attempt, until step 3 ends or there are enough of them. Each is a change set of its own in a
changelog file like any other, so readers notice nothing. A driver that is killed before has written nothing;
what it wrote carries the attempt's name, as a task's file does.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from dstl_dagster.changelog import FsStateChangelogStorage, MailboxFuture
from dstl_dagster.errors import InternalError, InvalidInputError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, SnapshotResult, StreamStateHandle
from dstl_dagster.format.changes import payload_bytes
from dstl_dagster.keyed.documents.reports import WAITING, OperatorReport
from dstl_dagster.keyed.write.writer import open_attempt_changelog, write_range
from dstl_dagster.settings import JobOptions
from dstl_dagster.state import EncodedChanges, StateSchema
from dstl_dagster.storage import ObjectStore
from dstl_dagster.timeline import Attempt

SMALL_BYTES: Final = 64 << 10
"""Of changes, before compression: up to this many of a range wait for company."""

FILE_BYTES: Final = 1 << 20
"""Of one shared file, before compression: one request fetches it, for any of its ranges."""

FILE_RANGES: Final = 256
"""In one shared file: a reader of one of them parses an entry of the footer for each."""

HELD_BYTES: Final = 16 << 20
"""On the driver, of one attempt. What comes above it is written without waiting longer."""

_TOGETHER: Final = {"dstl.dfs.preemptive-persist-threshold": "2mb", "dstl.dfs.batch.persist-delay": "0ms"}
_ANY_KEY_GROUP: Final = KeyGroupRange.of(0, 32_767)


@dataclass(frozen=True)
class SmallRange:
    """The changes of a range of key groups that are to share a file.

    Attributes:
        schema: as it stands before the changes, as metadata.
        options: of the job, and of the call that wrote the changes.
    """

    operator: str
    key_groups: KeyGroupRange
    schema: bytes
    changes: EncodedChanges
    options: JobOptions

    @property
    def size_bytes(self) -> int:
        """Payload, metadata included."""
        return len(self.schema) + payload_bytes(self.changes.changes)


def held_if_small(
    changes: Iterable[EncodedChanges | None], key_groups: KeyGroupRange, options: JobOptions
) -> tuple[EncodedChanges | None, Iterator[EncodedChanges | None]]:
    """All of these changes together, if they are few; otherwise `None`, and all of them one by one.

    Raises: InvalidInputError for few changes of which one is outside of `key_groups`, as a writer does; what
    `changes` raises.
    """
    most = min(SMALL_BYTES, options.changelog.preemptive_persist_threshold_in_bytes - 1)
    held: list[EncodedChanges] = []
    rest = iter(changes)
    size = 0
    for each in rest:
        if each is not None and len(each.key_groups):
            held.append(each)
            size += payload_bytes(each.changes)
            if size > most:
                return None, itertools.chain(held, rest)
    groups = pa.concat_arrays([pa.array([], pa.int32()), *(each.key_groups for each in held)])
    outside = [each for each in groups.unique().to_pylist() if not key_groups.contains(each)]
    if outside:
        raise InvalidInputError(f"key group {outside[0]} is outside the writer's range {key_groups}")
    values = pa.concat_arrays([pa.array([], pa.binary()), *(each.changes for each in held)])
    return EncodedChanges(groups, values), iter(())


def changes_to_json(changes: EncodedChanges) -> str:
    """As text, for the outcome of a task."""
    batch = pa.record_batch([changes.key_groups, changes.changes], ["key_group", "change"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return base64.b64encode(sink.getvalue()).decode("ascii")


def _changes_from_json(text: str) -> EncodedChanges:
    with pa.ipc.open_stream(base64.b64decode(text)) as stream:
        table = stream.read_all().combine_chunks()
    return EncodedChanges(*(column.combine_chunks() for column in table.columns))


class SharedFiles:
    """The small ranges of one attempt, and the files that they share. One thread.

    What `add` returned is not durable yet: after `flush`, `durable` puts the real handles in its place. Holds
    up to `HELD_BYTES`, and what one call adds.
    """

    def __init__(self, store: ObjectStore, attempt: Attempt) -> None:
        self.store = store
        self.attempt = attempt
        self._folder = attempt.names.changelog_base_path(attempt.attempt)
        self._waiting: list[tuple[SmallRange, ChangelogStateHandle]] = []
        self._waiting_bytes = 0
        self._durable: dict[str, ChangelogStateHandle] = {}

    def add(self, small: SmallRange) -> ChangelogStateHandle:
        """Buffer it until `flush`; writes the buffer if it is large. Raises: as `flush`."""
        size = small.size_bytes
        stream = StreamStateHandle(f"{self._folder}{WAITING}", size)
        handle = ChangelogStateHandle(((stream, 0),), small.key_groups, size, size, share_bytes=size)
        handle = handle.holding(small.changes.key_groups.to_pylist())
        self._waiting.append((small, handle))
        self._waiting_bytes += size
        if self._waiting_bytes >= HELD_BYTES:
            self.flush()
        return handle

    def write_range(
        self,
        storage: FsStateChangelogStorage,
        operator: str,
        schema: StateSchema,
        key_groups: KeyGroupRange,
        changes: Iterable[EncodedChanges | None],
        options: JobOptions,
    ) -> ChangelogStateHandle:
        """Keep these changes if they are few; otherwise write them, durably, into a file of their own."""
        small, rest = held_if_small(changes, key_groups, options)
        if small is None:
            return write_range(storage, self.attempt, operator, schema, key_groups, rest)
        return self.add(SmallRange(operator, key_groups, schema.to_bytes(), small, options))

    def flush(self) -> None:
        """Make all that waits durable, several files at once.

        Raises: UnavailableError; files written before it are in no report, and clean-up deletes them.
        """
        for options, waiting in itertools.groupby(self._waiting, key=lambda each: each[0].options):
            self._write(options, list(waiting))
        self._waiting, self._waiting_bytes = [], 0

    def durable(self, report: OperatorReport) -> OperatorReport:
        """The report with real handles, as far as they were flushed."""
        runs = [(each, self._real(each.run.handles)) for each in report.merges]
        merges = tuple(replace(each, run=replace(each.run, handles=handles)) for each, handles in runs)
        return replace(report, handles=self._real(report.handles), merges=merges)

    def _real(self, handles: Iterable[ChangelogStateHandle]) -> tuple[ChangelogStateHandle, ...]:
        return tuple(self._durable.get(handle.state_handle_id, handle) for handle in handles)

    def durable_now(self, report: OperatorReport) -> OperatorReport:
        """`flush`, and the report with real handles."""
        self.flush()
        return self.durable(report)

    def _write(self, options: JobOptions, waiting: Sequence[tuple[SmallRange, ChangelogStateHandle]]) -> None:
        # A change set for each range, in one upload: nothing leaves before, and nothing else will come.
        options = options.with_call(_TOGETHER)
        sizes = [small.size_bytes for small, _ in waiting]
        files = [waiting[start:stop] for start, stop in files_of(sizes)]
        with open_attempt_changelog(self.store, self.attempt, options) as storage, ExitStack() as writers:
            begun = [self._begin(storage, writers, [small for small, _ in file]) for file in files]
            for file, persisted in zip(files, begun, strict=True):
                self._end(file, persisted)

    def _begin(
        self, storage: FsStateChangelogStorage, writers: ExitStack, file: Sequence[SmallRange]
    ) -> MailboxFuture[SnapshotResult]:
        operators = ",".join(dict.fromkeys(small.operator for small in file))
        writer = writers.enter_context(storage.create_writer(operators, _ANY_KEY_GROUP))
        for small in file:
            writer.append_meta(small.schema)
            writer.append_batch(small.changes.key_groups, small.changes.changes)
            writer.next_sequence_number()  # the next range is a change set of its own
        return writer.persist(writer.initial_sequence_number(), self.attempt.checkpoint_id)

    def _end(
        self,
        file: Sequence[tuple[SmallRange, ChangelogStateHandle]],
        persisted: MailboxFuture[SnapshotResult],
    ) -> None:
        found = persisted.result().job_manager_owned_snapshot
        if found is None or len(found.handles_and_offsets) != len(file):
            raise InternalError(f"{len(file)} ranges were appended, but persist returned {found}")
        total = sum(small.size_bytes for small, _ in file)
        for (small, handle), (stream, offset) in zip(file, found.handles_and_offsets, strict=True):
            share = None if len(file) == 1 else (stream.stored_bytes or total) * small.size_bytes // total
            self._durable[handle.state_handle_id] = replace(
                handle, handles_and_offsets=((stream, offset),), share_bytes=share
            )


def files_of(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Which ranges, as [start, stop), share a file, by their bytes: at most `FILE_BYTES` and `FILE_RANGES`,
    and at least one. Pure.
    """
    start = 0
    held = 0
    for stop, size in enumerate(sizes):
        if stop > start and (held + size > FILE_BYTES or stop - start == FILE_RANGES):
            yield start, stop
            start, held = stop, 0
        held += size
    if start < len(sizes):
        yield start, len(sizes)


def small_from_outcome(
    outcome: Mapping[str, Any], operator: str, schema: StateSchema, options: JobOptions
) -> SmallRange:
    """The range in a task's outcome."""
    return SmallRange(
        operator,
        KeyGroupRange.from_json(outcome["key_groups"]),
        schema.to_bytes(),
        _changes_from_json(outcome["changes"]),
        options,
    )
