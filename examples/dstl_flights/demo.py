"""The demo: real flights through Dagster and Spark, a kill in mid-step, and the proof that nothing broke.

Owns what runs and what is printed. Does not own running a day (`runs`) or the proof (`verify`).
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path

import click
import dagster as dg
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.cli.output import show
from dstl_dagster.cli.render import checkpoint_table
from dstl_dagster.errors import DstlError
from dstl_dagster.format import COMPONENTS_PREFIX
from dstl_dagster.spark.local.java import use_java
from dstl_dagster.storage import ObjectStore, open_store
from dstl_flights.assets import FOLDER_VARIABLE, JOB, SOURCE, STORE_VARIABLE
from dstl_flights.runs import StepEvent, Worker, instance_in, run_day, spark_session
from dstl_flights.source import flights_csv
from dstl_flights.verify import Comparison, fetched, verify

__all__ = ["main"]

_MAX_TRIES = 3
_DAYS_AHEAD = 2
"""So long before its day the worker to kill starts: it gets ready beside the days that run here."""
_OURS = {"dagster", "demo.log", "fetched", "scratch", "source", "store"}
console = Console(highlight=False)


@click.command()
@click.option("--days", type=click.IntRange(1, 31), default=7)
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=Path("dstl-demo"))
@click.option("--store")
@click.option("--fresh", is_flag=True)
def main(days: int, folder: Path, store: str | None, fresh: bool) -> None:
    """Run the first days of January 2013, then prove state and reports."""
    started = time.monotonic()
    folder = folder.absolute()
    if fresh and store:
        raise click.UsageError(f"--fresh deletes nothing in {store}: delete it there, or name another prefix")
    try:
        passed = _demo(days, folder, store, fresh)
    except DstlError as error:
        console.print(f"[red]The demo stopped:[/] {error}", soft_wrap=True)
        sys.exit(1)
    console.print(f"\nTook {time.monotonic() - started:.0f} s. Look at it in Dagster's UI (Ctrl-C stops it):")
    console.print(f"\n  {_page_command(folder, store)}\n", soft_wrap=True)
    sys.exit(0 if passed else 1)


def _demo(days: int, folder: Path, store_uri: str | None, fresh: bool) -> bool:
    _make_folder(folder, fresh)
    java = use_java(os.environ)
    place = f"the demo's files are in {folder}" + (f", state and reports in {store_uri}" if store_uri else "")
    console.print(f"Java {java.version} ({java.source}); {place}", soft_wrap=True)
    csv = flights_csv(folder / "source")
    store = open_store(store_uri or (folder / "store").as_uri())
    coordinator = CheckpointCoordinator(JOB.job, store)
    wanted = [str(date(2013, 1, 1) + timedelta(days=number)) for number in range(days)]
    new = [day for day in wanted if coordinator.applied(day) is None]
    if len(new) < len(wanted):
        console.print(f"{len(wanted) - len(new)} days are already in checkpoints; continuing after them")
    console.print("Spark and Dagster start. Each day is a run: a line of steps with seconds")
    with _noise_to(folder / "demo.log"), instance_in(folder, store_uri) as instance, spark_session() as spark:
        to_kill = len(new) // 2
        for number, day in enumerate(new):
            if number == max(0, to_kill - _DAYS_AHEAD):
                worker = Worker(folder / "scratch")
            _run(instance, store, day, worker if number == to_kill else None)
        console.print("\nRecomputing everything from the raw CSV in plain Spark SQL, comparing row by row")
        reports = fetched(store, "reports", folder / "fetched") if store_uri else folder / "store" / "reports"
        comparisons = verify(spark, coordinator, csv, reports, lambda what: console.print(f"  {what}"))
    console.print()
    show(checkpoint_table(coordinator.list()))
    console.print()
    latest = coordinator.latest()
    assert latest is not None
    console.print(_comparison_table(comparisons, latest.positions[SOURCE]))
    return all(comparison.equal for comparison in comparisons)


def _make_folder(folder: Path, fresh: bool) -> None:
    if folder.exists() and fresh:
        foreign = {entry.name for entry in folder.iterdir()} - _OURS
        if foreign:
            raise click.UsageError(
                f"{folder} holds more than a demo's files ({', '.join(sorted(foreign))}): not deleted"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "store").mkdir(exist_ok=True)


@contextmanager
def _noise_to(log: Path) -> Iterator[None]:
    """Redirect what Dagster, Spark and the runs' steps print, in this process and its children, to a file.

    The console goes on where it was.
    """
    streams = (sys.stdout, sys.stderr)
    kept = [os.dup(stream.fileno()) for stream in streams]
    with log.open("ab") as target, os.fdopen(os.dup(kept[0]), "w") as shown:
        for stream in streams:
            stream.flush()
            os.dup2(target.fileno(), stream.fileno())
        console.file = shown
        try:
            yield
        finally:
            console.file = sys.stdout
            for stream, descriptor in zip(streams, kept, strict=True):
                stream.flush()
                os.dup2(descriptor, stream.fileno())
                os.close(descriptor)


def _run(instance: dg.DagsterInstance, store: ObjectStore, day: str, to_kill: Worker | None) -> None:
    """Run one day to its end, in this process; with a worker its first try runs there, and is killed."""
    line = _StepLine(day)
    if to_kill is not None:
        ended = to_kill.run_and_kill(instance, day, _writing(store), on_event=line.show)
    else:
        ended = run_day(instance, day, on_event=line.show)
    for _ in range(_MAX_TRIES):
        if ended.success:
            line.end("")
            return
        line.end(f" [red]failed[/]: {escape(str(ended.failure))[:160]}")
        line = _StepLine(day, "re-executed from failure")
        ended = run_day(instance, day, on_event=line.show, failed=ended)
    line.end("")
    raise click.ClickException(f"{day} failed {_MAX_TRIES + 1} times; the last: {ended.failure}")


def _writing(store: ObjectStore) -> Callable[[StepEvent], bool]:
    """True once the update step has written components of files, and has not ended."""
    home = store.in_bucket(store.bucket_name)

    def decide(event: StepEvent) -> bool:
        if event.step != "update":
            return False
        found = next(iter(home.list(COMPONENTS_PREFIX)), None)
        if found is not None:
            console.print(" [red]kill -9[/] while it writes;", end="")
        return found is not None

    return decide


class _StepLine:
    """One line per run: each step as it begins, and its seconds as it ends."""

    def __init__(self, day: str, note: str = "") -> None:
        self._began: dict[str, float] = {}
        console.print(f"{day} {note}".rstrip() + " ", end="")

    def show(self, event: StepEvent) -> None:
        if event.kind == dg.DagsterEventType.STEP_START:
            self._began[event.step] = event.seconds
            console.print(f" {event.step}", end="")
        elif event.kind == dg.DagsterEventType.STEP_SUCCESS:
            seconds = event.seconds - self._began.get(event.step, event.seconds)
            console.print(f" [green]{seconds:.1f}s[/]", end="")
        elif event.kind == dg.DagsterEventType.STEP_UP_FOR_RETRY:
            console.print(" [yellow]retries[/]", end="")

    def end(self, text: str) -> None:
        console.print(text)


def _comparison_table(comparisons: list[Comparison], position: str) -> Table:
    table = Table(
        title=f"Recomputed from the raw CSV up to {position} (exclusive)",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for name in ("compared", "rows", "missing", "unexpected", "result"):
        table.add_column(name, justify="left" if name in ("compared", "result") else "right")
    for each in comparisons:
        result = "[green]equal[/]" if each.equal else "[red]DIFFERENT[/]"
        table.add_row(each.what, f"{each.rows:,}", str(each.missing), str(each.unexpected), result)
    return table


def _page_command(folder: Path, store: str | None) -> str:
    beside = Path(sys.executable).with_name("dagster")
    dagster = str(beside) if beside.exists() else "dagster"
    places = (
        f"DAGSTER_HOME={shlex.quote(str(folder / 'dagster'))} {FOLDER_VARIABLE}={shlex.quote(str(folder))}"
    )
    if store:
        places += f" {STORE_VARIABLE}={shlex.quote(store)}"
    return f"{places} {shlex.quote(dagster)} dev -m dstl_flights.definitions"


if __name__ == "__main__":
    main()
