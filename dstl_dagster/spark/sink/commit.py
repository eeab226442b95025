"""Commit and abort of a write through `format("dstl")`: steps 3 to 7, from what the winning tasks gave back.

Owns what Spark's two calls mean on the timeline. Does not own the tasks' work (`tasks`).

When Spark calls, as measured:

* `commit` with one message for each partition, in their order, of the one try of each task that won. After a
  crash inside it the tasks run again, and `commit` is called again with the same batch and other messages.
* `abort` with what messages there are, `None` for tasks that failed; also right after a `commit` that raised,
  though its checkpoint may be complete. So an abort asks the timeline, and deletes nothing itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pyspark.sql import types as st

from dstl_dagster.checkpoint import (
    Attempt,
    Batch,
    FileReport,
    OperatorReport,
)
from dstl_dagster.errors import ConflictError, ErrorKind, InternalError, InvalidInputError
from dstl_dagster.format import ChangelogStateHandle
from dstl_dagster.keyed import StateAt
from dstl_dagster.spark.files import joined
from dstl_dagster.spark.sink.messages import outcomes_of
from dstl_dagster.spark.sink.options import SinkOptions
from dstl_dagster.spark.sink.plan import FileSink, StateSink, sink_coordinator, sink_of
from dstl_dagster.spark.sink.query_batches import POSITION, QueryBatch
from dstl_dagster.spark.sink.tasks import groups_of
from dstl_dagster.spark.state import report_of
from dstl_dagster.spark.stores import open_shared_store
from dstl_dagster.storage import ObjectStore

__all__ = ["abort_sink", "commit_sink"]

log = logging.getLogger(__name__)

Outcome = dict[str, Any]


def commit_sink(
    options: SinkOptions, schema: st.StructType, messages: Sequence[object], batch_id: int | None
) -> int | None:
    """Make the batch's checkpoint complete and publish its files; gives its id, `None`: it was there.

    Raises: InvalidInputError (kind `duplicate_key` or what else is wrong with the rows), ConflictError
    (kind `other_query`, `batch_gap`), FencedError, UnavailableError (Spark repeats the batch).
    """
    store = open_shared_store(options.store)
    try:
        coordinator = sink_coordinator(options, store)
        outcomes = outcomes_of(store, messages)
        _raise_refusal(outcomes)
        attempt = _attempt_of(outcomes)
        if any(outcome.get("done") for outcome in outcomes):
            # A crash came after step 5 of an earlier try, perhaps in the midst of step 6.
            if attempt is not None:
                coordinator.abort(attempt, "its batch is in a checkpoint already")
            coordinator.compose_commit()
            return None
        if attempt is None:
            raise InternalError("a write ended without a task that says which attempt it worked under")
        batch = _batch_of(outcomes, batch_id)
        if batch is not None:
            attempt = replace(attempt, idempotency_key=batch.idempotency_key)
        work = Batch.resume(coordinator, attempt)
        with work.aborted_on_error():
            _fill(work, options, schema, outcomes, batch)
        return work.complete(clean_up_every=options.clean_up_every).checkpoint_id
    finally:
        store.close()


def abort_sink(options: SinkOptions, messages: Sequence[object], opened: Attempt | None = None) -> None:
    """Give up the attempt that was opened, or that these messages are of, unless its checkpoint is complete.

    Where it is unknown, because no task gave a message, it stays open; the same owner's next try ends it.
    """
    store = open_shared_store(options.store)
    try:
        attempt = opened or _attempt_of(outcomes_of(store, messages))
        if attempt is None:
            return
        try:
            sink_coordinator(options, store).abort(attempt, "Spark gave the write up")
        except ConflictError as error:
            # Step 5 was done before what went wrong: there is only forward, and the next try goes there.
            log.info("not aborted: %s", error)
    finally:
        store.close()


def _fill(
    work: Batch,
    options: SinkOptions,
    schema: st.StructType,
    outcomes: list[Outcome],
    batch: QueryBatch | None,
) -> None:
    """What the tasks made, the query's position, and the bases that are due."""
    match sink_of(options, schema, work.parent, work.attempt):
        case StateSink() as sink:
            work.add(_state_report(work.coordinator.store, work.attempt, sink, outcomes))
        case FileSink() as sink:
            for report in _file_reports(sink, outcomes, batch):
                work.add(report)
    if batch is not None:
        work.move_position(POSITION, batch.position)
    work.fold_due_logs()


def _state_report(
    store: ObjectStore, attempt: Attempt, sink: StateSink, outcomes: list[Outcome]
) -> OperatorReport:
    states = [outcome["state"] for outcome in outcomes if "state" in outcome]
    handles = [ChangelogStateHandle.from_json(state["handle"]) for state in states]
    _refuse_shared_keys(store, attempt, sink, states, handles)
    return report_of(sink.operator, sink.schema, states)


def _refuse_shared_keys(
    store: ObjectStore,
    attempt: Attempt,
    sink: StateSink,
    states: list[Outcome],
    handles: list[ChangelogStateHandle],
) -> None:
    """Pass if no key is in two tasks; each task has seen to its own.

    Where tasks share no key group, as after `by_key_group` or a shuffle by the keys into a number of tasks
    that divides the key groups', that is certain. Otherwise the changes are read back and counted.
    """
    schema = sink.schema
    counts = np.zeros(schema.max_parallelism, np.int64)
    for state in states:
        counts += groups_of(state, schema.max_parallelism)
    if (counts <= 1).all():
        return
    row_count = sum(state["upserts"] + state["deletes"] for state in states)
    written = StateAt(
        store.uri, attempt.job, attempt.checkpoint_id, sink.operator, schema, tuple(handles)
    ).opened(store)
    distinct = sum(run.rows.num_rows for run in written.runs())
    if distinct != row_count:
        raise InvalidInputError(
            f"{row_count} rows have {distinct} keys, so rows of one key came to different tasks; in one "
            "checkpoint each key may occur once: aggregate the rows by key first",
            kind=ErrorKind.DUPLICATE_KEY,
        )


def _file_reports(sink: FileSink, outcomes: list[Outcome], batch: QueryBatch | None) -> list[FileReport]:
    found = sorted(
        (outcome for outcome in outcomes if "file" in outcome), key=lambda outcome: int(outcome["partition"])
    )
    reports = [FileReport.from_json(outcome["file"]) for outcome in found]
    names = sink.names_for(batch)
    if sink.heading is None:
        return reports or [sink.job.write(names.uri(0), iter(()))]
    heading = replace(sink.job, header=sink.heading).write(names.uri(0), iter(()))
    return [joined([heading, *reports])]


def _raise_refusal(outcomes: Iterable[Outcome]) -> None:
    for outcome in outcomes:
        refused = outcome.get("refused")
        if refused is not None:
            kind = ConflictError if refused["type"] == "ConflictError" else InvalidInputError
            raise kind(refused["message"], kind=ErrorKind(refused["kind"]))


def _attempt_of(outcomes: Iterable[Outcome]) -> Attempt | None:
    attempts = {Attempt.from_json(outcome["attempt"]) for outcome in outcomes if "attempt" in outcome}
    if len(attempts) > 1:
        raise InternalError(f"the tasks of one write worked under {len(attempts)} attempts")
    return next(iter(attempts), None)


def _batch_of(outcomes: list[Outcome], batch_id: int | None) -> QueryBatch | None:
    if batch_id is None:
        return None
    batches = {QueryBatch.last_of({POSITION: outcome["query"]}) for outcome in outcomes}
    batch = next(iter(batches))
    if len(batches) > 1 or batch is None or batch.batch_id != batch_id:
        raise InternalError(f"Spark commits batch {batch_id}, and its tasks worked on {batches}")
    return batch
