"""The twelve bad days of docs/operations/bad-days.md: each is done to a job, and its commands mend it."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from dstl_dagster.checkpoint import CheckpointCoordinator, FileReport
from dstl_dagster.cli import main
from dstl_dagster.clock import SystemClock
from dstl_dagster.errors import ConflictError, DstlError, FencedError, NotFoundError
from dstl_dagster.jobs import drop_job
from dstl_dagster.keyed import write_rows
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import ABSENT, ObjectStore, open_store
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault
from dstl_dagster.testing.virtual_clock import VirtualClock
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "operations" / "bad-days.md").read_text(encoding="utf-8")
DAYS = dict(re.findall(r"^## \d+\. (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
SCHEMA = StateSchema.of(pa.schema({"day": pa.string(), "orders": pa.int64()}), ["day"], 4)
Then = Iterator[None]
"""Does the harm, then checks what is true; at each `yield` the page's next block is run."""


class World:
    """A store with three days of one job, and a backup of it."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.folder, self.backup = tmp_path / "store", tmp_path / "backup"
        self.folder.mkdir()
        self.uri = self.folder.as_uri()
        self.source = {f"2026-11-0{day}": day for day in range(1, 8)}

    @property
    def store(self) -> ObjectStore:
        return open_store(self.uri)

    def coordinator(self, owner: str = "worker-1", **how: Any) -> CheckpointCoordinator:
        return CheckpointCoordinator("orders", self.store, owner=owner, **how)

    def report(self, coordinator: CheckpointCoordinator, attempt: Any, day: str) -> tuple[Any, FileReport]:
        rows = pa.Table.from_pylist([{"day": day, "orders": self.source[day]}], schema=SCHEMA.columns)
        state = write_rows(rows, attempt, coordinator.store, operator="totals", schema=SCHEMA)
        writer = GSRecoverableWriter(coordinator.store, attempt=attempt.attempt)
        stream = writer.open(coordinator.store.uri_of(f"out/{day}.txt"))
        stream.write(f"{day}: {self.source[day]}\n".encode())
        committer = stream.close_for_commit()
        return state, FileReport(committer.recoverable, tuple(committer.components), format="text")

    def run(self, *days: int, publish: bool = True, **how: Any) -> World:
        for number in days:
            day, coordinator = f"2026-11-0{number}", self.coordinator(**how)
            attempt = coordinator.trigger(idempotency_key=day)
            state, file = self.report(coordinator, attempt, day)
            coordinator.record(attempt, [state], [file])
            coordinator.confirm(attempt)
            if publish:
                coordinator.compose_commit()
        return self

    def back_up(self) -> World:
        shutil.copytree(self.folder, self.backup)
        return self

    def rows(self) -> dict[str, int]:
        scan = self.coordinator().read_state("totals")
        return {row["day"]: row["orders"] for row in scan.to_arrow().to_pylist()}

    def files(self) -> dict[str, str]:
        store = self.store
        return {
            stat.name.removeprefix("out/").removesuffix(".txt"): store.get(stat.name).decode()
            for stat in store.list("out/")
        }

    def require(self, *days: int) -> None:
        """State and files are those of exactly these days, and the job is in order."""
        wanted = {f"2026-11-0{number}" for number in days}
        assert self.rows() == {day: self.source[day] for day in wanted}
        assert self.files() == {day: f"{day}: {self.source[day]}\n" for day in wanted}
        assert self.coordinator().audit().in_order
        assert self.coordinator().verify().ok


# -- the days


def emptied(world: World, _: pytest.MonkeyPatch) -> Then:
    world.run(1, 2, 3).back_up()
    alive = world.coordinator()
    alive.latest()
    shutil.rmtree(world.folder)
    world.folder.mkdir()
    with pytest.raises(NotFoundError) as refused:
        alive.trigger()
    assert refused.value.kind == "job_gone"
    yield
    world.run(4).require(1, 2, 3, 4)


def half_a_backup(world: World, _: pytest.MonkeyPatch) -> Then:
    world.run(1, 2, 3).back_up()
    for record in sorted((world.folder / "dstl/orders/timeline").iterdir())[4:]:
        record.unlink()
    yield
    world.run(4).require(1, 2, 3, 4)


def wrong_store(world: World, _: pytest.MonkeyPatch) -> Then:
    world.run(1, 2, 3)
    (world.tmp_path / "other").mkdir()
    other = World(world.tmp_path / "other")
    coordinator = CheckpointCoordinator("returns", other.store, owner="test")
    coordinator.record(attempt := coordinator.trigger())
    coordinator.confirm(attempt)
    before = [(stat.name, stat.generation) for stat in other.store.list()]
    right, world.uri = world.uri, other.uri
    yield
    assert [(stat.name, stat.generation) for stat in other.store.list()] == before
    world.uri = right
    world.run(4).require(1, 2, 3, 4)


def file_gone(world: World, _: pytest.MonkeyPatch) -> Then:
    world.run(1, 2)
    before = set(world.folder.glob("dstl/orders/attempts/*/changelog/**/*"))
    world.run(3)
    after = set(world.folder.glob("dstl/orders/attempts/*/changelog/**/*"))
    (lost,) = [path for path in after - before if path.is_file()]
    lost.unlink()
    yield
    world.require(1, 2)
    world.run(3).require(1, 2, 3)


def disk_full(world: World, monkeypatch: pytest.MonkeyPatch) -> Then:
    world.run(1, 2, 3)
    full = [True]
    write = os.write

    def write_if_free(descriptor: int, payload: Any) -> int:
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, payload)

    monkeypatch.setattr("dstl_dagster.storage.local.files.os.write", write_if_free)
    yield
    full[0] = False
    world.require(1, 2, 3)
    yield
    world.run(4).require(1, 2, 3, 4)


def key_revoked(world: World, monkeypatch: pytest.MonkeyPatch) -> Then:
    with on_buckets(world, monkeypatch) as server:
        world.run(1, 2, 3)
        coordinator = world.coordinator()
        attempt = coordinator.trigger(idempotency_key="2026-11-04")
        state, file = world.report(coordinator, attempt, "2026-11-04")
        server.faults.add(ServerFault(FaultKind.STATUS, status=403, times=None))
        with pytest.raises(DstlError) as refused:
            coordinator.record(attempt, [state], [file])
        assert refused.value.kind == "no_permission"
        yield
        server.faults.clear()
        yield
        coordinator.record(attempt, [state], [file])
        coordinator.confirm(attempt)
        coordinator.compose_commit()
        world.require(1, 2, 3, 4)


class Ahead(SystemClock):
    """A clock that is a year ahead."""

    def now(self) -> datetime:
        return super().now() + timedelta(days=365)


def clock_wrong(world: World, _: pytest.MonkeyPatch) -> Then:
    world.run(1, 2, 3).run(4, clock=Ahead())
    yield
    world.run(5).require(1, 2, 3, 4, 5)
    assert [each.checkpoint_id for each in world.coordinator().list()] == [1, 2, 3, 4, 5]


def two_schedulers(world: World, _: pytest.MonkeyPatch) -> Then:
    world.run(1, 2, 3)
    first = world.coordinator("scheduler-a")
    attempt = first.trigger(idempotency_key="2026-11-04")
    with pytest.raises(ConflictError, match=r"being made by attempt .* of 'scheduler-a'"):
        world.run(4, owner="scheduler-b")
    yield
    world.run(4, owner="scheduler-b")
    with pytest.raises(FencedError):
        first.record(attempt)
    with pytest.raises(ConflictError, match="already in checkpoint 4"):
        world.run(4, owner="scheduler-a")
    world.require(1, 2, 3, 4)


def deploy(world: World, _: pytest.MonkeyPatch) -> Then:
    world.run(1, 2, 3)
    killed = world.coordinator()
    world.report(killed, killed.trigger(idempotency_key="2026-11-04"), "2026-11-04")
    world.require(1, 2, 3)
    yield
    world.run(4).require(1, 2, 3, 4)


def dropped(world: World, _: pytest.MonkeyPatch) -> Then:
    world.run(1, 2).back_up().run(3)
    drop_job(world.store, "orders", owner="test", clock=VirtualClock())
    yield
    shutil.move(world.folder / "out" / "2026-11-03.txt", world.tmp_path)
    world.run(3).require(1, 2, 3)


RUN_DAY = """
import sys
from pathlib import Path
from tests.docs.test_runbook import World
world = World.__new__(World)
world.uri, world.source = sys.argv[1], {"2026-11-02": 20, "2026-11-03": 3}
world.run(int(sys.argv[2][-1]))
"""


def corrected(world: World, monkeypatch: pytest.MonkeyPatch) -> Then:
    world.run(1, 2, 3)
    script = f"import sys\nsys.argv.insert(1, {world.uri!r})\n{RUN_DAY}"
    (world.tmp_path / "run_day.py").write_text(script, encoding="utf-8")
    monkeypatch.chdir(world.tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    world.source["2026-11-02"] = 20
    yield
    world.require(1, 2, 3)


def moved(world: World, monkeypatch: pytest.MonkeyPatch) -> Then:
    with on_buckets(world, monkeypatch):
        world.run(1, 2).run(3, publish=False)
        before = [(stat.name, stat.generation) for stat in world.store.list()]
        old = world.store
        yield
        world.uri = "gs://moved-store"
        world.run(4).require(1, 2, 3, 4)
        assert [(stat.name, stat.generation) for stat in old.list()] == before


HARM: dict[str, Callable[[World, pytest.MonkeyPatch], Then]] = {
    "The bucket was emptied": emptied,
    "Half a backup was restored": half_a_backup,
    "The wrong store is mounted": wrong_store,
    "A file is gone, or damaged": file_gone,
    "The disk is full": disk_full,
    "The key was revoked": key_revoked,
    "A clock was wrong": clock_wrong,
    "Two schedulers run the same day": two_schedulers,
    "A deploy came in the middle of a run": deploy,
    "A job was dropped by mistake": dropped,
    "A source was corrected": corrected,
    "The move to another project": moved,
}


class on_buckets:  # noqa: N801 - read as a phrase
    """The world on buckets of the strict server."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._server = GCSServer()
        for bucket in ("orders-store", "moved-store"):
            self._server.create_bucket(bucket)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", self._server.url)
        world.uri = "gs://orders-store"

    def __enter__(self) -> GCSServer:
        return self._server.__enter__()

    def __exit__(self, *error: object) -> None:
        self._server.__exit__(*error)


# -- running the page


def test_the_page_has_twelve_days() -> None:
    """Each is done here."""
    assert [*DAYS] == [*HARM]
    assert len(DAYS) == 12


@pytest.mark.parametrize("name", HARM)
def test_a_bad_day(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one sees is seen, the commands end as shown, and what is said to be true is."""
    world = World(tmp_path)
    story = HARM[name](world, monkeypatch)
    blocks = re.findall(r"```console\n(.*?)```", DAYS[name], re.DOTALL)
    for block in blocks:
        next(story)
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            printed = run_command(world, command)
            for line in shown.splitlines():
                pattern = ".*".join(map(re.escape, line.split("...")))
                assert any(re.fullmatch(pattern, each) for each in printed), (command, line, printed)
    assert next(story, "the end") == "the end"


def run_command(world: World, command: str) -> list[str]:
    """What it prints, on either stream."""
    for name, folder in (("$STORE", world.folder), ("$BACKUP", world.backup)):
        command = command.replace(name, str(folder))
    program, *words = shlex.split(command)
    if program == "dstl":
        environment = {"DSTL_STORE": world.uri, "DSTL_JOB": "orders"}
        result = CliRunner(env=environment).invoke(main, words)
        assert "Traceback" not in result.output, (command, result.output)
        assert isinstance(result.exception, SystemExit | None), (command, result.exception)
        return [line.rstrip() for line in (result.stdout + result.stderr).splitlines()]
    if program == "gcloud":
        assert words[:3] == ["storage", "cp", "-r"]
        copy_bucket(*(open_store(each.rstrip("/*")) for each in words[3:]))
        return []
    assert program in ("cp", "mkdir")
    done = subprocess.run([program, *words], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def copy_bucket(source: ObjectStore, target: ObjectStore) -> None:
    """As `gcloud storage cp -r` does: each object under a generation of its own."""
    for stat in source.list():
        target.put(stat.name, source.get(stat.name), precondition=ABSENT, metadata=stat.metadata)
