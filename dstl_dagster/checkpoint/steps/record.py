"""Step 4: the manifest, from what the tasks reported and what the parent holds. Nothing is visible yet.

Owns the order of looking and writing, and how an operator's entry follows from its parent's. Does not own the
checks of the report (`persist`), or the manifest's bytes (`keyed.manifest`).

What the step looks up does not depend on what the timeline says, so both are asked for at once; if the
look-up fails, it is the timeline, read after it, that says why.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import replace
from functools import partial
from typing import Any

from dstl_dagster.checkpoint.claims import refuse_unmoved
from dstl_dagster.checkpoint.job import Checkpoint, Job
from dstl_dagster.checkpoint.steps.persist import (
    Files,
    as_operator_reports,
    checked_report,
    with_a_component_each,
)
from dstl_dagster.concurrency import both
from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.keyed import (
    AttemptReport,
    Manifest,
    NameChange,
    OperatorEntry,
    OperatorReport,
    Run,
    StateRows,
    merged_runs,
    merged_sources,
    store_manifest,
)
from dstl_dagster.storage import OWN_RECORD, RECORD, CheckpointCost, RunningCost
from dstl_dagster.timeline import Attempt, decisions

log = logging.getLogger(__name__)


def record(
    job: Job,
    attempt: Attempt,
    report: AttemptReport,
    files: Files,
    parent: Checkpoint | None = None,
    cost: RunningCost | None = None,
) -> Manifest:
    """The manifest of the report and these files, stored. `parent`: the attempt's, if the caller has read it.

    `cost`: of the step, from where the caller began with it. Raises: as `CheckpointCoordinator.record`.
    """
    cost = cost or job.running_cost()
    job.timeline.start_at(attempt)

    def parent_if_open() -> Checkpoint | None:
        view = job.timeline.tail()
        decisions.require_open(view, attempt)
        on = attempt.builds_on
        return parent or (None if on is None else job.checkpoint(view, on, job.recorded_of(view, on)))

    def referenced() -> frozenset[str]:
        before = parent_if_open()
        return frozenset() if before is None else frozenset(before.manifest.needs())

    report = replace(report, operators=as_operator_reports(report.operators), files=())
    check = partial(checked_report, job, attempt, report, files, referenced)
    with job.if_still_open(attempt):
        before, checked = both(parent_if_open, check, job.lookup_threads)
    if before is not None and not job.options.ignore_unclaimed_state:
        refuse_unmoved(before.manifest.sources, checked.sources, job.name)
    checked = with_a_component_each(job, checked, attempt)
    spent = cost.so_far() + OWN_RECORD
    checked = replace(checked, cost=(report.cost or CheckpointCost()).with_step(RECORD, spent))
    manifest = build_manifest(attempt, checked, None if before is None else before.manifest)
    write = partial(store_manifest, job.store, attempt, manifest, job.run_lists)
    # In a job that is gone, or is another one by now, it would be a trace of lost records.
    job.recorded = job.timeline.while_it_is_there(
        write, job.names.manifest(attempt.checkpoint_id, attempt.attempt)
    )
    log.info("step 4 record: checkpoint %d of job %s", attempt.checkpoint_id, job.name)
    log.info("step 4 record: %s", cost.in_words())
    return job.recorded


def build_manifest(attempt: Attempt, report: AttemptReport, parent: Manifest | None) -> Manifest:
    """The plan: the report as a delta on the parent's manifest. Pure.

    Raises: InvalidInputError if an operator changed its keys or its number of key groups, or (kind
    `schema_change`) if a new column differs from one of the state's only in case, or if the writer did not
    know which columns were dropped and renamed before, or the state's TTL.
    """
    if parent is not None:
        parent = _renamed(parent, report.names, attempt.checkpoint_id)
    before = {} if parent is None else parent.operators
    entries: dict[str, OperatorEntry] = {}
    for operator in report.operators:
        known = before.get(operator.operator)
        if known is not None:
            _refuse_new_keys(known.report, operator)
            _refuse_forgotten_ids(known.report, operator)
            _refuse_another_case(known.report, operator)
        _refuse_wrong_ttl(None if known is None else known.report, operator)
        entries[operator.operator] = _entry(attempt.checkpoint_id, known, operator)
    for name, entry in before.items():
        if name not in entries:
            entries[name] = _entry(attempt.checkpoint_id, entry, entry.report.unchanged())
    return Manifest(
        job=attempt.job,
        checkpoint_id=attempt.checkpoint_id,
        attempt=attempt.attempt,
        parent=attempt.parent,
        operators=entries,
        files=report.files,
        sources=merged_sources(
            {} if parent is None else parent.sources,
            report.sources,
            batch_of=None if attempt.batch is None else attempt.batch.source,
            written=[each.operator for each in report.operators],
            parent=attempt.builds_on,
        ),
        persist_seconds=report.seconds,
        user_metadata=report.user_metadata,
        cost=report.cost,
    )


def _renamed(parent: Manifest, names: NameChange, checkpoint_id: int) -> Manifest:
    """The parent as if its operators and sources had their new names, and those that go had never been."""
    if not names:
        return parent
    names.require_known(parent.operators, parent.sources, parent.job)
    entries: dict[str, OperatorEntry] = {}
    for old, entry in parent.operators.items():
        new = names.operators.get(old, old)
        if new is None:
            continue
        if new != old:
            entry = dataclasses.replace(entry, report=dataclasses.replace(entry.report, operator=new))
        entries[new] = entry
    sources = names.renamed_sources(parent.sources, checkpoint_id)
    return dataclasses.replace(parent, operators=entries, sources=sources)


def _entry(checkpoint_id: int, before: OperatorEntry | None, report: OperatorReport) -> OperatorEntry:
    """The operator's entry: the parent's runs after the report's merges, and its own changes on top."""
    runs = () if before is None else merged_runs(before.runs, report.merges)
    if before is None and report.merges:
        raise InvalidInputError(f"operator {report.operator!r} has no state yet that could be merged")
    if report.handles:
        counted = report.upserts + report.deletes > 0
        own = Run(
            checkpoint_id,
            checkpoint_id,
            report.handles,
            whole=not runs,
            upserts=report.upserts if counted else None,
            deletes=report.deletes if counted else None,
        )
        runs = (*runs, own)
    rows = StateRows.after(
        None if before is None else before.rows, None if before is None else before.report, report, runs
    )
    return OperatorEntry(
        report if before is None else _of_both(before, report),
        runs,
        rows,
        sum(merge.run.stored_bytes for merge in report.merges),
        None if before is None or report.merges else before.listed,
    )


def _of_both(before: OperatorEntry, report: OperatorReport) -> OperatorReport:
    """The report with the columns of the whole state: changes may have fewer."""
    older = before.report
    report = dataclasses.replace(report, merges=())
    same = (older.schema, older.key_columns, older.column_ids) == (
        report.schema,
        report.key_columns,
        report.column_ids,
    )
    if same or not (older.schema and report.schema):
        return report
    from dstl_dagster.keyed import schema_of  # imports Arrow, so only if the schema changed

    schema = schema_of(report).covering(schema_of(older))
    return dataclasses.replace(report, schema=schema.arrow_message, column_ids=schema.column_ids)


def _refuse_new_keys(before: OperatorReport, now: OperatorReport) -> None:
    frozen: dict[str, Any] = {"key columns": before.key_columns, "max_parallelism": before.max_parallelism}
    given: dict[str, Any] = {"key columns": now.key_columns, "max_parallelism": now.max_parallelism}
    if before.key_ids == now.key_ids:
        given["key columns"] = before.key_columns  # at most renamed
    for what, expected in frozen.items():
        if given[what] != expected:
            raise InvalidInputError(
                f"operator {now.operator!r} started with {what} {expected!r} and now has {given[what]!r}: "
                "they are frozen. Use another operator name, or keep the old ones",
                kind=ErrorKind.SCHEMA_CHANGE,
            )


def _refuse_another_case(before: OperatorReport, now: OperatorReport) -> None:
    """No `name` beside the state's `Name` by accident: the report's schema has the one and not the other.

    A writer that keeps them apart on purpose has both: a report's schema includes the state's columns.
    """
    if not (before.schema and now.schema) or before.schema == now.schema:
        return
    from dstl_dagster.keyed import schema_of  # imports Arrow, so only if the schema changed
    from dstl_dagster.state import refuse_alike, spelled

    older, newer = schema_of(before), schema_of(now)
    names, kept = newer.columns.names, {*newer.ids, *newer.column_ids.dropped}
    # A column that was renamed or dropped on purpose is no accident.
    left_out = [name for name in older.columns.names if older.column_ids.of(name) not in kept]
    for unknown in set(left_out) - set(names):
        refuse_alike(
            [unknown, *spelled([unknown], names, case_sensitive=False)], f"operator {now.operator!r}"
        )


def _refuse_forgotten_ids(before: OperatorReport, now: OperatorReport) -> None:
    """No report by a writer that did not know what was dropped and renamed: old values would come back."""
    if not (before.column_ids or now.column_ids):
        return
    from dstl_dagster.keyed import schema_of  # imports Arrow, so only if columns were ever changed

    lost = before.column_ids.dropped.keys() - now.column_ids.dropped.keys()
    if lost or not now.column_ids:
        raise InvalidInputError(
            f"operator {now.operator!r} was written without its state's schema, which tells dropped and "
            "renamed columns apart: evolve the schema that `Batch.schema` or `KeyedState.schema` gives",
            kind=ErrorKind.SCHEMA_CHANGE,
        )
    schema_of(now).covering(schema_of(before))


def _refuse_wrong_ttl(before: OperatorReport | None, now: OperatorReport) -> None:
    """Pass if what has expired stays expired, and the rows of `now` have the times that its TTL needs.

    `before`: the operator's report at the parent; `None` if it has none.

    Raises: InvalidInputError, kind `schema_change`.
    """
    ttl, known = now.ttl, None if before is None else before.ttl
    if ttl is None and known is not None and known.ttl_us is not None:
        raise InvalidInputError(
            f"operator {now.operator!r} was written without its state's TTL: pass what `Batch.ttl_to_write` "
            "gives, as `write_state` and `merge_state` do",
            kind=ErrorKind.SCHEMA_CHANGE,
        )
    if ttl is None:
        return
    if not ttl.hides_what(known) and not now.is_of_all:
        raise InvalidInputError(
            f"operator {now.operator!r}: rows that have expired would come back, since the TTL ends or "
            "becomes longer: write it with a `CheckpointBatch` or `Batch`, which leaves them out for good",
            kind=ErrorKind.SCHEMA_CHANGE,
        )
    if ttl.ttl_us is None:
        return
    from dstl_dagster.keyed import schema_of  # imports Arrow, so only where there is a TTL

    if ttl.column not in schema_of(now).ids:
        raise InvalidInputError(
            f"operator {now.operator!r}: column {ttl.column!r} holds the times of the state's TTL: keep it, "
            "or end the TTL in the same batch (ttl=StateTtlConfig.disabled())",
            kind=ErrorKind.SCHEMA_CHANGE,
        )
