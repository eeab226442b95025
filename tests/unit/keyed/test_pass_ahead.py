"""The next passes over a state are read meanwhile: so many and no more; errors come where they belong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.keyed import keyed_state
from dstl_dagster.keyed.kept_log import collected
from dstl_dagster.state import CollectedChanges, StateSchema
from tests.unit.keyed.test_wide_and_many import stored


def test_rows_are_the_same_in_any_number_of_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a pass holds, and whichever thread reads it; the log's file is read once."""
    schema = StateSchema.of(pa.schema({"id": pa.int64(), "text": pa.string()}), ["id"], 16)
    ids = np.arange(20_000)
    tables = [
        pa.table({"id": each, "text": [f"{n} of {i}" for i in each]})
        for n, each in enumerate((ids, ids[::7]))
    ]
    state, _ = stored(schema, *tables)
    at_once = pa.concat_tables(state.tables())
    monkeypatch.setattr(keyed_state, "_SPLIT_BYTES", 200_000)
    assert len(state.ranges()) == 3
    for ahead in (1, 2, 3):
        found = pa.concat_tables(replace(state, ahead=ahead).tables())
        assert found.sort_by("id").equals(at_once.sort_by("id"))
        assert found.num_rows == len(ids)
        sought = pa.table({"id": ids[::3]})
        rows = replace(state, ahead=ahead).rows(sought).sort_by("id")
        assert rows.equals(at_once.sort_by("id").take(sought.column("id")))


def test_a_task_has_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that opens a state by itself reads as many passes ahead as it has cores, up to three."""
    schema = StateSchema.of(pa.schema({"id": pa.int64()}), ["id"], 2)
    for cores, ahead in ((1, 1), (2, 2), (64, 3), (None, 1)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        state, _ = stored(schema, pa.table({"id": [1]}))
        assert state.ahead == ahead
        assert state.at.opened(state.store).ahead == 1


def test_tiny_changes_are_not_collected() -> None:
    """What finds them by key group would take many times their bytes."""
    schema = StateSchema.of(pa.schema({"id": pa.int64()}), ["id"], 2)
    state, _ = stored(schema, pa.table({"id": np.arange(1000)}))
    (handle,) = state.handles
    with state.reading() as reader:
        log = list(reader.read_batches(handle))
    assert isinstance(collected(handle, log), CollectedChanges)
    few = type(handle)(handle.handles_and_offsets, handle.key_group_range, 100, 100)
    assert collected(few, log) is log
