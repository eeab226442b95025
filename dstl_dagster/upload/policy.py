"""How tasks are uploaded: which lane each takes, when a batch is due, how many threads and attempts.

Owns these decisions, made once, from the options and what a request to the store costs. Pure. Does not own
the queue or the threads (`scheduler`), nor where a batch ends (`batches`). What each is worth was measured:
docs/decisions/0023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings.changelog import FsStateChangelogOptions
from dstl_dagster.storage import RetryPolicy, StoreCapabilities
from dstl_dagster.upload.write_behind import WRITE_BEHIND_BUFFERS

__all__ = ["UploadPolicy"]

_MAX_BATCH_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadPolicy:
    """How one scheduler works.

    A task takes one of two lanes:

        direct     uploaded in the thread that brings it, in a file of its own
        batched    queued, and uploaded by the scheduler's threads in a file shared with others

    Attributes:
        persist_delay_seconds: how long a batch waits for company after its first task; 0: not at all, but
            for a free thread.
        size_threshold_bytes: payload that makes the batched lane due at once (inclusive).
        max_bytes_in_flight: payload of tasks that have not ended.
        num_threads: of the batched lane.
        retry: when an attempt is followed by another; both lanes.
        max_batch_bytes: payload of one file; a larger task has one to itself.
        max_batch_tasks: tasks of one file, which leaves once it has them; None: any number.
        direct_max_bytes: the largest task of the direct lane (inclusive), where there is no delay; None:
            every task is batched.
        shares_from_bytes: the smallest task that, without a delay, joins a batch which waits for a free
            thread (inclusive); None: every task has a file of its own then.
        flushes_early: whether what is written of a waiting batch goes to the store at once, which makes a
            request more of a small file.

    Raises InvalidInputError where the threshold is above the in-flight limit, or a batch may have no task.
    """

    persist_delay_seconds: float
    size_threshold_bytes: int
    max_bytes_in_flight: int
    num_threads: int
    retry: RetryPolicy
    max_batch_bytes: int = _MAX_BATCH_BYTES
    max_batch_tasks: int | None = None
    direct_max_bytes: int | None = None
    shares_from_bytes: int | None = None
    flushes_early: bool = False

    def __post_init__(self) -> None:
        if self.size_threshold_bytes > self.max_bytes_in_flight:
            raise InvalidInputError(
                f"sizeThresholdBytes ({self.size_threshold_bytes}) must not exceed "
                f"maxBytesInFlight ({self.max_bytes_in_flight})"
            )
        if self.max_batch_tasks is not None and self.max_batch_tasks < 1:
            raise InvalidInputError(f"max_batch_tasks is {self.max_batch_tasks}: 1 or more, or None")

    @classmethod
    def from_options(cls, options: FsStateChangelogOptions, capabilities: StoreCapabilities) -> Self:
        """The policy for a store: batching saves requests, and threads hide their round trips."""
        # Without a network a small file is there before another thread has woken up (benchmarks/changelog.py,
        # "persist of 1,000, delay 0": 1.15 times as long on the batched lane), and a flush is no round trip
        # ("persist of 1,000, delay 10 ms": 1.03 in memory, 1.06 on disk without it). A task that is written
        # behind its encoder leaves no core to a second one, but another file costs ("append+persist 1000 B,
        # delay 0": 1.06 times as long); smaller tasks would lose a thread (100 B: 1.4).
        is_local = capabilities.is_local
        return cls(
            persist_delay_seconds=options.batch_persist_delay.total_seconds(),
            size_threshold_bytes=options.batch_persist_size_threshold_bytes,
            max_bytes_in_flight=options.max_in_flight_bytes,
            num_threads=capabilities.useful_threads(options.num_upload_threads),
            retry=RetryPolicy.of_uploads(options),
            direct_max_bytes=options.upload_buffer_bytes if is_local else None,
            shares_from_bytes=WRITE_BEHIND_BUFFERS * options.upload_buffer_bytes if is_local else None,
            flushes_early=is_local,
        )

    def is_direct(self, task_bytes: int) -> bool:
        """Whether a task takes the direct lane."""
        return (
            self.persist_delay_seconds == 0
            and self.direct_max_bytes is not None
            and task_bytes <= self.direct_max_bytes
        )

    def is_due(self, queued_bytes: int) -> bool:
        """Whether what is queued on the batched lane leaves now."""
        return self.persist_delay_seconds == 0 or queued_bytes >= self.size_threshold_bytes

    def writes_early(self, queued_bytes: int) -> bool:
        """Whether a thread may begin the file of a batch that waits.

        Once half full it is about to leave, and a second thread would contend with the one that takes it
        (benchmarks/changelog.py, "append+persist 1000 B, delay 10 ms": 1.1 to 1.2 times as long otherwise).
        """
        return queued_bytes <= self.size_threshold_bytes // 2

    @property
    def alone_below_bytes(self) -> int:
        """A smaller task has a file of its own."""
        if self.persist_delay_seconds > 0:
            return 0
        # At the threshold a batch is full: then none joins another.
        return self.size_threshold_bytes if self.shares_from_bytes is None else self.shares_from_bytes
