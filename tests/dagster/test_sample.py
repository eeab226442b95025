"""The page of an operator shows some of the rows that a checkpoint changed, where it is asked to."""

# No postponed annotations here: Dagster reads the types of an asset's arguments as objects.

from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

import dstl_dagster as dstl
from dstl_dagster.errors import FormatError
from dstl_dagster.orchestration.report import sample
from tests.dagster.memory_store import MemoryStore

pytestmark = pytest.mark.dagster

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("gone", pa.bool_())])


def shown(store: MemoryStore, asked: int, rows: list[tuple[int, str, bool]]) -> Any:
    """What the newest event of the operator has, after a run with these rows."""
    job = dstl.JobAssets("people", operators=("names",), sample=asked)

    @dstl.checkpointed_asset(job, keys=["id"], delete="gone")
    def names() -> pa.Table:
        return pa.table([*map(list, zip(*rows, strict=True))], schema=COLUMNS)

    # As in a project, the function's run finds what is asked for at the asset of the operator.
    assert store.run(names, *dstl.checkpoint_asset_specs(job), selection=[names.key]).success
    found = store.event(job.operator_key("names")).metadata.get("sample")
    return None if found is None else sorted(str(found.value).split("  \n"))


def test_old_and_new_rows_stand_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first checkpoint, of one that changes, adds and deletes, and of a part; none where unasked."""
    with dg.DagsterInstance.ephemeral() as instance:
        store = MemoryStore("memory://sample", instance)
        assert shown(store, 5, [(1, "ada", False), (2, "bob", False)]) == [
            "id `1` is new: name `ada`",
            "id `2` is new: name `bob`",
        ]
        assert shown(store, 5, [(1, "A\nd`a", False), (2, "", True), (3, "x" * 30, False)]) == [
            "id `1`: name `ada` → `A d'a`",
            "id `2` is gone: name `bob`",
            f"id `3` is new: name `{'x' * 22}…`",
        ]
        assert shown(store, 5, [(1, "A\nd`a", False)]) is None, "nothing differs"
        assert len(shown(store, 2, [(4, "a", False), (5, "b", False), (6, "c", False)])) == 2

        def damaged(*_: Any) -> Any:
            raise FormatError("a file is damaged")

        monkeypatch.setattr(sample, "diff_checkpoints", damaged)
        assert "cannot be shown: a file is damaged" in shown(store, 5, [(7, "d", False)])[0]
        assert shown(store, 0, [(8, "e", False)]) is None
