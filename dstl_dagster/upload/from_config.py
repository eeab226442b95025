"""The scheduler of a changelog storage: built from its options and its store.

Owns which parts are put together. Does not own how they are to work (`policy`).

Source: `StateChangeUploadScheduler.fromConfig` of Flink.
"""

from __future__ import annotations

import uuid

from dstl_dagster.format.compression import Compression
from dstl_dagster.settings.changelog import FsStateChangelogOptions, LocalRecoveryConfig
from dstl_dagster.storage import ObjectStore
from dstl_dagster.upload.file_upload import FileTracker
from dstl_dagster.upload.metrics import UploadMetrics
from dstl_dagster.upload.places import local_changelog_directory
from dstl_dagster.upload.policy import UploadPolicy
from dstl_dagster.upload.scheduler import UploadScheduler
from dstl_dagster.upload.uploader import DuplicatingStateChangeFsUploader, StateChangeFsUploader

__all__ = ["scheduler_from_config"]


def scheduler_from_config(
    job_id: uuid.UUID | str,
    store: ObjectStore,
    options: FsStateChangelogOptions,
    registry: FileTracker,
    local_recovery: LocalRecoveryConfig,
    *,
    base_path: str,
    metrics: UploadMetrics | None = None,
) -> UploadScheduler:
    """The scheduler that the options describe, with the uploader that local recovery calls for."""
    metrics = metrics or UploadMetrics()
    compression = Compression[options.compression.upper()]
    local_directory = local_changelog_directory(local_recovery, job_id)
    uploader: StateChangeFsUploader
    if local_directory is None:
        uploader = StateChangeFsUploader(
            store,
            base_path,
            job_id,
            registry,
            compression=compression,
            buffer_bytes=options.upload_buffer_bytes,
            metrics=metrics,
        )
    else:
        uploader = DuplicatingStateChangeFsUploader(
            store,
            base_path,
            job_id,
            registry,
            local_directory,
            compression=compression,
            buffer_bytes=options.upload_buffer_bytes,
            metrics=metrics,
        )
    policy = UploadPolicy.from_options(options, store.capabilities)
    return UploadScheduler(policy, uploader, metrics, begin_file=uploader.begin)
