"""The likely mistakes of a user, at each public entry point: each is made here, and its message approved.

`python -m tests.unit.errors.mistakes > tests/unit/errors/messages.txt` writes what they say now.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from click.testing import CliRunner

from dstl_dagster import read_state
from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator, FileReport
from dstl_dagster.cli import main
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.jobs import drop_job, plan_correction
from dstl_dagster.keyed import export_checkpoint, write_rows
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.settings import JobOptions
from dstl_dagster.spark.sink.options import SinkOptions
from dstl_dagster.spark.source.options import SourceOptions
from dstl_dagster.state import ColumnChanges, StateSchema
from dstl_dagster.storage import open_store

Mistake = Callable[[], Any]
SCHEMA = StateSchema.of(pa.schema({"customer": pa.string(), "total": pa.int64()}), ["customer"], 8)


class World:
    """A folder with a job of three days, and an attempt that is open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = (folder / "store").as_uri()
        self.store = open_store(self.uri)
        self.job = CheckpointCoordinator("orders", self.store, owner="run 1")
        for day in ("2001-01-05", "2001-01-06", "2001-01-07"):
            attempt = self.job.trigger(idempotency_key=day)
            rows = pa.table({"customer": ["Ann"], "total": [1]}, SCHEMA.columns)
            report = write_rows(rows, attempt, self.store, operator="totals", schema=SCHEMA)
            self.job.record(attempt, [report], [self.file(attempt, f"out/{day}.txt")], {"days": day})
            self.job.confirm(attempt)
            self.job.compose_commit()
        self.job.savepoint(1, "before")
        self.open = self.job.trigger()

    def file(self, attempt: Attempt, name: str) -> FileReport:
        stream = GSRecoverableWriter(self.store, attempt=attempt.attempt).open(self.store.uri_of(name))
        stream.write(b"x")
        committer = stream.close_for_commit()
        return FileReport(committer.recoverable, tuple(committer.components), rows=1, format="text")

    def said(self, text: str) -> str:
        """Without what differs from run to run."""
        text = text.replace(str(self.folder), "FOLDER").replace(str(Path.cwd()), "CWD")
        text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "UUID", text)
        text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "WHEN", text)
        return re.sub(r"No match for .*", "what Arrow says", text)


def _state(world: World) -> Iterator[tuple[str, Mistake]]:
    def read(**wanted: Any) -> Mistake:
        return lambda: read_state(**({"uri": world.uri, "job": "orders", "operator": "totals"} | wanted))

    yield "read_state, another operator", read(operator="total")
    yield "read_state, another job", read(job="order")
    yield "read_state, another store", read(uri=(world.folder / "stor").as_uri())
    yield "read_state, a day that has not run", read(at="2001-01-08")
    yield "read_state, a time before the first", read(at="2001-01-05T12:00")
    yield "read_state, at=0", read(at=0)
    yield "read_state, at='2'", read(at="2")
    yield "read_state, at=9", read(at=9)
    yield "read_state, a text as columns", read(columns="total")
    yield "read_state, another column", read(columns=["totals"])
    yield "read_state, a filter on another column", read(filters=[("totals", "=", 1)])
    yield "read_state, key groups that are not there", read(key_groups="8")
    changed = StateSchema.of(pa.schema({"customer": pa.string(), "total": pa.string()}), ["customer"], 8)
    yield "write, a column of another type", lambda: SCHEMA.evolved_to(changed)
    other_key = StateSchema.of(SCHEMA.columns, ["total"], 8)
    yield "write, other keys", lambda: SCHEMA.evolved_to(other_key)
    yield "write, a text as keys", lambda: StateSchema.of(SCHEMA.columns, "customer")
    yield "write, a key that is no column", lambda: StateSchema.of(SCHEMA.columns, ["customers"])
    yield "write, a double as key", lambda: StateSchema.of(pa.schema({"x": pa.float64()}), ["x"])
    yield "drop a text of columns", lambda: ColumnChanges.of("total", None)
    twice = pa.table({"customer": ["Ann", "Ann"], "total": [1, 2]}, SCHEMA.columns)
    yield (
        "write, a key twice",
        lambda: write_rows(twice, world.open, world.store, operator="totals", schema=SCHEMA),
    )
    state = world.job.at(1).manifest
    read_as = pa.schema({"total": pa.string()})
    yield (
        "read, a column as another type",
        lambda: world.job.read_state("totals").at.expecting(read_as),
    )
    yield "export, another operator", lambda: export_checkpoint(world.store, state, "total", world.uri + "-x")


def _stores(world: World) -> Iterator[tuple[str, Mistake]]:
    for uri in (
        "s3://bucket/x",
        "gs:/bucket/x",
        "gs://",
        "file:///",
        "file:///100%FF",
        "file://x",
        "orders",
        "/orders",
        Path("/orders"),
        "",
        None,
    ):
        yield f"open_store({uri!r})", lambda uri=uri: open_store(uri)
    for name in ("/abs/x", "a//b", "a/../b", "", ".dstl/x"):
        yield f"put {name!r}", lambda name=name: world.store.get(name)
    writer = GSRecoverableWriter(world.store, attempt=world.open.attempt)
    for path in ("out/x", "file:///elsewhere/x", "gs://bucket/x"):
        yield f"open {path!r}", lambda path=path: writer.open(path)
    yield "a job's option of another name", lambda: JobOptions.of({"dstl.dfs.upload.timout": "5 min"})
    yield "a job's option of a wrong unit", lambda: JobOptions.of({"dstl.dfs.upload.timeout": "5 fortnights"})
    storage = FsStateChangelogStorage("orders", world.store)
    writer_of = storage.create_writer("totals", KeyGroupRange.of(0, 3))
    yield "append, a key group of another writer", lambda: writer_of.append(9, b"x")
    yield "append, text", lambda: writer_of.append(1, "x")  # type: ignore[arg-type] # the mistake


def _checkpoints(world: World) -> Iterator[tuple[str, Mistake]]:
    job, other = world.job, CheckpointCoordinator("orders", world.store, owner="run 2")
    yield "a job's name", lambda: CheckpointCoordinator("my orders", world.store)
    yield "trigger while another run does", other.trigger
    yield "a reference that is none", lambda: Attempt.from_json({"rows": 5})
    same = [world.file(world.open, "out/a"), world.file(world.open, "out/a")]
    yield "two files of one name", lambda: job.record(world.open, [], same)
    yield "savepoint, a bad name", lambda: job.savepoint(1, "before christmas")
    yield "savepoint, a number", lambda: job.savepoint(1, "2")
    yield "savepoint, a name that is taken", lambda: job.savepoint(2, "before")
    yield "restore, no such checkpoint", lambda: job.restore(12)
    yield "at, the future", lambda: job.at("2999-11-22T18:00Z")
    yield "resolve, a file that is not blocked", lambda: job.resolve(1, "out/x", "keep")
    yield "resolve, neither", lambda: job.resolve(1, "out/x", "delete")
    yield "correct, a day that never ran", lambda: plan_correction(job, "2001-02-01")
    yield "correct, until an earlier day", lambda: plan_correction(job, "2001-01-06", "2001-01-01")
    yield "drop, a job that is not there", lambda: drop_job(world.store, "order", owner="me")
    yield "drop, a job that runs", lambda: drop_job(world.store, "orders", owner="me")
    yield "trigger, a batch that is done", lambda: job.trigger(idempotency_key="2001-01-05")


def _spark(world: World) -> Iterator[tuple[str, Mistake]]:
    job = {"store": world.uri, "job": "orders", "operator": "totals"}

    def read(**options: str) -> Mistake:
        return lambda: SourceOptions.of({**job, **options})

    def write(**options: str) -> Mistake:
        return lambda: SinkOptions.of({**job, **options}, streaming=False)

    yield "format('dstl') read, no operator", lambda: SourceOptions.of({"store": world.uri, "job": "orders"})
    yield "format('dstl') read, a typo", read(partitons="1")
    yield "format('dstl') read, another table", read(table="rows")
    yield "format('dstl') read, two checkpoints", read(at="1", versionAsOf="2")
    yield "format('dstl') read, a time as a version", read(versionAsOf="2026-11-22T18:00Z")
    yield "format('dstl') read, a name as a time", read(timestampAsOf="before")
    yield "format('dstl') read, a time without a zone", read(timestampAsOf="2026-11-22T18:00")
    yield "format('dstl') read, key groups", read(key_groups="a-b")
    yield "format('dstl') read, partitions", read(partitions="0")
    yield "format('dstl') write, no keys", write(idempotency_key="x")
    yield "format('dstl') write, no key of the batch", write(keys="customer")
    yield "format('dstl') write, state and files", write(keys="customer", path="out", idempotency_key="x")
    yield "format('dstl') write, a typo", write(kyes="customer", idempotency_key="x")


COMMANDS = (
    "checkpoints list --job order",
    "checkpoints show 12",
    "checkpoints show 2001-01-08",
    "checkpoints show 0",
    "checkpoints diff 1 before-christmas",
    "checkpoints history customer",
    "checkpoints history name=Ann",
    "checkpoints history customer=Ann --operator total",
    "checkpoints history customer=Ann --at time:soon",
    "checkpoints export 1 relative/folder",
    "checkpoints savepoint 1 'a b'",
    "checkpoints restore",
    "checkpoints restore 12 --yes",
    "checkpoints correct 2001-01-08",
    "checkpoints correct 2001-01-06 --yes -- true",
    "checkpoints correct 2001-01-06 --yes -- no-such-program {batch}",
    "checkpoints show chk-00000002",
    "checkpoints show 2001-13-01",
    "checkpoints resolve 1 out/x",
    "checkpoints resolve 1 out/x --keep",
    "checkpoints schema --drop customer --yes",
    "checkpoints schema --rename total --yes",
    "checkpoints schema --drop total --at 1",
    "checkpoints gc --keep 0",
    "checkpoints audit -o dstl.nothing=1",
    "checkpoints audit -o dstl.nothing",
    "checkpoints list --store s3://bucket",
    "checkpoints list --job 'a b'",
    "jobs drop order --yes",
    "jobs list --store gs:/bucket",
    "checkpoint list",
)


def said_by_code(world: World) -> Iterator[str]:
    """One line a mistake: where, and the class, the kind and the message of its error."""
    for group in (_state, _stores, _checkpoints, _spark):
        for what, mistake in group(world):
            try:
                found = f"nothing: {mistake()!r}"
            except Exception as error:
                found = f"{type(error).__name__} [{getattr(error, 'kind', '')}] {error}"
            yield world.said(f"{what}\n    {found}")


def said_by_commands(world: World) -> Iterator[str]:
    """The same for the command: its exit code, and its last line."""
    where = {"DSTL_STORE": world.uri, "DSTL_JOB": "orders", "COLUMNS": "200"}
    for command in COMMANDS:
        result = CliRunner().invoke(main, shlex.split(command), env=where)
        lines = [line for line in result.output.splitlines() if line.strip(" │╭╮╰╯─")]
        raised = result.exception
        told = lines[-1] if isinstance(raised, SystemExit) or raised is None else f"TRACEBACK {raised!r}"
        yield world.said(f"$ dstl {command}\n    exit {result.exit_code}: {told}")


def catalogue(folder: Path) -> str:
    """Everything, as it is approved."""
    world = World(folder)
    return "\n".join([*said_by_code(world), *said_by_commands(world)]) + "\n"


if __name__ == "__main__":
    os.environ.pop("DSTL_OPTIONS", None)
    with tempfile.TemporaryDirectory() as temporary:
        sys.stdout.write(catalogue(Path(temporary)))
