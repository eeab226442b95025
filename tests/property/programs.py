"""Programs over one store, and the truth about their rows: what `test_green_means_in` draws from.

A program is a definition in Dagster, or a driver of its own: a way to define work, an asset's name, a job, an
operator, a source, and partitions. Its data are days: a run of a partition is given one row for each day of
its window, marked with the run. So the rows alone say what was lost, doubled or passed over. How a program
runs is `program_runs`.
"""

import itertools
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import dagster as dg
import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator, change_columns, change_names
from dstl_dagster.errors import DstlError, ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.jobs import correct, drop_job, plan_correction
from dstl_dagster.keyed import Manifest, NameChange, diff_checkpoints
from dstl_dagster.orchestration import run_claims as claims_module
from dstl_dagster.state import ColumnChanges
from dstl_dagster.storage import LocalObjectStore, ObjectStore
from dstl_dagster.testing.fault_schedules import AtRequests, Fault, SimulatedCrash
from dstl_dagster.testing.fault_store import FaultStore
from dstl_dagster.timeline import AsOf
from tests.property.program_pages import JobPage
from tests.property.program_runs import KEYS, Ran, Runner, Work, runner_of

START = datetime(2024, 1, 1, tzinfo=UTC)
DAYS = 10
COLUMNS = ("note", "remark")
NUMBERS = ("int32", "int64")

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
WAYS = ("io manager", "asset", "function", "op", "plain asset", "driver", "sink")
DECLARED = ("io manager", "function")
"""Those that say what they write."""


@dataclass(frozen=True)
class Program:
    """One definition. `source`: the name that it chose; `None`: its own. `column`, `number`: of what is no
    key, the name of a text and the type of a number.

    `mark`: whose rows they are; a definition that goes on under a new name has the former one's.
    `prefix`: of the keys that its code location loads.
    """

    way: str
    name: str
    job: str
    operator: str
    source: str | None
    partitions: str
    column: str = "note"
    number: str = "int32"
    mark: str = ""
    prefix: str = ""

    @property
    def asset_path(self) -> list[str]:
        """The key of the asset that it is."""
        of_job = [self.job] if self.way in ("asset", "function") else []
        return [*([self.prefix] if self.prefix else []), *of_job, self.name]

    @property
    def definition(self) -> dg.PartitionsDefinition[str] | None:
        """A sink has none, and a key of the program's own for each of its days."""
        return DEFINITIONS["daily" if self.way == "sink" else self.partitions]()

    @property
    def is_in_order(self) -> bool:
        """Whether its partitions of time follow one another."""
        chosen = self.source is not None and self.way in ("op", "plain asset")
        return self.way in ("io manager", "asset", "function") or chosen

    @property
    def writer(self) -> str:
        """Who it is, in the words of `Source.by`."""
        match self.way:
            case "op":
                return f"op:{self.name}"
            case "driver":
                return f"driver:{self.name}"
            case "sink":
                return f"operator:{self.operator}"
        return f"asset:{'/'.join(self.asset_path)}"

    @property
    def own_source(self) -> str:
        names_none = self.source is None or self.way in ("io manager", "sink")
        return self.writer if names_none else self.source


@dataclass(frozen=True)
class Last:
    """The last run of a program, which can be executed again."""

    program: Program
    key: str | None
    number: int
    ran: Ran


@dataclass
class World:
    """The store, the programs that are defined now, and what green runs were given.

    Attributes:
        apart: each program has a code location of its own.
        quiet: days, and keys, of which a run is given no row.
        left_out: days that were no partition's when a program went on.
        given: by job and mark, the days of green runs; of partitions without time the key.
        follower: how an operator of a job is followed.
        pages: what Dagster shows, by job; none where nobody looks.
    """

    folder: Path
    programs: list[Program]
    apart: bool
    quiet: frozenset[str] = frozenset()
    runner: Runner = field(init=False)
    given: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    last: dict[str, Last] = field(default_factory=dict)
    follower: Callable[["World", str, str], "Followed"] = field(default_factory=lambda: Follower)
    followers: dict[tuple[str, str], "Followed"] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    wrong: list[str] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    running: list[Program] = field(default_factory=list)
    pages: dict[str, JobPage] = field(default_factory=dict)
    shown: bool = False
    dropped: list[set[tuple[str, str]]] = field(default_factory=list)
    """By drop, the marks and days that went with it."""

    def is_defined(self, by: str) -> bool:
        """Whether the code location of the program that runs now has it."""
        there = self.running[-1:] if self.apart else self.programs
        return any(each.writer == by for each in there)

    def coordinator(self, job: str, store: ObjectStore | None = None) -> CheckpointCoordinator:
        return CheckpointCoordinator(job, store or LocalObjectStore(self.folder), owner="test")

    def run(
        self,
        program: Program,
        key: str | None,
        *,
        again: Last | None = None,
        whole: bool = True,
        dies_at: tuple[int, Fault] | None = None,
        meanwhile: tuple[int, Callable[[], None]] | None = None,
        meant: bool = False,
        anew: bool = False,
    ) -> Ran:
        """Run the program for one partition. Arguments as of `Runner.run`."""
        number = next(self.numbers) if again is None or again.key is not None else again.number
        works = [
            self._work(each, key if each is program else keys_of(each)[0], number)
            for each in ([program] if self.apart else [*self.programs, program])
        ]
        self.running.append(program)
        newest = self.newest(program.job)
        drops, dropped = self.history.count(f"drop {program.job}"), len(self.dropped)
        restores = sum(each.startswith(f"restore {program.job} ") for each in self.history)
        try:
            ran = self.runner.run(
                replace(works[-1], beside=tuple(works[:-1])),
                dies_at=dies_at,
                meanwhile=meanwhile,
                again=None if again is None else again.ran,
                whole=whole,
                meant=meant,
                anew=anew,
            )
        except InvalidInputError as error:  # as its definitions load
            ran = Ran(False, str(error))
        finally:
            self.running.pop()
        how = f"{'again ' * (again is not None)}{'meant ' * meant}{'anew ' * anew}{dies_at or ''}"
        what = "green" if ran.green else "dead" if ran.died else ran.sentence[:200]
        self.history.append(f"{program} {key} {how}#{number}: {what}")
        if ran.run is not None:
            self.last[program.mark] = Last(program, key, number, ran)
        if ran.green:
            days = self.days_of(program, key, number)
            # What happened while it ran may have come after its rows.
            still = drops == self.history.count(f"drop {program.job}") and restores == sum(
                each.startswith(f"restore {program.job} ") for each in self.history
            )
            if still:
                self.given.setdefault((program.job, program.mark), set()).update(days)
            self.look(program)
            went = set().union(*self.dropped[dropped:])
            for day in days if drops < self.history.count(f"drop {program.job}") else ():
                if (program.mark, day) not in went | self.days_in(program.job):
                    self.wrong.append(f"{program}: day {day} neither went with the drop nor came after it")
            if still and meanwhile is None and self.newest(program.job) > newest:
                self._look_at(program, key)
        elif not ran.died and (
            not ran.sentence.strip() or ran.sentence.startswith(_RAW) or _NOT_SO in ran.sentence
        ):
            self.wrong.append(f"a red run of {program} says {ran.sentence!r}")
        return ran

    def _work(self, program: Program, key: str | None, number: int) -> Work:
        days = sorted(self.days_of(program, key, number))
        columns = {
            "asset": [program.mark] * len(days),
            "day": days,
            "run": [str(number)] * len(days),
            program.column: [f"{program.mark} {day}" for day in days],
        }
        numbers = pa.array([_numbers(day)[program.number] for day in days], program.number)
        return Work(
            program.way,
            program.name,
            program.job,
            program.operator,
            program.source,
            program.definition,
            program.writer,
            key,
            pa.table(columns, pa.schema([(name, pa.string()) for name in columns])).append_column(
                "number", numbers
            ),
            f"run {number}" if key is None else key,
            prefix=program.prefix,
            shown=self.shown,
        )

    def work_of(self, program: Program) -> Work:
        """As its code location loads it."""
        return self._work(program, keys_of(program)[0], -1)

    def keys_of(self, program: Program) -> list[str | None]:
        return keys_of(program)

    def look(self, program: Program) -> None:
        """After a green run: what its program was given is there, and no day twice, also of a dead run."""
        rows = [row for each in self.operators(program.job) for row in self.rows(program.job, each)]
        own = [row for row in rows if row["asset"] == program.mark]
        days = [row["day"] for row in own]
        for day in sorted({*self.given.get((program.job, program.mark), ()), *days}):
            if days.count(day) != 1:
                self.wrong.append(f"{program}: day {day} is there {days.count(day)} times")
        for row in own:
            value = row.get("note") or row.get("remark")
            if value != f"{program.mark} {row['day']}" or row["number"] not in _numbers(row["day"]).values():
                self.wrong.append(f"{program}: the values of {row['day']} are {value!r}, {row['number']!r}")
        definition = program.definition
        if isinstance(definition, dg.TimeWindowPartitionsDefinition) and program.is_in_order:
            self.left_out |= {each for each in _days() if _left_out(definition, each)}
            there = sorted(day for day in days if day[0].isdigit())
            for day in _between(there[0], there[-1]) if there else ():
                if day not in there and day not in self.quiet | self.left_out:
                    self.wrong.append(f"{program}: day {day} was passed over")

    def _look_at(self, program: Program, key: str | None) -> None:
        """After a run that made a checkpoint: its operator is there, also without a row; and by its key. Of a
        program that says what it writes, no row is left elsewhere.
        """
        of = {each: self.rows(program.job, each) for each in self.operators(program.job)}
        left = {each for each, rows in of.items() if any(row["asset"] == program.mark for row in rows)}
        if program.operator not in of:
            self.wrong.append(f"{program}: its operator has no state")
        elif program.way in DECLARED and left - {program.operator}:
            self.wrong.append(f"{program}: it began anew beside the rows of {left}")
        elif key is not None and program.partitions == "static":
            try:
                found = self.coordinator(program.job).read_state(program.operator, key).to_arrow().to_pylist()
            except DstlError as error:
                self.wrong.append(f"{program}: partition {key!r} names no checkpoint: {error}")
                return
            if by_key(found) != by_key(self.rows(program.job, program.operator)):
                self.wrong.append(f"{program}: partition {key!r} names another checkpoint than its own")

    def savepoint(self, job: str, rng: random.Random) -> None:
        """Whatever a savepoint may be called, its name alone finds it, as in a command; and it goes again."""
        kept, name = self.coordinator(job).list(), rng.choice(["keep", "1", "2", "3", "20240103"])
        if not kept:
            return
        coordinator, wanted = self.coordinator(job), rng.choice(kept).checkpoint_id
        try:
            coordinator.savepoint(wanted, name)
        except InvalidInputError as error:
            self.history.append(f"savepoint {name} of {job} was refused: {error}")
            return
        try:
            found = coordinator.at(AsOf.of_text(name)).checkpoint_id
        except DstlError as error:
            self.wrong.append(f"savepoint {name!r} of {job} names no checkpoint: {error}")
        else:
            if found != wanted:
                self.wrong.append(f"savepoint {name!r} of {job} names checkpoint {found}, not {wanted}")
        coordinator.release(name)

    def days_of(self, program: Program, key: str | None, number: int) -> set[str]:
        """The days of which a run of this partition is given rows."""
        return {day for day in days_of(program, key, number) if day.removeprefix("key ") not in self.quiet}

    def newest(self, job: str) -> int:
        """The id of the last checkpoint; 0 without one."""
        latest = self.coordinator(job).latest()
        return 0 if latest is None else latest.checkpoint_id

    def operators(self, job: str) -> list[str]:
        latest = self.coordinator(job).latest()
        return [] if latest is None else sorted(latest.manifest.operators)

    def rows(self, job: str, operator: str) -> list[dict[str, Any]]:
        return self.coordinator(job).read_state(operator).to_arrow().to_pylist()

    def by_hand(self, rng: random.Random, does: Callable[[ObjectStore], None]) -> None:
        """A command, which may die and is given again."""
        if rng.random() < 0.3:
            fault = rng.choice([Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
            try:
                does(FaultStore(LocalObjectStore(self.folder), AtRequests({rng.randrange(30): fault})))
            except SimulatedCrash:
                self.history.append("a command died")
            except DstlError as error:
                self.history.append(f"a command was refused: {error}")
                return
            else:
                return
        try:
            does(LocalObjectStore(self.folder))
        except DstlError as error:
            self.history.append(f"a command was refused: {error}")

    def days_in(self, job: str) -> set[tuple[str, str]]:
        """The marks and days that the job has."""
        rows = [row for each in self.operators(job) for row in self.rows(job, each)]
        return {(row["asset"], row["day"]) for row in rows}

    def has_rows_of(self, program: Program) -> bool:
        """Whether a run of it, also one that died, has rows in its job."""
        return any(mark == program.mark for mark, _ in self.days_in(program.job))

    def drop(self, job: str, rng: random.Random) -> None:
        self.dropped.append(self.days_in(job))

        def does(store: ObjectStore) -> None:
            # As soon as it begins, nothing of the job is owed to anybody.
            for each in [each for each in self.given if each[0] == job]:
                del self.given[each]
            self.history.append(f"drop {job}")
            drop_job(store, job, owner="test", force=True, clock=_NoWait())
            if job in self.pages:
                self.pages[job].begins = None

        self.by_hand(rng, does)

    def restore(self, job: str, back: int, rng: random.Random) -> None:
        """To a checkpoint before the last one; what later ones were given has to come again."""
        kept = self.coordinator(job).list()
        if len(kept) < 2:
            return
        target = kept[max(0, len(kept) - 1 - back)].checkpoint_id

        def does(store: ObjectStore) -> None:
            self.history.append(f"restore {job} to {target}")
            self.coordinator(job, store).restore(target)

        self.by_hand(rng, does)
        self._owe_what_is_there(job)

    def correct(self, program: Program, key: str | None) -> None:
        """The day, and those after it, of all programs of the job that have it."""
        coordinator, first = self.coordinator(program.job), next(self.numbers)
        restored: list[str] = []
        ran: list[tuple[Program, str]] = []

        def run(batch: str) -> None:
            if not restored:
                self._owe_what_is_there(program.job)
            restored.append(batch)
            for each in self.programs:
                if each.job == program.job and batch in keys_of(each):
                    if not self.run(each, batch).green:
                        raise NotFoundError(f"the run of {batch} of {each} failed")
                    ran.append((each, batch))

        try:
            plan = plan_correction(coordinator, key or "none")
            self.history.append(f"correct {key} of {program.job}: {', '.join(plan.in_words())}")
            correct(coordinator, plan, run)
        except DstlError as error:
            self.history.append(f"the correction ended: {error}")
            self._owe_what_is_there(program.job)
            return
        if not restored:
            self._owe_what_is_there(program.job)
        rows = [row for each in self.operators(program.job) for row in self.rows(program.job, each)]
        for each in self.programs:
            days = self.days_of(each, key, 0) if each.job == program.job and key in keys_of(each) else ()
            for row in rows:
                if row["asset"] == each.mark and row["day"] in days and int(row["run"]) <= first:
                    self.wrong.append(f"{each}: {key} was corrected, and {row} is as before")

    def forget(self, program: Program, rng: random.Random) -> None:
        """Drop each operator that has its rows, and all that the sources of these wrote: they begin anew.

        Of a source that has written state nothing else need be said. Rows that stay beside a source that
        begins anew are what the command warns of.
        """
        latest = self.coordinator(program.job).latest()
        if latest is None or program.own_source not in latest.manifest.sources:
            return
        of = {each: self.rows(program.job, each) for each in self.operators(program.job)}
        operators = {each for each, rows in of.items() if any(row["asset"] == program.mark for row in rows)}
        wrote = {name: {*each.operators} for name, each in latest.manifest.sources.items()}
        operators |= wrote[program.own_source]
        while more := set().union(*(each for each in wrote.values() if each & operators)) - operators:
            operators |= more
        named = {program.own_source: None} if not wrote[program.own_source] or rng.random() < 0.5 else {}
        changes = NameChange(dict.fromkeys(sorted(operators)), named)

        def does(store: ObjectStore) -> None:
            coordinator = self.coordinator(program.job, store)
            at = coordinator.latest()
            assert at is not None
            change_names(coordinator, at, changes)
            self.history.append(f"forget {changes} of {program.job}")

        self.by_hand(rng, does)
        self._owe_what_is_there(program.job)

    def _owe_what_is_there(self, job: str) -> None:
        """What was given is not owed any more where somebody has taken it away."""
        rows = [row for each in self.operators(job) for row in self.rows(job, each)]
        for (of, mark), days in self.given.items():
            if of == job:
                days &= {row["day"] for row in rows if row["asset"] == mark}

    def rename(self, program: Program, to: Program, rng: random.Random) -> bool:
        """Give the job the new names of a program by the commands; whether it has them then."""
        job, store = program.job, LocalObjectStore(self.folder)
        latest = self.coordinator(job, store).latest()
        if latest is None:
            return True
        known = latest.manifest
        operators = {program.operator: to.operator} if program.operator != to.operator else {}
        sources = {program.own_source: to.own_source} if program.own_source != to.own_source else {}
        operators = {old: new for old, new in operators.items() if old in known.operators}
        sources = {old: new for old, new in sources.items() if old in known.sources}
        columns = {}
        if program.column != to.column and program.operator in known.operators:
            columns = {program.column: to.column}

        def does(store: ObjectStore) -> None:
            coordinator = self.coordinator(job, store)
            at = coordinator.latest()
            assert at is not None
            if columns:
                change_columns(coordinator, at, program.operator, ColumnChanges(rename=columns))
            elif operators or sources:
                change_names(coordinator, at, NameChange(operators, sources))
            self.history.append(f"rename {operators} {sources} {columns} of {job}")

        before = len(self.history)
        self.by_hand(rng, does)
        is_done = not any("refused" in each for each in self.history[before:])
        for row in self.rows(job, program.operator) if is_done and columns else ():
            if program.column in row or row[to.column] is None:
                self.wrong.append(f"{program}: {row} is not as before the rename {columns}")
        return is_done

    def look_at_page(self, job: str, meanwhile: Callable[[], None] | None = None) -> None:
        """Its sensors tick."""
        if self.shown and any(
            each.way in ("asset", "function") and each.job == job for each in self.programs
        ):
            self.page_of(job).tick(meanwhile)

    def page_of(self, job: str) -> JobPage:
        if job not in self.pages:
            self.pages[job] = JobPage(self, job)
        return self.pages[job]

    def follow(self, job: str) -> None:
        """Each operator of the job has a follower, which takes up what it has missed."""
        for operator in self.operators(job):
            if (job, operator) not in self.followers:
                self.followers[job, operator] = self.follower(self, job, operator)
            self.followers[job, operator].follow()


_RAW = (
    "dagster._core",
    "Traceback",
    "ValueError",
    "KeyError",
    "TypeError",
    "AttributeError",
    "AssertionError",
)
_NOT_SO = "a record was deleted"
"""A job goes as a whole here."""


class Followed(Protocol):
    """Whoever follows an operator, from one look to the next."""

    def follow(self) -> None:
        """Take up what was missed; the world is told what is wrong."""
        ...


class Follower:
    """A copy of an operator, by what differs between the checkpoints that it has seen. It stays."""

    def __init__(self, world: World, job: str, operator: str) -> None:
        self._world = world
        self._job, self._operator = job, operator
        self._reader: CheckpointCoordinator | None = None
        self._at: Manifest | None = None
        self._copy: dict[tuple[str, ...], str] = {}

    def follow(self) -> None:
        reader = self._reader or self._world.coordinator(self._job)
        self._reader = reader
        try:
            latest = reader.latest()
        except NotFoundError as error:
            if error.kind != ErrorKind.JOB_GONE:
                raise
            self._begin()
            return self.follow()
        if latest is None:
            return None
        kept = {each.attempt for each in reader.list()}
        if self._at is None or self._at.attempt not in kept or self._operator not in self._at.operators:
            self._begin()
            self._copy = self._rows()
        else:
            try:
                for diff in diff_checkpoints(reader.store, self._at, latest.manifest, self._operator):
                    self._apply(diff.removed, diff.before, diff.added, diff.after)
            except InvalidInputError as error:  # of columns that one name means
                if error.kind != ErrorKind.SCHEMA_CHANGE:
                    raise
                self._begin()
                return self.follow()
        self._at = latest.manifest
        if self._copy != self._rows():
            self._world.wrong.append(f"a follower of {self._job}/{self._operator} differs from the state")
        return None

    def _begin(self) -> None:
        self._copy, self._at = {}, None
        self._reader = self._world.coordinator(self._job)

    def _apply(self, *tables: pa.Table) -> None:
        removed, before, added, after = (by_key(table.to_pylist()) for table in tables)
        for gone in (removed, before):
            for key, value in gone.items():
                if self._copy.pop(key, "") != value:
                    self._world.wrong.append(f"a follower was told that {key} goes, and had another one")
        for new in (added, after):
            for key, value in new.items():
                if key in self._copy:
                    self._world.wrong.append(f"a follower was told of {key} twice")
                self._copy[key] = value

    def _rows(self) -> dict[tuple[str, ...], str]:
        return by_key(self._world.rows(self._job, self._operator))


def by_key(rows: list[dict[str, Any]]) -> dict[tuple[str, ...], str]:
    """What is no key by what is."""
    return {
        tuple(row[name] for name in KEYS): f"{row.get('note') or row.get('remark')} {row['number']}"
        for row in rows
    }


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


def _numbers(day: str) -> dict[str, int]:
    """A value of a row, by the type that it was written in."""
    return {"int32": sum(day.encode()), "int64": sum(day.encode()) + 2**40}


def _days() -> list[str]:
    return [str((START + timedelta(days=n)).date()) for n in range(60)]


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
    return _keys_of("daily" if program.way == "sink" else program.partitions)


@cache  # Dagster walks a schedule slowly
def _keys_of(partitions: str) -> list[str | None]:
    definition = DEFINITIONS[partitions]()
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


@contextmanager
def world_of(
    programs: list[Program],
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    *,
    apart: bool,
    quiet: frozenset[str],
) -> Iterator[World]:
    """A store of its own; the programs are defined in one code location, or each in its own."""
    instance.wipe()
    assert not instance.all_asset_keys()  # else it knows the jobs of another store, and refuses this one
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), programs, apart, quiet)
        monkeypatch.setattr(claims_module, "_is_defined", lambda _context: world.is_defined)
        world.runner = runner_of(world.folder, instance, world.is_defined, monkeypatch)
        yield world


# ---- drawing


def drawn_quiet(rng: random.Random) -> frozenset[str]:
    """Some days and keys; the first ones more often."""
    days = _days()
    often = {days[0], "3"}
    return frozenset(
        each for each in [*days, "3", "2", "1"] if rng.random() < (0.3 if each in often else 0.1)
    )


def drawn(rng: random.Random) -> Program:
    """Any program; names coincide often."""
    program = Program(
        rng.choice(WAYS),
        rng.choice(["orders", "totals", "parts"]),
        rng.choice(["orders", "orders", "sales"]),
        rng.choice(["totals", "totals", "counts"]),
        rng.choice([None, None, "feed"]),
        rng.choice([*DEFINITIONS, "daily", "daily", "weekly"]),
    )
    return replace(program, mark=program.name)


def twin(rng: random.Random, program: Program) -> Program:
    """A second one that is much the same, as a copy of its code is."""
    name = "totals" if program.name == "orders" else "orders"
    source = rng.choice([program.source, program.source, "feed"])
    made = replace(program, name=name, mark=name, source=source)
    if made.way == "sink":  # two of one operator are one
        made = replace(made, operator="counts" if made.operator == "totals" else "totals")
    return made


def drawn_together(rng: random.Random) -> list[Program]:
    """Assets of one job, most with partitions of the same names; others and drivers beside them."""
    prefix, partitions = rng.choice(["", "eu"]), rng.choice(["daily", "daily", "static"])
    made = []
    for name in ("orders", "totals", "parts")[: rng.choice([2, 3])]:
        others = ["asset", "function", "function", "io manager", "plain asset", "driver"]
        way = rng.choice(others if made else ["function"])
        own = rng.choice([partitions, partitions, partitions, "none"])
        operator = rng.choice(["totals", "counts", "sums"])
        made.append(Program(way, name, "orders", operator, None, own, mark=name, prefix=prefix))
    return made


def changed(rng: random.Random, program: Program, what: str) -> Program:
    """The same with one thing changed, as an edit of its code does."""
    while True:
        other = replace(drawn(rng), column=rng.choice(COLUMNS), number=rng.choice(NUMBERS))
        if getattr(other, what) != getattr(program, what):
            return replace(program, **{what: getattr(other, what)})
