"""Which lane a task takes, and with how many threads: from the options and what the store declares."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.storage import StoreCapabilities
from dstl_dagster.upload import RetryPolicy, UploadPolicy

LOCAL = StoreCapabilities(is_local=True, max_useful_threads=2)
REMOTE = StoreCapabilities()


def _policy(capabilities: StoreCapabilities, delay_ms: int) -> UploadPolicy:
    options = FsStateChangelogOptions(
        batch_persist_delay=timedelta(milliseconds=delay_ms), upload_buffer_bytes=1000, num_upload_threads=5
    )
    return UploadPolicy.from_options(options, capabilities)


@pytest.mark.parametrize(
    ("capabilities", "delay_ms", "task_bytes", "is_direct"),
    [
        (LOCAL, 0, 1000, True),
        (LOCAL, 0, 1001, False),
        (LOCAL, 10, 1, False),
        (REMOTE, 0, 1, False),
        (REMOTE, 10, 1, False),
    ],
)
def test_only_a_small_task_without_delay_or_network_is_direct(
    capabilities: StoreCapabilities, delay_ms: int, task_bytes: int, is_direct: bool
) -> None:
    """Up to and including one buffer; everything else is batched."""
    assert _policy(capabilities, delay_ms).is_direct(task_bytes) is is_direct


@pytest.mark.parametrize(
    ("capabilities", "delay_ms", "alone_below_bytes"),
    [(LOCAL, 0, 4000), (REMOTE, 0, 10 << 20), (LOCAL, 10, 0), (REMOTE, 10, 0)],
)
def test_without_delay_large_tasks_of_a_folder_share_files(
    capabilities: StoreCapabilities, delay_ms: int, alone_below_bytes: int
) -> None:
    """With a delay all tasks do; where a request takes a round trip, none of them without."""
    policy = _policy(capabilities, delay_ms)
    assert policy.alone_below_bytes == alone_below_bytes
    assert alone_below_bytes in (0, 4000, policy.size_threshold_bytes)


def test_a_store_limits_the_threads() -> None:
    """It declares how many are worth starting; the options say how many may be."""
    assert (_policy(LOCAL, 0).num_threads, _policy(REMOTE, 0).num_threads) == (2, 5)


def test_only_without_a_network_is_a_waiting_batch_flushed() -> None:
    """Elsewhere a small file stays one request."""
    assert (_policy(LOCAL, 10).flushes_early, _policy(REMOTE, 10).flushes_early) == (True, False)


def test_a_threshold_above_the_limit_is_refused() -> None:
    """Such a batch would never be due by its size."""
    with pytest.raises(InvalidInputError, match="sizeThresholdBytes"):
        UploadPolicy(
            persist_delay_seconds=0,
            size_threshold_bytes=11,
            max_bytes_in_flight=10,
            num_threads=1,
            retry=RetryPolicy.none(),
        )
