"""How a job keeps its checkpoints: the settings of the coordinator, as one frozen value.

Names of keys follow Flink where Flink has the option; ours begin with `dstl.checkpoint.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings.units import ConfigValue, parse_duration, parse_int, pick, refuse_unknown

__all__ = ["CheckpointOptions"]

_NUM_RETAINED = ("execution.checkpointing.num-retained", "state.checkpoints.num-retained")
_READER_GRACE = ("dstl.checkpoint.reader-grace",)
_COMMIT_THREADS = ("dstl.checkpoint.commit-threads",)
_KNOWN = (*_NUM_RETAINED, *_READER_GRACE, *_COMMIT_THREADS, "num_retained", "reader_grace", "commit_threads")


@dataclass(frozen=True)
class CheckpointOptions:
    """Retention and commit settings of one job.

    Attributes:
        num_retained: completed checkpoints that stay restorable, 1 or more (Flink's
            `execution.checkpointing.num-retained`, whose default is 1; ours is 10, because going back a
            week is why people keep daily state).
        reader_grace: how long what a subsumed checkpoint alone needs stays readable after it was subsumed.
        commit_threads: files that are composed side by side.
    """

    num_retained: int = 10
    reader_grace: timedelta = timedelta(hours=1)
    commit_threads: int = 8

    def __post_init__(self) -> None:
        if self.num_retained < 1:
            raise InvalidInputError(f"{_NUM_RETAINED[0]} must be 1 or more, not {self.num_retained}")
        if self.reader_grace < timedelta(0):
            raise InvalidInputError(f"{_READER_GRACE[0]} must not be negative: {self.reader_grace}")
        if self.commit_threads < 1:
            raise InvalidInputError(f"{_COMMIT_THREADS[0]} must be 1 or more, not {self.commit_threads}")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, ConfigValue]) -> CheckpointOptions:
        """From configuration texts; a key that is not given keeps its default.

        Raises: InvalidInputError naming the key.
        """
        refuse_unknown(
            mapping, _KNOWN, ("dstl.checkpoint.", "execution.checkpointing.num-", "state.checkpoints.num-")
        )
        values: dict[str, Any] = {}
        if found := pick(mapping, *_NUM_RETAINED, "num_retained"):
            values["num_retained"] = parse_int(*found, minimum=1)
        if found := pick(mapping, *_READER_GRACE, "reader_grace"):
            values["reader_grace"] = parse_duration(*found)
        if found := pick(mapping, *_COMMIT_THREADS, "commit_threads"):
            values["commit_threads"] = parse_int(*found, minimum=1)
        return cls(**values)
