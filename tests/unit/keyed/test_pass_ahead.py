"""The next passes over a state are read meanwhile: so many and no more; errors come where they belong."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.errors import NotFoundError
from dstl_dagster.keyed import keyed_state
from dstl_dagster.keyed.kept_log import collected
from dstl_dagster.keyed.pass_ahead import read_ahead
from dstl_dagster.state import CollectedChanges, StateSchema
from tests.unit.keyed.test_wide_and_many import stored


@pytest.mark.parametrize("count", [1, 2, 7])
def test_so_many_calls_are_ahead_and_no_more(count: int) -> None:
    """A call begins once the result before those ahead of it was asked for; all that may, at once."""
    began = [threading.Event() for _ in range(5)]

    def call(number: int) -> int:
        began[number].set()
        for each in range(min(number, 5 - count) + count):  # those that are under way beside it
            assert began[each].wait(30)
        return number

    with closing(read_ahead([partial(call, number) for number in range(5)], count)) as results:
        assert not began[0].is_set()
        for number in range(5):
            assert next(results) == number
            assert all(each.wait(30) for each in began[: number + 1 + count])
            assert not any(each.is_set() for each in began[number + 1 + count :])


def test_a_single_call_needs_no_thread() -> None:
    """It is the caller's own."""
    assert list(read_ahead([threading.current_thread])) == [threading.current_thread()]
    assert list(read_ahead([])) == []


def test_an_error_comes_in_its_turn() -> None:
    """After the results before it; leaving early waits for the call under way and makes no other."""
    calls: list[int] = []

    def call(number: int) -> int:
        calls.append(number)
        if number == 1:
            raise NotFoundError("gone")
        return number

    results = read_ahead([partial(call, number) for number in range(3)])
    assert next(results) == 0
    with pytest.raises(NotFoundError, match="gone"):
        next(results)
    calls.clear()
    results = read_ahead([partial(call, number) for number in (0, 2, 3)])
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
