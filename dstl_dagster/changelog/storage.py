"""The changelog of one job on one process: its writers, its readers, and the parts that they share.

Owns the scheduler, the registries and their threads. Does not own the store passed to it, nor its
writers: close them first.

Source: Flink's `FsStateChangelogStorage`, `FsStateChangelogStorageForRecovery` and
`FsStateChangelogStorageFactory`.
"""

from __future__ import annotations

import logging
import pkgutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

from dstl_dagster.changelog.reader.read_cache import ReadCache
from dstl_dagster.changelog.reader.reader import ChangelogReader
from dstl_dagster.changelog.writer.writer import FsStateChangelogWriter
from dstl_dagster.concurrency import Closing
from dstl_dagster.errors import ClosedError, ConflictError, InvalidInputError
from dstl_dagster.format.handles import LocalStateHandle, StreamStateHandle
from dstl_dagster.format.key_group_ranges import KeyGroupRange
from dstl_dagster.futures import MailboxExecutor
from dstl_dagster.metrics import MetricsHook
from dstl_dagster.registry import LocalChangelogRegistry, TaskChangelogRegistry
from dstl_dagster.settings.changelog import FsStateChangelogOptions, LocalRecoveryConfig
from dstl_dagster.settings.units import ConfigValue
from dstl_dagster.storage import Generation, ObjectStore
from dstl_dagster.upload import (
    Availability,
    StateChangeUploadScheduler,
    UploadMetrics,
    job_id_text,
    local_changelog_directory,
    scheduler_from_config,
)

_logger = logging.getLogger(__name__)


class FsStateChangelogStorage(Closing):
    """Makes writers and readers of one job. Any thread may call; a context manager.

    Files are named `<base_path>/<job id>/dstl/<random uuid>` in the store.

    Args:
        job_id: a UUID or 32 hex digits (in names: the digits), or another valid job name (as it is).
        store: where files go. It stays open.
        options: frozen settings; `options.base_path` is used where `base_path` is empty.
        base_path: the folder in the store.
        local_recovery: whether copies stay on this machine's disk.
        metrics: where measurements go; by default the hook that the options name.
        scheduler: how and when writers' tasks are uploaded; by default by the options. It is closed with
            the storage. Its uploader should report to `registry`.
        registry: counts the references to files; by default one that deletes from `store`.
    """

    def __init__(
        self,
        job_id: uuid.UUID | str,
        store: ObjectStore,
        options: FsStateChangelogOptions | None = None,
        *,
        base_path: str = "",
        local_recovery: LocalRecoveryConfig | None = None,
        metrics: MetricsHook | None = None,
        scheduler: StateChangeUploadScheduler | None = None,
        registry: TaskChangelogRegistry | None = None,
    ) -> None:
        self.job_id = job_id_text(job_id)
        self._store = store
        self._options = options or FsStateChangelogOptions()
        self._local_recovery = local_recovery or LocalRecoveryConfig.disabled()
        self._local_directory = local_changelog_directory(self._local_recovery, self.job_id)
        self._registry = registry or TaskChangelogRegistry.with_threads(
            self._delete_file, self._options.num_discard_threads
        )
        self._local_registry = (
            LocalChangelogRegistry.no_op()
            if self._local_directory is None
            else LocalChangelogRegistry.with_threads(_delete_local)
        )
        self._scheduler = scheduler or scheduler_from_config(
            self.job_id,
            store,
            self._options,
            self._registry,
            self._local_recovery,
            base_path=base_path or self._options.base_path or "",
            metrics=UploadMetrics(metrics or _named_hook(self._options.metrics), job=self.job_id),
        )
        self._closed = False

    def create_writer(
        self,
        operator_id: str,
        key_group_range: KeyGroupRange,
        mailbox_executor: MailboxExecutor | None = None,
    ) -> FsStateChangelogWriter:
        """A writer with a log of its own, for the calling thread. ClosedError when closed."""
        if self._closed:
            raise ClosedError("the changelog storage is closed: open another")
        if not isinstance(key_group_range, KeyGroupRange) or key_group_range.number_of_key_groups == 0:
            raise InvalidInputError(f"a writer needs a range of key groups, not {key_group_range!r}")
        log_id = uuid.uuid4()
        _logger.debug("operator %s of job %s writes log %s", operator_id, self.job_id, log_id)
        return FsStateChangelogWriter(
            log_id,
            key_group_range,
            self._scheduler,
            self._options.preemptive_persist_threshold_in_bytes,
            mailbox_executor,
            self._registry,
            self._local_recovery,
            self._local_registry,
            operator_id=operator_id,
        )

    def create_reader(self) -> ChangelogReader:
        """A reader of handles; it looks for local copies first, where they are stored. It needs no close."""
        return ChangelogReader(self._store, local_directory=self._local_directory)

    @property
    def availability(self) -> Availability:
        """Whether an append or persist would block now."""
        return self._scheduler.availability

    def close(self) -> None:
        """Fail uploads in progress, finish deletions, end every thread. May be called again.

        Durable files stay: a checkpoint may hold them.
        """
        self._closed = True
        # In this order: late results of uploads are still released through the registry.
        self._scheduler.close()
        self._registry.close()
        self._local_registry.close()

    def _delete_file(self, handle: StreamStateHandle) -> None:
        if isinstance(handle, LocalStateHandle):
            _delete_local(handle)
            return
        generation = handle.generation
        if generation is None:
            stat = self._store.stat(handle.name)
            if stat is None:
                return
            generation = stat.generation
        # A random name is written once; another generation would not be ours to delete.
        with suppress(ConflictError):
            self._store.delete(handle.name, precondition=Generation(generation))


def _named_hook(name: str | None) -> MetricsHook | None:
    if name is None:
        return None
    try:
        hook = pkgutil.resolve_name(name)
    except (AttributeError, ImportError) as error:
        raise InvalidInputError(
            f"dstl.dfs.metrics: {name!r} cannot be imported in this process ({error}): install its module on "
            "each machine of the job, or ship it with spark.submit.pyFiles"
        ) from error
    if isinstance(hook, type) or not callable(getattr(hook, "record", None)):
        raise InvalidInputError(
            f"dstl.dfs.metrics: {name!r} is no MetricsHook, but {hook!r}: name an instance"
        )
    found: MetricsHook = hook
    return found


def _delete_local(handle: StreamStateHandle) -> None:
    Path(handle.name).unlink(missing_ok=True)


def limit_local_copies(directory: Path | None, max_bytes: int) -> None:
    """Delete the oldest copies until the rest takes at most `max_bytes`. None, or unreadable: nothing.

    A Spark task ends before its checkpoint completes, so its copies stay. They are a cache: without one, the
    durable file is read. Safe beside other processes that write, read or limit the same copies. One that
    cannot be deleted stays.
    """
    found, there = [], []
    if directory is not None:
        with suppress(OSError):
            there = [*directory.iterdir()]
    for each in there:
        with suppress(OSError):
            stat = each.stat()
            found.append((stat.st_mtime_ns, stat.st_size, each))
    excess_bytes = sum(size for _, size, _ in found) - max_bytes
    for _, size, copy in sorted(found):
        if excess_bytes <= 0:
            return
        with suppress(OSError):
            copy.unlink(missing_ok=True)
            excess_bytes -= size


class FsStateChangelogStorageView(Closing):
    """Reads only: for recovery. Files of a remote store are cached on disk while they are read."""

    def __init__(self, store: ObjectStore, options: FsStateChangelogOptions | None = None) -> None:
        self._store = store
        self._cache = ReadCache(0).with_disk(options or FsStateChangelogOptions())

    def create_reader(self) -> ChangelogReader:
        """A reader of handles, with this view's cache."""
        return ChangelogReader(self._store, cache=self._cache)

    def close(self) -> None:
        """Delete what is cached and end the thread. May be called again."""
        self._cache.close()


class FsStateChangelogStorageFactory:
    """Makes storages from configuration under upstream's keys."""

    IDENTIFIER: Final = "filesystem"

    @property
    def identifier(self) -> str:
        """The value of `state.changelog.storage` that names this storage."""
        return self.IDENTIFIER

    def create_storage(
        self,
        job_id: uuid.UUID | str,
        store: ObjectStore,
        configuration: Mapping[str, ConfigValue],
        metrics: MetricsHook | None = None,
        local_recovery: LocalRecoveryConfig | None = None,
    ) -> FsStateChangelogStorage:
        """A storage with the options that the configuration holds. InvalidInputError naming a wrong key."""
        options = FsStateChangelogOptions.from_mapping(configuration)
        return FsStateChangelogStorage(job_id, store, options, local_recovery=local_recovery, metrics=metrics)

    def create_storage_view(
        self, store: ObjectStore, configuration: Mapping[str, ConfigValue]
    ) -> FsStateChangelogStorageView:
        """A view for recovery. InvalidInputError naming a wrong key."""
        return FsStateChangelogStorageView(store, FsStateChangelogOptions.from_mapping(configuration))

    @staticmethod
    def configure(
        base_path: str, upload_timeout: timedelta, max_upload_attempts: int
    ) -> dict[str, ConfigValue]:
        """A configuration that chooses this storage, with these values under upstream's keys."""
        return {
            "state.changelog.storage": FsStateChangelogStorageFactory.IDENTIFIER,
            "state.changelog.dstl.dfs.base-path": base_path,
            "state.changelog.dstl.dfs.upload.timeout": upload_timeout,
            "state.changelog.dstl.dfs.upload.max-attempts": max_upload_attempts,
        }
