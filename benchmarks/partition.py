"""One partition through Dagster: keyed state with its checkpoint, and the same PySpark writing plain Parquet.

    python benchmarks/partition.py [--rounds 3] [--rows 200000] [--keys 20000] [VARIANT ...]

Owns the two programs and the comparison. Each reads a day's rows, adds them up by key, and adds that to the
totals of the day before: one writes all totals anew as Parquet, the other what changed, as a checkpoint.

* cold: the run's worker and everything it starts, from nothing to its end, each step in a process of its own
  as is Dagster's default. `forked`: forked from one process that has its imports (`build_step_executor`).
* warm: one more partition in a process whose Spark session runs.

Seconds, and the processor's seconds of all these processes, Spark's JVM included. The variants take turns in
each round, so that the machine's drift hits all of them. Medians, and in brackets the ratio to `plain`.
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

import argparse
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import dagster as dg
from conditions import conditions

import dstl_dagster as dstl

FOLDER: Final = "DSTL_BENCH_FOLDER"
FIRST: Final = date(2024, 1, 1)
DAYS: Final = dg.DailyPartitionsDefinition(str(FIRST), end_date="2025-01-01")
SPARK_CONF: Final = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
COLD: Final = ("plain", "together", "separate", "plain-forked", "together-forked")
WARM: Final = ("plain-warm", "together-warm")
_PR_SET_CHILD_SUBREAPER: Final = 36


def folder() -> Path:
    return Path(os.environ.get(FOLDER, "bench-partition"))


def totals_of(session: Any) -> Any:
    """What both programs do: a day's totals by key."""
    from pyspark.sql import functions as F

    rows = session.read.schema("customer BIGINT, amount DOUBLE").json(str(folder() / "day.json"))
    return rows.groupBy("customer").agg(F.sum("amount").alias("total"))


@dg.asset(partitions_def=DAYS)
def parquet(context: dg.AssetExecutionContext, spark: dstl.SparkSessionResource) -> None:
    """The totals of all days so far, a folder a day."""
    from pyspark.sql import functions as F

    totals = totals_of(spark.spark_session)
    day = date.fromisoformat(context.partition_key)
    before = folder() / "parquet" / str(day - timedelta(1))
    if before.exists():
        totals = totals.unionByName(spark.spark_session.read.parquet(str(before)))
        totals = totals.groupBy("customer").agg(F.sum("total").alias("total"))
    totals.write.mode("overwrite").parquet(str(folder() / "parquet" / str(day)))


MERGE: dict[str, Any] = {
    "keys": ["customer"],
    "schema": "customer BIGINT, total DOUBLE",
    "update": {"total": "coalesce(old.total, 0) + new.total"},
}


@dstl.checkpointed_asset("together", partitions_def=DAYS, **MERGE)
def totals(spark: dstl.SparkSessionResource):
    """The same totals as keyed state."""
    return totals_of(spark.spark_session)


@dg.op(out=dg.Out(dict))
def update(
    context: dg.OpExecutionContext,
    changelog: dstl.ChangelogStorageResource,
    spark: dstl.SparkSessionResource,
) -> dict:
    """The same, with steps 4 to 7 in ops of their own."""
    with changelog.checkpoint(context, "separate", source="separate") as batch:
        batch.merge_state(totals_of(spark.spark_session), operator="totals", **MERGE)
    return batch.reference


def job_of(asset: dg.AssetsDefinition, *, forked: bool = False) -> dg.JobDefinition:
    defs = dg.Definitions(
        assets=[asset],
        jobs=[dg.define_asset_job("day", [asset])],
        resources={
            "changelog": dstl.ChangelogStorageResource(uri=(folder() / "store").as_uri()),
            "spark": dstl.SparkSessionResource(conf=SPARK_CONF),
        },
        executor=dstl.build_step_executor(preload=["partition"]) if forked else None,
    )
    return defs.resolve_job_def("day")


def plain() -> dg.JobDefinition:
    return job_of(parquet)


def plain_forked() -> dg.JobDefinition:
    return job_of(parquet, forked=True)


def together() -> dg.JobDefinition:
    return job_of(totals)


def together_forked() -> dg.JobDefinition:
    return job_of(totals, forked=True)


def separate() -> dg.JobDefinition:
    return job_of(dstl.build_state_asset("separate", update, partitions_def=DAYS, separate_steps=True))


def work(variant: str, days: list[str]) -> None:
    """The run's worker; prints the seconds of each day, of a warm variant also the processor's."""
    import partition  # by its name, as the processes of steps load it

    program = getattr(partition, variant.removesuffix("-warm").replace("-", "_"))
    with dg.DagsterInstance.get() as instance:
        for day in days:
            began, used = time.monotonic(), _used_seconds()
            if variant in WARM:
                program().execute_in_process(partition_key=day, instance=instance)
            else:
                tags = {"dagster/partition": day}
                job = dg.reconstructable(program)
                with dg.execute_job(job, instance=instance, tags=tags, raise_on_error=True):
                    pass
            print(json.dumps([time.monotonic() - began, _used_seconds() - used]), flush=True)


def _used_seconds() -> float:
    """Of this process, the processes it waited for, and the JVM that is still its child."""
    used = sum(os.times()[:4])
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            used += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return used


def measured(variant: str, days: list[str], home: Path) -> tuple[float, float]:
    """Seconds, and the processor's seconds: of the whole process if cold, of the last day if warm."""
    environment = {**os.environ, "DAGSTER_HOME": str(home / "dagster"), FOLDER: str(home)}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    command = [sys.executable, __file__, "--work", variant, *days]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if done.returncode:
        sys.exit(done.stderr)
    try:
        while True:
            os.wait()  # the JVMs, which outlive their drivers by a moment
    except ChildProcessError:
        pass
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if variant in WARM:
        last: list[float] = json.loads(done.stdout.splitlines()[-1])
        return last[0], last[1]
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def make_input(home: Path, rows: int, keys: int) -> None:
    (home / "dagster").mkdir(parents=True)
    (home / "dagster" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with (home / "day.json").open("w") as file:
        for row in range(rows):
            file.write(f'{{"customer":{row * 7919 % keys},"amount":{row % 100}.5}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("variants", nargs="*", metavar="VARIANT", default=[], help=", ".join(COLD + WARM))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.variants[0], arguments.variants[1:])
        return
    variants = arguments.variants or [*COLD, *WARM]
    if unknown := set(variants) - set(COLD + WARM):
        parser.error(f"no such variant: {', '.join(sorted(unknown))}")
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans are waited for, and so counted
    print(conditions("dagster", "pyspark"), flush=True)
    found: dict[str, list[tuple[float, float]]] = {variant: [] for variant in variants}
    with tempfile.TemporaryDirectory() as scratch:
        for variant in variants:
            make_input(Path(scratch) / variant, arguments.rows, arguments.keys)
        for number in range(arguments.rounds + 1):  # the first makes the state that the others find
            for variant in variants:
                count = 4 if variant in WARM else 1
                days = [str(FIRST + timedelta(number * count + each)) for each in range(count)]
                took = measured(variant, days, Path(scratch) / variant)
                print(f"  {variant} {days[-1]}: {took[0]:.2f} s, {took[1]:.2f} s of processor", flush=True)
                if number:
                    found[variant].append(took)
    for variant, took in found.items():
        base = found.get("plain-warm" if variant in WARM else "plain")
        columns = []
        for place, unit in ((0, "s"), (1, "s of processor")):
            median = statistics.median(each[place] for each in took)
            ratio = f" ({median / statistics.median(each[place] for each in base):.2f})" if base else ""
            columns.append(f"{median:7.2f} {unit}{ratio}")
        print(f"{variant:18} {'  '.join(columns)}", flush=True)


if __name__ == "__main__":
    main()
