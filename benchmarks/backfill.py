"""A day of a backfill by Dagster's daemon: of the flights example, and of the same steps doing nothing.

    python benchmarks/backfill.py [--days 4] [VARIANT ...]

Owns the daemon, the backfill, and what the events of its runs say of the time. Each variant has a daemon and
a home of its own.

* flights: the example, as it stands.
* empty: as many steps, which do nothing, with the same executor: what Dagster itself takes.
* empty-spawned: the same, with the executor that Dagster has by default.

Medians of all days but the first, which unpacks the data. A day is the time from one run's creation to that
of the next. Of it, `starts` is until the run's worker has loaded the definitions, `runs` until its end, of
which `update` is that step; `waits` is until the daemon asks for the next one. It looks at backfills every 30
seconds, for which Dagster has no setting: a day is a multiple of that, and cannot be less than one.
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

import argparse
import contextlib
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import dagster as dg
from conditions import conditions

import dstl_dagster as dstl

FIRST: Final = date(2013, 1, 1)
STEPS: Final = ("update", "persist", "confirm", "compose_commit", "cleanup")
VARIANTS: Final = ("flights", "empty", "empty-spawned")
SPAWNED: Final = "DSTL_BENCH_SPAWNED"
PATIENCE_SECONDS: Final = 300.0
LAUNCH: Final = """
mutation Launch($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) { __typename ... on PythonError { message } }
}
"""


def empty_state() -> dg.AssetsDefinition:
    """A graph asset of empty steps that depends on its own previous day, as a state does."""

    def step(name: str) -> dg.OpDefinition:
        @dg.op(name=name, ins={"after": dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing))
        def nothing() -> None:
            """What a step does by itself."""

        return nothing

    previous = dg.AssetIn(
        key="state",
        dagster_type=dg.Nothing,
        partition_mapping=dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1),
    )

    @dg.graph_asset(
        name="state",
        ins={"previous": previous},
        partitions_def=dg.DailyPartitionsDefinition(str(FIRST), end_date="2014-01-01"),
        backfill_policy=dg.BackfillPolicy.multi_run(1),
    )
    def state(previous: Any) -> Any:
        for name in STEPS:
            previous = step(name)(previous)
        return previous

    return state


defs = dg.Definitions(
    assets=[empty_state()],
    executor=None if os.environ.get(SPAWNED) else dstl.build_step_executor(preload=["backfill"]),
)


@contextlib.contextmanager
def daemon(code: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "dagster._daemon", "run", *code],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def launch(asset: list[str], days: list[str], code: list[str], home: Path) -> None:
    params = {"assetSelection": [{"path": asset}], "partitionNames": days, "fromFailure": False}
    command = [sys.executable, "-c", "from dagster_graphql.cli import main; main()", *code]
    asked = ["-t", LAUNCH, "-v", json.dumps({"params": params}), "-o", str(home / "answer.json")]
    done = subprocess.run([*command, *asked], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def measured(variant: str, count: int, folder: Path) -> dict[str, float]:
    """Medians of seconds, by part of a day."""
    home = folder / "dagster"
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    os.environ.update(DAGSTER_HOME=str(home), DSTL_DEMO_FOLDER=str(folder))
    os.environ[SPAWNED] = "1" if variant == "empty-spawned" else ""
    flights = variant == "flights"
    code = ["-m", "dstl_flights.definitions"] if flights else ["-f", __file__]
    days = [str(FIRST + timedelta(number)) for number in range(count)]
    with dg.DagsterInstance.get() as instance, daemon(code, folder / "daemon.log"):
        launch(["nyc_flights", "state"] if flights else ["state"], days, code, home)
        deadline = time.monotonic() + PATIENCE_SECONDS * count
        while len(runs := finished(instance)) < count:
            if time.monotonic() > deadline:
                sys.exit((folder / "daemon.log").read_text()[-3000:])
            time.sleep(1)
        return {name: statistics.median(each) for name, each in parts_of(instance, runs).items()}


def finished(instance: dg.DagsterInstance) -> list[Any]:
    """The runs that have ended, oldest first; exits if one of them failed."""
    records = [record for record in instance.get_run_records() if record.dagster_run.is_finished]
    if failed := [record for record in records if not record.dagster_run.is_success]:
        sys.exit(f"run {failed[0].dagster_run.run_id} failed: see the daemon's log")
    return records[::-1]


def parts_of(instance: dg.DagsterInstance, runs: list[Any]) -> dict[str, list[float]]:
    parts: dict[str, list[float]] = {name: [] for name in ("day", "starts", "runs", "update", "waits")}
    for record, following in zip(runs[1:], [*runs[2:], None], strict=True):
        created = record.create_timestamp.timestamp()
        parts["starts"].append(record.start_time - created)
        parts["runs"].append(record.end_time - record.start_time)
        (update,) = (
            step
            for step in instance.get_run_step_stats(record.dagster_run.run_id)
            if step.step_key.endswith("update")
        )
        parts["update"].append(update.end_time - update.start_time)
        if following is not None:
            parts["day"].append(following.create_timestamp.timestamp() - created)
            parts["waits"].append(following.create_timestamp.timestamp() - record.end_time)
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("variants", nargs="*", metavar="VARIANT", default=[], help=", ".join(VARIANTS))
    parser.add_argument("--days", type=int, default=4, help="3 or more")
    arguments = parser.parse_args()
    print(conditions("dagster", "pyspark"), flush=True)
    path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    for variant in arguments.variants or VARIANTS:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        with tempfile.TemporaryDirectory() as scratch:
            found = measured(variant, arguments.days, Path(scratch))
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
        shown = "  ".join(f"{name} {seconds:5.1f} s" for name, seconds in found.items())
        print(f"{variant:14} {shown}  processor, in all {processor:.0f} s", flush=True)


if __name__ == "__main__":
    main()
