"""A small pipeline over days without Spark: what the tests of the Dagster layer run, here and in daemons.

Each day appends one change of state and writes one file of two components. `body` runs inside the batch
before that: a test puts a failure there. The plain job fails as long as there is no file where the variable
`DSTL_DAYS_FAIL_ONCE` says, and makes one. With `DSTL_DAYS_FOLLOW` the sensor is on from the beginning, and so
is one that asks for the job `mail` for each day.
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa

from dstl_dagster import (
    ChangelogStorageResource,
    JobAssets,
    build_checkpoint_job,
    build_checkpoint_sensor,
    build_downstream_sensor,
    build_state_asset,
    checkpoint_asset_specs,
)
from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator, FileReport, OperatorReport
from dstl_dagster.keyed import write_rows
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.settings.checkpoint import CheckpointOptions
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import ObjectStore, open_store
from dstl_dagster.timeline import BatchKey

JOB = JobAssets("days", operators=("totals",))
SOURCE = "calendar"
COLUMNS = pa.schema([("key", pa.string()), ("total", pa.int64())])
STATE = StateSchema.from_parts(COLUMNS.serialize().to_pybytes(), ("key",), 128)
DAYS = dg.DailyPartitionsDefinition(start_date="2024-01-01", end_date="2024-02-01")
AT_ONCE = dg.RetryPolicy(max_retries=2, delay=0)
URI = "DSTL_DAYS_URI"
FAIL_ONCE = "DSTL_DAYS_FAIL_ONCE"
FOLLOW = "DSTL_DAYS_FOLLOW"

Body = Callable[[dg.OpExecutionContext, Any], None]


def write_change(store: ObjectStore, attempt: Attempt, key: bytes) -> OperatorReport:
    """One row of operator `totals`, durable."""
    rows = pa.table({"key": [key.decode()], "total": [1]}, schema=COLUMNS)
    return write_rows(rows, attempt, store, operator="totals", schema=STATE)


def write_file(store: ObjectStore, attempt: Attempt, name: str) -> FileReport:
    """One file of two components; not visible yet."""
    stream = GSRecoverableWriter(store, attempt=attempt.attempt).open(store.uri_of(name))
    stream.write(b"first line\n")
    stream.sync()
    stream.write(b"second line\n")
    committer = stream.close_for_commit()
    return FileReport(committer.recoverable, tuple(committer.components), rows=2, format="text")


def end_of(day: str) -> str:
    """Where the source stands after a day."""
    if not DAYS.has_partition_key(day):
        return day
    return DAYS.time_window_for_partition_key(day).end.isoformat()


def batch_of(day: str) -> BatchKey:
    """The batch of a day, as a run names it."""
    if not DAYS.has_partition_key(day):
        return BatchKey(day, SOURCE)
    window = DAYS.time_window_for_partition_key(day)
    return BatchKey(day, SOURCE, f"{window.start.isoformat()}/{window.end.isoformat()}")


def make_outside(
    uri: str,
    place: str,
    *,
    state: bool = True,
    files: int = 1,
    until: str = "committed",
    owner: str = "spark-submit",
    options: CheckpointOptions | None = None,
) -> Attempt:
    """A checkpoint that no Dagster run makes: opened, recorded, completed, committed, as far as `until`."""
    store = open_store(uri)
    coordinator = CheckpointCoordinator(JOB.job, store, options, owner=owner)
    attempt = coordinator.trigger(idempotency_key=batch_of(place))
    reports = [write_change(store, attempt, place.encode())] if state else []
    written = [write_file(store, attempt, f"out/{place}/{number}.txt") for number in range(files)]
    steps = ("opened", "recorded", "completed", "committed").index(until)
    if steps >= 1:
        coordinator.record(attempt, reports, written, {SOURCE: end_of(place)})
    if steps >= 2:
        coordinator.confirm(attempt)
    if steps >= 3:
        coordinator.compose_commit()
    return attempt


def _nothing(context: dg.OpExecutionContext, batch: Any) -> None:
    """A day like any other."""


def build_update(body: Body = _nothing, *, source: str | None = SOURCE, files: int = 1) -> dg.OpDefinition:
    """The user's op: steps 1 to 3."""

    @dg.op(name="update", ins={"after": dg.In(dg.Nothing)}, out=dg.Out(dict), retry_policy=AT_ONCE)
    def update(context: dg.OpExecutionContext, changelog: ChangelogStorageResource) -> dict:
        with changelog.checkpoint(context, JOB.job, source=source) as batch:
            if batch.already_in is not None:
                context.log.info(f"already in checkpoint {batch.already_in}")
                return batch.reference
            body(context, batch)
            store = changelog.store()
            place = context.partition_key if source is not None else f"run-{batch.attempt.checkpoint_id}"
            batch.add(write_change(store, batch.attempt, place.encode()))
            for number in range(files):
                batch.add(write_file(store, batch.attempt, f"out/{place}/{number}.txt"))
        return batch.reference

    return update


@dg.op(out=dg.Out(dict))
def by_region(context: dg.OpExecutionContext, changelog: ChangelogStorageResource) -> dict:
    """The user's op for partitions without an order: one row."""
    with changelog.checkpoint(context, JOB.job) as batch:
        if batch.already_in is None:
            batch.add(write_change(changelog.store(), batch.attempt, context.partition_key.encode()))
    return batch.reference


def build_state(
    body: Body = _nothing, *, files: int = 1, separate_steps: bool = False
) -> dg.AssetsDefinition:
    """The state as an asset of two steps, or of five, that are retried at once."""
    return build_state_asset(
        JOB,
        build_update(body, files=files),
        partitions_def=DAYS,
        retry_policy=AT_ONCE,
        kinds={"python"},
        separate_steps=separate_steps,
    )


def _fail_once(context: dg.OpExecutionContext, batch: Any) -> None:
    marker = Path(os.environ[FAIL_ONCE])
    if not marker.exists():
        marker.touch()
        raise dg.Failure("the first try fails", allow_retries=False)


def plain_job() -> dg.JobDefinition:
    """A job without assets and partitions, whose `update` fails in its first run."""
    return build_checkpoint_job(
        "plain",
        build_update(_fail_once, source=None),
        retry_policy=AT_ONCE,
        resource_defs={"changelog": ChangelogStorageResource(uri=dg.EnvVar(URI))},
        executor_def=dg.in_process_executor,
        separate_steps=True,
    )


@dg.op
def send() -> None:
    """Whatever a job of the user's does."""


@dg.job(partitions_def=DAYS)
def mail() -> None:
    """Downstream of the days."""
    send()


def sensors() -> list[dg.SensorDefinition]:
    """Stopped, or both on from the beginning."""
    if not os.environ.get(FOLLOW):
        return [build_checkpoint_sensor(JOB, minimum_interval_seconds=1)]
    on = {"minimum_interval_seconds": 1, "default_status": dg.DefaultSensorStatus.RUNNING}
    mails = build_downstream_sensor(JOB, mail, partitions_def=DAYS, max_runs_per_tick=4, **on)
    return [build_checkpoint_sensor(JOB, **on), mails]


defs = dg.Definitions(
    assets=[build_state(), *checkpoint_asset_specs(JOB, partitions_def=DAYS)],
    jobs=[mail] if os.environ.get(FOLLOW) else [],
    sensors=sensors(),
    resources={"changelog": ChangelogStorageResource(uri=dg.EnvVar(URI))},
    executor=dg.in_process_executor,
)
