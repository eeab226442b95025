"""Options of the changelog storage, under Flink's keys. Owns their defaults, bounds and spellings.

Does not own what the components do with them.

Source: Flink's `FsStateChangelogOptions` and `LocalRecoveryConfig`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings.option_table import KeyedOptions, Option, OptionTable, Parse, option
from dstl_dagster.settings.units import (
    ConfigValue,
    parse_bool,
    parse_choice,
    parse_count,
    parse_duration,
    parse_memory_size,
    parse_text,
)

_MB: Final = 1 << 20
_OURS: Final = "dstl.dfs."
_DFS: Final = f"state.changelog.{_OURS}"
_MAX_BUFFER_BYTES: Final = 2**31 - 1
_PLACE_IN_CODE: Final = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")


def _parse_compression_enabled(key: str, value: ConfigValue) -> str:
    return "snappy" if parse_bool(key, value) else "none"


def _parse_buffer_size(key: str, value: ConfigValue) -> int:
    size = parse_memory_size(key, value, minimum=1)
    if size > _MAX_BUFFER_BYTES:
        raise InvalidInputError(
            f"{key}: {value!r} cannot be used: expected at most {_MAX_BUFFER_BYTES} bytes"
        )
    return size


def _parse_place_in_code(key: str, value: ConfigValue) -> str:
    text = parse_text(key, value)
    if not _PLACE_IN_CODE.fullmatch(text):
        raise InvalidInputError(f"{key}: {value!r} cannot be used: expected package.module:name")
    return text


def _dfs(key: str, parse: Parse, default: Any = None) -> Any:
    """An option that upstream has as well."""
    return option(f"{_OURS}{key}", parse, default, {f"{_DFS}{key}": parse})


@dataclass(frozen=True)
class FsStateChangelogOptions(KeyedOptions):
    """How changes are written, batched, retried, limited and cached. Frozen; InvalidInputError names the key.

    Each field's key begins with `dstl.dfs.`, or as upstream's with `state.changelog.dstl.dfs.`.

    Attributes:
        base_path: `base-path`; root for changelog files, inside the store. `None`: the store's own root.
        compression: `compression.enabled` (true: snappy), or ours: `compression` (none, snappy, zstd).
        preemptive_persist_threshold_in_bytes: `preemptive-persist-threshold`; pending bytes of one writer
            at which they are uploaded without waiting for a checkpoint (inclusive).
        batch_persist_delay: `batch.persist-delay`; how long a request waits for others to share its file.
        batch_persist_size_threshold_bytes: `batch.persist-size-threshold`; waiting bytes of all writers at
            which the wait ends (inclusive).
        upload_buffer_bytes: `upload.buffer-size`; bytes encoded and sent at a time.
        num_upload_threads: `upload.num-threads`. For a folder, capped at the number of cores (2 at least).
        num_discard_threads: `discard.num-threads`.
        max_in_flight_bytes: `upload.max-in-flight`; at this many bytes `upload` blocks.
        retry_policy: `upload.retry-policy`: `fixed` or `none`.
        upload_timeout: `upload.timeout`; after it a second attempt runs alongside. 0: never. `fixed` only.
        max_upload_attempts: `upload.max-attempts`, including the first. `fixed` only.
        next_attempt_delay: `upload.next-attempt-delay`, after a failure other than a time-out.
        cache_idle_timeout: `download.local-cache.idle-timeout-ms`; an unused cached file is deleted after it.
        max_cache_bytes: `download.local-cache.max-size` (ours); disk space of all cached files together.
        metrics: `metrics` (ours); `package.module:name` of a `MetricsHook`, which each process imports that
            uploads, a Spark task's too. `None`: what a process measures is dropped.

    Upstream's keys are also constants, under the names of upstream's options:
    `from_mapping({FsStateChangelogOptions.UPLOAD_TIMEOUT: timedelta(seconds=30)})`.
    """

    BASE_PATH: ClassVar[str] = f"{_DFS}base-path"
    COMPRESSION_ENABLED: ClassVar[str] = f"{_DFS}compression.enabled"
    PREEMPTIVE_PERSIST_THRESHOLD: ClassVar[str] = f"{_DFS}preemptive-persist-threshold"
    PERSIST_DELAY: ClassVar[str] = f"{_DFS}batch.persist-delay"
    PERSIST_SIZE_THRESHOLD: ClassVar[str] = f"{_DFS}batch.persist-size-threshold"
    UPLOAD_BUFFER_SIZE: ClassVar[str] = f"{_DFS}upload.buffer-size"
    NUM_UPLOAD_THREADS: ClassVar[str] = f"{_DFS}upload.num-threads"
    NUM_DISCARD_THREADS: ClassVar[str] = f"{_DFS}discard.num-threads"
    IN_FLIGHT_DATA_LIMIT: ClassVar[str] = f"{_DFS}upload.max-in-flight"
    RETRY_POLICY: ClassVar[str] = f"{_DFS}upload.retry-policy"
    UPLOAD_TIMEOUT: ClassVar[str] = f"{_DFS}upload.timeout"
    RETRY_MAX_ATTEMPTS: ClassVar[str] = f"{_DFS}upload.max-attempts"
    RETRY_DELAY_AFTER_FAILURE: ClassVar[str] = f"{_DFS}upload.next-attempt-delay"
    CACHE_IDLE_TIMEOUT: ClassVar[str] = f"{_DFS}download.local-cache.idle-timeout-ms"

    base_path: str | None = _dfs("base-path", parse_text)
    compression: Literal["none", "snappy", "zstd"] = option(
        f"{_OURS}compression",
        partial(parse_choice, choices=("none", "snappy", "zstd")),
        "none",
        dict.fromkeys((f"{each}compression.enabled" for each in (_DFS, _OURS)), _parse_compression_enabled),
    )
    preemptive_persist_threshold_in_bytes: int = _dfs(
        "preemptive-persist-threshold", parse_memory_size, 5 * _MB
    )
    batch_persist_delay: timedelta = _dfs("batch.persist-delay", parse_duration, timedelta(milliseconds=10))
    batch_persist_size_threshold_bytes: int = _dfs(
        "batch.persist-size-threshold", parse_memory_size, 10 * _MB
    )
    upload_buffer_bytes: int = _dfs("upload.buffer-size", _parse_buffer_size, _MB)
    num_upload_threads: int = _dfs("upload.num-threads", parse_count, 5)
    num_discard_threads: int = _dfs("discard.num-threads", parse_count, 1)
    max_in_flight_bytes: int = _dfs("upload.max-in-flight", partial(parse_memory_size, minimum=1), 100 * _MB)
    retry_policy: Literal["none", "fixed"] = _dfs(
        "upload.retry-policy", partial(parse_choice, choices=("none", "fixed")), "fixed"
    )
    upload_timeout: timedelta = _dfs("upload.timeout", parse_duration, timedelta(seconds=1))
    max_upload_attempts: int = _dfs("upload.max-attempts", parse_count, 3)
    next_attempt_delay: timedelta = _dfs(
        "upload.next-attempt-delay", parse_duration, timedelta(milliseconds=500)
    )
    cache_idle_timeout: timedelta = _dfs(
        "download.local-cache.idle-timeout-ms", parse_duration, timedelta(minutes=10)
    )
    max_cache_bytes: int = option(f"{_OURS}download.local-cache.max-size", parse_memory_size, 10 * 1024 * _MB)
    metrics: str | None = option(f"{_OURS}metrics", _parse_place_in_code)

    prefixes: ClassVar[tuple[str, ...]] = (_DFS, _OURS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_persist_size_threshold_bytes > self.max_in_flight_bytes:
            raise InvalidInputError(
                f"{_OURS}batch.persist-size-threshold: {self.batch_persist_size_threshold_bytes} cannot be "
                f"used: expected at most upload.max-in-flight ({self.max_in_flight_bytes} bytes)"
            )

    @classmethod
    def for_batches(cls, **values: Any) -> FsStateChangelogOptions:
        """The options for a changelog that one task writes in one go, with these values on top.

        Unlike upstream's defaults they suit a batch: larger files, a time-out that a busy machine does not
        reach, and no wait for other writers to share a file (a task is alone in its process).
        """
        defaults: dict[str, Any] = {
            "compression": "zstd",
            "preemptive_persist_threshold_in_bytes": 16 * _MB,
            "batch_persist_size_threshold_bytes": 16 * _MB,
            "batch_persist_delay": timedelta(0),
            "num_upload_threads": 2,
            "upload_timeout": timedelta(seconds=60),
        }
        return cls(**{**defaults, **values})


def _parse_roots(key: str, value: ConfigValue) -> tuple[Path, ...]:
    """Separated by commas as well, as upstream's; relative ones would mean another place in each process."""
    parts = value if isinstance(value, list | tuple) else re.split(f"[,{os.pathsep}]", parse_text(key, value))
    roots = tuple(Path(part) for part in parts if part)
    if not roots or not all(root.is_absolute() for root in roots):
        raise InvalidInputError(
            f"{key}: {value!r} cannot be used: expected absolute folders such as /var/tmp/dstl"
        )
    return roots


@dataclass(frozen=True)
class LocalRecoveryConfig:
    """Whether a copy of each changelog file stays on this machine's disk, and where.

    `directories` are allocation roots; a job uses one of them. None: no local copies.
    """

    directories: tuple[Path, ...] | None

    def __post_init__(self) -> None:
        if self.directories is not None and not self.directories:
            raise InvalidInputError(
                "local recovery needs a directory for its copies: LocalRecoveryConfig.enabled(path)"
            )

    @classmethod
    def disabled(cls) -> LocalRecoveryConfig:
        """No local copies."""
        return cls(None)

    @classmethod
    def enabled(cls, directory: str | os.PathLike[str], *more: str | os.PathLike[str]) -> LocalRecoveryConfig:
        """Local copies below `directory` (or one of several), which is created on first use."""
        return cls(tuple(Path(path).absolute() for path in (directory, *more)))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, ConfigValue]) -> LocalRecoveryConfig:
        """From upstream's keys: `execution.checkpointing.local-backup.enabled` (default: false) and `.dirs`.

        Other keys are ignored. Raises: InvalidInputError if only one of the two is set.
        """
        found = LOCAL_RECOVERY_KEYS.values(mapping)
        enabled, directories = found.get("local_backup_enabled"), found.get("local_backup_directories")
        if enabled is None and directories is not None:
            raise InvalidInputError(f"{_LOCAL}dirs does nothing alone: set {_LOCAL}enabled to true as well")
        if not enabled:
            return cls.disabled()
        if directories is None:
            raise InvalidInputError(f"{_LOCAL}enabled needs {_LOCAL}dirs, such as /var/tmp/dstl")
        return cls.enabled(*directories)

    @property
    def is_local_backup_enabled(self) -> bool:
        return self.directories is not None


_LOCAL: Final = "execution.checkpointing.local-backup."
LOCAL_RECOVERY_KEYS: Final = OptionTable(
    (
        Option("local_backup_enabled", f"{_LOCAL}enabled", parse_bool),
        Option("local_backup_directories", f"{_LOCAL}dirs", _parse_roots),
    )
)
