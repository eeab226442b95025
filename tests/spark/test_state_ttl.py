"""State that ends, through Spark: by the checkpoint's time, and by a column of the rows."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from dstl_dagster.checkpoint import Batch
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.keyed import load_report
from dstl_dagster.settings import StateTtlConfig
from dstl_dagster.spark import register
from dstl_dagster.spark.batch import CheckpointBatch
from dstl_dagster.spark.sink.options import SinkOptions
from dstl_dagster.spark.sink.plan import sink_of
from dstl_dagster.testing.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark


def test_a_merge_starts_anew_where_a_row_has_expired(job: Job) -> None:
    """By processing time: a merged row lives on, `old` of an expired one is null, and all readers agree."""
    clock = VirtualClock()

    def merge(names: list[str], ttl: StateTtlConfig | None = None) -> dict[str, int]:
        changes = job.spark.createDataFrame([(name,) for name in names], "name STRING")
        with CheckpointBatch(job.coordinator, clock=clock) as batch:
            batch.merge_state(
                changes,
                operator="op",
                keys=["name"],
                schema="name STRING, flights INT",
                update={"flights": "coalesce(old.flights, 0) + 1"},
                ttl=ttl,
            )
        job.coordinator.record_report(batch.attempt, load_report(job.coordinator.store, batch.attempt))
        job.coordinator.confirm(batch.attempt)
        job.coordinator.compose_commit()
        clock.advance(timedelta(days=6).total_seconds())
        return {row.name: row.flights for row in job.read_state().collect()}

    assert merge(["a", "b"], StateTtlConfig.processing_time("written", "10 days")) == {"a": 1, "b": 1}
    assert merge(["b"]) == {"a": 1, "b": 2}
    assert merge(["a"]) == {"a": 1, "b": 2}

    register(job.spark)
    known = {"store": job.folder.as_uri(), "job": "job", "operator": "op"}
    found = job.spark.read.format("dstl").options(**known, versionAsOf=2).load()
    assert {row.name: row.flights for row in found.collect()} == {"a": 1, "b": 2}
    options = SinkOptions.of({**known, "keys": "name", "idempotency_key": "x"}, streaming=False)
    attempt, latest = job.coordinator.trigger(), job.coordinator.latest()
    with pytest.raises(InvalidInputError, match="fills column 'written'"):
        sink_of(options, found.drop("written").schema, Batch(job.coordinator, attempt, latest))


def test_a_data_source_ends_rows_by_their_own_time(job: Job) -> None:
    """Options ttl and ttl_column of one write hold for the later ones."""
    register(job.spark)
    known = {"store": job.folder.as_uri(), "job": "job", "operator": "op"}
    for key, rows in {
        "1": "('a', DATE '2026-01-01'), ('b', DATE '2026-01-20')",
        "2": "('c', DATE '2026-01-31'), ('d', NULL)",
    }.items():
        options = {"ttl": "30 days", "ttl_column": "seen"} if key == "1" else {}
        batch = job.spark.sql(f"SELECT * FROM VALUES {rows} AS t(name, seen)")
        batch.write.format("dstl").mode("append").options(
            **known, **options, keys="name", idempotency_key=key
        ).save()
    for at, names in ((1, ["a", "b"]), (2, ["b", "c", "d"])):
        state = job.spark.read.format("dstl").options(**known, at=at).load()
        assert sorted(row.name for row in state.collect()) == names
    changes = job.spark.read.format("dstl").options(**known, table="changes", from_checkpoint=1).load()
    found = changes.where("name = 'a'").collect()
    assert [(row.name, row._change_type, row._checkpoint_id) for row in found] == [("a", "delete", 2)]
