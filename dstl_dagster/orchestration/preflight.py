"""A look at the buckets of a run, before its work. Owns when, how often, and where the findings are told.

Does not own the findings (`storage.preflight`). It only reads, asks for no permission, and stops nothing:
what cannot be seen is no reason to refuse work that may succeed, and work that cannot succeed says so itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import dagster as dg

from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import Finding, ObjectStore, Severity, check_store, open_store

__all__ = ["tell_bucket_findings"]

# A service that does not answer must not hold the run up: its first step will ask for longer.
_PATIENCE = GSFileSystemOptions(retry_max_attempt=1, http_connect_timeout=5_000, http_read_timeout=10_000)

_looked_at: set[str] = set()
_lock = threading.Lock()


OpenBucket = Callable[[str, GSFileSystemOptions], ObjectStore]


def tell_bucket_findings(
    log: dg.DagsterLogManager | None, *uris: str, open_bucket: OpenBucket = open_store
) -> None:
    """Log what the settings of each `gs://` bucket would do, once for each bucket and process. Never raises.

    Two requests a bucket (its permissions, its settings); none for other stores. Nothing is written.
    """
    for uri in uris:
        if log is None or not uri.startswith("gs://"):
            continue
        bucket_uri = "gs://" + uri.removeprefix("gs://").partition("/")[0]
        if _is_first_look(bucket_uri):
            _tell(log, bucket_uri, open_bucket)


def _is_first_look(bucket_uri: str) -> bool:
    # Dagster sets a resource up in every step, and twice in one process: one word about a bucket is enough.
    with _lock:
        if bucket_uri in _looked_at:
            return False
        _looked_at.add(bucket_uri)
        return True


def _tell(log: dg.DagsterLogManager, bucket_uri: str, open_bucket: OpenBucket) -> None:
    try:
        findings = check_store(open_bucket(bucket_uri, _PATIENCE), write_probe=False)
    except Exception as error:  # noqa: BLE001 (whatever hinders the look, the work may go on without it)
        log.info(f"{bucket_uri} was not checked: {error}")
        return
    for finding in findings:
        tell = log.info if finding.severity is Severity.NOTE else log.warning
        tell(_worded(bucket_uri, finding))


def _worded(bucket_uri: str, finding: Finding) -> str:
    return f"{bucket_uri}: {finding.code}: {finding.message}. (dstl storage check {bucket_uri})"
