"""A whole job as one file: every object that it left, and what a reader must find in them for ever.

    python tests/compat/golden_job.py FILE

makes such a file: every kind of record, keyed state that was merged as a whole and in
parts, lists of runs, files, a savepoint, a blocked file that was resolved, a restore,
clean-ups, snapshots, the archive and the hint.
"""

from __future__ import annotations

import base64
import itertools
import json
import sys
import uuid
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator, FileReport, materialize
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed import KeyedState, SharedFiles, with_merge, write_rows
from dstl_dagster.keyed.merge.policy import DueMerge
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.settings import CheckpointOptions
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import ABSENT, ANY, MemoryObjectStore
from dstl_dagster.testing.virtual_clock import VirtualClock

JOB = "orders"
OPERATOR = "totals"
SCHEMA = StateSchema.of(pa.schema({"key": pa.int64(), "total": pa.decimal128(12, 2)}), ["key"], 8)


def load(path: Path) -> tuple[MemoryObjectStore, dict[str, Any]]:
    """The job's store as it was, generations too, and what must be found in it."""
    golden = json.loads(path.read_text(encoding="utf-8"))
    store = MemoryObjectStore()
    generations = itertools.count(1)
    for item in golden["objects"]:
        while next(generations) < item["generation"]:
            store.put("between", b"", precondition=ANY)
        payload = item["text"].encode() if "text" in item else base64.b64decode(item["base64"])
        made = store.put(item["name"], payload, precondition=ABSENT, metadata=item["metadata"])
        assert made.generation == item["generation"]
    store.delete("between", precondition=ANY)
    return store, golden["expected"]


def dump(store: MemoryObjectStore, expected: dict[str, Any]) -> str:
    """The store as one JSON document, its objects in the order in which they were made."""
    stats = [store.stat(listed.name) for listed in store.list("")]
    objects = []
    for stat in sorted((stat for stat in stats if stat is not None), key=lambda stat: stat.generation):
        payload = store.get(stat.name)
        try:
            content = {"text": payload.decode("utf-8")}
        except UnicodeDecodeError:
            content = {"base64": base64.b64encode(payload).decode("ascii")}
        objects.append(
            {"name": stat.name, "generation": stat.generation, "metadata": dict(stat.metadata), **content}
        )
    return json.dumps({"objects": objects, "expected": expected}, indent=1) + "\n"


def found(store: MemoryObjectStore) -> dict[str, Any]:
    """What this release finds in a job: records, rows, files, and answers to queries."""
    coordinator = CheckpointCoordinator(JOB, store)
    view = coordinator.timeline.tail()
    return {
        "records": [record.to_json() for record in coordinator.timeline.records()],
        "latest": view.last_completed_id,
        "listed": [each.checkpoint_id for each in coordinator.list()],
        "savepoints": dict(view.savepoints),
        "open": None if view.open_attempt is None else str(view.open_attempt.attempt),
        "applied": {key: coordinator.applied(key) for key in ("one", "two", "three", "four", "never")},
        "rows": {str(each.checkpoint_id): _rows(store, each.manifest) for each in coordinator.list()},
        "positions": {str(each.checkpoint_id): each.positions for each in coordinator.list()},
        "files": {stat.name: store.get(stat.name).decode() for stat in store.list("out/")},
        "whole": [coordinator.verify(each.checkpoint_id).ok for each in coordinator.list()],
    }


def _rows(store: MemoryObjectStore, manifest: Any) -> dict[str, str]:
    state = KeyedState.of(store, manifest, OPERATOR)
    rows = [] if state is None else [row for table in state.tables() for row in table.to_pylist()]
    return {str(row["key"]): str(row["total"]) for row in sorted(rows, key=lambda row: row["key"])}


class _Maker:
    """A job that exercises everything once."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryObjectStore(clock=self.clock)
        options = CheckpointOptions(
            num_retained=3, reader_grace=timedelta(minutes=1), commit_threads=1, snapshot_interval=16
        )
        self.coordinator = CheckpointCoordinator(JOB, self.store, options, owner="one", clock=self.clock)
        self.rival = CheckpointCoordinator(JOB, self.store, options, owner="two", clock=self.clock)

    def make(self) -> None:
        coordinator, store = self.coordinator, self.store
        coordinator.abort(coordinator.trigger(), "by hand")
        coordinator.trigger()
        self._batch("one", self.rival.trigger(take_over=True, idempotency_key="one"))
        store.put("out/two", b"foreign", precondition=ABSENT)
        attempt = coordinator.trigger(idempotency_key="two")
        report, file = self._reports("two", attempt)
        store.delete("out/two", precondition=ANY)
        coordinator.record(attempt, [report], [file], {"source": "two"})
        store.put("out/two", b"foreign", precondition=ABSENT)
        coordinator.confirm(attempt)
        coordinator.compose_commit()
        coordinator.resolve(2, "out/two", "replace", request_id=uuid.UUID(int=2))
        coordinator.savepoint(1, "first", request_id=uuid.UUID(int=1))
        coordinator.savepoint(2, "short")
        coordinator.release("short")
        self._batch("three", coordinator.trigger(idempotency_key="three"))
        coordinator.restore(2, request_id=uuid.UUID(int=3))
        materialize(coordinator, force=True)
        coordinator.compose_commit()
        slices = {"later 4": KeyGroupRange.of(0, 4), "later 6": KeyGroupRange.of(5, 7)}
        for batch in ("four", *(f"later {number}" for number in range(8))):
            self.clock.advance(60)
            self._batch(batch, coordinator.trigger(idempotency_key=batch), slices.get(batch))
            coordinator.clean_up()
        coordinator.trigger(idempotency_key="never")

    def _batch(self, batch: str, attempt: Attempt, slice_: KeyGroupRange | None = None) -> None:
        report, file = self._reports(batch, attempt)
        coordinator = self.coordinator
        latest = coordinator.latest()
        if slice_ is not None and latest is not None:
            shared = SharedFiles(self.store, attempt)
            report = shared.durable_now(with_merge(report, latest.manifest, DueMerge(slice_, 0), shared))
        coordinator.record(attempt, [report], [file], {"source": batch})
        coordinator.confirm(attempt)
        coordinator.compose_commit()

    def _reports(self, batch: str, attempt: Attempt) -> tuple[Any, FileReport]:
        number = attempt.checkpoint_id
        totals = [Decimal(number), Decimal(10 * number) / 4, None]
        rows = pa.table({"key": [0, number, 100], "total": totals}, SCHEMA.columns)
        deleted = pa.array([False, False, number % 2 == 0])
        report = write_rows(
            rows, attempt, self.store, operator=OPERATOR, schema=SCHEMA, deleted=deleted, partitions=2
        )
        stream = GSRecoverableWriter(self.store, attempt=attempt.attempt).open(
            self.store.uri_of(f"out/{batch}")
        )
        for part in range(2):
            stream.write(f"{batch}, part {part}\n".encode())
            stream.sync()
        committer = stream.close_for_commit()
        return report, FileReport(committer.recoverable, tuple(committer.components), rows=2, format="text")


if __name__ == "__main__":
    maker = _Maker()
    maker.make()
    Path(sys.argv[1]).write_text(dump(maker.store, found(maker.store)), encoding="utf-8")
