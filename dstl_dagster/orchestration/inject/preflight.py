"""A check of a run's buckets before its work. Owns when and how often it runs, and logs the findings.

Does not own the findings (`storage.preflight`). It only reads, needs no permission of its own, and stops
nothing: a bucket that cannot be inspected may still work, and work that fails reports its own error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import dagster as dg

from dstl_dagster.settings import GSFileSystemOptions
from dstl_dagster.storage import ObjectStore, Severity, check_store, open_store

# A service that does not answer must not hold up the run: the first step retries for longer.
_IMPATIENT = GSFileSystemOptions(retry_max_attempt=1, http_connect_timeout=5_000, http_read_timeout=10_000)

_checked: set[str] = set()
_lock = threading.Lock()


OpenBucket = Callable[[str, GSFileSystemOptions], ObjectStore]


def log_bucket_findings(
    log: dg.DagsterLogManager | None, *uris: str, open_bucket: OpenBucket = open_store
) -> None:
    """Log the preflight findings of each `gs://` bucket, once for each bucket and process. Never raises.

    Two requests a bucket (its permissions, its settings); none for other stores. Nothing is written.
    """
    for uri in uris:
        if log is None or not uri.startswith("gs://"):
            continue
        bucket_uri = "gs://" + uri.removeprefix("gs://").partition("/")[0]
        # Dagster sets a resource up in every step, sometimes twice in one process; one report is enough.
        with _lock:
            is_first = bucket_uri not in _checked
            _checked.add(bucket_uri)
        if is_first:
            _check(log, bucket_uri, open_bucket)


def _check(log: dg.DagsterLogManager, bucket_uri: str, open_bucket: OpenBucket) -> None:
    try:
        findings = check_store(open_bucket(bucket_uri, _IMPATIENT), write_probe=False)
    except Exception as error:  # noqa: BLE001 (the work may succeed although the check failed)
        log.info(f"{bucket_uri} was not checked: {error}")
        return
    for finding in findings:
        write = log.info if finding.severity is Severity.NOTE else log.warning
        write(f"{bucket_uri}: {finding.code}: {finding.message}. (dstl storage check {bucket_uri})")
