"""One attempt to upload: some tasks in, one changelog file out.

Owns the uploader protocol, and how ours names its files, by upstream's two patterns:

    <base path>/<job id>/dstl/<random uuid>            in the store
    <directory>/jid_<job id>/taskowned/<same uuid>     on local disk

Does not own how a file is written (`file_upload`), retries, batches, or the completion of tasks (`racing`,
`batches`, `scheduler`).

Source: Flink's `StateChangeFsUploader` and `DuplicatingStateChangeFsUploader`. There an attempt that fails
also fails its tasks, which makes retries useless, and an error on closing the file is reported as success.
"""

from __future__ import annotations

import re
import uuid
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Protocol

from dstl_dagster.concurrency import Closing
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format.changelog_file.compression import Compression
from dstl_dagster.format.changelog_file.encoding import ChangelogFileEncoder
from dstl_dagster.format.names import validated_job
from dstl_dagster.settings.changelog import LocalRecoveryConfig
from dstl_dagster.storage import ObjectStore
from dstl_dagster.upload.file_upload import FileTracker, FileUpload, LocalCopySink, ObjectSink
from dstl_dagster.upload.metrics import UploadMetrics
from dstl_dagster.upload.tasks import UploadTask, UploadTasksResult


class StateChangeUploader(Closing, Protocol):
    """Uploads tasks: what a scheduler calls. Users may bring their own. A context manager."""

    def upload(self, tasks: Collection[UploadTask]) -> UploadTasksResult:
        """Write all change sets of all tasks durably, in this order.

        Called from any thread, several at once, and again for the same tasks when an attempt failed or was
        slow. It returns or raises, and need not end a task: the scheduler does. A task that cannot be part
        of the file goes into the result's `failed`. An UnavailableError, or an OSError that is not one of
        ours, may be tried again; any other error ends the tasks. All that it wrote before raising, it
        deletes.
        """
        ...

    def close(self) -> None:
        """No further upload follows. May be called again."""
        ...


class StateChangeFsUploader(StateChangeUploader):
    """Writes one new object for each attempt, below `<base path>/<job id>/dstl/`.

    With `local_directory` it also writes each file there. A copy that fails is dropped and counted.
    """

    def __init__(
        self,
        store: ObjectStore,
        base_path: str,
        job_id: uuid.UUID | str,
        registry: FileTracker,
        *,
        local_directory: Path | None = None,
        compression: Compression = Compression.NONE,
        buffer_bytes: int = 1 << 20,
        metrics: UploadMetrics | None = None,
    ) -> None:
        if local_directory is not None and not local_directory.is_absolute():
            raise InvalidInputError(f"the directory of local copies must be absolute: {local_directory}")
        self.base_path = changelog_folder(base_path, job_id)
        self._local_directory = local_directory
        self._store = store
        self._registry = registry
        self._compression = compression
        self._buffer_bytes = buffer_bytes
        self._metrics = metrics or UploadMetrics()

    def begin(self, is_cancelled: Callable[[], bool]) -> FileUpload:
        """Begin an attempt, whose tasks are then written one by one. Any thread; may raise as `upload`.

        `is_cancelled` is asked after each piece: once it is true, writing raises ClosedError.
        """
        # Each attempt has its own name: two that race never write the same object.
        file_id = str(uuid.uuid4())
        name = f"{self.base_path}/{file_id}"
        return FileUpload(
            name,
            ObjectSink(self._store, name, file_id, self._buffer_bytes),
            None if self._local_directory is None else LocalCopySink(self._local_directory / file_id),
            ChangelogFileEncoder(self._compression, self._buffer_bytes),
            self._registry,
            self._metrics,
            is_cancelled,
        )

    def upload(self, tasks: Collection[UploadTask]) -> UploadTasksResult:
        begun = self.begin(lambda: all(task.is_finished for task in tasks))
        for task in tasks:
            begun.write(task)
        return begun.finish()

    def close(self) -> None:
        return None


class DuplicatingStateChangeFsUploader(StateChangeFsUploader):
    """The same by upstream's constructor, with a local directory. `settings`: the other keywords."""

    def __init__(
        self,
        store: ObjectStore,
        base_path: str,
        job_id: uuid.UUID | str,
        registry: FileTracker,
        local_directory: Path,
        **settings: Any,
    ) -> None:
        super().__init__(store, base_path, job_id, registry, local_directory=local_directory, **settings)


_HEX = re.compile(r"[0-9a-fA-F]{32}")


def job_id_text(job_id: uuid.UUID | str) -> str:
    """A job id as part of a name: a UUID as 32 hex digits, another valid job name as it is."""
    if isinstance(job_id, uuid.UUID):
        return job_id.hex
    if isinstance(job_id, str) and _HEX.fullmatch(job_id):
        return job_id.lower()
    return validated_job(job_id)


def changelog_folder(base_path: str, job_id: uuid.UUID | str) -> str:
    """The folder of a job's changelog files in the store, without a slash at the end."""
    parts = [part for part in base_path.split("/") if part]
    if any(part in (".", "..") for part in parts):
        raise InvalidInputError(f"base path {base_path!r} may not hold '.' or '..': name the folder itself")
    return "/".join([*parts, job_id_text(job_id), "dstl"])


def local_changelog_directory(config: LocalRecoveryConfig, job_id: uuid.UUID | str) -> Path | None:
    """The directory of a job's local copies; None where local recovery is disabled. Creates nothing."""
    if config.directories is None:
        return None
    job = job_id_text(job_id)
    # No randomised hash: another process of the job must find the same directory.
    root = config.directories[zlib.crc32(job.encode()) % len(config.directories)]
    return root / f"jid_{job}" / "taskowned"
