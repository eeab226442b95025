"""The pipeline of `days`, on a store in memory and an instance that lives as long as a test."""

from __future__ import annotations

import itertools
import random
import shutil
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import alembic.util
import dagster as dg
import pytest
import sqlalchemy
from dagster._core.storage.event_log import in_memory as event_log
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.storage.runs import in_memory as runs
from sqlalchemy.engine import Connection

from dstl_dagster import ChangelogStorageResource, build_checkpoint_sensor, build_maintenance
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.format.names import COMPONENTS_PREFIX
from dstl_dagster.storage import ObjectStore, open_store
from tests.dagster import days as days_module

_bucket_numbers = itertools.count(1)


@dataclass
class Days:
    """The job `days`: run a day, and see what Dagster and the store have of it.

    Attributes:
        code: the module `days`.
        body: runs inside the batch of every day from now on.
        options: of the coordinator.
        files: files that a day writes.
        separate_steps: whether each of the steps 4 to 7 is an op.
    """

    code: ModuleType
    instance: dg.DagsterInstance
    uri: str
    body: Any
    options: dict[str, str] = field(default_factory=dict)
    files: int = 1
    separate_steps: bool = False

    @property
    def store(self) -> ObjectStore:
        return open_store(self.uri)

    def resource(self) -> ChangelogStorageResource:
        return ChangelogStorageResource(uri=self.uri, options=self.options)

    def coordinator(self, owner: str = "somebody else") -> CheckpointCoordinator:
        return CheckpointCoordinator("days", self.store, owner=owner)

    def run(self, day: str, *, tags: Mapping[str, str] | None = None) -> dg.ExecuteInProcessResult:
        """One day, in this process."""
        state = self.code.build_state(self.body, files=self.files, separate_steps=self.separate_steps)
        return dg.materialize(
            [state],
            partition_key=day,
            instance=self.instance,
            resources={"changelog": self.resource()},
            tags=dict(tags or {}),
            raise_on_error=False,
        )

    def objects(self) -> dict[str, int]:
        """Every object's generation, without the marks of clean-ups, which a later one may renew."""
        found = {stat.name: stat.generation for stat in self.store.list()}
        return {name: generation for name, generation in found.items() if "/clean-up/" not in name}

    def components(self) -> list[str]:
        """The components of files, by their names in the bucket, outside the job's own prefix."""
        bucket = self.store.in_bucket(self.store.bucket_name)
        return [stat.name for stat in bucket.list(COMPONENTS_PREFIX)]

    def kinds(self) -> list[str]:
        """The timeline, in words."""
        return [record.kind for record in self.coordinator().timeline.records()]

    def events(self, asset: str) -> list[dg.AssetMaterialization]:
        """All materialisations of one of the job's assets, oldest first."""
        found = self.instance.fetch_materializations(dg.AssetKey(["days", asset]), limit=100, ascending=True)
        return [record.asset_materialization for record in found.records]

    def shown_checkpoints(self) -> list[str]:
        """The dynamic partitions: what Dagster shows as restorable."""
        return sorted(self.instance.get_dynamic_partitions("days_checkpoints"))

    def logged(self, result: dg.ExecuteInProcessResult) -> str:
        """Everything that a run logged, a line per message."""
        return "\n".join(entry.user_message for entry in self.instance.all_logs(result.run_id))

    def failure(self, result: dg.ExecuteInProcessResult) -> tuple[str, str]:
        """The step that failed, and the message of the first cause."""
        (failed,) = (event for event in result.all_events if event.is_step_failure)
        said = failed.step_failure_data.user_failure_data
        if said is not None and said.description:
            return _last(failed.step_key), said.description
        error = failed.step_failure_data.error
        while error.cause is not None:
            error = error.cause
        return _last(failed.step_key), error.message

    def retries(self, result: dg.ExecuteInProcessResult) -> list[str]:
        """The steps that were tried again, once for each time."""
        kind = dg.DagsterEventType.STEP_UP_FOR_RETRY
        return [_last(event.step_key) for event in result.all_events if event.event_type == kind]


@dataclass
class Daemon:
    """Does with a tick what Dagster's daemon does, effect by effect; can be killed between any two.

    Attributes:
        runs: every run that was launched: its key and the checkpoint that its config names.
        job: another one than that of `days`.
    """

    days: Days
    commit: bool = False
    name: str = "outside"
    cursor: str | None = None
    runs: list[tuple[str, int]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    definitions: dg.Definitions | None = None
    job: str | None = None

    def tick(self, rng: random.Random | None = None) -> str | None:
        """One tick, killed before one of its effects or not at all; returns what the page would show."""
        result = self._evaluate()
        effects = list(self._effects(result))
        for effect in effects[: len(effects) if rng is None else rng.randrange(len(effects) + 1)]:
            effect()
        return result.skip_reason.skip_message if result.skip_reason else None

    def _evaluate(self) -> dg.SensorResult:
        code = self.days.code
        sensor = build_checkpoint_sensor(
            self.job or code.JOB,
            name=self.name,
            commit_job=build_maintenance(code.JOB, "commit") if self.commit else None,
            **{"partitions_def": code.DAYS, **self.options},
        )
        with dg.build_sensor_context(
            instance=self.days.instance,
            cursor=self.cursor,
            resources={"changelog": self.days.resource()},
            definitions=self.definitions,
        ) as context:
            result = sensor(context)
        assert isinstance(result, dg.SensorResult)
        return result

    def _effects(self, result: dg.SensorResult) -> Iterator[Any]:
        instance = self.days.instance
        for event in result.asset_events or []:
            yield lambda event=event: instance.report_runless_asset_event(event)
        for request in result.dynamic_partitions_requests or []:
            yield lambda request=request: self._partitions(request)
        for request in result.run_requests or []:
            yield lambda request=request: self._launch(request)

        def move() -> None:
            self.cursor = result.cursor

        yield move

    def _partitions(self, request: Any) -> None:
        instance, name = self.days.instance, request.partitions_def_name
        if isinstance(request, dg.AddDynamicPartitionsRequest):
            instance.add_dynamic_partitions(name, list(request.partition_keys))
        else:
            for key in request.partition_keys:
                instance.delete_dynamic_partition(name, key)

    def _launch(self, request: dg.RunRequest) -> None:
        if any(key == request.run_key for key, _ in self.runs):
            return  # Dagster's own rule
        config = request.run_config["ops"]["commit"]["config"]
        self.runs.append((str(request.run_key), config["checkpoint_id"]))
        self.days.instance.add_run(
            dg.DagsterRun(
                job_name="days_commit",
                run_id=str(uuid.uuid4()),
                status=dg.DagsterRunStatus.STARTED,
                tags=dict(request.tags),
            )
        )

    def end_runs(self, status: dg.DagsterRunStatus) -> None:
        instance = self.days.instance
        for run in instance.get_runs():
            if not run.is_finished:
                success = status == dg.DagsterRunStatus.SUCCESS
                kind = dg.DagsterEventType.RUN_SUCCESS if success else dg.DagsterEventType.RUN_FAILURE
                instance.report_dagster_event(
                    dg.DagsterEvent(kind.value, run.job_name, message="over"), run.run_id
                )


def _last(step_key: str) -> str:
    return step_key.rpartition(".")[2]


@pytest.fixture(autouse=True)
def no_bucket_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process checks a bucket once; here each test is a process that has checked none."""
    monkeypatch.setattr("dstl_dagster.orchestration.inject.resources._checked", set())


@pytest.fixture(autouse=True, scope="session")
def migrations_are_loaded_once() -> Iterator[None]:
    """Alembic makes the tables of every instance, and would load each of 90 files of Dagster's for it."""
    load = alembic.util.load_python_file
    once = cache(load)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            alembic.util,
            "load_python_file",
            lambda where, name: (load if name == "env.py" else once)(where, name),
        )
        yield


@pytest.fixture(autouse=True, scope="session")
def tables_are_copied(migrations_are_loaded_once: None, connections_are_kept: None) -> Iterator[None]:
    """Of instances in memory: making and stamping them takes half as long as a run."""
    with (
        dg.DagsterInstance.ephemeral() as first,
        pytest.MonkeyPatch.context() as patched,
        ExitStack() as templates,
    ):
        for module, metadata, made in (
            (event_log, "SqlEventLogStorageMetadata", first.event_log_storage),
            (runs, "RunStorageSqlMetadata", first.run_storage),
        ):
            template = templates.enter_context(closing(sqlite3.connect(":memory:")))
            _database(made._held_conn).backup(template)
            copied = SimpleNamespace(create_all=lambda new, t=template: t.backup(_database(new)))
            patched.setattr(module, metadata, copied)
            patched.setattr(module, "stamp_alembic_rev", lambda *_: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def connections_are_kept() -> Iterator[None]:
    """Of instances in memory, which else open a database for each query, and set it up: a fifth of a run."""

    def engine(url: str, **_: object) -> sqlalchemy.Engine:
        made = sqlalchemy.create_engine(
            url, poolclass=sqlalchemy.QueuePool, connect_args={"check_same_thread": False}
        )
        sqlalchemy.event.listen(made, "connect", lambda new, _: new.execute("PRAGMA foreign_keys=ON"))
        return made

    @contextmanager
    def events(storage: Any) -> Iterator[Connection]:
        with storage._db_lock, storage._engine.begin() as connection:
            yield connection

    @contextmanager
    def of_runs(storage: Any) -> Iterator[Connection]:
        with storage._engine.begin() as connection:
            yield connection

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(event_log, "create_engine", engine)
        patched.setattr(runs, "create_engine", engine)
        patched.setattr(event_log.InMemoryEventLogStorage, "_connect", events)
        patched.setattr(runs.InMemoryRunStorage, "connect", of_runs)
        yield


@pytest.fixture(autouse=True, scope="session")
def files_are_copied(
    migrations_are_loaded_once: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Of instances on disk, whose every run has a database of its own: a quarter of a small run."""
    template = tmp_path_factory.mktemp("databases") / "events.db"
    make = SqliteEventLogStorage._initdb

    def copy(
        storage: SqliteEventLogStorage, engine: sqlalchemy.Engine, for_index_shard: bool = False
    ) -> None:
        path = Path(str(engine.url.database))
        if template.exists() and not path.exists():
            new = path.with_suffix(f".{uuid.uuid4()}")
            shutil.copy(template, new)
            try:
                path.hardlink_to(new)
            except FileExistsError:  # another process is just making it
                make(storage, engine, for_index_shard)
            finally:
                new.unlink()
            return
        make(storage, engine, for_index_shard)
        if not template.exists():
            with closing(sqlite3.connect(path)) as made, closing(sqlite3.connect(template)) as copied:
                made.backup(copied)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SqliteEventLogStorage, "_initdb", copy)
        yield


def _database(connection: Connection) -> sqlite3.Connection:
    found = connection.connection.dbapi_connection
    assert isinstance(found, sqlite3.Connection)
    return found


@pytest.fixture(scope="session")
def days_code() -> ModuleType:
    return days_module


@pytest.fixture
def days(days_code: ModuleType) -> Iterator[Days]:
    with dg.DagsterInstance.ephemeral() as instance:
        uri = f"memory://dagster-tests-{next(_bucket_numbers)}/job"
        yield Days(days_code, instance, uri, days_code._nothing)


@pytest.fixture
def daemon(days: Days) -> Daemon:
    return Daemon(days)


@pytest.fixture
def daemon_of(days: Days) -> Callable[..., Daemon]:
    """For a test that names the sensor, or leaves step 6 to it."""
    return partial(Daemon, days)
