"""How a job keeps its checkpoints: the settings of the coordinator, as one frozen value.

Owns the keys, their defaults and bounds; keys follow Flink where it has the option, ours begin with
`dstl.checkpoint.` or `dstl.state.materialize.`. Does not own what the coordinator does with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import ClassVar, Self

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings.option_table import KeyedOptions, option
from dstl_dagster.settings.prices import StoragePrices
from dstl_dagster.settings.units import (
    ConfigValue,
    parse_bool,
    parse_count,
    parse_duration,
    parse_float,
    parse_int,
    refuse_unknown,
)


def _parse_ratio(key: str, value: ConfigValue) -> float:
    ratio = parse_float(key, value)
    if ratio <= 0:
        raise InvalidInputError(f"{key} must be above 0, not {ratio}")
    return ratio


@dataclass(frozen=True)
class CheckpointOptions(KeyedOptions):
    """Retention and commit settings of one job.

    Attributes:
        num_retained: completed checkpoints that stay restorable, 1 or more (Flink's
            `execution.checkpointing.num-retained`, whose default is 1; ours is 10, because going back a
            week is why people keep daily state).
        min_age: a checkpoint stays restorable for so long after the next one took its place, also beyond
            `num_retained`, by the clocks of the job's runs and of the store.
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

    num_retained: int = option("execution.checkpointing.num-retained", parse_count, 10)
    min_age: timedelta = option("dstl.checkpoint.min-age", parse_duration, timedelta(0))
    reader_grace: timedelta = option("dstl.checkpoint.reader-grace", parse_duration, timedelta(hours=1))
    commit_threads: int = option("dstl.checkpoint.commit-threads", parse_count, 8)
    snapshot_interval: int = option("dstl.checkpoint.snapshot-interval", partial(parse_int, minimum=8), 32)
    materialize: bool = option("dstl.state.materialize.enabled", parse_bool, True)
    materialize_log_ratio: float = option("dstl.state.materialize.log-ratio", _parse_ratio, 0.5)
    materialize_max_runs: int = option("dstl.state.materialize.max-runs", partial(parse_int, minimum=2), 6)
    ignore_unclaimed_state: bool = option(
        "execution.state-recovery.ignore-unclaimed-state", parse_bool, False
    )
    prices: StoragePrices = field(default_factory=StoragePrices)

    prefixes: ClassVar[tuple[str, ...]] = (
        "dstl.checkpoint.",
        "dstl.prices.",
        "dstl.state.materialize.",
        "execution.checkpointing.num-",
        "execution.state-recovery.",
    )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, ConfigValue]) -> Self:
        """As of `KeyedOptions`, with the prices."""
        refuse_unknown(mapping, cls.table().spellings | StoragePrices.table().spellings, cls.prefixes)
        return cls(**cls.table().values(mapping), prices=StoragePrices.from_mapping(mapping))
