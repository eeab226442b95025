"""Programs over one store, and the truth about their rows: what `test_green_means_in` draws from.

A program is a definition in Dagster, or a driver of its own: a way to define work, an asset's name, a job, an
operator, a source, and partitions. Its data are days: a run of a partition is given one row for each day of
its window, marked with the run. So the rows alone say what was lost, doubled or passed over.
"""

# No postponed annotations: Dagster reads the types of arguments as objects.

import itertools
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

import dstl_dagster as dstl
from dstl_dagster.checkpoint import (
    Batch,
    Checkpoint,
    CheckpointCoordinator,
    Claim,
    Measure,
    NameChange,
    change_names,
)
from dstl_dagster.errors import DstlError, ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.jobs import drop_job
from dstl_dagster.keyed import write_rows
from dstl_dagster.orchestration import program as program_module
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import LocalObjectStore

START = datetime(2024, 1, 1, tzinfo=UTC)
DAYS = 10
KEYS = ("asset", "day", "run")

DEFINITIONS: dict[str, Callable[[], dg.PartitionsDefinition[str] | None]] = {
    "daily": lambda: dg.DailyPartitionsDefinition(START),
    "weekly": lambda: dg.WeeklyPartitionsDefinition(START, day_offset=1),
    "monthly": lambda: dg.MonthlyPartitionsDefinition(START),
    "two days": lambda: dg.TimeWindowPartitionsDefinition(START, fmt="%Y-%m-%d", cron_schedule="0 0 */2 * *"),
    "other format": lambda: dg.DailyPartitionsDefinition(START, fmt="%Y%m%d"),
    "other zone": lambda: dg.DailyPartitionsDefinition("2024-01-01", timezone="Asia/Tokyo"),
    "one left out": lambda: dg.DailyPartitionsDefinition(START, exclusions=[START + timedelta(days=3)]),
    "static": lambda: dg.StaticPartitionsDefinition(["3", "2", "1"]),
    "none": lambda: None,
}
WAYS = ("io manager", "asset", "op", "plain asset", "driver")


@dataclass(frozen=True)
class Program:
    """One definition. `source`: the name that it chose; `None`: its own."""

    way: str
    name: str
    job: str
    operator: str
    source: str | None
    partitions: str

    @property
    def definition(self) -> dg.PartitionsDefinition[str] | None:
        return DEFINITIONS[self.partitions]()

    @property
    def writer(self) -> str:
        """Who it is, in the words of `Source.by`."""
        match self.way:
            case "asset":
                return f"asset:{self.job}/{self.name}"
            case "op":
                return f"op:{self.name}"
            case "driver":
                return f"driver:{self.name}"
        return f"asset:{self.name}"


@dataclass
class Ran:
    """What became of a run."""

    green: bool
    sentence: str = ""


@dataclass
class World:
    """The store, the programs that are defined now, and what green runs were given.

    Attributes:
        given: by job and writer, the days of its green runs; of partitions without time the key.
    """

    folder: Path
    programs: list[Program]
    instance: dg.DagsterInstance
    given: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    kept: dict[str, CheckpointCoordinator] = field(default_factory=dict)
    runs: Iterator[int] = field(default_factory=itertools.count)
    wrong: list[str] = field(default_factory=list)
    history: list[str] = field(default_factory=list)

    @property
    def uri(self) -> str:
        return self.folder.as_uri()

    def coordinator(self, job: str) -> CheckpointCoordinator:
        return CheckpointCoordinator(job, LocalObjectStore(self.folder), owner="test")

    def run(self, program: Program, key: str | None, *, dies: bool = False) -> Ran:
        """Run the program for one partition; it `dies` before its rows are written."""
        number = next(self.runs)
        try:
            ran = _run(self, program, key, number, dies=dies)
        except InvalidInputError as error:  # as its definitions load
            ran = Ran(False, str(error))
        self.history.append(f"{program} {key}: {'green' if ran.green else ran.sentence[:160]}")
        if ran.green and not dies:
            days = days_of(program, key, number)
            self.given.setdefault((program.job, program.writer), set()).update(days)
            self.look(program, days)
        elif not ran.green and not dies and "Traceback" in ran.sentence.split("\n")[0]:
            self.wrong.append(f"a red run says {ran.sentence!r}")
        return ran

    def look(self, program: Program, days: set[str]) -> None:
        """After a green run: all that its program was ever given is in its operator, each day once."""
        rows = [row for each in self.operators(program) for row in self.rows(program.job, each)]
        own = [row for row in rows if row["asset"] == program.name]
        for day in sorted(self.given[program.job, program.writer]):
            found = sum(row["day"] == day for row in own)
            if found != 1:
                self.wrong.append(f"{program}: day {day} is there {found} times, and each run was green")
        definition = program.definition
        if isinstance(definition, dg.TimeWindowPartitionsDefinition) and program.way != "driver":
            there = sorted(row["day"] for row in own if row["day"][0].isdigit())
            for day in _between(there[0], there[-1]) if there else ():
                if day not in there and not _left_out(definition, day):
                    self.wrong.append(f"{program}: day {day} was passed over")

    def operators(self, program: Program) -> list[str]:
        """Where its rows may be: a program that writes as it goes may go on with another operator."""
        if program.way in ("io manager", "driver"):
            return [program.operator]
        latest = self.coordinator(program.job).latest()
        return [] if latest is None else sorted(latest.manifest.operators)

    def rows(self, job: str, operator: str) -> list[dict[str, str]]:
        try:
            return self.coordinator(job).read_state(operator).to_arrow().to_pylist()
        except NotFoundError:
            return []

    def drop(self, job: str) -> None:
        store = LocalObjectStore(self.folder)
        try:
            drop_job(store, job, owner="test", force=True, clock=_NoWait())
        except NotFoundError:
            return
        self.history.append(f"drop {job}")
        for each in [each for each in self.given if each[0] == job]:
            del self.given[each]

    def restore(self, job: str, back: int) -> None:
        """To a checkpoint before the last one; what later ones were given has to come again."""
        coordinator = self.coordinator(job)
        kept = coordinator.list()
        if len(kept) < 2:
            return
        target = kept[max(0, len(kept) - 1 - back)]
        coordinator.restore(target.checkpoint_id)
        self.history.append(f"restore {job} to {target.checkpoint_id}")
        for program in self.programs:
            if program.job == job and (job, program.writer) in self.given:
                rows = self.rows(job, program.operator)
                self.given[job, program.writer] = {r["day"] for r in rows if r["asset"] == program.name}

    def rename(self, program: Program, to: Program) -> None:
        """What an error says: the operator and the source have new names. Then the program has, too."""
        coordinator = self.coordinator(program.job)
        latest = coordinator.latest()
        if latest is None:
            return
        operators = {program.operator: to.operator} if program.operator != to.operator else {}
        known = latest.manifest
        changes = NameChange({old: new for old, new in operators.items() if old in known.operators})
        if changes and not {*changes.operators.values()} & {*known.operators}:
            change_names(coordinator, latest, changes)
            self.history.append(f"rename {changes}")


class _NoWait:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_seconds(self) -> float:
        return 0.0

    def sleep_seconds(self, seconds: float) -> None:
        """At once."""


def days_of(program: Program, key: str | None, number: int) -> set[str]:
    """The days that a run of this partition is given."""
    definition = program.definition
    if not isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return {f"run {number}" if key is None else f"key {key}"}
    window = definition.time_window_for_partition_key(key or "")
    # By the hour that all zones have in common with their day.
    first = (window.start + timedelta(hours=12)).astimezone(UTC).date()
    last = (window.end - timedelta(hours=12)).astimezone(UTC).date()
    return {str(first + timedelta(days=n)) for n in range((last - first).days + 1)}


def _between(first: str, last: str) -> Iterator[str]:
    at, end = date.fromisoformat(first), date.fromisoformat(last)
    while at <= end:
        yield str(at)
        at += timedelta(days=1)


def _left_out(definition: dg.TimeWindowPartitionsDefinition, day: str) -> bool:
    at = datetime.fromisoformat(day).replace(tzinfo=UTC)
    return any(getattr(each, "timestamp", None) == at.timestamp() for each in definition.exclusions or ())


def keys_of(program: Program) -> list[str | None]:
    """Some of the partitions, ascending."""
    definition = program.definition
    if definition is None:
        return [None]
    if isinstance(definition, dg.TimeWindowPartitionsDefinition):
        end = START + timedelta(days=40)
        window, found = definition.get_first_partition_window(), []
        while window is not None and window.end <= end and len(found) < DAYS:
            found.append(definition.get_partition_key_for_timestamp(window.start.timestamp()))
            window = definition.get_next_partition_window(window.end)
        return [*found]
    return [*definition.get_partition_keys()]


# ---- the ways


def _table(program: Program, key: str | None, number: int) -> pa.Table:
    days = sorted(days_of(program, key, number))
    columns = {"asset": [program.name] * len(days), "day": days, "run": [str(number)] * len(days)}
    return pa.table(columns, pa.schema([(name, pa.string()) for name in KEYS]))


class Died(Exception):  # noqa: N818 - not an error of the program's
    """The process of the run is gone."""


def _written(batch: Batch, program: Program, table: pa.Table) -> None:
    schema, known = StateSchema.of(table.schema, KEYS), batch.schema(program.operator)
    schema = schema if known is None else known.evolved_to(schema)
    batch.add(write_rows(batch.coordinator.store, batch.attempt, program.operator, schema, table, ttl=None))


def _run(world: World, program: Program, key: str | None, number: int, *, dies: bool) -> Ran:
    if program.way == "driver":
        return _run_driver(world, program, key, number, dies=dies)
    changelog = dstl.ChangelogStorageResource(uri=world.uri)
    table = _table(program, key, number)
    if program.way == "io manager":
        return _materialize(world, _of_io_manager(program, table, changelog, dies=dies), key)
    if program.way == "op":
        return _execute(world, _of_op(program, table, changelog, dies=dies), key)
    make = _of_decorator if program.way == "asset" else _of_plain_asset
    return _materialize(world, make(program, table, changelog, dies=dies), key)


def _write(batch: object, program: Program, table: pa.Table, *, dies: bool) -> None:
    if dies:
        raise Died
    inner = batch._open  # type: ignore[attr-defined]  # what Spark's faces write with
    _written(inner, program, table)


def _of_io_manager(
    program: Program, table: pa.Table, changelog: dstl.ChangelogStorageResource, *, dies: bool
) -> dg.AssetsDefinition:
    metadata = {"dstl/keys": [*KEYS], "dstl/job": program.job, "dstl/operator": program.operator}

    @dg.asset(
        name=program.name,
        partitions_def=program.definition,
        metadata=metadata,
        io_manager_def=dstl.KeyedStateIOManager(changelog=changelog).get_resource_definition(),
    )
    def rows() -> pa.Table:
        if dies:
            raise Died
        return table

    return rows


def _of_decorator(
    program: Program, table: pa.Table, changelog: dstl.ChangelogStorageResource, *, dies: bool
) -> dg.AssetsDefinition:
    def rows(batch):
        _write(batch, program, table, dies=dies)

    return dstl.checkpointed_asset(
        dstl.JobAssets(program.job, state=program.name),
        partitions_def=program.definition,
        source=program.source,
        changelog=changelog,
        retry_policy=dg.RetryPolicy(max_retries=0),
    )(rows)


def _of_plain_asset(
    program: Program, table: pa.Table, changelog: dstl.ChangelogStorageResource, *, dies: bool
) -> dg.AssetsDefinition:
    ordered = isinstance(program.definition, dg.TimeWindowPartitionsDefinition)

    @dg.asset(name=program.name, partitions_def=program.definition)
    def rows(context: dg.AssetExecutionContext) -> None:
        source = (program.source or f"asset:{program.name}") if ordered else None
        with changelog.checkpoint(context.op_execution_context, program.job, source=source) as batch:
            if batch.already_in is None:
                _write(batch, program, table, dies=dies)

    return rows


def _of_op(
    program: Program, table: pa.Table, changelog: dstl.ChangelogStorageResource, *, dies: bool
) -> dg.JobDefinition:
    ordered = isinstance(program.definition, dg.TimeWindowPartitionsDefinition)

    @dg.op(name=program.name, out=dg.Out(dict))
    def rows(context: dg.OpExecutionContext) -> dict:
        source = (program.source or f"op:{program.name}") if ordered else None
        with changelog.checkpoint(context, program.job, source=source) as batch:
            if batch.already_in is None:
                _write(batch, program, table, dies=dies)
        return batch.reference

    return dstl.build_checkpoint_job(
        f"{program.name}_job",
        rows,
        partitions_def=program.definition,
        retry_policy=dg.RetryPolicy(max_retries=0),
        resource_defs={"changelog": changelog},
    )


def _materialize(world: World, asset: dg.AssetsDefinition, key: str | None) -> Ran:
    result = dg.materialize([asset], partition_key=key, instance=world.instance, raise_on_error=False)
    return _ran(result)


def _execute(world: World, job: dg.JobDefinition, key: str | None) -> Ran:
    return _ran(job.execute_in_process(partition_key=key, instance=world.instance, raise_on_error=False))


def _ran(result: dg.ExecuteInProcessResult) -> Ran:
    if result.success:
        return Ran(True)
    (*_, failed) = result.get_step_failure_events() or [None]
    error = None if failed is None else failed.step_failure_data.error
    data = None if failed is None else failed.step_failure_data.user_failure_data
    said = (data and data.description) or ("" if error is None else error.message)
    return Ran(False, said)


def _run_driver(world: World, program: Program, key: str | None, number: int, *, dies: bool) -> Ran:
    """A program of its own that stays: its coordinator is there from batch to batch."""
    coordinator = world.kept.setdefault(program.name + program.job, world.coordinator(program.job))
    claim = Claim(
        program.source or program.writer,
        program.writer,
        Measure("keys", {"partitions": program.partitions}),
        (program.operator,),
        is_defined=_defined(world),
    )
    name = claim.key(f"run {number}" if key is None else key)
    try:
        if coordinator.applied_batch(name, claim) is not None:
            return Ran(True)
        batch = Batch.open(coordinator, idempotency_key=name, take_over=True, claim=claim)
        if dies:
            return Ran(False, "died")
        with batch.aborted_on_error():
            _written(batch, program, _table(program, key, number))
        batch.complete()
    except DstlError as error:
        if error.kind == ErrorKind.JOB_GONE:
            del world.kept[program.name + program.job]
        return Ran(False, str(error))
    return Ran(True)


def _defined(world: World) -> Callable[[str], bool]:
    return lambda by: any(each.writer == by for each in world.programs)


@contextmanager
def world_of(programs: list[Program], monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A store of its own, in whose code location these programs are defined."""
    with tempfile.TemporaryDirectory() as folder, dg.DagsterInstance.ephemeral() as instance:
        world = World(Path(folder), programs, instance)
        monkeypatch.setattr(program_module, "_is_defined", lambda _context: _defined(world))
        yield world


# ---- drawing


def drawn(rng: random.Random) -> Program:
    """Any program; names coincide often."""
    return Program(
        rng.choice(WAYS),
        rng.choice(["orders", "totals"]),
        rng.choice(["orders", "orders", "sales"]),
        rng.choice(["totals", "totals", "counts"]),
        rng.choice([None, None, "feed"]),
        rng.choice([*DEFINITIONS, "daily", "daily", "weekly"]),
    )


def changed(rng: random.Random, program: Program) -> Program:
    """The same with one thing changed, as an edit of its code does."""
    other = drawn(rng)
    what = rng.choice(["partitions", "partitions", "operator", "name", "source"])
    return replace(program, **{what: getattr(other, what)})


def checkpoints(world: World, job: str) -> list[Checkpoint]:
    return world.coordinator(job).list()
