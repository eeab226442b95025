"""Random days: after each thing that happens, and a look of the sensor, the page shows what the store holds.

The truth is folded from the records here, and the page is read as Dagster's web server reads it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dstl_dagster import build_maintenance, restore_run_config
from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator, OperatorReport
from dstl_dagster.errors import ConflictError
from dstl_dagster.keyed import schema_of, write_rows
from dstl_dagster.orchestration import steps
from dstl_dagster.state import schema_to_write
from dstl_dagster.storage import ABSENT, ANY, ObjectStore
from dstl_dagster.timeline import Committed, Completed, Resolution, Restored, Subsumed
from tests.dagster.conftest import Daemon, Days
from tests.dagster.shown import materialized_partitions

pytestmark = pytest.mark.dagster

SHORT, LONG, EVENTS = 5, 300, 9
START_OVER = {"dstl/start_over": "true"}


def _dies(*_: Any, **__: Any) -> None:
    raise dg.Failure("the worker is gone", allow_retries=False)


@dataclass
class Truth:
    """What the records say, folded once more."""

    chain: dict[int, Completed] = field(default_factory=dict)
    committed: dict[int, Committed] = field(default_factory=dict)
    retained: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, coordinator: CheckpointCoordinator) -> Truth:
        truth = cls()
        for record in coordinator.timeline.records():
            match record:
                case Completed():
                    truth.chain[record.checkpoint_id] = record
                    truth.retained.add(record.checkpoint_id)
                case Committed():
                    truth.committed[record.checkpoint_id] = record
                case Subsumed():
                    truth.retained -= {*record.checkpoint_ids}
                case Restored():
                    gone = {number for number in truth.chain if number > record.checkpoint_id}
                    truth.chain = {number: each for number, each in truth.chain.items() if number not in gone}
                    truth.retained -= gone
        return truth

    def days(self, *, published: bool) -> set[str]:
        """In the state, or with all files published."""
        done = {number for number, each in self.committed.items() if not (published and each.blocked)} & set(
            self.chain
        )
        return {str(self.chain[number].idempotency_key) for number in done}


@dataclass
class Story:
    """One job, one instance, its sensor. Each method is something that happens; it may find nothing to do."""

    days: Days
    rng: random.Random
    happened: list[str] = field(default_factory=list)
    is_on: bool = True
    columns: int = 0

    def __post_init__(self) -> None:
        assets = [self.days.code.build_state()]
        definitions = dg.Definitions(assets=assets, resources={"changelog": None})
        self.sensor = Daemon(self.days, definitions=definitions)
        self.homes = [self.days.uri, f"{self.days.uri}-other"]

    @property
    def coordinator(self) -> CheckpointCoordinator:
        return self.days.coordinator()

    @property
    def next_day(self) -> str:
        held = Truth.of(self.coordinator).chain
        return f"2024-01-{len({each.idempotency_key for each in held.values()}) + 1:02}"

    # ---- what happens ----

    def run(self, **tags: str) -> None:
        self.days.run(self.next_day, tags=tags)

    def run_again(self) -> None:
        self.days.run("2024-01-01")

    def run_out_of_order(self) -> None:
        assert not self.days.run("2024-01-31").success

    def kill(self) -> None:
        """Before any step behind step 1, or after it was done."""
        where = self.rng.choice(["persist", "report_checkpoint", "report_files", "report_checks", "clean_up"])
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(steps, where, _dies)
            self.run()

    def cancel(self) -> None:
        """A person ends a run that is at work, on an attempt of its own."""
        if self.coordinator.timeline.tail().open_attempt is not None:
            return
        run = self.days.instance.add_run(dg.DagsterRun("days", status=dg.DagsterRunStatus.STARTED))
        until = self.rng.choice(["opened", "recorded", "completed", "committed"])
        self.days.code.make_outside(
            self.days.uri, self.next_day, until=until, owner=f"dagster-run:{run.run_id}"
        )
        self.days.instance.report_run_canceled(run)

    def outside(self) -> None:
        if self.coordinator.timeline.tail().open_attempt is None:
            self.coordinator.compose_commit()
            self.days.code.make_outside(self.days.uri, self.next_day)

    def block(self) -> None:
        day, store = self.next_day, self.days.store
        real = CheckpointCoordinator.confirm

        def and_then(coordinator: CheckpointCoordinator, attempt: Any) -> Any:
            checkpoint = real(coordinator, attempt)
            store.put(f"out/{day}/0.txt", b"foreign", precondition=ABSENT)
            return checkpoint

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(CheckpointCoordinator, "confirm", and_then)
            self.run()

    def resolve(self) -> None:
        for entry in self.coordinator.timeline.tail().retained:
            for file in () if entry.committed is None else entry.committed.blocked:
                self.coordinator.resolve(entry.checkpoint_id, file.name, Resolution.REPLACE)

    def restore_by_command(self) -> None:
        found = self._restorable()
        if found:
            self.coordinator.restore(self.rng.choice(found))

    def restore_by_run(self) -> None:
        found, last = self._restorable(), self.coordinator.timeline.tail().last_completed_id
        if found and last is not None:
            to = self.rng.choice(found)
            self.days.instance.add_dynamic_partitions("days_checkpoints", [f"chk-{to:08}"])
            build_maintenance(
                self.days.code.JOB, "restore", partitions_def=self.days.code.DAYS
            ).execute_in_process(
                instance=self.days.instance,
                resources={"changelog": self.days.resource()},
                partition_key=f"chk-{to:08}",
                run_config=restore_run_config(last, to),
                raise_on_error=False,
            )

    def _restorable(self) -> list[int]:
        retained = [entry.checkpoint_id for entry in self.coordinator.timeline.tail().retained]
        return retained[-3:]

    def correct(self) -> None:
        chain = Truth.of(self.coordinator).chain
        if len(chain) < 2:
            return
        resources = {"changelog": self.days.resource()}
        state = self.days.code.build_state()
        jobs = [dg.define_asset_job("day", [state])]
        day = dg.Definitions(assets=[state], jobs=jobs, resources=resources).resolve_job_def("day")
        build_maintenance(
            self.days.code.JOB, "correct", partitions_def=self.days.code.DAYS, day_job=lambda: day
        ).execute_in_process(
            instance=self.days.instance,
            resources=resources,
            partition_key=str(chain[max(chain)].idempotency_key),
            raise_on_error=False,
        )

    def wipe(self) -> None:
        self.days.instance.wipe_assets([self.days.code.JOB.checkpoints_key])

    def store_away(self) -> None:
        """It is not there for a run and a look of the sensor, which are refused; then it is back."""
        if not self._knows():
            return
        home, self.days.uri = self.days.uri, f"{self.days.uri}-nothing"
        assert not self.days.run("2024-01-01").success
        with pytest.raises(ConflictError):
            self.sensor.tick()
        assert list(self.days.store.list()) == []
        self.days.uri = home

    def another_store(self) -> None:
        """A person changes to the other store, and says so by a run's tag."""
        self.homes.reverse()
        self.days.uri = self.homes[0]
        self.run(**START_OVER)

    def emptied(self) -> None:
        for stat in [*self.days.store.list()]:
            self.days.store.delete(stat.name, precondition=ANY)
        if self._knows():
            assert not self.days.run("2024-01-01").success
        self.run(**START_OVER)

    def sensor_off(self) -> None:
        self.is_on = False

    def sensor_on(self) -> None:
        self.is_on = True

    def cursor_cleared(self) -> None:
        self.sensor.cursor = None

    def daemon_killed(self) -> None:
        if self._agrees_to_go_on():
            self.sensor.tick(self.rng)

    def reloaded(self) -> None:
        """The location is loaded anew: the sensor has another name, no cursor, and days a new column."""
        self.sensor.name, self.sensor.cursor = f"renamed_{self.rng.randrange(1000)}", None
        self.columns += 1

    def write_change(self, store: ObjectStore, attempt: Attempt, key: bytes) -> OperatorReport:
        """As that of `days`, with as many more columns as there are now, on those of the parent."""
        known = None
        if attempt.parent is not None:
            parent = CheckpointCoordinator("days", store).get(attempt.parent).manifest.operators["totals"]
            known = schema_of(parent.report)
        row = {"key": key.decode(), "total": 1, **{f"more{number}": 1 for number in range(self.columns)}}
        schema = schema_to_write(pa.Table.from_pylist([row]).schema, ["key"], None, known)
        rows = pa.Table.from_pylist([row], schema=schema.columns)
        return write_rows(rows, attempt, store, operator="totals", schema=schema)

    def _knows(self) -> bool:
        return bool(self.days.events("checkpoints"))

    def _agrees_to_go_on(self) -> bool:
        return self.is_on

    # ---- what must be so ----

    def look(self) -> None:
        """Ticks until nothing is new: a restore is told after what it undid."""
        for _ in range(6):
            if "nothing new" in (self.sensor.tick() or ""):
                return

    def page_is_the_stores(self) -> None:
        self.look()
        truth, about = Truth.of(self.coordinator), self.happened
        last = max(truth.chain, default=None)
        if last is not None:
            (totals,) = self.coordinator.get(last).manifest.operators.values()
            table = self.days.instance.get_latest_materialization_event(
                dg.AssetKey(["days", "state", "totals"])
            )
            assert table is not None, about
            assert table.asset_materialization is not None, about
            shown_columns = table.asset_materialization.metadata["dagster/column_schema"].value.columns
            assert [each.name for each in shown_columns] == schema_of(totals.report).columns.names, about
        shown = self.days.events("checkpoints")
        if last is not None:
            assert shown, about
            assert shown[-1].tags["dstl/attempt"] == str(truth.chain[last].attempt), about
        restorable = [f"chk-{number:08}" for number in sorted(truth.retained)]
        assert self.days.shown_checkpoints() == restorable, about
        for asset, published in (("state", False), ("files", True)):
            key = dg.AssetKey(["days", asset])
            ever = self.days.instance.get_materialized_partitions(key)
            green = materialized_partitions(self.days, asset) if ever else set()
            assert green == truth.days(published=published), (asset, about)


HAPPENINGS: list[Callable[[Story], None]] = [
    *(Story.run, Story.run, Story.run, Story.run_again, Story.run_out_of_order, Story.kill, Story.cancel),
    *(Story.outside, Story.block, Story.resolve, Story.restore_by_command, Story.restore_by_run),
    *(Story.correct, Story.wipe, Story.store_away, Story.sensor_off, Story.sensor_on),
    *(Story.cursor_cleared, Story.daemon_killed, Story.reloaded, Story.another_store, Story.emptied),
]


@pytest.mark.parametrize(
    "seed", [*range(SHORT), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(SHORT, LONG))]
)
def test_the_page_shows_what_the_store_holds(seed: int, days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens, in whichever order."""
    story = Story(days, random.Random(seed))
    monkeypatch.setattr(days.code, "write_change", story.write_change)
    for _ in range(EVENTS):
        happening = story.rng.choice(HAPPENINGS)
        story.happened.append(happening.__name__)
        happening(story)
        if story.is_on:
            story.page_is_the_stores()
    story.page_is_the_stores()
