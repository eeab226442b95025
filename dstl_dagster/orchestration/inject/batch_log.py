"""The log of steps 1 to 3 on the page of a batch's run: the other steps log for themselves (`steps`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import dagster as dg

from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.concurrency import Progress
from dstl_dagster.format import counted, readable_bytes
from dstl_dagster.orchestration.code_location import is_called_directly
from dstl_dagster.orchestration.report.checkpoint_page import positions_in_words

if TYPE_CHECKING:
    from dstl_dagster.orchestration.inject.pipes_batch import PipesBatch
    from dstl_dagster.spark import CheckpointBatch

_LINES = 20
_EVERY_SECONDS: Final = 10.0


def log_opened(context: dg.OpExecutionContext, batch: CheckpointBatch | PipesBatch) -> None:
    """After step 1: which checkpoint, on which one, by which attempt and try, and where the sources stand."""
    if batch.already_in is not None:
        context.log.info(
            f"step 1 trigger: this batch is already in checkpoint {batch.already_in}: nothing to write"
        )
        return
    attempt, parent = batch.attempt, batch.parent
    on = "with no state before it" if parent is None else f"on checkpoint {parent.checkpoint_id}"
    positions = "" if parent is None else positions_in_words(parent.positions)
    tried = "" if is_called_directly(context) else f"try {context.retry_number + 1} of this run, "
    context.log.info(
        f"step 1 trigger: checkpoint {attempt.checkpoint_id} of {attempt.job} is open, {on}, "
        f"{tried}attempt {attempt.attempt}; sources stand at {positions or 'their beginning'}"
    )


def log_application(context: dg.OpExecutionContext, application_id: str, url: str) -> None:
    """Before Spark's first write."""
    context.log.info(f"step 2 append: Spark application {application_id}: {url}")


def spark_log(context: dg.OpExecutionContext, clock: Clock | None = None) -> Progress:
    """How far Spark is with a write, every ten seconds: called with (finished tasks, known tasks)."""
    clock = clock or SystemClock()
    last = clock.monotonic_seconds()

    def log(finished: int, known: int) -> None:
        nonlocal last
        now = clock.monotonic_seconds()
        if now - last >= _EVERY_SECONDS:
            last = now
            context.log.info(f"step 2 append: Spark has done {finished} of {known} tasks")

    return log


def log_persisted(context: dg.OpExecutionContext, batch: CheckpointBatch | PipesBatch) -> None:
    """After step 3: what was appended, by operator and file, and the requests and seconds of each step."""
    report = batch.report
    if report is None:
        return
    for operator in report.operators[:_LINES]:
        context.log.info(
            f"step 2 append: operator {operator.operator}: {counted(operator.upserts, 'row')} written, "
            f"{operator.deletes} deleted, {readable_bytes(operator.stored_bytes)} in "
            f"{len(operator.handles)} parts{', older runs merged' if operator.merges else ''}"
        )
    for file in report.files[:_LINES]:
        rows = "" if file.rows is None else f"{counted(file.rows, 'row')}, "
        context.log.info(
            f"step 2 append: file {file.object_name}: {rows}{readable_bytes(file.size)} in "
            f"{len(file.components)} components, not visible yet"
        )
    rows_changed = sum(each.upserts + each.deletes for each in report.operators)
    stored = sum(each.stored_bytes for each in report.operators)
    files = sum(each.size for each in report.files)
    steps = {} if report.cost is None else report.cost.steps
    moved = positions_in_words(report.positions)
    spent = "".join(f". {name}: {step.in_words()}" for name, step in steps.items())
    context.log.info(
        f"step 3 persist: {rows_changed} changed rows ({readable_bytes(stored)} of changelog) and "
        f"{counted(len(report.files), 'file')} ({readable_bytes(files)}) are durable after "
        f"{report.seconds:.1f} s{moved and f'; sources move to {moved}'}{spent}"
    )
