"""Step 4: the manifest, from what the tasks reported and what the parent holds. Nothing is visible yet.

Owns the order of looking and writing, and how an operator's entry follows from its parent's. Does not own the
checks of the report (`persist`) and of its schema (`schema_changes`), or the manifest's bytes
(`keyed.manifest`).

What the step looks up does not depend on what the timeline says, so both are asked for at once; if the
look-up fails, it is the timeline, read after it, that says why.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import replace
from functools import partial

from dstl_dagster.checkpoint.claims import refuse_unmoved
from dstl_dagster.checkpoint.job import Checkpoint, Job
from dstl_dagster.checkpoint.steps.persist import (
    Files,
    as_operator_reports,
    checked_report,
    with_a_component_each,
)
from dstl_dagster.checkpoint.steps.schema_changes import refuse_schema_change
from dstl_dagster.concurrency import both
from dstl_dagster.errors import InvalidInputError
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
        view = job.timeline.tail_to_append()
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
    stored = job.store_manifest(attempt, manifest)
    log.info("step 4 record: checkpoint %d of job %s", attempt.checkpoint_id, job.name)
    log.info("step 4 record: %s", cost.in_words())
    return stored


def build_manifest(attempt: Attempt, report: AttemptReport, parent: Manifest | None) -> Manifest:
    """The plan: the report as a delta on the parent's manifest. Pure.

    Raises: InvalidInputError, kind `schema_change`, as `refuse_schema_change`.
    """
    if parent is not None:
        parent = _renamed(parent, report.names, attempt.checkpoint_id)
    before = {} if parent is None else parent.operators
    entries: dict[str, OperatorEntry] = {}
    for operator in report.operators:
        known = before.get(operator.operator)
        refuse_schema_change(None if known is None else known.report, operator)
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
