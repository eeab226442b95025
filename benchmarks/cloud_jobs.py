"""The jobs that `cloud.py` measures: what lies in the bucket before an operation begins.

Owns making them, as fast as the server takes it. Does not own what is measured.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator, FileReport, OperatorReport
from dstl_dagster.keyed import write_rows
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.settings import CheckpointOptions, JobOptions
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import ObjectStore
from dstl_dagster.testing.gcs_server import GCSServer

__all__ = ["BUCKET", "JOB", "OPERATOR", "Jobs", "coordinator_on"]

BUCKET, JOB, OPERATOR = "bench", "bench", "totals"
SCHEMA = StateSchema.of(pa.schema({"key": pa.int64(), "value": pa.binary()}), ["key"], 128)
_ROWS_A_FILE = 2_000
_MAKERS = 8


def coordinator_on(store: ObjectStore, **options: Any) -> CheckpointCoordinator:
    """One that has read nothing yet: as in a process that begins."""
    return CheckpointCoordinator(JOB, store, CheckpointOptions(materialize=False, **options), owner="bench")


def _rows(first: int, count: int, value_bytes: int) -> pa.Table:
    octets = np.random.default_rng(first).integers(0, 255, count * value_bytes, dtype=np.uint8).tobytes()
    values = [octets[at : at + value_bytes] for at in range(0, len(octets), value_bytes)]
    return pa.table({"key": np.arange(first, first + count), "value": values}, SCHEMA.columns)


class Jobs:
    """Jobs on one server, each below a prefix of its own.

    Args:
        server: where; nothing is slowed down yet.
        open_store: a store below a prefix of the bucket.
    """

    def __init__(self, server: GCSServer, open_store: Callable[[str], ObjectStore]) -> None:
        self._server = server
        self._open_store = open_store

    @property
    def url(self) -> str:
        """Of the server."""
        return self._server.url

    def fresh(self) -> ObjectStore:
        """An empty store."""
        return self._open_store(f"{uuid.uuid4().hex[:8]}/")

    # -- parts of a checkpoint

    def changes(self, store: ObjectStore, attempt: Attempt, first: int = 0, rows: int = 20) -> OperatorReport:
        """One small changelog file."""
        return write_rows(_rows(first, rows, 16), attempt, store, operator=OPERATOR, schema=SCHEMA)

    def shared_files(self, store: ObjectStore, attempt: Attempt, files: int, sets: int) -> OperatorReport:
        """`sets` change sets, as many in each of `files` files: what writers of one process have."""
        report = self._merged(
            partial(self._shared_file, store, attempt, number, sets // files) for number in range(files)
        )
        assert len(_names(report)) == files
        return report

    def _shared_file(self, store: ObjectStore, attempt: Attempt, number: int, sets: int) -> OperatorReport:
        """A file is sent when nothing more has come for so long: as a rule, when all have persisted."""
        delay = timedelta(milliseconds=300)
        rows = _rows(number * _ROWS_A_FILE, _ROWS_A_FILE, 16)
        while True:
            key = "dstl.dfs.batch.persist-delay"
            options = JobOptions.of({key: f"{delay // timedelta(milliseconds=1)} ms"})
            report = write_rows(
                rows, attempt, store, operator=OPERATOR, schema=SCHEMA, partitions=sets, options=options
            )
            assert len(report.handles) == sets
            if len(_names(report)) == 1:
                return report
            delay *= 3  # the machine was busy; what was written is left to a clean-up

    def own_files(self, store: ObjectStore, attempt: Attempt, files: int) -> OperatorReport:
        """So many small files of one change set each."""
        count = max(1, files // 100)
        report = self._merged(
            partial(
                write_rows,
                _rows(number * _ROWS_A_FILE, _ROWS_A_FILE, 16),
                attempt,
                store,
                operator=OPERATOR,
                schema=SCHEMA,
                partitions=files // count,
            )
            for number in range(count)
        )
        assert len(_names(report)) == files
        return report

    def large_files(self, store: ObjectStore, attempt: Attempt, files: int, megabytes: int) -> OperatorReport:
        """Files of random bytes, which do not compress."""
        return self._merged(
            partial(
                write_rows,
                _rows(number * 10**6, megabytes << 10, 1024),
                attempt,
                store,
                operator=OPERATOR,
                schema=SCHEMA,
            )
            for number in range(files)
        )

    def components(self, store: ObjectStore, attempt: Attempt, count: int) -> FileReport:
        """A file of so many components."""
        stream = GSRecoverableWriter(store, attempt=attempt.attempt).open(
            store.uri_of(f"out/{attempt.checkpoint_id}.txt")
        )
        for number in range(count):
            stream.write(b"%d\n" % number)
            stream.sync()
        made = stream.close_for_commit()
        return FileReport(made.recoverable, tuple(made.components), rows=count, format="text")

    def _merged(self, writes: Any) -> OperatorReport:
        with ThreadPoolExecutor(_MAKERS) as pool:
            reports: Sequence[OperatorReport] = list(pool.map(lambda write: write(), writes))
        handles = tuple(handle for report in reports for handle in report.handles)
        return dataclasses.replace(reports[0], handles=handles, upserts=sum(each.upserts for each in reports))

    # -- whole jobs

    def batches(self, count: int, *, num_retained: int, clean_up_every: int = 0) -> ObjectStore:
        """So many quick batches of the same twenty rows; 0: without clean-up."""
        store = self.fresh()
        coordinator = coordinator_on(store, num_retained=num_retained)
        for number in range(1, count + 1):
            attempt = coordinator.trigger()
            coordinator.record(attempt, [self.changes(store, attempt)], [], {"source": number})
            coordinator.confirm(attempt)
            coordinator.compose_commit()
            if clean_up_every and number % clean_up_every == 0:
                coordinator.clean_up()
        return store

    def one_checkpoint(
        self, report: Callable[[ObjectStore, Attempt], OperatorReport | FileReport]
    ) -> ObjectStore:
        """One complete checkpoint of this report."""
        store = self.fresh()
        coordinator, attempt, made = self.reported(store, report)
        record(coordinator, attempt, made)
        coordinator.confirm(attempt)
        coordinator.compose_commit()
        return store

    def reported(
        self, store: ObjectStore, report: Callable[[ObjectStore, Attempt], OperatorReport | FileReport]
    ) -> tuple[CheckpointCoordinator, Attempt, OperatorReport | FileReport]:
        """Steps 1 to 3."""
        coordinator = coordinator_on(store)
        attempt = coordinator.trigger()
        return coordinator, attempt, report(store, attempt)

    def garbage(self, objects: int) -> ObjectStore:
        """What a dead attempt of so many files left."""
        store = self.fresh()
        coordinator = coordinator_on(store)
        attempt = coordinator.trigger()
        folder = store.prefix + attempt.names.changelog_base_path(attempt.attempt)
        for _ in range(objects):
            self._server.raw_write(BUCKET, f"{folder}/{JOB}/dstl/{uuid.uuid4()}", b"x")
        coordinator.abort(attempt)
        return store


def record(coordinator: CheckpointCoordinator, attempt: Attempt, report: OperatorReport | FileReport) -> None:
    """Step 4."""
    operators = [report] if isinstance(report, OperatorReport) else []
    files = [report] if isinstance(report, FileReport) else []
    coordinator.record(attempt, operators, files, {"source": 1})


def _names(report: OperatorReport) -> set[str]:
    return {stream.name for handle in report.handles for stream, _ in handle.handles_and_offsets}
