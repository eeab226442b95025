"""When an operator's log is folded or compacted, and which key groups of it. Pure.

Owns the pace of both, from the sizes that a manifest records. Does not own writing (`bases`, `compaction`).

A large state is folded in slices, one range of key groups after the other, so that no checkpoint writes all
of it. The slices of a round are spread over the checkpoints in which the log grows to what makes it due: so
each key group is rewritten as often as if all were folded together, and has as long a log. In between, the
log is compacted: a checkpoint does one of both, so that none waits long.
"""

from __future__ import annotations

import math
from typing import Final

from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed.compaction import compaction_turn, is_worth_compacting
from dstl_dagster.keyed.manifest import BaseAndLog
from dstl_dagster.settings import CheckpointOptions

__all__ = ["due_key_groups", "is_due", "key_groups_to_compact"]

MAX_SLICES: Final = 128
"""Of one round. A slice reads its part of every file of the log: with many more, that would take longer than
the rest."""


def is_due(sizes: BaseAndLog, options: CheckpointOptions) -> bool:
    """Whether the log is long enough for all of it to be folded. Pure."""
    return _progress(sizes, options) >= 1


def due_key_groups(
    sizes: BaseAndLog, own_bytes: int, max_parallelism: int, options: CheckpointOptions
) -> KeyGroupRange:
    """The key groups that the next checkpoint folds: those whose turn it is; `EMPTY` if none are due. Pure.

    At most a slice, or if that is more, as much of the base as the checkpoint's own changes of `own_bytes`
    are of what makes the log due: so no log outgrows its folding.
    """
    slice_ = _slice(sizes, max_parallelism, options)
    left = max_parallelism - sizes.folded_key_groups
    behind = _behind(sizes, max_parallelism, options)
    if behind < min(slice_, left):
        return KeyGroupRange.EMPTY
    paid = math.ceil(max_parallelism * own_bytes / max(1.0, _due_bytes(sizes, options)))
    count = min(behind, max(slice_, paid))
    return KeyGroupRange.of(sizes.folded_key_groups, sizes.folded_key_groups + count - 1)


def _slice(sizes: BaseAndLog, max_parallelism: int, options: CheckpointOptions) -> int:
    """The number of key groups of a slice."""
    slices = min(sizes.base_bytes // options.materialize_slice_bytes, MAX_SLICES, max_parallelism)
    return math.ceil(max_parallelism / max(slices, 1))


def _behind(sizes: BaseAndLog, max_parallelism: int, options: CheckpointOptions) -> int:
    """So many key groups should have been folded and are not: in time, all are when the log is due."""
    return math.floor(min(1.0, _progress(sizes, options)) * max_parallelism) - sizes.folded_key_groups


def key_groups_to_compact(
    sizes: BaseAndLog, own_bytes: int, max_parallelism: int, options: CheckpointOptions
) -> KeyGroupRange:
    """Those whose changes the next checkpoint compacts instead of folding some; `EMPTY` if none. Pure.

    `own_bytes`: of the checkpoint's own changes; one without any compacts nothing.
    """
    slice_ = _slice(sizes, max_parallelism, options)
    due_bytes = _due_bytes(sizes, options)
    if (
        slice_ == max_parallelism
        or _behind(sizes, max_parallelism, options) >= 2 * slice_  # folding must keep pace
        or not is_worth_compacting(own_bytes, due_bytes, options.materialize_max_checkpoints)
    ):
        return KeyGroupRange.EMPTY
    return compaction_turn(sizes.checkpoints, max_parallelism)


def _progress(sizes: BaseAndLog, options: CheckpointOptions) -> float:
    """How far the log has grown towards being folded; at 1 it is due.

    By bytes: to `materialize_log_ratio` times the base, which bounds write amplification. A log below
    `materialize_min_log_bytes` waits for some checkpoints more. Or by the number of checkpoints alone.
    """
    if not sizes.checkpoints:
        return 0.0
    by_bytes = sizes.log_bytes / max(1.0, _due_bytes(sizes, options))
    by_checkpoints = sizes.checkpoints / options.materialize_max_checkpoints
    if sizes.log_bytes >= options.materialize_log_ratio * sizes.base_bytes:
        by_checkpoints = max(by_checkpoints, sizes.checkpoints / options.materialize_min_checkpoints)
    return max(by_bytes, by_checkpoints)


def _due_bytes(sizes: BaseAndLog, options: CheckpointOptions) -> float:
    return max(options.materialize_min_log_bytes, options.materialize_log_ratio * sizes.base_bytes)
