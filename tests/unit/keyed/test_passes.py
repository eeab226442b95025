"""A state that does not fit in memory: what each pass reads, and what is read once for all of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, StreamStateHandle
from dstl_dagster.keyed import KeyedState, keyed_state, write_rows
from dstl_dagster.keyed.passes import passes, read_at_once
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import LocalObjectStore
from dstl_dagster.testing.fault_store import FaultStore

SCHEMA = StateSchema.of(pa.schema({"id": pa.int64(), "value": pa.int64()}), ["id"], 8)


def of(start: int, end: int) -> KeyGroupRange:
    return KeyGroupRange.of(start, end)


def handle(size: int, start: int = 0, end: int = 7) -> ChangelogStateHandle:
    return ChangelogStateHandle(((StreamStateHandle(f"f{size}", size), 0),), of(start, end), size, size)


def test_what_several_passes_need_is_read_once_while_it_fits() -> None:
    """The smallest first; what one pass needs alone never, nor what is as large as a pass itself."""
    two = [[of(0, 3)], [of(4, 7)]]
    log = [handle(1000), handle(30), handle(20), handle(10, 0, 3), handle(40)]
    assert read_at_once(log, two, 90) == [1, 2, 4]
    assert read_at_once(log, two, 89) == [1, 2]
    assert read_at_once(log, two, 0) == []
    assert read_at_once(log, [[of(0, 7)]], 1 << 30) == []


def test_a_pass_has_as_many_key_groups_as_the_largest_split() -> None:
    """Of ranges that are far apart several together."""
    assert passes([of(0, 3), of(4, 7)], [of(0, 7)]) == [[of(0, 3)], [of(4, 7)]]
    assert passes([of(0, 3), of(4, 7)], [of(0, 1), of(5, 5)]) == [[of(0, 1), of(5, 5)]]


@pytest.mark.parametrize("logs", [2, 4])
def test_a_log_is_opened_once_however_many_passes_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: int
) -> None:
    """Each of its files; the base's one by each pass. The rows are the same as at once."""
    store = FaultStore(LocalObjectStore(tmp_path, durable=False))
    coordinator = CheckpointCoordinator("job", store)
    ids = np.arange(8000)
    for number in range(logs + 1):
        rows = pa.table(
            {"id": ids[number::200] if number else ids, "value": ids[number::200] if number else ids}
        )
        attempt = coordinator.trigger()
        coordinator.record(attempt, [write_rows(store, attempt, "op", SCHEMA, rows)])
        manifest = coordinator.confirm(attempt).manifest
    state = KeyedState.of(store, manifest, "op")
    assert state is not None
    whole = pa.concat_tables(state.tables()).sort_by("id")
    base, *later = state.handles
    monkeypatch.setattr(keyed_state, "_SPLIT_BYTES", base.state_size // 3)
    assert sum(each.state_size for each in later) < base.state_size // 3
    seen = len(store.requests)
    parts = list(state.tables())
    opened = Counter(each.name for each in store.requests[seen:])
    assert len(parts) == 4
    assert pa.concat_tables(parts).sort_by("id").equals(whole)
    assert [opened[each.stream_state_handle().name] for each in later] == [1] * logs
    assert opened[base.stream_state_handle().name] == len(parts)
