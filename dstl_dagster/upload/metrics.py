"""The measurements of changelog uploads: Flink's names, and the exact meaning of each value.

Owns the names, and whose event each is: a job's, and those operators' whose changes are in the file so far; a
request begins with the first of them. Does not own where they go (`dstl_dagster.metrics`).

    numberOfUploadRequests      +1 for each attempt
    numberOfUploadFailures      +1 for each attempt that ended with an error (not for a time-out)
    uploadSizes                 logical bytes of a successful attempt: headers included, uncompressed
    uploadLatenciesNanos        nanoseconds of a successful attempt
    uploadBatchSizes            tasks in one batch
    attemptsPerUpload           which attempt won
    totalAttemptsPerUpload      attempts started or due by the time of success
    uploadQueueSize             gauge: tasks that wait for their batch
    numberOfLocalCopyFailures   +1 for each local copy that was dropped (ours)
    numberOfDiscardedUploads    +1 for each result that lost or came too late, and was deleted (ours)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

from dstl_dagster.metrics import NO_METRICS, Measurement, MeasurementKind, MetricsHook, fan_out
from dstl_dagster.upload.racing import AttemptCounts
from dstl_dagster.upload.tasks import UploadTask, UploadTasksResult

PREFIX = "ChangelogStorage."


class UploadMetrics:
    """Names in, measurements out. Any thread. A hook that raises fails nothing."""

    def __init__(self, hook: MetricsHook | None = None, *, job: str | None = None) -> None:
        self._hook = NO_METRICS if hook is None else fan_out([hook])
        self._job = job
        self._operator: str | None = None

    def of(self, tasks: Iterable[UploadTask]) -> UploadMetrics:
        """The same, for events of these tasks."""
        if self._hook is NO_METRICS:
            return self
        other = copy.copy(self)
        other._operator = ",".join(sorted({each.operator for each in tasks if each.operator})) or None
        return other

    def _count(self, name: str) -> None:
        self._record(name, MeasurementKind.COUNTER, 1)

    def _observe(self, name: str, value: float) -> None:
        self._record(name, MeasurementKind.HISTOGRAM, value)

    def _record(self, name: str, kind: MeasurementKind, value: float) -> None:
        if self._hook is not NO_METRICS:
            self._hook.record(Measurement(PREFIX + name, kind, value, self._job, self._operator))

    def attempt_begins(self) -> None:
        self._count("numberOfUploadRequests")

    def attempt_fails(self) -> None:
        self._count("numberOfUploadFailures")

    def attempt_succeeds(self, logical_bytes: int, seconds: float) -> None:
        self._observe("uploadSizes", logical_bytes)
        self._observe("uploadLatenciesNanos", round(seconds * 1e9))

    def batch_begins(self, task_count: int) -> None:
        self._observe("uploadBatchSizes", task_count)

    def upload_wins(self, counts: AttemptCounts, result: object = None) -> None:
        """`result`: of the attempt that won."""
        its = self.of(result.results) if isinstance(result, UploadTasksResult) else self
        its._observe("attemptsPerUpload", counts.winner)
        its._observe("totalAttemptsPerUpload", counts.total)

    def local_copy_fails(self) -> None:
        self._count("numberOfLocalCopyFailures")

    def result_discarded(self) -> None:
        self._count("numberOfDiscardedUploads")

    def watch_queue(self, read: Callable[[], float]) -> Callable[[], None]:
        """Register the queue's gauge; the returned call ends it."""
        return self._hook.register_gauge(PREFIX + "uploadQueueSize", read)
