"""How far a long action of ours is, while it runs.

Owns asking Spark, from a thread beside the action. A hint, for people: nothing is decided by it, and an
action that is asked about is not slower or other than one that is not.
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
"""Called with (tasks that have ended, tasks that are known of); the second may grow."""

_POLL_SECONDS = 0.5


@contextmanager
def watched(spark: SparkSession, progress: Progress | None) -> Iterator[None]:
    """Tell `progress` of the jobs that this thread runs in the block, whenever it changes, and at the end.

    `progress` is called from another thread. What it raises is logged, and it is not called again.
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
    told: tuple[int, int] | None = None
    try:
        while True:
            last = over.wait(_POLL_SECONDS)
            found = _tasks(spark, tag)
            if found != told and found[1]:
                told = found
                progress(*found)
            if last:
                return
    except Py4JError as error:
        log.info("Spark cannot be asked how far it is: %s", error)
    except Exception:
        log.warning("progress is not shown any more", exc_info=True)


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
