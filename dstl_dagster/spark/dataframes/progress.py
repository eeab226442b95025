"""Progress of a long action, while it runs.

Owns polling Spark from a thread beside the action; Spark Connect reports it by itself. A hint for people:
nothing is decided by it, and it neither slows nor changes the action.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from dstl_dagster.concurrency import Progress

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5


@contextmanager
def watched(spark: SparkSession, progress: Progress | None) -> Iterator[None]:
    """Report to `progress` the Spark jobs that this thread runs in the block: on each change, and at the end.

    `progress` is called from another thread; with Spark Connect from this one, with what the server reports
    of all that the session runs. If it raises, the error is logged, and it is not called again.
    """
    if progress is None:
        yield
        return
    reporter = _Reporter(progress)
    if getattr(spark, "sparkContext", None) is None:
        spark.registerProgressHandler(reporter)  # type: ignore[arg-type] # its base class needs grpc
        try:
            yield
            reporter.end()
        finally:
            spark.removeProgressHandler(reporter)  # type: ignore[arg-type] # as above
        return
    tag = f"dstl-{uuid.uuid4()}"
    over, went_well = threading.Event(), threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(spark, tag, reporter, over, went_well), name="dstl-progress", daemon=True
    )
    spark.sparkContext.addJobTag(tag)
    watcher.start()
    try:
        yield
        went_well.set()
    finally:
        spark.sparkContext.removeJobTag(tag)
        over.set()
        watcher.join()


class _Reporter:
    """Reports each change once. It is a progress handler of Spark Connect, too."""

    def __init__(self, progress: Progress) -> None:
        self._progress: Progress | None = progress
        self._last: tuple[int, int] | None = None

    def __call__(
        self,
        stages: Iterable[Any] | None,
        inflight_tasks: int,
        operation_id: str | None,
        done: bool,
    ) -> None:
        del inflight_tasks, operation_id, done
        counts = [(stage.num_completed_tasks, stage.num_tasks) for stage in stages or ()]
        self.report(sum(ended for ended, _ in counts), sum(known for _, known in counts))

    def end(self) -> None:
        """The action went well, so its tasks have: the server may not have reported the last of them."""
        if self._last is not None:
            self.report(self._last[1], self._last[1])

    def report(self, ended: int, known: int) -> None:
        if self._progress is None or not known or (ended, known) == self._last:
            return
        self._last = ended, known
        try:
            self._progress(ended, known)
        except Exception:
            log.warning("progress is no longer reported", exc_info=True)
            self._progress = None


def _watch(
    spark: SparkSession,
    tag: str,
    reporter: _Reporter,
    over: threading.Event,
    went_well: threading.Event,
) -> None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped] # no client of Connect has it

    try:
        while not over.wait(_POLL_SECONDS):
            reporter.report(*_tasks(spark, tag))
        ended, known = _tasks(spark, tag)
        # If all went well, so have the tasks: Spark's tracker may learn of the last later.
        reporter.report(known if went_well.is_set() else ended, known)
    except Py4JError as error:
        log.info("cannot read the progress from Spark: %s", error)


def _tasks(spark: SparkSession, tag: str) -> tuple[int, int]:
    context = spark.sparkContext
    tracker = context.statusTracker()
    ended = known = 0
    for job in context._jsc.sc().statusTracker().getJobIdsForTag(tag):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            tasks = tracker.getStageInfo(stage)
            if tasks is not None:
                ended, known = ended + tasks.numCompletedTasks, known + tasks.numTasks
    return ended, known
