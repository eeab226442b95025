"""The next pass over a state is read meanwhile: one and no more, in order; errors come where they belong."""

from __future__ import annotations

import threading
from contextlib import closing
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.errors import NotFoundError
from dstl_dagster.keyed import keyed_state
from dstl_dagster.keyed.kept_log import collected
from dstl_dagster.keyed.pass_ahead import one_ahead
from dstl_dagster.state import CollectedChanges, StateSchema
from tests.unit.keyed.test_wide_and_many import stored


def test_one_call_is_ahead_and_no_more() -> None:
    """A call begins once the result before its predecessor's was asked for."""
    began = [threading.Event() for _ in range(4)]

    def call(number: int) -> int:
        began[number].set()
        return number

    with closing(one_ahead([partial(call, number) for number in range(4)])) as results:
        assert not began[0].is_set()
        for number in range(4):
            assert next(results) == number
            if number < 3:
                assert began[number + 1].wait(30)
            assert not any(each.is_set() for each in began[number + 2 :])


def test_a_single_call_needs_no_thread() -> None:
    """It is the caller's own."""
    assert list(one_ahead([threading.current_thread])) == [threading.current_thread()]
    assert list(one_ahead([])) == []


def test_an_error_comes_in_its_turn() -> None:
    """After the results before it; leaving early waits for the call under way and makes no other."""
    calls: list[int] = []

    def call(number: int) -> int:
        calls.append(number)
        if number == 1:
            raise NotFoundError("gone")
        return number

    results = one_ahead([partial(call, number) for number in range(3)])
    assert next(results) == 0
    with pytest.raises(NotFoundError, match="gone"):
        next(results)
    calls.clear()
    results = one_ahead([partial(call, number) for number in (0, 2, 3)])
    assert next(results) == 0
    results.close()
    assert calls in ([0], [0, 2])


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
    found = pa.concat_tables(state.tables())
    assert found.sort_by("id").equals(at_once.sort_by("id"))
    assert found.num_rows == len(ids)


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
