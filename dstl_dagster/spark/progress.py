"""Progress of a long action, while it runs.

Owns polling Spark from a thread beside the action. A hint for people: nothing is decided by it, and it
neither slows nor changes the action.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

__all__ = ["Progress", "watched"]

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with (finished tasks, known tasks); the second may grow."""

_POLL_SECONDS = 0.5


@contextmanager
def watched(spark: SparkSession, progress: Progress | None) -> Iterator[None]:
    """Report to `progress` the Spark jobs that this thread runs in the block: on each change, and at the end.

    `progress` is called from another thread. If it raises, the error is logged, and it is not called again.
    """
    if progress is None:
        yield
        return
    tag = f"dstl-{uuid.uuid4()}"
    over = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(spark, tag, progress, over), name="dstl-progress", daemon=True
    )
    spark.sparkContext.addJobTag(tag)
    watcher.start()
    try:
        yield
    finally:
        spark.sparkContext.removeJobTag(tag)
        over.set()
        watcher.join()


def _watch(spark: SparkSession, tag: str, progress: Progress, over: threading.Event) -> None:
    reported: tuple[int, int] | None = None
    try:
        while True:
            last = over.wait(_POLL_SECONDS)
            found = _tasks(spark, tag)
            if found != reported and found[1]:
                reported = found
                progress(*found)
            if last:
                return
    except Py4JError as error:
        log.info("cannot read the progress from Spark: %s", error)
    except Exception:
        log.warning("progress is no longer reported", exc_info=True)


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
