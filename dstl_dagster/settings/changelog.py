"""Options of the changelog storage, under Flink's keys. Owns their defaults, bounds and spellings.

Does not own what the components do with them.

Source: Flink's `FsStateChangelogOptions` and `LocalRecoveryConfig`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings.table import Option, OptionTable, Parse
from dstl_dagster.settings.units import (
    ConfigValue,
    parse_bool,
    parse_duration,
    parse_int,
    parse_memory_size,
    parse_text,
    refuse_unknown,
)

_MB: Final = 1 << 20
_OURS: Final = "dstl.dfs."
_DFS: Final = f"state.changelog.{_OURS}"
_MAX_BUFFER_BYTES: Final = 2**31 - 1


@dataclass(frozen=True)
class FsStateChangelogOptions:
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

    base_path: str | None = None
    compression: Literal["none", "snappy", "zstd"] = "none"
    preemptive_persist_threshold_in_bytes: int = 5 * _MB
    batch_persist_delay: timedelta = timedelta(milliseconds=10)
    batch_persist_size_threshold_bytes: int = 10 * _MB
    upload_buffer_bytes: int = _MB
    num_upload_threads: int = 5
    num_discard_threads: int = 1
    max_in_flight_bytes: int = 100 * _MB
    retry_policy: Literal["none", "fixed"] = "fixed"
    upload_timeout: timedelta = timedelta(seconds=1)
    max_upload_attempts: int = 3
    next_attempt_delay: timedelta = timedelta(milliseconds=500)
    cache_idle_timeout: timedelta = timedelta(minutes=10)
    max_cache_bytes: int = 10 * 1024 * _MB

    def __post_init__(self) -> None:
        _require(
            self.compression in ("none", "snappy", "zstd"),
            "compression",
            self.compression,
            "none, snappy or zstd",
        )
        _require(
            self.retry_policy in ("none", "fixed"), "upload.retry-policy", self.retry_policy, "none or fixed"
        )
        for name, key, lowest in (
            ("preemptive_persist_threshold_in_bytes", "preemptive-persist-threshold", 0),
            ("batch_persist_size_threshold_bytes", "batch.persist-size-threshold", 0),
            ("upload_buffer_bytes", "upload.buffer-size", 1),
            ("num_upload_threads", "upload.num-threads", 1),
            ("num_discard_threads", "discard.num-threads", 1),
            ("max_in_flight_bytes", "upload.max-in-flight", 1),
            ("max_upload_attempts", "upload.max-attempts", 1),
            ("max_cache_bytes", "download.local-cache.max-size", 0),
        ):
            _require(getattr(self, name) >= lowest, key, getattr(self, name), f"{lowest} or more")
        for name, key in (
            ("batch_persist_delay", "batch.persist-delay"),
            ("upload_timeout", "upload.timeout"),
            ("next_attempt_delay", "upload.next-attempt-delay"),
            ("cache_idle_timeout", "download.local-cache.idle-timeout-ms"),
        ):
            _require(getattr(self, name) >= timedelta(0), key, getattr(self, name), "0 or more")
        _require(
            self.upload_buffer_bytes <= _MAX_BUFFER_BYTES,
            "upload.buffer-size",
            self.upload_buffer_bytes,
            f"at most {_MAX_BUFFER_BYTES} bytes",
        )
        _require(
            self.batch_persist_size_threshold_bytes <= self.max_in_flight_bytes,
            "batch.persist-size-threshold",
            self.batch_persist_size_threshold_bytes,
            f"at most upload.max-in-flight ({self.max_in_flight_bytes} bytes)",
        )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, ConfigValue]) -> FsStateChangelogOptions:
        """Options from strings or typed values under our keys or upstream's.

        Keys of other components are ignored; an unknown key under our prefixes is an error. None counts as
        not given. Raises: InvalidInputError naming the key.
        """
        refuse_unknown(mapping, CHANGELOG_KEYS.spellings, (_DFS, _OURS))
        return cls(**CHANGELOG_KEYS.values(mapping))

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


def _require(holds: bool, key: str, value: object, expected: str) -> None:
    if not holds:
        raise InvalidInputError(f"{_OURS}{key}: {value!r} cannot be used: expected {expected}")


def _parse_choice(key: str, value: ConfigValue) -> str:
    return parse_text(key, value).lower()


def _parse_count(key: str, value: ConfigValue) -> int:
    return parse_int(key, value, minimum=1)


def _parse_roots(key: str, value: ConfigValue) -> tuple[Path, ...]:
    """Separated by commas as well, as upstream's; relative ones would mean another place in each process."""
    parts = value if isinstance(value, list | tuple) else re.split(f"[,{os.pathsep}]", parse_text(key, value))
    roots = tuple(Path(part) for part in parts if part)
    if not roots or not all(root.is_absolute() for root in roots):
        raise InvalidInputError(
            f"{key}: {value!r} cannot be used: expected absolute folders such as /var/tmp/dstl"
        )
    return roots


def _parse_compression_enabled(key: str, value: ConfigValue) -> str:
    return "snappy" if parse_bool(key, value) else "none"


_KEYS: Final[Mapping[str, tuple[str, Parse]]] = {
    "base_path": ("base-path", parse_text),
    "compression": ("compression", _parse_choice),
    "preemptive_persist_threshold_in_bytes": ("preemptive-persist-threshold", parse_memory_size),
    "batch_persist_delay": ("batch.persist-delay", parse_duration),
    "batch_persist_size_threshold_bytes": ("batch.persist-size-threshold", parse_memory_size),
    "upload_buffer_bytes": ("upload.buffer-size", parse_memory_size),
    "num_upload_threads": ("upload.num-threads", _parse_count),
    "num_discard_threads": ("discard.num-threads", _parse_count),
    "max_in_flight_bytes": ("upload.max-in-flight", parse_memory_size),
    "retry_policy": ("upload.retry-policy", _parse_choice),
    "upload_timeout": ("upload.timeout", parse_duration),
    "max_upload_attempts": ("upload.max-attempts", _parse_count),
    "next_attempt_delay": ("upload.next-attempt-delay", parse_duration),
    "cache_idle_timeout": ("download.local-cache.idle-timeout-ms", parse_duration),
    "max_cache_bytes": ("download.local-cache.max-size", parse_memory_size),
}
_OURS_ALONE: Final = ("compression", "max_cache_bytes")


def _upstreams(name: str, key: str, parse: Parse) -> dict[str, Parse]:
    """The spellings of upstream's, each with its parser."""
    if name == "compression":
        return dict.fromkeys(
            (f"{each}compression.enabled" for each in (_DFS, _OURS)), _parse_compression_enabled
        )
    return {} if name in _OURS_ALONE else {f"{_DFS}{key}": parse}


CHANGELOG_KEYS: Final = OptionTable(
    Option(name, f"{_OURS}{key}", parse, _upstreams(name, key, parse)) for name, (key, parse) in _KEYS.items()
)
assert {field.name for field in fields(FsStateChangelogOptions)} == set(_KEYS), "every option has a key"


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

        Other keys are ignored. Raises: InvalidInputError if one of the two is given without the other.
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
        """Whether copies are kept."""
        return self.directories is not None


_LOCAL: Final = "execution.checkpointing.local-backup."
LOCAL_RECOVERY_KEYS: Final = OptionTable(
    (
        Option("local_backup_enabled", f"{_LOCAL}enabled", parse_bool),
        Option("local_backup_directories", f"{_LOCAL}dirs", _parse_roots),
    )
)
