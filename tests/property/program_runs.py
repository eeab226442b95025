"""How a program of `programs` runs: each way to define work, in a process that may die at any request.

Dagster runs are real, in this process; a re-execution has its parent run's id and steps. A process is one
view of the store: from the request at which it dies on, no other of its requests arrives.
"""

# No postponed annotations: Dagster reads the types of arguments as objects.

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster._config.pythonic_config import resource as dagster_resource
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import create_execution_plan, execute_run
from dagster._core.execution.plan.state import KnownExecutionState
from dagster._core.storage.event_log import in_memory as events_module
from sqlalchemy.pool import SingletonThreadPool

import dstl_dagster as dstl
from dstl_dagster.checkpoint import Batch, CheckpointCoordinator, Claim, Opening
from dstl_dagster.errors import DstlError, ErrorKind
from dstl_dagster.keyed import Measure, write_rows
from dstl_dagster.orchestration import code_location as location_module
from dstl_dagster.orchestration import keys as keys_module
from dstl_dagster.orchestration.inject import resources as resources_module
from dstl_dagster.spark.sink.options import SinkOptions
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import LocalObjectStore, ObjectStore
from dstl_dagster.testing.fault_schedules import AtRequests, Fault, SimulatedCrash
from dstl_dagster.testing.fault_store import FaultStore

KEYS = ("asset", "day", "run")
_IN_PROCESS = {
    "execution": {"config": {"in_process": {}}},
    "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
}
IGNORE = "dstl/ignore_unclaimed_state"
START_OVER = "dstl/start_over"
UNCLAIMED = "execution.state-recovery.ignore-unclaimed-state"


@dataclass(frozen=True)
class Work:
    """What a run does.

    Attributes:
        way, name, job, operator, source, definition: of the program; `source`: `None` for its own.
        writer: who that is, in the words of `Source.by`.
        key: the partition.
        rows: of the batch.
        batch: what a driver calls it.
        beside: the other works of the code location, which load with it.
        prefix: of the keys under which the code location loads its assets.
        shown: it shows the job's checkpoints, too.
    """

    way: str
    name: str
    job: str
    operator: str
    source: str | None
    definition: dg.PartitionsDefinition[str] | None
    writer: str
    key: str | None
    rows: pa.Table
    batch: str
    beside: tuple["Work", ...] = ()
    prefix: str = ""
    shown: bool = False


@dataclass
class Ran:
    """What became of a run: green, red with a sentence, or dead."""

    green: bool
    sentence: str = ""
    died: bool = False
    run: dg.DagsterRun | None = None


@dataclass
class Runner:
    """Runs works on one store.

    Attributes:
        is_defined: what the program that runs now knows to be defined.
        kept: the coordinators of drivers, which stay from batch to batch.
        location: the code location of the run, where that is loaded.
    """

    folder: Path
    instance: dg.DagsterInstance
    is_defined: Callable[[str], bool]
    kept: dict[str, CheckpointCoordinator] = field(default_factory=dict)
    location: dg.RepositoryDefinition | None = None
    _store: ObjectStore | None = None

    def run(
        self,
        work: Work,
        *,
        dies_at: tuple[int, Fault] | None = None,
        meanwhile: tuple[int, Callable[[], None]] | None = None,
        again: Ran | None = None,
        whole: bool = True,
        meant: bool = False,
        anew: bool = False,
    ) -> Ran:
        """Run it once.

        Args:
            dies_at: the process is dead from that storage request on.
            meanwhile: what happens just before that storage request.
            again: the run that this re-executes, `whole` or from where it failed.
            meant: state that nothing claims may stay.
            anew: the job may start over, on a store that has none.
        """
        with self._process(dies_at, meanwhile):
            try:
                if work.way == "sink":
                    return self._write_by_sink(work, meant=meant)
                if work.way == "driver":
                    return self._drive(work, fresh=dies_at is not None or meanwhile is not None)
                return self._launch(work, again, whole=whole, meant=meant, anew=anew)
            except SimulatedCrash:
                self.kept.pop(work.name + work.job, None)
                return Ran(False, died=True)

    @contextmanager
    def _process(
        self, dies_at: tuple[int, Fault] | None, meanwhile: tuple[int, Callable[[], None]] | None
    ) -> Iterator[None]:
        outer = self._store
        at, does = (-1, None) if meanwhile is None else meanwhile
        lock, seen = threading.Lock(), 0

        def before_request() -> None:
            nonlocal seen
            with lock:
                seen += 1
                now = seen == at
            if now and does is not None:
                does()

        self._store = FaultStore(
            LocalObjectStore(self.folder),
            None if dies_at is None else AtRequests(dict([dies_at])),
            before_request=before_request,
        )
        try:
            yield
        finally:
            self._store = outer

    def open_store(self) -> ObjectStore:
        """The running process's."""
        return LocalObjectStore(self.folder) if self._store is None else self._store

    def _launch(self, work: Work, again: Ran | None, *, whole: bool, meant: bool, anew: bool) -> Ran:
        changelog = changelog_of(self.folder)
        keys_module._sources.clear()
        for each in work.beside:  # a code location loads them all
            if each.way in _LOADED:
                _job_of(each, changelog)
        if work.shown:
            loaded = {each.name: each for each in (*work.beside, work) if each.way in _ASSETS}
            self.location = definitions_of([*loaded.values()], changelog).get_repository_def()
            keys_module._sources.clear()
        job = _job_of(work, changelog)
        tags = {} if work.key is None else {"dagster/partition": work.key}
        tags |= {IGNORE: "true"} if meant else {}
        tags |= {START_OVER: "true"} if anew else {}
        parent = None if again is None else again.run
        steps, known = None, None
        if parent is not None and not whole:
            parent = self.instance.get_run_by_id(parent.run_id)
            assert parent is not None
            steps, known = KnownExecutionState.build_resume_retry_reexecution(self.instance, parent)
        plan = create_execution_plan(
            InMemoryJob(job), _IN_PROCESS, step_keys_to_execute=steps, known_state=known, tags=tags
        )
        run = self.instance.create_run_for_job(
            job_def=job,
            execution_plan=plan,
            run_config=_IN_PROCESS,
            tags=tags,
            root_run_id=None if parent is None else parent.root_run_id or parent.run_id,
            parent_run_id=None if parent is None else parent.run_id,
        )
        result = execute_run(InMemoryJob(job), run, self.instance)
        if result.success:
            return Ran(True, run=run)
        failed = [each.step_failure_data for each in result.filter_events(lambda e: e.is_step_failure)]
        said = [
            (each.user_failure_data and each.user_failure_data.description) or each.error.message
            for each in failed
        ]
        died = any(SimulatedCrash.__name__ in each for each in said)
        return Ran(False, " ".join(said), died=died, run=run)

    def _drive(self, work: Work, *, fresh: bool) -> Ran:
        if fresh:
            self.kept.pop(work.name + work.job, None)
        coordinator = self.kept.setdefault(
            work.name + work.job, CheckpointCoordinator(work.job, self.open_store(), owner=work.writer)
        )
        claim = Claim(
            work.source or work.writer,
            work.writer,
            Measure("keys", {"partitions": str(work.definition)}),
            (work.operator,),
            is_defined=self.is_defined,
        )
        name = claim.key(work.batch)
        try:
            if coordinator.applied_batch(name, claim) is not None:
                return Ran(True)
            batch = Batch.open(coordinator, Opening(name, True, claim=claim))
            with batch.aborted_on_error():
                _write(batch, work)
            batch.complete()
        except DstlError as error:
            if error.kind == ErrorKind.JOB_GONE:
                del self.kept[work.name + work.job]
            return Ran(False, str(error))
        return Ran(True)

    def _write_by_sink(self, work: Work, *, meant: bool) -> Ran:
        """A batch of `format("dstl")`, which Spark plans and completes likewise."""
        options = {
            "store": self.folder.as_uri(),
            "job": work.job,
            "operator": work.operator,
            "keys": ",".join(KEYS),
            "idempotency_key": work.batch,
            "take_over": "true",
            UNCLAIMED: str(meant).lower(),
        }
        sink = SinkOptions.of(options, streaming=False)
        coordinator = CheckpointCoordinator(work.job, self.open_store(), sink.job_options, owner=sink.owner)
        try:
            if coordinator.applied_batch(sink.key, sink.claim()) is not None:
                coordinator.compose_commit()
                return Ran(True)
            batch = Batch.open(coordinator, Opening(sink.key, True, claim=sink.claim()))
            with batch.aborted_on_error():
                _write(batch, work)
            batch.complete()
        except DstlError as error:
            return Ran(False, str(error))
        return Ran(True)


@contextmanager
def instance_of_runs() -> Iterator[dg.DagsterInstance]:
    """One for many worlds, each of which wipes it: to make one takes longer."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(events_module, "NullPool", SingletonThreadPool)  # else each event connects anew
        # It has all tables; to ask, amid a wipe, would roll that back on the shared connection.
        patched.setattr(events_module.InMemoryEventLogStorage, "has_table", lambda *_: True)
        with dg.DagsterInstance.ephemeral() as instance:
            made = partial(dg.build_init_resource_context, instance=instance)
            patched.setattr(dagster_resource, "build_init_resource_context", made)  # else each step makes one
            yield instance


def runner_of(
    folder: Path,
    instance: dg.DagsterInstance,
    is_defined: Callable[[str], bool],
    monkeypatch: pytest.MonkeyPatch,
) -> Runner:
    runner = Runner(folder, instance, is_defined)
    monkeypatch.setattr(resources_module, "open_store", lambda _uri, _options: runner.open_store())
    monkeypatch.setattr(keys_module, "_sources", {})
    monkeypatch.setattr(location_module, "code_location", lambda _context: runner.location)
    return runner


# ---- the ways


def _write(batch: Batch, work: Work) -> None:
    schema, known = StateSchema.of(work.rows.schema, KEYS), batch.schema(work.operator)
    schema = schema if known is None else known.evolved_to(schema)
    batch.add(
        write_rows(
            work.rows, batch.attempt, batch.coordinator.store, operator=work.operator, schema=schema, ttl=None
        )
    )


def _written(batch: Any, work: Work) -> None:
    if batch.already_in is None:
        _write(batch._open, work)  # what Spark's faces write with


def _job_of(work: Work, changelog: dstl.ChangelogStorageResource) -> dg.JobDefinition:
    """The job by which Dagster runs it."""
    if work.way == "op":
        return _of_op(work, changelog)
    return definitions_of([work], changelog).resolve_implicit_global_asset_job_def()


def changelog_of(folder: Path) -> dstl.ChangelogStorageResource:
    """Of a store, whose timelines have a snapshot as often as they may."""
    return dstl.ChangelogStorageResource(
        uri=folder.as_uri(), options={"dstl.checkpoint.snapshot-interval": "8"}
    )


def definitions_of(works: Sequence[Work], changelog: dstl.ChangelogStorageResource) -> dg.Definitions:
    """The assets of these, and what shows their jobs."""
    assets = [_ASSETS[each.way](each, changelog) for each in works]
    jobs = {each.job for each in works if each.shown}
    shown = [spec for job in sorted(jobs) for spec in dstl.checkpoint_asset_specs(job)]
    prefix = next((each.prefix for each in works), "")
    if prefix:
        module = ModuleType("programs")
        vars(module).update({f"asset{number}": each for number, each in enumerate(assets)})
        assets = [*dg.load_assets_from_modules([module], key_prefix=prefix)]
        shown = [each.replace_attributes(key=each.key.with_prefix(prefix)) for each in shown]
    return dg.Definitions(assets=[*assets, *shown])


def _of_io_manager(work: Work, changelog: dstl.ChangelogStorageResource) -> dg.AssetsDefinition:
    metadata = {"dstl/keys": [*KEYS], "dstl/job": work.job, "dstl/operator": work.operator}

    @dg.asset(
        name=work.name,
        partitions_def=work.definition,
        metadata=metadata,
        io_manager_def=dstl.KeyedStateIOManager(changelog=changelog).get_resource_definition(),
    )
    def rows() -> pa.Table:
        return work.rows

    return rows


def _of_decorator(work: Work, changelog: dstl.ChangelogStorageResource) -> dg.AssetsDefinition:
    def rows(batch):
        _written(batch, work)

    return dstl.checkpointed_asset(
        dstl.JobAssets(work.job, state=work.name),
        partitions_def=work.definition,
        source=work.source,
        changelog=changelog,
        retry_policy=dg.RetryPolicy(max_retries=0),
    )(rows)


def _of_function(work: Work, changelog: dstl.ChangelogStorageResource) -> dg.AssetsDefinition:
    def rows() -> pa.Table:
        return work.rows

    return dstl.checkpointed_asset(
        dstl.JobAssets(work.job, state=work.name),
        keys=KEYS,
        operator=work.operator,
        partitions_def=work.definition,
        source=work.source,
        changelog=changelog,
        retry_policy=dg.RetryPolicy(max_retries=0),
    )(rows)


def _source_in_order(work: Work) -> str | None:
    """Time partitions go in order where the program names their source, else in any."""
    return work.source if isinstance(work.definition, dg.TimeWindowPartitionsDefinition) else None


def _of_plain_asset(work: Work, changelog: dstl.ChangelogStorageResource) -> dg.AssetsDefinition:
    @dg.asset(name=work.name, partitions_def=work.definition)
    def rows(context: dg.AssetExecutionContext) -> None:
        source = _source_in_order(work)
        with changelog.checkpoint(context.op_execution_context, work.job, source=source) as batch:
            _written(batch, work)

    return rows


def _of_op(work: Work, changelog: dstl.ChangelogStorageResource) -> dg.JobDefinition:
    @dg.op(name=work.name, out=dg.Out(dict))
    def rows(context: dg.OpExecutionContext) -> dict:
        with changelog.checkpoint(context, work.job, source=_source_in_order(work)) as batch:
            _written(batch, work)
        return batch.reference

    return dstl.build_checkpoint_job(
        f"{work.name}_job",
        rows,
        partitions_def=work.definition,
        retry_policy=dg.RetryPolicy(max_retries=0),
        resource_defs={"changelog": changelog},
    )


_ASSETS: Mapping[str, Callable[..., dg.AssetsDefinition]] = {
    "io manager": _of_io_manager,
    "asset": _of_decorator,
    "function": _of_function,
    "plain asset": _of_plain_asset,
}
_LOADED = (*_ASSETS, "op")
