"""How a job keeps its checkpoints: the settings of the coordinator, as one frozen value.

Owns the keys, their defaults and bounds; keys follow Flink where it has the option, ours begin with
`dstl.checkpoint.` or `dstl.state.materialize.`. Does not own what the coordinator does with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Final

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings.prices import PRICE_KEYS, StoragePrices
from dstl_dagster.settings.table import Option, OptionTable
from dstl_dagster.settings.units import (
    ConfigValue,
    parse_bool,
    parse_duration,
    parse_float,
    parse_int,
    refuse_unknown,
)

_NUM_RETAINED = ("execution.checkpointing.num-retained",)
_MIN_AGE = ("dstl.checkpoint.min-age",)
_READER_GRACE = ("dstl.checkpoint.reader-grace",)
_COMMIT_THREADS = ("dstl.checkpoint.commit-threads",)
_SNAPSHOT_INTERVAL = ("dstl.checkpoint.snapshot-interval",)
_MATERIALIZE = ("dstl.state.materialize.enabled",)
_LOG_RATIO = ("dstl.state.materialize.log-ratio",)
_MAX_RUNS = ("dstl.state.materialize.max-runs",)
_IGNORE_UNCLAIMED = ("execution.state-recovery.ignore-unclaimed-state",)


@dataclass(frozen=True)
class CheckpointOptions:
    """Retention and commit settings of one job.

    Attributes:
        num_retained: completed checkpoints that stay restorable, 1 or more (Flink's
            `execution.checkpointing.num-retained`, whose default is 1; ours is 10, because going back a
            week is why people keep daily state).
        min_age: a checkpoint stays restorable for so long after the next one took its place, also beyond
            `num_retained`, by the clocks of the job's runs.
        reader_grace: how long files that only a subsumed checkpoint needs stay readable after the subsume.
        commit_threads: files composed, and other requests sent, concurrently.
        snapshot_interval: timeline records between snapshots, 8 or more. Finding a job's tail takes at most
            about as many requests.
        materialize: whether a batch merges older runs of the state that it writes
            (`dstl.state.materialize.enabled`).
        materialize_log_ratio: space amplification: what was changed since all was merged is merged into it
            once it has at least this many times its bytes.
        materialize_max_runs: log length: so many runs of similar size, 2 or more, are merged to one.
        ignore_unclaimed_state: whether a batch may leave state as it is that its program no longer names,
            instead of being refused (Flink's key, in whose words that is unclaimed).
        prices: at which a checkpoint's requests are shown as money (`dstl.prices.*`).
    """

    num_retained: int = 10
    min_age: timedelta = timedelta(0)
    reader_grace: timedelta = timedelta(hours=1)
    commit_threads: int = 8
    snapshot_interval: int = 32
    materialize: bool = True
    materialize_log_ratio: float = 1.0
    materialize_max_runs: int = 8
    ignore_unclaimed_state: bool = False
    prices: StoragePrices = field(default_factory=StoragePrices)

    def __post_init__(self) -> None:
        if self.num_retained < 1:
            raise InvalidInputError(f"{_NUM_RETAINED[0]} must be 1 or more, not {self.num_retained}")
        if self.min_age < timedelta(0):
            raise InvalidInputError(f"{_MIN_AGE[0]} must not be negative: {self.min_age}")
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
        if self.materialize_max_runs < 2:
            raise InvalidInputError(f"{_MAX_RUNS[0]} must be 2 or more, not {self.materialize_max_runs}")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, ConfigValue], *, alone: bool = False) -> CheckpointOptions:
        """From configuration texts; a key that is not given keeps its default.

        Keys of other components are ignored, as in a whole Flink configuration, unless the mapping is for
        this one `alone`.

        Raises: InvalidInputError naming the key.
        """
        prefixes = (
            "dstl.checkpoint.",
            "dstl.prices.",
            "dstl.state.materialize.",
            "execution.checkpointing.num-",
            "execution.state-recovery.",
        )
        known = CHECKPOINT_KEYS.spellings | PRICE_KEYS.spellings
        refuse_unknown(mapping, known, ("",) if alone else prefixes)
        return cls(**CHECKPOINT_KEYS.values(mapping), prices=StoragePrices.from_mapping(mapping))


def _parse_count(key: str, value: ConfigValue) -> int:
    return parse_int(key, value, minimum=1)


CHECKPOINT_KEYS: Final = OptionTable(
    (
        Option("num_retained", *_NUM_RETAINED, _parse_count),
        Option("min_age", *_MIN_AGE, parse_duration),
        Option("reader_grace", *_READER_GRACE, parse_duration),
        Option("commit_threads", *_COMMIT_THREADS, _parse_count),
        Option("snapshot_interval", *_SNAPSHOT_INTERVAL, lambda key, value: parse_int(key, value, minimum=8)),
        Option("materialize", *_MATERIALIZE, parse_bool),
        Option("materialize_log_ratio", *_LOG_RATIO, parse_float),
        Option("materialize_max_runs", *_MAX_RUNS, lambda key, value: parse_int(key, value, minimum=2)),
        Option("ignore_unclaimed_state", *_IGNORE_UNCLAIMED, parse_bool),
    )
)
assert {each.name for each in fields(CheckpointOptions)} == {
    "prices",  # a table of its own
    *(option.attribute for option in CHECKPOINT_KEYS.options),
}, "every option has a key"
