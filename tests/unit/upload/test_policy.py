"""How tasks are uploaded: from the options and what the store declares."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.storage import StoreCapabilities
from dstl_dagster.upload import RetryPolicy
from dstl_dagster.upload.scheduler import UploadPolicy

LOCAL = StoreCapabilities(is_local=True, max_useful_threads=2)
REMOTE = StoreCapabilities()


def _policy(capabilities: StoreCapabilities, delay_ms: int) -> UploadPolicy:
    options = FsStateChangelogOptions(
        batch_persist_delay=timedelta(milliseconds=delay_ms), upload_buffer_bytes=1000, num_upload_threads=5
    )
    return UploadPolicy.from_options(options, capabilities)


def test_a_store_limits_the_threads() -> None:
    """It declares how many are worth starting; the options say how many may be."""
    assert (_policy(LOCAL, 0).num_threads, _policy(REMOTE, 0).num_threads) == (2, 5)


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
