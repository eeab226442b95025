"""How a job keeps its checkpoints: the settings of the coordinator, as one frozen value.

Owns the keys, their defaults and bounds; keys follow Flink where it has the option, ours begin with
`dstl.checkpoint.` or `dstl.state.materialize.`. Does not own what the coordinator does with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings.units import (
    ConfigValue,
    parse_bool,
    parse_duration,
    parse_float,
    parse_int,
    parse_memory_size,
    pick,
    refuse_unknown,
)

__all__ = ["CheckpointOptions"]

_NUM_RETAINED = ("execution.checkpointing.num-retained", "state.checkpoints.num-retained")
_READER_GRACE = ("dstl.checkpoint.reader-grace",)
_COMMIT_THREADS = ("dstl.checkpoint.commit-threads",)
_SNAPSHOT_INTERVAL = ("dstl.checkpoint.snapshot-interval",)
_MATERIALIZE = ("dstl.state.materialize.enabled",)
_LOG_RATIO = ("dstl.state.materialize.log-ratio",)
_MIN_LOG = ("dstl.state.materialize.min-log-size",)
_MIN_CHAIN = ("dstl.state.materialize.min-checkpoints",)
_MAX_CHAIN = ("dstl.state.materialize.max-checkpoints",)
_SLICE = ("dstl.state.materialize.slice-size",)
_KNOWN = (
    *(*_MATERIALIZE, *_LOG_RATIO, *_MIN_LOG, *_MIN_CHAIN, *_MAX_CHAIN, *_SLICE),
    *("materialize", "materialize_log_ratio", "materialize_min_log_bytes", "materialize_min_checkpoints"),
    *("materialize_max_checkpoints", "materialize_slice_bytes"),
    *(*_NUM_RETAINED, *_READER_GRACE, *_COMMIT_THREADS, *_SNAPSHOT_INTERVAL),
    *("num_retained", "reader_grace", "commit_threads", "snapshot_interval"),
)


@dataclass(frozen=True)
class CheckpointOptions:
    """Retention and commit settings of one job.

    Attributes:
        num_retained: completed checkpoints that stay restorable, 1 or more (Flink's
            `execution.checkpointing.num-retained`, whose default is 1; ours is 10, because going back a
            week is why people keep daily state).
        reader_grace: how long files that only a subsumed checkpoint needs stay readable after the subsume.
        commit_threads: files composed, and other requests sent, concurrently.
        snapshot_interval: timeline records between snapshots, 8 or more. Finding a job's tail takes at most
            about as many requests.
        materialize: whether a state that is due is folded into a base automatically
            (`dstl.state.materialize.enabled`).
        materialize_log_ratio: due when the log since the base has at least this many times the base's
            bytes, and at least `materialize_min_log_bytes` or `materialize_min_checkpoints`.
        materialize_min_log_bytes: stored bytes.
        materialize_min_checkpoints: checkpoints since the base that hold changes.
        materialize_max_checkpoints: due, whatever the sizes, when this many checkpoints since the base hold
            changes: reading the state reads a manifest for each of them.
        materialize_slice_bytes: a base of twice as many stored bytes or more is folded in slices of about
            this size, at most 16, spread over the checkpoints until it is due. A slice has a key group or
            more.
    """

    num_retained: int = 10
    reader_grace: timedelta = timedelta(hours=1)
    commit_threads: int = 8
    snapshot_interval: int = 32
    materialize: bool = True
    materialize_log_ratio: float = 1.0
    materialize_min_log_bytes: int = 16 * 1024 * 1024
    materialize_min_checkpoints: int = 10
    materialize_max_checkpoints: int = 200
    materialize_slice_bytes: int = 1024 * 1024

    def __post_init__(self) -> None:
        if self.num_retained < 1:
            raise InvalidInputError(f"{_NUM_RETAINED[0]} must be 1 or more, not {self.num_retained}")
        if self.reader_grace < timedelta(0):
            raise InvalidInputError(f"{_READER_GRACE[0]} must not be negative: {self.reader_grace}")
        if self.commit_threads < 1:
            raise InvalidInputError(f"{_COMMIT_THREADS[0]} must be 1 or more, not {self.commit_threads}")
        if self.snapshot_interval < 8:
            raise InvalidInputError(
                f"{_SNAPSHOT_INTERVAL[0]} must be 8 or more, not {self.snapshot_interval}"
            )
        # `not >`, so that NaN is refused too.
        if not self.materialize_log_ratio > 0:
            raise InvalidInputError(f"{_LOG_RATIO[0]} must be above 0, not {self.materialize_log_ratio}")
        if self.materialize_min_log_bytes < 0:
            raise InvalidInputError(f"{_MIN_LOG[0]} must not be negative: {self.materialize_min_log_bytes}")
        if self.materialize_min_checkpoints < 1:
            raise InvalidInputError(
                f"{_MIN_CHAIN[0]} must be 1 or more, not {self.materialize_min_checkpoints}"
            )
        if self.materialize_slice_bytes < 1:
            raise InvalidInputError(f"{_SLICE[0]} must be 1 or more, not {self.materialize_slice_bytes}")
        if self.materialize_max_checkpoints < 1:
            raise InvalidInputError(
                f"{_MAX_CHAIN[0]} must be 1 or more, not {self.materialize_max_checkpoints}"
            )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, ConfigValue], *, alone: bool = False) -> CheckpointOptions:
        """From configuration texts; a key that is not given keeps its default.

        Keys of other components are ignored, as in a whole Flink configuration, unless the mapping is for
        this one `alone`.

        Raises: InvalidInputError naming the key.
        """
        prefixes = (
            "dstl.checkpoint.",
            "dstl.state.materialize.",
            "execution.checkpointing.num-",
            "state.checkpoints.num-",
        )
        refuse_unknown(mapping, _KNOWN, ("",) if alone else prefixes)
        values: dict[str, Any] = {}
        if found := pick(mapping, *_NUM_RETAINED, "num_retained"):
            values["num_retained"] = parse_int(*found, minimum=1)
        if found := pick(mapping, *_READER_GRACE, "reader_grace"):
            values["reader_grace"] = parse_duration(*found)
        if found := pick(mapping, *_COMMIT_THREADS, "commit_threads"):
            values["commit_threads"] = parse_int(*found, minimum=1)
        if found := pick(mapping, *_SNAPSHOT_INTERVAL, "snapshot_interval"):
            values["snapshot_interval"] = parse_int(*found, minimum=8)
        if found := pick(mapping, *_MATERIALIZE, "materialize"):
            values["materialize"] = parse_bool(*found)
        if found := pick(mapping, *_LOG_RATIO, "materialize_log_ratio"):
            values["materialize_log_ratio"] = parse_float(*found)
        if found := pick(mapping, *_MIN_LOG, "materialize_min_log_bytes"):
            values["materialize_min_log_bytes"] = parse_memory_size(*found)
        if found := pick(mapping, *_MIN_CHAIN, "materialize_min_checkpoints"):
            values["materialize_min_checkpoints"] = parse_int(*found, minimum=1)
        if found := pick(mapping, *_SLICE, "materialize_slice_bytes"):
            values["materialize_slice_bytes"] = parse_memory_size(*found)
        if found := pick(mapping, *_MAX_CHAIN, "materialize_max_checkpoints"):
            values["materialize_max_checkpoints"] = parse_int(*found, minimum=1)
        return cls(**values)
