"""Merging runs of a state: what an attempt writes of older changes, before its own.

Owns which merges an attempt does, and writing one. Does not own when one is due (`policy`), what it
replaces (`runs`), or the steps that put it in a checkpoint (`checkpoint`).

A merge keeps of each key the last change. If nothing older is left below it, it holds rows alone; otherwise
tombstones too, and a row that has expired becomes one.

A range of key groups fits in memory, and any process can merge it. What does not fit as a whole is merged
by the caller's `MergeExecutor`, such as Spark's tasks; without one here, one range after the other.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from dstl_dagster.changelog import ChangelogReader
from dstl_dagster.concurrency import Progress
from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, ranges_of_tasks
from dstl_dagster.keyed.documents.entries import OperatorEntry
from dstl_dagster.keyed.documents.manifest import Manifest
from dstl_dagster.keyed.documents.reports import OperatorReport
from dstl_dagster.keyed.documents.runs import Merge, Run, within
from dstl_dagster.keyed.merge.policy import SMALL_RUN_BYTES, DueMerge, MergePolicy
from dstl_dagster.keyed.read.keyed_state import (
    StateAt,
    is_keyed,
    replayed,
    schema_of,
    split_count,
)
from dstl_dagster.keyed.write.shared_files import SharedFiles
from dstl_dagster.keyed.write.writer import open_attempt_changelog
from dstl_dagster.settings import CheckpointOptions, JobOptions, parse_names
from dstl_dagster.state import (
    EncodedChanges,
    StateReplay,
    encoded_pieces,
    key_hashes,
)
from dstl_dagster.timeline import Attempt

log = logging.getLogger(__name__)

_FILE_BYTES: Final = 10 << 20
"""Of the changes of a range, before compression: most often they are one file. A file is opened by all reads
of any range that it is of."""


def due_operators(
    manifest: Manifest,
    options: CheckpointOptions,
    operators: Collection[str] | None = None,
    *,
    force: bool = False,
) -> list[str]:
    """The operators of this checkpoint of which something is due to be merged, sorted by name. Pure.

    With `force` all of which a merge would leave something else than what is there; never those whose log is
    not keyed state. `operators`: only these.

    Raises: InvalidInputError (kind `no_state`) if one of `operators` does not exist.
    """
    operators = None if operators is None else parse_names("operators", operators)
    unknown = sorted(set(operators or ()) - set(manifest.operators))
    if unknown:
        raise InvalidInputError(
            f"checkpoint {manifest.checkpoint_id} of job {manifest.job!r} has no operator {unknown[0]!r}, "
            f"only {', '.join(sorted(manifest.operators)) or 'none'}",
            kind=ErrorKind.NO_STATE,
        )
    wanted = sorted(manifest.operators if operators is None else operators)
    keyed = {name: entry for name in wanted if is_keyed((entry := manifest.operators[name]).report)}
    return [
        name
        for name, entry in keyed.items()
        if (_is_worth_merging(entry) if force else _due(entry, options, 0) is not None)
    ]


def _is_worth_merging(entry: OperatorEntry) -> bool:
    hides = entry.report.ttl is not None and entry.report.ttl.hides is not None
    return bool(entry.runs) and (hides or not all(run.merged and run.whole for run in entry.runs))


def _due(entry: OperatorEntry, options: CheckpointOptions, own_bytes: int) -> DueMerge | None:
    policy = MergePolicy(options.materialize_max_runs, options.materialize_log_ratio, SMALL_RUN_BYTES)
    return policy.due(entry.runs, entry.report.max_parallelism, own_bytes)


def with_due_merges(
    parent: Manifest,
    reports: Iterable[OperatorReport],
    shared: SharedFiles,
    options: JobOptions,
    executor: MergeExecutor | None = None,
) -> list[OperatorReport]:
    """The reports, each with the merge of older runs that its changes pay for. And, in any case, with a
    merge of all of each operator whose TTL ends or becomes longer in its report. All of it is durable.

    Arguments and errors: as `with_merge`.
    """
    found = []
    for report in reports:
        entry = parent.operators.get(report.operator)
        due = None if entry is None or report.merges else _due_beside(entry, report, options.checkpoint)
        if due is not None:
            report = with_merge(report, parent, due, shared, options, executor=executor)
        found.append(report)
    shared.flush()
    return [shared.durable(report) for report in found]


def _due_beside(entry: OperatorEntry, own: OperatorReport, options: CheckpointOptions) -> DueMerge | None:
    if own.ttl is not None and not own.ttl.hides_what(entry.report.ttl):
        # Rows that the parent hides would come back: they are left out permanently, at once.
        return DueMerge.of_all(own.max_parallelism)
    if not options.materialize or not own.handles or not is_keyed(entry.report):
        return None
    return _due(entry, options, own.stored_bytes)


def with_merge(
    report: OperatorReport,
    parent: Manifest,
    due: DueMerge,
    shared: SharedFiles,
    options: JobOptions | None = None,
    *,
    progress: Progress | None = None,
    executor: MergeExecutor | None = None,
) -> OperatorReport:
    """The report of an attempt with some runs of its parent merged below its changes, as ordinary changelog
    files of the attempt.

    One handle for each range of key groups that fits in a file and has changes: the schema, then each of them
    once, in the key group that it was written in. The same runs give the same changes.

    Args:
        parent: has the operator.
        due: which of its runs are merged.
        shared: the attempt's; small ranges wait there to share files.
        options: of the job.
        progress: called with (ranges done, ranges in total).
        executor: merges what takes several ranges; `None`: this process does.

    Raises: NotFoundError (kind `checkpoint_gone`), FormatError, UnavailableError. Files written before the
    error carry the attempt and are in no report; clean-up deletes them once the attempt is dead.
    """
    runs = parent.operators[report.operator].runs
    taken = [run for run in runs if run.first >= due.first]
    handles = tuple(within((handle for run in taken for handle in run.handles), [due.key_groups]))
    # Without anything older, nothing is left for a tombstone to hide.
    older = (run for run in runs if run.first < due.first)
    whole = not any(within((handle for run in older for handle in run.handles), [due.key_groups]))
    state = StateAt.existing(shared.store, parent, report.operator, options)
    if report.column_ids != state.schema.column_ids:
        # The columns as this attempt leaves them: what it drops is not written again.
        state = replace(state, schema=schema_of(report).covering(state.schema))
    work = RunMerge(shared.attempt, replace(state, handles=handles), whole)
    ranges = _ranges(handles, due.key_groups)
    fits = split_count(handles, due.key_groups.number_of_key_groups) == 1  # in memory, as a whole
    merged = None if executor is None or fits else executor(work, ranges)
    written = []
    upserts = deletes = 0
    for count, each in enumerate(merged or _merged_here(shared, work, ranges), 1):
        upserts, deletes = upserts + each.upserts, deletes + each.deletes
        if each.handle is not None:
            written.append(each.handle)
        if progress is not None:
            progress(count, len(ranges))
    run = Run(due.first, state.checkpoint_id, tuple(written), True, whole, upserts, deletes)
    log.info(
        "operator %s: merged %d runs of checkpoint %d, of key groups %s",
        state.operator,
        len(taken),
        state.checkpoint_id,
        due.key_groups,
    )
    return replace(report, merges=(Merge(due.key_groups, run),))


def _ranges(handles: Iterable[ChangelogStateHandle], key_groups: KeyGroupRange) -> list[KeyGroupRange]:
    """These key groups in ranges that each fit in one file: a read of some of them opens no other."""
    first, number = key_groups.start_key_group, key_groups.number_of_key_groups
    return [
        KeyGroupRange.of(first + each.start_key_group, first + each.end_key_group)
        for each in ranges_of_tasks(split_count(handles, number, _FILE_BYTES), number)
    ]


class MergedRange(NamedTuple):
    """What a range of key groups came to. Its changes are durable, or wait to share a file; `None`: it has
    none.
    """

    handle: ChangelogStateHandle | None
    upserts: int
    deletes: int


@dataclass(frozen=True)
class RunMerge:
    """A merge, of which any process can do a range of key groups. A plain value that can be sent to tasks.

    Attributes:
        state: made of what is merged, with the columns and the options by which it is written.
        whole: nothing older is left below it.
    """

    attempt: Attempt
    state: StateAt
    whole: bool

    def of_range(
        self,
        key_groups: KeyGroupRange,
        reader: ChangelogReader,
        write: Callable[[Iterator[EncodedChanges]], ChangelogStateHandle],
    ) -> MergedRange:
        """Merge this range: `write` gets its changes, unless there are none."""
        replay = replayed(reader, self.state, [key_groups])
        slices, counts = replay.slices, np.zeros(2, np.int64)
        changes = self._changes(replay, slices, counts)
        first = next(changes, None)
        handle = None
        if first is not None:
            handle = replace(write(itertools.chain([first], changes)), slices=slices)
        return MergedRange(handle, *counts.tolist())

    def _changes(
        self, replay: StateReplay, slices: int, counts: npt.NDArray[np.int64]
    ) -> Iterator[EncodedChanges]:
        """None of them empty. Adds to `counts`, as they go by: upserts, deletes."""
        schema = self.state.schema
        for run in replay.runs():
            kept = run.alive() if self.whole else run
            flags, rows = kept.rows.column(-1), kept.rows.select(schema.columns.names)
            deletes = int(pc.sum(flags).as_py() or 0)
            counts += rows.num_rows - deletes, deletes
            if rows.num_rows:
                hashes = key_hashes(rows, schema)
                deleted = flags if deletes else None
                yield from encoded_pieces(schema, rows, kept.key_groups, deleted, hashes, slices)


MergeExecutor = Callable[[RunMerge, Sequence[KeyGroupRange]], Sequence[MergedRange] | None]
"""Merges these ranges, in their order; `None` if it is not there any more."""


def _merged_here(
    into: SharedFiles, merge: RunMerge, ranges: Sequence[KeyGroupRange]
) -> Iterator[MergedRange]:
    """In this process, one after the other; small ones share files."""
    state = merge.state
    with (
        open_attempt_changelog(into.store, merge.attempt, state.options) as storage,
        state.opened(into.store).reading(cached=len(ranges) > 1) as reader,
    ):
        for each in ranges:
            write = partial(
                into.write_range, storage, state.operator, state.schema, each, options=state.options
            )
            yield merge.of_range(each, reader, write)
