"""Columns added, dropped and renamed at random, beside the same history held as rows of numbered columns.

With rows in between or not, bases, restores to any checkpoint, and diffs from every checkpoint to the last.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dstl_dagster.checkpoint import CheckpointCoordinator, change_columns, materialize
from dstl_dagster.keyed import KeyedState, diff_checkpoints, write_rows
from dstl_dagster.state import ColumnChanges, StateSchema
from dstl_dagster.storage import MemoryObjectStore
from tests.profiles import examples

Type = pa.DataType
MAX_PARALLELISM = 11


class Renaming:
    """A history whose columns are dropped and renamed too, beside rows held as dictionaries by key.

    Column `n` of the oracle is a number for life; only `names` says what it is called now.
    """

    KINDS = (pa.int64(), pa.int64(), pa.string())

    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        self.coordinator = CheckpointCoordinator("job", MemoryObjectStore(), owner="test")
        self.names: dict[int, str] = {0: "key"}
        self.kinds: dict[int, Type] = {0: pa.int64()}
        self.rows: dict[int, dict[int, Any]] = {}
        self.past: dict[int, tuple[dict[int, str], dict[int, dict[int, Any]]]] = {}

    def step(self) -> None:
        drop, rename = self.changed()
        alone = self.past and (drop or rename) and self.draw(st.booleans())
        if alone:
            latest = self.coordinator.latest()
            assert latest is not None
            change_columns(self.coordinator, latest, "op", ColumnChanges.of(drop, rename))
        else:
            self.write(ColumnChanges.of(drop, rename))
        self.remember()
        if self.draw(st.integers(0, 3)) == 0:
            materialize(self.coordinator, force=True)
            self.remember()
        if self.draw(st.integers(0, 7)) == 0:
            at = self.draw(st.sampled_from(sorted(self.past)))
            self.coordinator.savepoint(max(self.past), f"s{max(self.past)}")
            self.coordinator.restore(at)
            self.past = {each: known for each, known in self.past.items() if each <= at}
            self.names, self.rows = dict(self.past[at][0]), {k: dict(v) for k, v in self.past[at][1].items()}

    def changed(self) -> tuple[list[str], dict[str, str]]:
        """Drop and rename some columns; the key may be renamed. Names are few, so they come back."""
        if not self.past:
            return [], {}
        drop = [n for n in self.names if n and self.draw(st.booleans())]
        dropped = [self.names.pop(n) for n in drop]
        for row in self.rows.values():
            for n in drop:
                row.pop(n, None)
        rename: dict[str, str] = {}
        for n, name in list(self.names.items()):
            taken = {*self.names.values(), *dropped, *rename}
            free = [each for each in ("key", *"ab") if each not in taken]
            if free and self.draw(st.integers(0, 3)) == 0:
                rename[name] = self.names[n] = self.draw(st.sampled_from(free))
        return dropped, rename

    def write(self, changes: ColumnChanges) -> None:
        taken = {*self.names.values(), *changes.drop, *changes.rename}
        for name in self.draw(st.lists(st.sampled_from("ab"), min_size=1, max_size=2, unique=True)):
            if name not in taken:
                n = max(self.kinds) + 1
                self.names[n], self.kinds[n] = name, self.draw(st.sampled_from(self.KINDS))
        columns = [0, *(n for n in self.names if n and self.draw(st.booleans()))]
        keys = self.draw(st.lists(st.integers(0, 5), unique=True, min_size=0 if self.past else 1, max_size=4))
        deleted = [self.draw(st.integers(0, 4)) == 0 for _ in keys]
        rows = [{n: key if n == 0 else self.draw(self.value(self.kinds[n])) for n in columns} for key in keys]
        attempt = self.coordinator.trigger()
        parent = self.coordinator.latest()
        shown = pa.schema([(self.names[n], self.kinds[n]) for n in columns])
        own = StateSchema.of(shown, [self.names[0]], MAX_PARALLELISM)
        if parent is not None:
            before = KeyedState.of(self.coordinator.store, parent.manifest, "op")
            assert before is not None
            own = changes.applied_to(before.schema, strict=True).evolved_to(own)
        table = pa.table([pa.array([row[n] for row in rows], self.kinds[n]) for n in columns], schema=shown)
        report = write_rows(
            table,
            attempt,
            self.coordinator.store,
            operator="op",
            schema=own,
            deleted=pa.array(deleted, pa.bool_()),
        )
        self.coordinator.record(attempt, [report])
        self.coordinator.confirm(attempt)
        for key, gone, row in zip(keys, deleted, rows, strict=True):
            self.rows.pop(key, None)
            if not gone:
                self.rows[key] = row
        # A new column that the rows left out is not there yet.
        self.names = {n: name for n, name in self.names.items() if name in own.columns.names}

    @staticmethod
    def value(kind: Type) -> st.SearchStrategy[Any]:
        return st.none() | (st.sampled_from(["", "a", "b"]) if kind == pa.string() else st.integers(-3, 3))

    def remember(self) -> None:
        latest = self.coordinator.latest()
        assert latest is not None
        known = (dict(self.names), {key: dict(row) for key, row in self.rows.items()})
        self.past[latest.checkpoint_id] = known

    def check(self) -> None:
        """Every retained checkpoint by its own names, and what changed from each to the last."""
        store = self.coordinator.store
        last = self.coordinator.latest()
        assert last is not None
        for at, (names, rows) in self.past.items():
            manifest = self.coordinator.get(at).manifest
            state = KeyedState.of(store, manifest, "op")
            assert state is not None
            assert sorted(state.schema.columns.names) == sorted(names.values())
            found = [row for table in state.tables() for row in table.to_pylist()]
            wanted = [{name: row.get(n) for n, name in names.items()} for row in rows.values()]
            assert _sorted(found) == _sorted(wanted)
            self.check_diff(at, list(diff_checkpoints(store, manifest, last.manifest, "op")))

    def check_diff(self, at: int, found: list[Any]) -> None:
        before, after = self.past[at][1], self.rows

        # Columns added since are compared, as null before; those that went are not.
        def seen(row: dict[int, Any]) -> dict[str, Any]:
            return {name: row.get(n) for n, name in self.names.items()}

        added = [seen(after[key]) for key in after.keys() - before.keys()]
        removed = [seen(before[key]) for key in before.keys() - after.keys()]
        changed = [seen(after[k]) for k in after.keys() & before.keys() if seen(after[k]) != seen(before[k])]
        for side, wanted in (("added", added), ("removed", removed), ("after", changed)):
            assert _sorted([row for each in found for row in getattr(each, side).to_pylist()]) == _sorted(
                wanted
            )


def _sorted(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


@examples(15, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_columns_are_dropped_and_renamed_at_any_time(data: st.DataObject) -> None:
    """No old value comes back under any name, and none is lost; restores go back to the old names."""
    history = Renaming(data)
    for _ in range(data.draw(st.integers(3, 8))):
        history.step()
    history.check()
