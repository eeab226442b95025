"""Reading handles of a log for some key groups, and folding them.

Owns what is asked of each handle, and that a file which several logs need is read once. Does not own how much
is in memory at a time (`keyed_state`, `passes`), nor what folding means (`state`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from dstl_dagster.changelog import ChangelogReader, HandleRead
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, StateTtl
from dstl_dagster.state import StateFold, StateSchema

__all__ = ["Log", "folded_logs"]


class Log(NamedTuple):
    """Changes to fold: their handles in log order, some key groups (ascending, disjoint), and the TTL by
    which rows expire; `None`: all changes as they were written.
    """

    handles: Iterable[ChangelogStateHandle]
    key_groups: Sequence[KeyGroupRange]
    ttl: StateTtl | None


def folded_logs(
    reader: ChangelogReader, schema: StateSchema, logs: Sequence[Log], keys: pa.Table | None = None
) -> list[StateFold]:
    """`folded` for several logs; all in memory on return.

    Opens a file once, and holds a handle that several logs have once. `keys`: only their rows; `None`: all.
    `schema`: must be able to hold rows of every schema in the logs.
    """
    wanted = [_reads_of(log.handles, log.key_groups) for log in logs]
    reads = list(dict.fromkeys(itertools.chain(*wanted)))
    batches = dict(zip(reads, reader.read_all(reads), strict=True))
    folds = []
    for log, log_reads in zip(logs, wanted, strict=True):
        fold = StateFold(schema, log.key_groups, keys, log.ttl)
        for read in log_reads:
            fold.add(batches[read])
        folds.append(fold)
    return folds


def _reads_of(
    handles: Iterable[ChangelogStateHandle], key_groups: Sequence[KeyGroupRange]
) -> list[HandleRead]:
    """What of each handle is needed for these key groups; nothing of those that do not meet them."""
    return [read for handle in handles if (read := _read_of(handle, key_groups)) is not None]


def _read_of(handle: ChangelogStateHandle, key_groups: Sequence[KeyGroupRange]) -> HandleRead | None:
    """What of the handle is needed for these; `None` if nothing is."""
    own = handle.key_group_range
    first, last = own.start_key_group, own.end_key_group
    if not any(each.start_key_group <= last and each.end_key_group >= first for each in key_groups):
        return None
    shared = tuple(both for each in key_groups if (both := own.intersection(each)).number_of_key_groups)
    return HandleRead(handle, shared, views=True) if shared else None
