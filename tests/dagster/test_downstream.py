"""A user's own job is asked for once for each checkpoint, whatever happens to the daemon and its cursor."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from dagster._core.remote_origin import (  # no public names
    InProcessCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from dstl_dagster import build_downstream_sensor
from dstl_dagster.errors import ConflictError, InvalidInputError
from dstl_dagster.settings.checkpoint import CheckpointOptions
from dstl_dagster.timeline import RUN_WINDOW, BatchKey
from tests.dagster.conftest import Daemon as CheckpointDaemon
from tests.dagster.days import DAYS, JOB, SOURCE

if TYPE_CHECKING:
    from tests.dagster.conftest import Days

pytestmark = pytest.mark.dagster

DAY = "2024-01-{:02}".format
AT_ONCE = CheckpointOptions(num_retained=1)
_LOADED = LoadableTargetOrigin(module_name="definitions")


@dg.op
def look() -> None:
    """Whatever a user's job does."""


@dg.job
def report() -> None:
    look()


@dataclass
class Daemon:
    """Does with a tick what Dagster's daemon does, effect by effect; can be killed between any two."""

    days: Days
    options: dict[str, Any] = field(default_factory=dict)
    name: str | None = None
    cursor: str | None = None
    said: str = ""
    definitions: dg.Definitions | None = None
    origin: RemoteJobOrigin | None = None

    def tick(self, rng: random.Random | None = None) -> None:
        sensor = build_downstream_sensor(JOB, report, name=self.name, **self.options)
        with dg.build_sensor_context(
            instance=self.days.instance,
            cursor=self.cursor,
            resources={"changelog": self.days.resource()},
            definitions=self.definitions,
        ) as context:
            if self.origin is not None:  # as the code server of a location sets it
                context._code_location_origin = self.origin.repository_origin.code_location_origin
            result = sensor(context)
        assert isinstance(result, dg.SensorResult)
        self.said = "" if result.skip_reason is None else str(result.skip_reason.skip_message)
        effects = list(self._effects(result, sensor.name))
        for effect in effects[: len(effects) if rng is None else rng.randrange(len(effects) + 1)]:
            effect()

    def _effects(self, result: dg.SensorResult, sensor_name: str) -> Iterator[Callable[[], None]]:
        for added in result.dynamic_partitions_requests or []:
            yield lambda added=added: self.days.instance.add_dynamic_partitions(
                added.partitions_def_name, list(added.partition_keys)
            )
        for request in result.run_requests or []:
            yield lambda request=request: self.launch(request, sensor_name)

        def move() -> None:
            self.cursor = result.cursor

        yield move

    def launch(
        self,
        request: dg.RunRequest,
        sensor_name: str,
        status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED,
    ) -> None:
        """By Dagster's own rule a run key is launched once for a sensor of this name."""
        tags = {"dagster/run_key": str(request.run_key), "dagster/sensor_name": sensor_name}
        if self.days.instance.get_runs(dg.RunsFilter(tags=tags)):
            return
        if request.partition_key is not None:
            tags["dagster/partition"] = request.partition_key
        self.days.instance.add_run(
            dg.DagsterRun(
                job_name="report",
                run_id=str(uuid.uuid4()),
                status=status,
                run_config=dict(request.run_config),
                tags={**request.tags, **tags},
                remote_job_origin=self.origin,
            )
        )

    def asked(self, tag: str = "dstl/checkpoint_id") -> list[str]:
        """What the runs are for, in the order in which they were made."""
        return [run.tags[tag] for run in reversed(self.days.instance.get_runs())]


def make(days: Days, *places: str, **how: Any) -> None:
    for place in places:
        days.code.make_outside(days.uri, place, **how)


@pytest.mark.parametrize("seed", range(3))
def test_each_checkpoint_is_asked_for_once(seed: int, days: Days) -> None:
    """The daemon is killed between any two effects; the cursor is cleared, the sensor renamed."""
    rng = random.Random(seed)
    daemon = Daemon(days, {"max_runs_per_tick": 2})
    for number in range(1, 7):
        make(days, DAY(number), files=0)
        daemon.tick(rng)
        if number == 4:
            daemon.cursor = None
        if number == 5:
            daemon.name, daemon.cursor = "another", None
    for _ in range(6):
        daemon.tick()
    assert daemon.asked() == [str(number) for number in range(1, 7)]
    assert daemon.said == "slot 18: nothing new"


def test_a_checkpoint_is_asked_for_once_its_files_are_published(days: Days) -> None:
    """Not when it is complete: its files are not there yet."""
    make(days, DAY(1), until="completed")
    daemon = Daemon(days)
    daemon.tick()
    assert daemon.asked() == []
    days.coordinator("spark-submit").compose_commit()
    daemon.tick()
    assert daemon.asked() == ["1"]


def test_a_run_that_never_started_is_asked_for_again(days: Days) -> None:
    """The daemon died between making the run and starting it: by the same run key Dagster starts it."""
    make(days, DAY(1), files=0)
    sensor = build_downstream_sensor(JOB, report)
    made = []
    for _ in range(2):
        with dg.build_sensor_context(
            instance=days.instance, resources={"changelog": days.resource()}
        ) as context:
            (request,) = sensor(context).run_requests
        made.append(request.run_key)
        Daemon(days).launch(request, sensor.name, dg.DagsterRunStatus.NOT_STARTED)
    assert len(set(made)) == 1
    assert len(days.instance.get_runs()) == 1


def test_a_run_is_for_the_partition_of_its_checkpoint(days: Days) -> None:
    """Which exists before the run is started. What was cleaned up in the meantime cannot be read any more."""
    make(days, DAY(1), DAY(2), DAY(3), files=0, options=AT_ONCE)
    daemon = Daemon(days, {"partitions_def": JOB.partitions}, cursor='{"slot": 0}')
    days.code.CheckpointCoordinator("days", days.store, AT_ONCE).clean_up()
    daemon.tick()
    assert daemon.asked("dagster/partition") == days.shown_checkpoints() == ["chk-00000003"]


def test_a_checkpoint_that_completes_during_a_tick_is_asked_for_by_the_next(days: Days) -> None:
    """It is no checkpoint that was cleaned up."""
    make(days, DAY(1), files=0)

    def config(completed: Any) -> dict[str, Any]:
        if completed.checkpoint_id == 1:
            make(days, DAY(2), files=0)
        return {}

    daemon = Daemon(days, {"partitions_def": JOB.partitions, "run_config": config})
    for _ in range(2):
        daemon.tick()
    assert daemon.asked("dagster/partition") == ["chk-00000001", "chk-00000002"]


def test_a_run_is_for_the_partition_of_the_batch(days: Days) -> None:
    """With config of the user's; a checkpoint of no partition is passed over, and named."""
    make(days, DAY(1), "a fold", DAY(2), files=0)

    def config(completed: Any) -> dict[str, Any]:
        return {"ops": {"look": {"config": {"day": completed.idempotency_key}}}}

    daemon = Daemon(days, {"partitions_def": DAYS, "run_config": config})
    daemon.tick()
    assert daemon.asked("dagster/partition") == [DAY(1), DAY(2)]
    newest = days.instance.get_runs(limit=1)[0]
    assert newest.run_config == {"ops": {"look": {"config": {"day": DAY(2)}}}}


def test_each_partition_of_a_batch_of_several_is_asked_for(days: Days) -> None:
    """A single-run backfill is one checkpoint, and a run is for one partition."""
    owner = days.coordinator("a backfill")
    several = BatchKey("3 partitions", SOURCE, f"{RUN_WINDOW}1", parts=(DAY(1), DAY(2), DAY(3)))
    attempt = owner.trigger(idempotency_key=several)
    owner.record(attempt, [days.code.write_change(days.store, attempt, b"a")], [], {})
    owner.confirm(attempt)
    owner.compose_commit()
    make(days, DAY(4), files=0)
    daemon = Daemon(days, {"partitions_def": DAYS, "max_runs_per_tick": 2})
    for _ in range(3):
        daemon.tick()
    assert daemon.asked("dagster/partition") == [DAY(1), DAY(2), DAY(3), DAY(4)]
    assert daemon.asked() == ["1", "1", "1", "2"]
    daemon.cursor = None
    daemon.tick()
    assert len(daemon.asked()) == 4


def test_a_partition_of_another_time_fails_the_tick(days: Days) -> None:
    """The week of that name would be run after its first day, and never again."""
    make(days, DAY(7), files=0)
    daemon = Daemon(days, {"partitions_def": dg.WeeklyPartitionsDefinition("2023-12-31")})
    with pytest.raises(InvalidInputError, match="partition 2024-01-07 of report is of another time than"):
        daemon.tick()
    assert daemon.asked() == []


def test_another_sensor_of_the_same_job_fails_the_tick(days: Days) -> None:
    """By the first one's runs the second would take each checkpoint for done."""
    make(days, DAY(1), files=0)
    Daemon(days, name="of_europe").tick()
    second = Daemon(days, name="of_the_us", options={"run_config": lambda _: {"region": "us"}})
    both = [build_downstream_sensor(JOB, report, name=each) for each in ("of_europe", "of_the_us")]
    second.definitions = dg.Definitions(jobs=[report], sensors=both, resources={"changelog": days.resource()})
    with pytest.raises(ConflictError, match="sensor 'of_europe' requests runs of a job 'report' for the"):
        second.tick()


def test_another_code_location_with_a_job_of_that_name_fails_the_tick(days: Days) -> None:
    """Its job is another one. It may be this one under a new name: the cursor says so."""
    make(days, DAY(1), files=0)
    theirs, ours = (
        RemoteJobOrigin(
            RemoteRepositoryOrigin(InProcessCodeLocationOrigin(_LOADED, location_name=name), "all"), "report"
        )
        for name in ("theirs", "ours")
    )
    Daemon(days, origin=theirs).tick()
    second = Daemon(days, origin=ours)
    with pytest.raises(ConflictError, match="code location 'theirs' requests runs of a job 'report'") as said:
        second.tick()
    second.cursor = str(said.value).partition("set its cursor to ")[2].partition("}")[0] + "}"
    make(days, DAY(2), files=0)
    second.tick()
    assert daemon_runs(days) == [("theirs", "1"), ("ours", "2")]


def daemon_runs(days: Days) -> list[tuple[str, str]]:
    """The code location and the checkpoint of each run."""
    found = []
    for run in reversed(days.instance.get_runs()):
        assert run.remote_job_origin is not None
        where = run.remote_job_origin.repository_origin.code_location_origin.location_name
        found.append((where, run.tags["dstl/checkpoint_id"]))
    return found


def test_what_a_restore_undid_is_passed_over(days: Days) -> None:
    """Its files are gone. What comes after it is asked for."""
    make(days, DAY(1), DAY(2), files=0)
    days.coordinator("somebody").restore(1)
    daemon = Daemon(days, cursor='{"slot": 0}')
    daemon.tick()
    make(days, DAY(2), files=0)
    daemon.tick()
    assert daemon.asked() == ["1", "3"]
    daemon.cursor = '{"slot": 3}'
    daemon.tick()
    assert "passed over 2: undone by a restore" in daemon.said


def test_without_a_cursor_it_begins_with_what_is_retained(days: Days) -> None:
    """A sensor on an old job does not ask for years of checkpoints."""
    make(days, DAY(1), DAY(2), DAY(3), files=0, options=AT_ONCE)
    days.code.CheckpointCoordinator("days", days.store, AT_ONCE).clean_up()
    daemon = Daemon(days)
    daemon.tick()
    assert daemon.asked() == ["3"]


def test_a_page_that_was_wiped_asks_for_nothing(days: Days) -> None:
    """Also not for the checkpoints before those that the sensor began with."""
    make(days, DAY(1), DAY(2), files=0)
    CheckpointDaemon(days).tick()
    daemon = Daemon(days, cursor='{"slot": 6}')
    daemon.tick()
    days.instance.wipe_assets([JOB.checkpoints_key])
    daemon.tick()
    assert daemon.asked() == []
    make(days, DAY(3), files=0)
    daemon.tick()
    assert daemon.asked() == ["3"]


def test_started_over_it_begins_with_what_is_retained(days: Days) -> None:
    """Wherever the checkpoint sensor, which may have started over before, reports by then."""
    make(days, DAY(1))
    followed, daemon = CheckpointDaemon(days), Daemon(days)
    followed.tick()
    daemon.tick()
    days.uri += "-new"
    make(days, DAY(1), DAY(2), DAY(3))
    for each in (followed, daemon):
        each.cursor = '{"start_over": true}'
        each.tick()
    assert daemon.asked() == ["1", "1", "2", "3"]


def test_what_cannot_work_is_refused_where_it_is_built() -> None:
    """And by the cursor's own rules, where it was set by hand."""
    with pytest.raises(InvalidInputError, match="downstream is a job or the name of one, not <"):
        build_downstream_sensor(JOB, object())
    with pytest.raises(InvalidInputError, match="partitions_def is that of report, not 'daily'"):
        build_downstream_sensor(JOB, "report", partitions_def="daily")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="run_config is a function of the completed record"):
        build_downstream_sensor(JOB, "report", run_config={})  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="max_runs_per_tick is 1 or more"):
        build_downstream_sensor(JOB, "report", max_runs_per_tick=0)
    assert build_downstream_sensor(JOB, report).name == "report_after_days"
    assert build_downstream_sensor(JOB, dg.define_asset_job("other")).job_name == "other"
