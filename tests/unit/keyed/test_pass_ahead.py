"""The next passes over a state are read meanwhile: so many and no more; errors come where they belong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed.read import keyed_state
from dstl_dagster.keyed.read.keyed_state import _passes
from dstl_dagster.state import StateSchema
from tests.unit.keyed.test_wide_and_many import stored


def test_rows_are_the_same_in_any_number_of_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a pass holds, and whichever thread reads it."""
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


def test_a_pass_has_as_many_key_groups_as_the_largest_split() -> None:
    """Of ranges that are far apart several together."""
    of = KeyGroupRange.of
    assert _passes([of(0, 3), of(4, 7)], [of(0, 7)]) == [[of(0, 3)], [of(4, 7)]]
    assert _passes([of(0, 3), of(4, 7)], [of(0, 1), of(5, 5)]) == [[of(0, 1), of(5, 5)]]
