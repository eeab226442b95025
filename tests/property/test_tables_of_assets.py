"""Assets of the IO manager, in any order, again, killed and two at once, against one file for each partition.

Drawn: with `partition_expr` or without, the partitions and how their columns spell them, the forms of rows in
and out, what happens next, and the mapping by which an asset below loads, which has partitions of any kind.
The oracle is dictionaries (`Files`), and what Dagster's events say: a materialization for each partition of a
green run, none for a red.

`DSTL_TABLE_CASES` says how many cases; some of them by Spark with `DSTL_TABLE_SPARK=1`.
"""

# No postponed annotations: Dagster reads them as objects.

import contextlib
import itertools
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run

import dstl_dagster as dstl
from dstl_dagster import jobs
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.jobs import frames
from dstl_dagster.keyed import StateScan
from dstl_dagster.orchestration.define import io_manager
from dstl_dagster.state import TimeSpans
from dstl_dagster.storage import open_store
from dstl_dagster.testing.fault_schedules import AtRequests, Fault, SimulatedCrash
from dstl_dagster.testing.fault_store import FaultStore

CASES = int(os.environ.get("DSTL_TABLE_CASES", "4"))
SPARK = os.environ.get("DSTL_TABLE_SPARK") == "1"
STEPS = 6
REQUESTS = 34
"""Of a run, about; one of them is the last of a run that is killed."""

pytestmark = pytest.mark.filterwarnings(
    "ignore::dagster.BetaWarning", "ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"
)

Rows = dict[int, int]
"""Of one partition: a number and its value."""

START = datetime(2024, 3, 9)  # summer time begins on the next day in New York
ZONE = "America/New_York"
DAYS = dg.DailyPartitionsDefinition(START, end_offset=0, end_date=START + timedelta(days=4), timezone=ZONE)
HOURS = dg.HourlyPartitionsDefinition(START, end_date=START + timedelta(hours=4))
WEEKS = dg.WeeklyPartitionsDefinition(datetime(2024, 1, 7), end_date=datetime(2024, 2, 4))
PLACES = dg.StaticPartitionsDefinition(["1", "2", "3", "4"])
FRUITS = dg.DynamicPartitionsDefinition(name="fruits")
TWO_PLACES = dg.StaticPartitionsDefinition(["low", "high"])
BOTH = dg.MultiPartitionsDefinition({"day": DAYS, "place": TWO_PLACES})
KINDS: dict[str, Any] = {
    "none": None, "daily": DAYS, "hourly": HOURS, "weekly": WEEKS,
    "static": PLACES, "dynamic": FRUITS, "multi": BOTH,
}  # fmt: skip


def start_of(definition: dg.TimeWindowPartitionsDefinition, key: str) -> datetime:
    return definition.time_window_for_partition_key(key).start


SPELLINGS: dict[str, Callable[[Any, str], Any]] = {
    "instant": lambda definition, key: start_of(definition, key).astimezone(UTC),
    "local": lambda definition, key: start_of(definition, key).replace(tzinfo=None),
    "later": lambda definition, key: start_of(definition, key).replace(tzinfo=None) + timedelta(minutes=59),
    "text": lambda _definition, key: key,
    "date": lambda definition, key: start_of(definition, key).date(),
}
TYPES = {"instant": pa.timestamp("us", "UTC"), "local": pa.timestamp("us"), "later": pa.timestamp("us")}
FORMS_IN: dict[str, Callable[[pa.Table], Any]] = {
    "arrow": lambda table: table,
    "pandas": lambda table: table.to_pandas(date_as_object=True),
    "polars": pl.DataFrame,
    "lazy": lambda table: pl.DataFrame(table).lazy(),
    "reader": lambda table: table.to_reader(),
}
FORMS_OUT: dict[str, Any] = {
    "arrow": pa.Table | None, "pandas": pd.DataFrame | None, "polars": pl.DataFrame | None, "scan": Any,
}  # fmt: skip


@dataclass(frozen=True)
class Program:
    """How an asset is defined. `sums`: an update rule adds values; only of a cumulative state."""

    kind: str
    table: bool
    sums: bool
    overwrite: bool
    spelling: str
    form_in: str
    form_out: str

    @classmethod
    def drawn(cls, rng: random.Random) -> "Program":
        kind = rng.choice([*KINDS, "none"])
        table = kind != "none" and rng.random() < 0.7
        overwrite = kind == "none" and rng.random() < 0.5
        spellings = (
            ["date", "local", "instant", "text"]
            if kind in ("daily", "multi")
            else ["local", "instant", "text", "later"]
        )
        return cls(
            kind,
            table,
            not table and not overwrite and rng.random() < 0.5,
            overwrite,
            rng.choice(spellings),
            rng.choice([*FORMS_IN, *(["spark"] if SPARK else [])]),
            rng.choice([*FORMS_OUT, *(["spark"] if SPARK else [])]),
        )

    @property
    def metadata(self) -> dict[str, Any]:
        found: dict[str, Any] = {"dstl/keys": ["n"]}
        if self.table:
            columns = {"day": "day_", "place": "place_"} if self.kind == "multi" else "part"
            names = [*columns.values()] if isinstance(columns, dict) else [columns]
            found = {"dstl/keys": [*names, "n"], "partition_expr": columns}
        if self.sums:
            found |= {"dstl/schema": "n BIGINT, v BIGINT", "dstl/update": {"v": "coalesce(old.v, 0) + new.v"}}
        return found | ({"mode": "overwrite"} if self.overwrite else {})

    def values(self, key: str) -> dict[str, Any]:
        """Of the partition's columns."""
        definition = KINDS[self.kind]
        if self.kind == "multi":
            parts = definition.get_partition_key_from_str(key).keys_by_dimension
            return {"day_": SPELLINGS[self.spelling](DAYS, parts["day"]), "place_": parts["place"]}
        if isinstance(definition, dg.TimeWindowPartitionsDefinition):
            return {"part": SPELLINGS[self.spelling](definition, key)}
        return {"part": int(key)} if self.kind == "static" else {"part": key}

    def rows(self, given: Mapping[str, Rows]) -> pa.Table:
        """All columns, whose types do not depend on whether there are rows."""
        listed = [
            {**self.values(key), "n": n, "v": v} for key, rows in given.items() for n, v in rows.items()
        ]
        columns = (
            {name: self._kind(value) for name, value in self.values(min(given)).items()} if self.table else {}
        )
        return pa.Table.from_pylist(listed, pa.schema({**columns, "n": pa.int64(), "v": pa.int64()}))

    def has_untyped_columns(self, given: Mapping[Any, Rows]) -> bool:
        """Of these rows, as their library has them: text and dates of no rows are plain objects in pandas."""
        rows = self.rows(given)
        return self.form_in == "pandas" and not len(rows) and object in [*FORMS_IN["pandas"](rows).dtypes]

    def _kind(self, value: Any) -> pa.DataType:
        by_python = {str: pa.string(), int: pa.int64(), date: pa.date32()}
        return by_python.get(type(value)) or TYPES[self.spelling]


class Refused(Exception):  # noqa: N818 - a run must be red
    """What a file for each partition would not have done."""


@dataclass
class Files:
    """The oracle.

    Attributes:
        files: of a table, the rows of each partition; otherwise unused.
        held: of a cumulative state, the partitions in the order of their checkpoints, and the states.
        state: the rows of a cumulative state, or of one without partitions.
    """

    program: Program
    files: dict[str, Rows] = field(default_factory=dict)
    held: list[tuple[str, Rows]] = field(default_factory=list)
    state: Rows = field(default_factory=dict)
    checkpoints: int = 0

    @property
    def is_ordered(self) -> bool:
        return isinstance(KINDS[self.program.kind], dg.TimeWindowPartitionsDefinition)

    def copy(self) -> "Files":
        return Files(self.program, dict(self.files), list(self.held), dict(self.state), self.checkpoints)

    def apply(self, given: Mapping[str | None, Rows], *, typed: bool = False) -> None:
        """A new run of these partitions; `typed`: of Arrow's rows. Raises: Refused."""
        if not typed and not self.checkpoints and self.program.has_untyped_columns(given):
            raise Refused
        if self.program.table:
            self.files.update({str(key): dict(rows) for key, rows in given.items()})
        else:
            ((key, rows),) = given.items()
            self.state = self._cumulated(key, rows)
        self.checkpoints += 1

    def _cumulated(self, key: str | None, rows: Rows) -> Rows:
        if key is None:
            return dict(rows) if self.program.overwrite else self._folded(self.state, rows)
        before = self.state
        if key in [each for each, _ in self.held]:
            if self.held[-1][0] != key:
                raise Refused
            self.held.pop()
            before = self.held[-1][1] if self.held else {}
        elif self.is_ordered and keys_of(self.program.kind)[len(self.held)] != key:
            raise Refused
        after = self._folded(before, rows)
        self.held.append((key, after))
        return after

    def _folded(self, before: Rows, rows: Rows) -> Rows:
        after = dict(before)
        for n, v in rows.items():
            after[n] = after.get(n, 0) + v if self.program.sums else v
        return after

    def everything(self) -> list[tuple[Any, ...]]:
        if not self.program.table:
            return sorted(self.state.items())
        return self.of([*self.files])

    def of(self, keys: Sequence[str]) -> list[tuple[Any, ...]]:
        """The rows of some partitions of a table."""
        found = [
            (*self.program.values(key).values(), n, v)
            for key in keys
            for n, v in self.files.get(key, {}).items()
        ]
        return sorted(found, key=repr)

    def loaded(self, keys: Sequence[str] | None) -> list[tuple[Any, ...]] | None:
        """What an input of these partitions has; `None`: of all, for an asset without partitions.

        Raises: Refused.
        """
        if not self.checkpoints:
            if keys == []:
                return None
            raise Refused
        if keys == []:
            return []
        if self.program.table:
            return self.of([*self.files] if keys is None else keys)
        if keys is None or self.program.kind == "none":
            return self.everything()
        held = [key for key, _ in self.held]
        if not set(keys) <= set(held):
            raise Refused
        return sorted(self.held[max(held.index(key) for key in keys)][1].items())


def keys_of(kind: str) -> list[str]:
    if kind == "dynamic":
        return ["apple", "fig", "kiwi", "pear"]
    return [str(key) for key in KINDS[kind].get_partition_keys()]


class Store(dstl.ChangelogStorageResource):
    """In this process; a request may be its run's last."""

    def coordinator(self, job: str, **how: Any) -> CheckpointCoordinator:
        store = FaultStore(open_store(self.uri), AtRequests(FAULTS))
        return CheckpointCoordinator(job, store, self.job_options(), owner=how.get("owner"))


FAULTS: dict[int, Fault] = {}
_WORLDS = itertools.count()
LOADED: list[Any] = []


class Loud:
    """Rows that do something else when they are read: while their run's attempt is open."""

    def __init__(self, rows: pa.Table, meanwhile: Callable[[], None]) -> None:
        self._rows, self._meanwhile = rows, meanwhile

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        self._meanwhile()
        return self._rows.__arrow_c_stream__(requested_schema)


class World:
    """One program, its store, and Dagster."""

    def __init__(self, program: Program, store: str, instance: dg.DagsterInstance, spark: Any) -> None:
        self.program, self.instance, self.spark = program, instance, spark
        self.changelog = Store(uri=store)
        self.now: Callable[[Sequence[str] | None], Any] = lambda keys: None
        self.made: dict[str | None, int] = {}
        instance.add_dynamic_partitions("fruits", ["apple", "fig", "kiwi", "pear"])

    def asset(self) -> dg.AssetsDefinition:
        world = self

        @dg.asset(
            name="rows",
            partitions_def=KINDS[self.program.kind],
            metadata=self.program.metadata,
            backfill_policy=dg.BackfillPolicy.single_run() if self.program.table else None,
        )
        def rows(context: dg.AssetExecutionContext) -> Any:
            return world.now(
                None if KINDS[world.program.kind] is None else [str(key) for key in context.partition_keys]
            )

        return rows

    def below(self, definition: Any, mapping: Any) -> dg.AssetsDefinition:
        def below(rows: Any) -> None:
            LOADED.append(rows)

        hint = FORMS_OUT.get(self.program.form_out)
        if self.program.form_out == "spark":
            from pyspark.sql import DataFrame

            hint = DataFrame | None
        below.__annotations__ = {"rows": hint, "return": None}
        ins = {"rows": dg.AssetIn("rows", partition_mapping=mapping)}
        return dg.asset(name="below", partitions_def=definition, ins=ins)(below)

    def run(
        self, assets: list[dg.AssetsDefinition], key: str, tags: dict[str, str], **more: Any
    ) -> dg.DagsterRun:
        """Of one asset; the run as it ended, or as it stands where its process died."""
        manager = dstl.KeyedStateIOManager(changelog=self.changelog, clean_up_every=2)
        defs = dg.Definitions(
            assets=assets, resources={"io_manager": manager}, executor=dg.in_process_executor
        )
        job = defs.resolve_implicit_global_asset_job_def().get_subset(asset_selection={dg.AssetKey(key)})
        run = self.instance.create_run_for_job(job, tags=tags, asset_selection={dg.AssetKey(key)}, **more)
        run = run._replace(step_keys_to_execute=None)  # as the page asks for all steps
        with contextlib.suppress(SimulatedCrash):
            execute_run(InMemoryJob(job), run, self.instance)
        ended = self.instance.get_run_by_id(run.run_id)
        assert ended is not None
        if not ended.is_finished:
            self.instance.report_run_failed(ended)  # as Dagster's monitoring does, some time after a SIGKILL
        return self.instance.get_run_by_id(run.run_id)  # type: ignore[return-value]

    def everything(self) -> list[tuple[Any, ...]]:
        coordinator = CheckpointCoordinator("rows", open_store(self.changelog.uri))
        if coordinator.latest() is None:
            return []
        return listed(coordinator.read_state("rows").to_arrow(), self.program)

    def events(self) -> dict[str | None, int]:
        records = self.instance.fetch_materializations(dg.AssetKey("rows"), limit=1000).records
        found: dict[str | None, int] = {}
        for record in records:
            key = None if record.partition_key is None else str(record.partition_key)
            found[key] = found.get(key, 0) + 1
        return found


def listed(rows: Any, program: Program) -> list[tuple[Any, ...]]:
    """As the oracle has them."""
    if hasattr(rows, "toArrow"):
        rows = rows.toArrow()
    elif hasattr(rows, "to_arrow") and not isinstance(rows, pl.DataFrame):
        rows = rows.to_arrow()
    names = [*program.metadata["dstl/keys"], "v"]
    table = (
        pa.Table.from_pandas(rows, preserve_index=False) if isinstance(rows, pd.DataFrame) else pa.table(rows)
    )
    return sorted((tuple(row[name] for name in names) for row in table.to_pylist()), key=repr)


def tags_of(keys: Sequence[str] | None) -> dict[str, str]:
    if keys is None:
        return {}
    if len(keys) == 1:
        return {"dagster/partition": keys[0]}
    return {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}


class Case:
    def __init__(self, seed: int, store: str, instance: dg.DagsterInstance, spark: Any) -> None:
        self.rng = random.Random(seed)
        self.program = Program.drawn(self.rng)
        self.files = Files(self.program)
        self.world = World(self.program, store, instance, spark)
        self.events: dict[str | None, int] = {}
        self.history: list[str] = []
        self.last: tuple[list[str] | None, dict[Any, Rows]] = (None, {})

    def play(self) -> None:
        for _ in range(STEPS):
            does = self.rng.choices(["run", "again", "kill", "two"], [6, 2, 3, 1])[0]
            self.step(does)
            self.check()
        self.load()

    def step(self, does: str) -> None:
        keys = self._keys() if does != "again" or not self.last[1] else self.last[0]
        given: dict[Any, Rows] = {key: self._rows() for key in keys or [None]}
        self.last = (keys, given)
        self.history.append(f"{does} {given}")
        if does == "kill":
            self._kill(keys, given)
        elif does == "two":
            self._two(keys, given)
        else:
            self._settle(self._run(keys, given), given)

    def _keys(self) -> list[str] | None:
        if self.program.kind == "none":
            return None
        known = keys_of(self.program.kind)
        if not self.program.table and self.rng.random() < 0.8:
            return [known[min(len(self.files.held), len(known) - 1)]]
        at = self.rng.randrange(len(known))
        count = self.rng.choice([1, 1, 2, 3]) if self.program.table and self.program.kind != "multi" else 1
        return known[at : at + count]

    def _rows(self) -> Rows:
        return {
            n: self.rng.randint(1, 3) for n in self.rng.sample(range(5), self.rng.choice([0, 1, 2, 3, 5]))
        }

    def _run(self, keys: list[str] | None, given: Mapping[Any, Rows], **more: Any) -> dg.DagsterRun:
        def rows(asked: Sequence[str] | None) -> Any:
            assert (asked or [None]) == [*given]
            return self._form(self.program.rows(given))

        self.world.now = more.pop("rows", rows)
        tags = {**tags_of(keys), **more.pop("tags", {})}
        return self.world.run([self.world.asset()], "rows", tags, **more)

    def _form(self, table: pa.Table) -> Any:
        if self.program.form_in == "spark":
            return self.world.spark.createDataFrame(table)
        return FORMS_IN[self.program.form_in](table)

    def _settle(self, run: dg.DagsterRun, given: Mapping[Any, Rows], *, typed: bool = False) -> None:
        """The run is green where the files would have taken its rows, and red where not."""
        after = self.files.copy()
        try:
            after.apply(given, typed=typed)
        except Refused:
            assert run.is_failure, "a run that had to be red is green"
            return
        assert run.is_success, f"red: {self.why(run)}"
        self.files = after
        self._count(given)

    def _count(self, given: Mapping[Any, Rows]) -> None:
        for key in given:
            self.events[key] = self.events.get(key, 0) + 1

    def _kill(self, keys: list[str] | None, given: Mapping[Any, Rows]) -> None:
        """At some request: all of the run is there, or nothing; then it is resumed, or run anew."""
        FAULTS[self.rng.randrange(REQUESTS)] = self.rng.choice([Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
        self.history.append(f"  killed at {FAULTS}")
        try:
            died = self._run(keys, given)
        finally:
            FAULTS.clear()
        if died.is_success:  # it had fewer requests
            self._settle(died, given)
            return
        before, found = self.files.everything(), self.world.everything()
        after = self.files.copy()
        with contextlib.suppress(Refused):
            after.apply(given)
        assert found in (before, after.everything()), "a killed run has left a part of itself"
        assert self.world.events() == self.events, "a killed run has an event"
        resumes = self.rng.random() < 0.5
        more: dict[str, Any] = {"parent_run_id": died.run_id, "root_run_id": died.root_run_id or died.run_id}
        if found != before and not resumes:
            self.files = after  # it was complete, and is followed by another run
        tags = {"dagster/is_resume_retry": "true"} if resumes else {}
        again = self._run(keys, given, tags=tags, **more)
        self.history.append(f"  {'resumed' if resumes else 'whole'}: {again.status}")
        self._settle(again, given)

    def _two(self, keys: list[str] | None, given: Mapping[Any, Rows]) -> None:
        """The second one is refused while the first is at work, and changes nothing."""
        runs: list[dg.DagsterRun] = []
        others = {key: self._rows() for key in given}

        def meanwhile() -> None:
            if not runs:
                runs.append(self._run(keys, others))

        first = self._run(keys, given, rows=lambda _asked: Loud(self.program.rows(given), meanwhile))
        for second in runs:
            assert second.is_failure, "two runs at once are green"
        self._settle(first, given, typed=True)

    def check(self) -> None:
        assert self.world.everything() == self.files.everything(), "the state is not what the files are"
        assert self.world.events() == self.events, "Dagster shows other materializations"

    def load(self) -> None:
        """By some mapping."""
        for definition, mapping, key, wanted in self._mappings():
            LOADED.clear()
            assets = [self.world.asset(), self.world.below(definition, mapping)]
            run = self.world.run(assets, "below", {} if key is None else tags_of([key]))
            self.history.append(f"load {key} of {mapping}: {run.status}")
            try:
                expected = self.files.loaded(wanted)
            except Refused:
                assert not LOADED, "an input of what was never written is loaded"
                continue
            assert LOADED, f"nothing was loaded: {self.why(run)}"
            found = None if LOADED[0] is None else listed(LOADED[0], self.program)
            assert found == expected, "an input has other rows"

    def _mappings(self) -> Iterator[tuple[Any, Any, str | None, list[str] | None]]:
        """The downstream definition, its mapping, the partition to run, and those that it then loads."""
        definition, rng = KINDS[self.program.kind], self.rng
        kind = rng.choice([*KINDS])
        key = None if KINDS[kind] is None else rng.choice(keys_of(kind))
        if definition is None:
            yield KINDS[kind], None, key, None
            return
        keys = keys_of(self.program.kind)
        one = rng.choice(keys)
        across = [
            (dg.AllPartitionMapping(), None),
            (dg.LastPartitionMapping(), keys[-1:]),
            (dg.SpecificPartitionsPartitionMapping([one]), [one]),
        ]
        mapping, wanted = rng.choice(across)
        yield KINDS[kind], mapping, key, wanted
        at = rng.randrange(len(keys))
        choices: list[Any] = [(None, None, None, None), (definition, None, keys[at], [keys[at]])]
        if isinstance(definition, dg.TimeWindowPartitionsDefinition):
            before = dg.TimeWindowPartitionMapping(
                start_offset=-1, end_offset=-1, allow_nonexistent_upstream_partitions=True
            )
            choices.append((definition, before, keys[at], keys[at - 1 : at] if at else []))
        if definition is PLACES:
            two = dg.StaticPartitionMapping({"1": "low", "3": "low", "2": "high", "4": "high"})
            choices.append((TWO_PLACES, two, "low", ["1", "3"]))
        if definition is BOTH:
            to_place = dg.MultiToSingleDimensionPartitionMapping("place")
            choices.append((TWO_PLACES, to_place, "low", [key for key in keys if key.endswith("|low")]))
        yield from rng.sample(choices, 2)

    def why(self, run: dg.DagsterRun) -> str:
        said = [
            event.message for event in self.world.instance.all_logs(run.run_id) if "rror" in event.message
        ]
        errors = [
            event.dagster_event.event_specific_data.error.to_string()[-3000:]
            for event in self.world.instance.all_logs(run.run_id)
            if event.dagster_event and event.dagster_event.is_step_failure
        ]
        return "\n".join([*said[:2], *errors])


def play(seed: int, spark: Any = None) -> None:
    with dg.DagsterInstance.ephemeral() as instance, tempfile.TemporaryDirectory() as folder:
        # Spark's tasks are other processes.
        store = f"memory://tables-{next(_WORLDS)}" if spark is None else Path(folder).as_uri()
        case = Case(seed, store, instance, spark)
        try:
            case.play()
        except AssertionError as error:
            raise AssertionError(
                "\n".join([f"seed {seed}: {error}", str(case.program), *case.history])
            ) from error


@pytest.mark.parametrize("part", range(4))
def test_assets_are_as_files(part: int, request: pytest.FixtureRequest) -> None:
    spark = request.getfixturevalue("spark") if SPARK else None
    for seed in range(part, CASES, 4):
        play(seed, spark)


Variant = Callable[[pytest.MonkeyPatch], None]


def nothing_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(rows: Any, batch: Any, *, replace: Any = False, **how: Any) -> Any:
        del replace
        return frames.write_frame(rows, batch, **how)

    monkeypatch.setattr(jobs, "write_frame", write)


def everything_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(rows: Any, batch: Any, *, replace: Any = False, **how: Any) -> Any:
        return frames.write_frame(rows, batch, replace=replace is not False, **how)

    monkeypatch.setattr(jobs, "write_frame", write)


def an_input_is_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateScan, "within", lambda self, _scope: self)


def a_run_that_is_refused_is_green(monkeypatch: pytest.MonkeyPatch) -> None:
    def pass_over(coordinator: Any, applied: Any, *_others: Any) -> None:
        raise _PassedOver(coordinator.get(applied.checkpoint_id))

    complete = io_manager.KeyedStateIOManager._complete

    def completed(*asked: Any) -> Any:
        try:
            return complete(*asked)
        except _PassedOver as found:
            return found.args[0]

    monkeypatch.setattr(io_manager, "require_replaceable", pass_over)
    monkeypatch.setattr(io_manager.KeyedStateIOManager, "_complete", completed)


class _PassedOver(Exception):  # noqa: N818 - of a variant
    """A batch that is held already."""


def several_partitions_are_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = io_manager.Target.of_input

    def of_input(context: Any) -> Any:
        target = found(context)
        return replace(target, partitions=target.partitions and target.partitions[-1:])

    monkeypatch.setattr(io_manager.Target, "of_input", of_input)


def an_empty_mapping_is_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    found = io_manager.Target.of_input

    def of_input(context: Any) -> Any:
        target = found(context)
        return replace(target, partitions=target.partitions or None)

    monkeypatch.setattr(io_manager.Target, "of_input", of_input)


def a_span_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    places = TimeSpans.places

    def shorter(self: TimeSpans, column: Any) -> Any:
        hour = 3_600_000_000
        return places(replace(self, ends=tuple(each - hour // 2 for each in self.ends)), column)

    monkeypatch.setattr(TimeSpans, "places", shorter)


@pytest.mark.parametrize(
    "variant",
    [
        nothing_is_deleted,
        everything_is_replaced,
        an_input_is_everything,
        a_run_that_is_refused_is_green,
        several_partitions_are_the_last_one,
        an_empty_mapping_is_everything,
        a_span_ends_early,
    ],
)
@pytest.mark.soak
def test_a_variant_is_found(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    variant(monkeypatch)
    for seed in range(200):
        try:
            play(seed)
        except AssertionError:
            return
    pytest.fail("no case of 200 found it")
