"""Days of the flights example without Spark: the same job, assets and names, computed by plain Python.

Owns the folder that the page is tested on. The pipeline of the example itself is tested elsewhere.
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

import csv
import io
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq

from dstl_dagster import ChangelogStorageResource, build_state_asset, checkpoint_asset_specs
from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator, FileReport, OperatorReport
from dstl_dagster.keyed import write_rows
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import ObjectStore, open_store
from dstl_flights.assets import DAYS, JOB, SOURCE, build_definitions
from dstl_flights.runs import LOCATION_TAG, instance_in
from dstl_flights.source import flights_csv

IN_DAGSTER = ("2013-01-01", "2013-01-02", "2013-01-03", "2013-01-04")
RETRIED = IN_DAGSTER[-1]
OUTSIDE, UNTIL = "2013-01-05", "2013-01-06T00:00:00+00:00"
AIRCRAFT_KEYS, ROUTE_KEYS = "tailnum", "origin, dest, carrier"
RETRY_REASON = "the inbox was not there for a moment"
LATE_MINUTES = 15
OPERATORS = {"aircraft": ("tailnum",), "routes": ("origin", "dest", "carrier")}

Row = dict[str, str]


def make_folder(folder: Path) -> None:
    """Four days through Dagster, the last with a step that is retried, and the checks."""
    source = flights_csv(folder / "source")
    uri = _store_uri(folder)
    with instance_in(folder) as instance:
        job = _definitions(source, uri).resolve_job_def("nyc_flights_day")
        for day in IN_DAGSTER:
            # With the tag by which the page finds the runs of the example that it did not launch.
            assert job.execute_in_process(partition_key=day, instance=instance, tags=LOCATION_TAG).success
        checks = build_definitions().resolve_job_def("nyc_flights_checks")
        assert checks.execute_in_process(instance=instance).success


def run_of(folder: Path, day: str) -> str:
    """The id of the run that made a day."""
    with instance_in(folder) as instance:
        (run,) = instance.get_runs(dg.RunsFilter(tags={"dagster/partition": day}))
        return run.run_id


def _store_uri(folder: Path) -> str:
    (folder / "store").mkdir(parents=True, exist_ok=True)
    return (folder / "store").as_uri()


def _definitions(source: Path, uri: str) -> dg.Definitions:
    @dg.op(
        name="update",
        ins={"after": dg.In(dg.Nothing)},
        out=dg.Out(dict),
        retry_policy=dg.RetryPolicy(max_retries=1, delay=1),
    )
    def update(context: dg.OpExecutionContext, changelog: ChangelogStorageResource) -> dict[str, Any]:
        day = context.partition_key
        with changelog.checkpoint(context, JOB.job, source=SOURCE) as batch:
            if day == RETRIED and context.retry_number == 0:
                raise RuntimeError(RETRY_REASON)
            for report in _write_day(source, changelog.store(), batch.attempt, day):
                batch.add(report)
        return batch.reference

    state = build_state_asset(JOB, update, partitions_def=DAYS, separate_steps=True)
    return dg.Definitions(
        assets=[state, *checkpoint_asset_specs(JOB, partitions_def=DAYS)],
        jobs=[dg.define_asset_job("nyc_flights_day", selection=[state])],
        resources={"changelog": ChangelogStorageResource(uri=uri)},
    )


def make_outside(folder: Path) -> None:
    """A fifth day as by spark-submit: nothing tells Dagster of it."""
    source, day, store = flights_csv(folder / "source"), OUTSIDE, open_store(_store_uri(folder))
    coordinator = CheckpointCoordinator(JOB.job, store, owner="spark-submit")
    attempt = coordinator.trigger(idempotency_key=day)
    made = _write_day(source, store, attempt, day)
    operators = [report for report in made if isinstance(report, OperatorReport)]
    files = [report for report in made if isinstance(report, FileReport)]
    coordinator.record(attempt, operators, files, {SOURCE: UNTIL}, persist_seconds=1.5)
    coordinator.confirm(attempt)
    coordinator.compose_commit()


def _write_day(
    source: Path, store: ObjectStore, attempt: Attempt, day: str
) -> list[OperatorReport | FileReport]:
    until = list(_flights_until(source, day))
    today = [row for row in until if _day_of(row) == day]
    reports: list[OperatorReport | FileReport] = [
        _write_state(store, attempt, operator, keys, until, today) for operator, keys in OPERATORS.items()
    ]
    late = [row for row in today if row["dep_delay"] == "NA" or int(row["dep_delay"]) >= LATE_MINUTES]
    lines = [json.dumps(row).encode() + b"\n" for row in late]
    halves = [b"".join(lines[: len(lines) // 2]), b"".join(lines[len(lines) // 2 :])]
    reports.append(_write_file(store, attempt, f"reports/{day}/delays.jsonl", halves, len(late), "jsonl"))
    table = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(today), table)
    name = f"reports/{day}/flights/part-00000.parquet"
    reports.append(_write_file(store, attempt, name, [table.getvalue()], len(today), "parquet"))
    return reports


def _flights_until(source: Path, day: str) -> Any:
    with source.open(newline="") as lines:
        yield from itertools.takewhile(lambda row: _day_of(row) <= day, csv.DictReader(lines))


def _day_of(row: Row) -> str:
    return f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}"


def _write_state(
    store: ObjectStore,
    attempt: Attempt,
    operator: str,
    keys: tuple[str, ...],
    until: list[Row],
    today: list[Row],
) -> OperatorReport:
    columns = pa.schema([*((key, pa.string()) for key in keys), ("flights", pa.int64())])
    schema = StateSchema.from_parts(columns.serialize().to_pybytes(), keys, 128)
    totals = Counter(tuple(row[key] for key in keys) for row in until)
    changed = sorted({tuple(row[key] for key in keys) for row in today})
    rows = [{**dict(zip(keys, each, strict=True)), "flights": totals[each]} for each in changed]
    return write_rows(
        pa.Table.from_pylist(rows, schema=columns),
        attempt,
        store,
        operator=operator,
        schema=schema,
        partitions=2,
    )


def _write_file(
    store: ObjectStore, attempt: Attempt, name: str, parts: list[bytes], rows: int, kind: str
) -> FileReport:
    stream = GSRecoverableWriter(store, attempt=attempt.attempt).open(store.uri_of(name))
    for part in parts:
        stream.write(part)
        stream.sync()
    committer = stream.close_for_commit()
    return FileReport(committer.recoverable, tuple(committer.components), rows=rows, format=kind)
