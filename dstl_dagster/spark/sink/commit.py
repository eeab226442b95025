"""Commit and abort of a write through `format("dstl")`: steps 3 to 7, from what the winning tasks returned.

Owns what Spark's two calls mean on the timeline. Does not own the tasks' work (`tasks`).

When Spark calls them, as measured:

* `commit`: with one message per partition, in partition order, each from the task attempt that won. After a
  crash inside it the tasks run again, and `commit` is called again with the same batch id and new messages.
* `abort`: with the messages there are, `None` for tasks that failed; also right after a `commit` that raised,
  although its checkpoint may be complete. So an abort checks the timeline, and deletes nothing itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as st

from dstl_dagster.checkpoint import (
    Attempt,
    Batch,
    FileReport,
    OperatorReport,
    StateToWrite,
)
from dstl_dagster.errors import ConflictError, InternalError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange
from dstl_dagster.keyed import Grouped, KeyedState, StateAt, replacements, write_rows
from dstl_dagster.spark.dataframes.files import files_of_parts
from dstl_dagster.spark.dataframes.state import report_of
from dstl_dagster.spark.errors import raise_refusal
from dstl_dagster.spark.sink.messages import outcomes_of
from dstl_dagster.spark.sink.options import SinkOptions
from dstl_dagster.spark.sink.plan import FileSink, StateSink, sink_coordinator, sink_of
from dstl_dagster.spark.sink.tasks import groups_of
from dstl_dagster.spark.stores import cost_of, open_shared_store
from dstl_dagster.spark.streaming.micro_batches import POSITION, MicroBatch
from dstl_dagster.state import refuse_repeated_keys, taken
from dstl_dagster.storage import TRIGGER, ObjectStore

log = logging.getLogger(__name__)

Outcome = dict[str, Any]


def commit_sink(
    options: SinkOptions, schema: st.StructType, messages: Sequence[object], batch_id: int | None
) -> int | None:
    """Complete the write's checkpoint and publish its files.

    Returns: the checkpoint id; `None` if an earlier checkpoint already holds the write.
    Raises: InvalidInputError (kind `duplicate_key`, or a kind that says what else is wrong with the rows),
    ConflictError (kind `other_query`, `attempt_open`, `moved`), FencedError,
    UnavailableError (Spark repeats the micro-batch).
    """
    with closing(open_shared_store(options.store, options.job_options)) as store:
        coordinator = sink_coordinator(options, store)
        cost = coordinator.running_cost()
        outcomes = outcomes_of(coordinator.store, messages)
        raise_refusal(outcomes)
        if any(outcome.get("done") for outcome in outcomes):
            # An earlier commit crashed after step 5, perhaps in the middle of step 6.
            coordinator.compose_commit()
            return None
        attempt = _attempt_of(outcomes)
        if attempt is None:
            raise InternalError("no task of the write returned the attempt that it worked under")
        micro_batch = _micro_batch_of(outcomes, batch_id)
        batch = Batch.resume(
            coordinator,
            attempt,
            claim=options.claim(micro_batch),
            trigger=cost_of(outcomes, TRIGGER),
            cost=cost,
        )
        batch.meter.add(cost_of(outcomes))
        with batch.aborted_on_error():
            _fill(batch, options, schema, outcomes, micro_batch)
        return batch.complete(clean_up_every=options.clean_up_every).checkpoint_id


def abort_sink(options: SinkOptions, messages: Sequence[object], opened: Attempt | None = None) -> None:
    """Abort the opened attempt, or the one that these messages name, unless its checkpoint is complete.

    If the attempt is unknown, because no task returned a message, it stays open until the same owner's next
    write fences it.
    """
    with closing(open_shared_store(options.store, options.job_options)) as store:
        attempt = opened or _attempt_of(outcomes_of(store, messages))
        if attempt is None:
            return
        try:
            sink_coordinator(options, store).abort(attempt, "Spark aborted the write")
        except ConflictError as error:
            # The failure came after step 5: the checkpoint is complete, and the next write publishes it.
            log.info("not aborted: %s", error)


def _fill(
    batch: Batch,
    options: SinkOptions,
    schema: st.StructType,
    outcomes: list[Outcome],
    micro_batch: MicroBatch | None,
) -> None:
    """Add what the tasks wrote, the query's position, and the bases that are due."""
    match sink_of(options, schema, batch):
        case StateSink() as sink:
            batch.add(_state_report(batch, sink.state, outcomes, replaces=options.replace is not False))
        case FileSink() as sink:
            for report in _file_reports(sink, outcomes, micro_batch, batch.coordinator.store):
                batch.add(report)
    if options.user_metadata:
        batch.describe(options.user_metadata)
    batch.merge_due_runs()


def _state_report(
    batch: Batch, state: StateToWrite, outcomes: list[Outcome], *, replaces: bool
) -> OperatorReport:
    written = [outcome["state"] for outcome in outcomes if "state" in outcome]
    handles = [ChangelogStateHandle.from_json(each["handle"]) for each in written]
    store, attempt, options = batch.coordinator.store, batch.attempt, batch.coordinator.job_options
    operator, schema = state.operator, state.schema
    own = (attempt.checkpoint_id, operator, schema, tuple(handles), options)
    new = StateAt(store.uri, attempt.job, *own).opened(store)
    _refuse_shared_keys(new, written)
    report = report_of(batch, state, written, options)
    if not replaces:
        return report
    gone = _keys_without_rows(batch, state, new)
    deleted = pa.array(np.ones(gone.num_rows, np.bool_))
    removed = write_rows(
        gone, attempt, store, operator=operator, schema=schema, deleted=deleted, options=options
    )
    handles = [*report.handles, *removed.handles]
    return replace(report, handles=tuple(handles), deletes=report.deletes + gone.num_rows)


def _keys_without_rows(batch: Batch, state: StateToWrite, written: KeyedState) -> pa.Table:
    """What is replaced and gets no row. Reads the state, and the new rows back, a part at a time.

    Raises: InvalidInputError for a new row that is not among those that are replaced.
    """
    schema, at = state.schema, state.before(batch)
    before = None if at is None else at.opened(batch.coordinator.store)
    what, every = f"state of operator {state.operator!r}", KeyGroupRange.of(0, schema.max_parallelism - 1)
    runs = (run.alive() for run in written.runs())
    new = (Grouped.of(run.rows.select(schema.columns.names), run.key_groups) for run in runs)
    changes = replacements(schema, before, every, new, state.scope, what)
    keys = pa.schema([schema.columns.field(name) for name in schema.key_columns])
    gone = [each.rows for each in changes if each.deleted[0].as_py()]
    return pa.concat_tables([keys.empty_table(), *gone])


def _refuse_shared_keys(written: KeyedState, states: list[Outcome]) -> None:
    """Pass if no two tasks wrote the same key; each task has checked its own rows.

    If tasks share no key group, as after `by_key_group` or a shuffle by the keys into a number of tasks that
    divides the number of key groups, that is certain. Otherwise the changes are read back and counted.

    Raises: InvalidInputError (kind `duplicate_key`) naming the key.
    """
    schema, at = written.schema, written.at
    counts = np.zeros(schema.max_parallelism, np.int64)
    for state in states:
        counts += groups_of(state, schema.max_parallelism)
    if (counts <= 1).all():
        return
    row_count = sum(state["upserts"] + state["deletes"] for state in states)
    if sum(run.rows.num_rows for run in written.runs()) == row_count:
        return
    each_alone = [replace(at, handles=(handle,)).opened(written.store) for handle in at.handles]
    for key_groups in written.ranges():
        runs = [run for each in each_alone for run in each.runs([key_groups])]
        groups = np.concatenate([run.key_groups for run in runs]).astype(np.uint16)
        order = np.argsort(groups, kind="stable")
        keys = pa.concat_tables([run.rows.select(list(schema.key_columns)) for run in runs])
        refuse_repeated_keys(taken(keys, order), schema.key_columns, groups[order])
    raise InternalError(
        f"{row_count} rows of operator {at.operator!r} have fewer keys, of which none repeats"
    )


def _file_reports(
    sink: FileSink, outcomes: list[Outcome], micro_batch: MicroBatch | None, store: ObjectStore
) -> list[FileReport]:
    found = sorted((each for each in outcomes if "files" in each), key=lambda each: int(each["partition"]))
    parts = [FileReport.from_json(file) for outcome in found for file in outcome["files"]]
    return files_of_parts(sink.job_for(micro_batch), parts, store)


def _attempt_of(outcomes: Iterable[Outcome]) -> Attempt | None:
    attempts = {Attempt.from_json(outcome["attempt"]) for outcome in outcomes if "attempt" in outcome}
    if len(attempts) > 1:
        raise InternalError(f"the tasks of one write worked under {len(attempts)} attempts")
    return next(iter(attempts), None)


def _micro_batch_of(outcomes: list[Outcome], batch_id: int | None) -> MicroBatch | None:
    if batch_id is None:
        return None
    found = {MicroBatch.last_of({POSITION: outcome["query"]}) for outcome in outcomes}
    micro_batch = next(iter(found))
    if len(found) > 1 or micro_batch is None or micro_batch.batch_id != batch_id:
        raise InternalError(f"Spark commits batch {batch_id}, but its tasks worked on {found}")
    return micro_batch
