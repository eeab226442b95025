"""A store that is away, emptied, older or another one: no run begins there, and the page stays as it is."""

# No postponed annotations: Dagster reads the types of an op's arguments as objects.

import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from click.testing import CliRunner

import dstl_dagster as dstl
from dstl_dagster import build_checkpoint_checks, build_cleanup_job, build_maintenance, restore_run_config
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.cli import main
from dstl_dagster.components import CheckpointedAssetComponent
from dstl_dagster.errors import ConflictError
from dstl_dagster.orchestration.timeline_check import require_shown_timeline
from dstl_dagster.pipes import open_batch
from dstl_dagster.storage import open_store
from tests.dagster import days as days_code
from tests.dagster.conftest import Daemon, Days
from tests.dagster.shown import failed_partitions

pytestmark = [
    pytest.mark.dagster,
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Function `PipesMessageReader:Warning"),
]

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-03-01")
START_OVER = {"dstl/start_over": "true"}
REFUSED = "is not the one that this Dagster instance knows of job"


def _write(batch: Any) -> None:
    if batch.already_in is None:
        store = open_store(batch.attempt.store_uri)
        batch.add(days_code.write_change(store, batch.attempt, b"row"))


@dg.op(out=dg.Out(dict))
def writes(context: dg.OpExecutionContext, changelog: dstl.ChangelogStorageResource) -> dict:
    """Steps 1 to 3."""
    with changelog.checkpoint(context, "work", source="days" if context.has_partition_key else None) as batch:
        _write(batch)
    return batch.reference


@dg.op(name="alone")
def writes_alone(context: dg.OpExecutionContext, changelog: dstl.ChangelogStorageResource) -> None:
    """All steps: nothing stands behind it."""
    with changelog.checkpoint(context, "work") as batch:
        _write(batch)


@dg.op(out=dg.Out(dict))
def launches(context: dg.OpExecutionContext, changelog: dstl.ChangelogStorageResource) -> dg.Output[dict]:  # type: ignore[type-arg]
    """Steps 1 to 3 elsewhere."""
    with changelog.pipes_checkpoint(context, "work", source="days") as batch:
        if batch.already_in is None:
            with open_batch(json.loads(json.dumps(batch.extras))) as handed:
                _write(handed)
    return batch.reference


def decorated(batch: Any) -> None:
    """As `@checkpointed_asset`, and the component, take it."""
    _write(batch)


@dg.asset(partitions_def=DAYS, metadata={"dstl/keys": ["key"], "dstl/job": "work"})
def kept(context: dg.AssetExecutionContext) -> pa.Table:
    """Rows that an IO manager keeps."""
    return pa.table({"key": [context.partition_key], "total": [1]})


def _changelog(uri: str) -> dict[str, Any]:
    return {"changelog": dstl.ChangelogStorageResource(uri=uri)}


def _of_asset(asset: dg.AssetsDefinition, uri: str) -> dg.JobDefinition:
    jobs = [dg.define_asset_job("run", [asset])]
    return dg.Definitions(assets=[asset], jobs=jobs, resources=_changelog(uri)).resolve_job_def("run")


def _asset(uri: str) -> dg.JobDefinition:
    return _of_asset(dstl.build_state_asset("work", writes, partitions_def=DAYS), uri)


def _separate(uri: str) -> dg.JobDefinition:
    asset = dstl.build_state_asset("work", writes, partitions_def=DAYS, separate_steps=True)
    return _of_asset(asset, uri)


def _decorator(uri: str) -> dg.JobDefinition:
    return _of_asset(dstl.checkpointed_asset("work", partitions_def=DAYS)(decorated), uri)


def _pipes(uri: str) -> dg.JobDefinition:
    return _of_asset(dstl.build_state_asset("work", launches, partitions_def=DAYS), uri)


def _op(uri: str) -> dg.JobDefinition:
    return dstl.build_checkpoint_job("run", writes, resource_defs=_changelog(uri))


def _lone_op(uri: str) -> dg.JobDefinition:
    return dg.GraphDefinition(name="run", node_defs=[writes_alone]).to_job(resource_defs=_changelog(uri))


def _io_manager(uri: str) -> dg.JobDefinition:
    manager = dstl.KeyedStateIOManager(**_changelog(uri))
    jobs = [dg.define_asset_job("run", [kept])]
    return dg.Definitions(assets=[kept], jobs=jobs, resources={"io_manager": manager}).resolve_job_def("run")


def _yaml(uri: str) -> dg.JobDefinition:
    component = CheckpointedAssetComponent(
        job="work",
        store=uri,
        function=f"{__name__}:decorated",
        partitions_def={"type": "daily", "start_date": "2024-01-01", "end_date": "2024-03-01"},
    )
    built = component.build_defs(None)  # type: ignore[arg-type] # outside of a project
    jobs = [dg.define_asset_job("run", [dg.AssetKey(["work", "decorated"])])]
    return dg.Definitions.merge(built, dg.Definitions(jobs=jobs)).resolve_job_def("run")


WAYS: dict[str, Callable[[str], dg.JobDefinition]] = {
    "asset": _asset,
    "asset of five steps": _separate,
    "decorator": _decorator,
    "op": _op,
    "op alone": _lone_op,
    "io manager": _io_manager,
    "yaml": _yaml,
    "pipes": _pipes,
}
UNORDERED = {"op", "op alone"}
SHORT = {"asset", "op alone", "io manager", "pipes"}
"""The others are defined by the same functions."""


@dataclass
class Story:
    """One job, one way to define it, one instance; and what happens to the folder of its store.

    Attributes:
        held: the checkpoints in the folder, by names of the test's; the same for the copies aside.
        shown: the checkpoint that the instance was shown last.
    """

    way: str
    folder: Path
    instance: dg.DagsterInstance
    held: tuple[int, ...] | None = None
    shown: int | None = None
    aside: list[tuple[Path, tuple[int, ...]]] = field(default_factory=list)
    made: int = 0

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def coordinator(self) -> CheckpointCoordinator:
        return CheckpointCoordinator("work", open_store(self.store.as_uri()), owner="the test")

    def run(
        self, tags: dict[str, str] | None = None, instance: dg.DagsterInstance | None = None
    ) -> dg.ExecuteInProcessResult:
        """The next day, or the next run of a job without partitions."""
        day = f"2024-{1 + len(self.held or ()) // 28:02}-{1 + len(self.held or ()) % 28:02}"
        if len(self.held or ()) >= 28:
            raise AssertionError("a story is shorter than a month")
        return WAYS[self.way](self.store.as_uri()).execute_in_process(
            instance=instance or self.instance,
            partition_key=None if self.way in UNORDERED else day,
            tags=tags or {},
            raise_on_error=False,
        )

    def goes_on(self, tags: dict[str, str] | None = None) -> None:
        result = self.run(tags)
        assert result.success, said(result)
        self.made += 1
        self.held, self.shown = (*(self.held or ()), self.made), self.made
        self.page_is_the_stores()

    def page_is_the_stores(self) -> None:
        """Newest checkpoint and restorable partitions."""
        if self.way == "io manager":
            return  # it has no assets beside its own
        key = dstl.JobAssets("work").checkpoints_key
        newest = self.instance.get_latest_materialization_event(key)
        last = self.coordinator.latest()
        assert newest is not None
        assert last is not None
        assert newest.asset_materialization is not None
        assert (newest.asset_materialization.tags or {})["dstl/attempt"] == str(last.attempt)
        restorable = [f"chk-{each.checkpoint_id:08}" for each in self.coordinator.timeline.tail().retained]
        assert sorted(self.instance.get_dynamic_partitions("work_checkpoints")) == restorable

    def is_refused(self) -> None:
        before = self._files()
        events = self._events()
        result = self.run()
        assert not result.success
        assert REFUSED in said(result)
        assert (self._files(), self._events()) == (before, events)

    def _files(self) -> list[str]:
        return sorted(str(path) for path in self.store.parent.rglob("*"))

    def _events(self) -> list[int]:
        assets = dstl.JobAssets("work")
        keys = (assets.checkpoints_key, assets.state_key)
        return [len(self.instance.fetch_materializations(key, limit=1000).records) for key in keys]

    # ---- what happens to the folder ----

    def put_aside(self) -> None:
        """A copy, to come back later."""
        if self.held:
            place = self.folder / f"aside-{len(self.aside)}"
            shutil.copytree(self.store, place)
            self.aside.append((place, self.held))

    def away(self) -> None:
        self.put_aside()
        shutil.rmtree(self.store, ignore_errors=True)
        self.held = None

    def emptied(self) -> None:
        self.away()
        self.store.mkdir()

    def comes_back(self, place: Path, held: tuple[int, ...]) -> None:
        shutil.rmtree(self.store, ignore_errors=True)
        shutil.copytree(place, self.store)
        self.held = held

    def another(self) -> None:
        """A store in which another instance has the same job."""
        self.away()
        with dg.DagsterInstance.ephemeral() as other:
            for _ in range(2):
                assert self.run(instance=other).success
                self.made += 1
                self.held = (*(self.held or ()), self.made)


def said(result: dg.ExecuteInProcessResult) -> str:
    """Why a run failed."""
    failed = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    return "\n".join(f"{each.error}" for each in failed)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as found:
        yield found


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_a_run_begins_on_the_store_that_was_shown_only(
    way: str, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """A run goes on where the last shown checkpoint is, and else touches nothing, whatever happened."""
    rng = random.Random(way)
    story = Story(way, tmp_path, instance)
    story.goes_on()
    happenings = ["away", "emptied", "another", "put_aside", "comes_back"]
    rng.shuffle(happenings)
    for happening in [*happenings, "comes_back", rng.choice(happenings)]:
        if happening == "comes_back":
            if story.aside:
                story.comes_back(*rng.choice(story.aside))
        else:
            getattr(story, happening)()
        if story.shown in (story.held or ()):
            story.goes_on()
        elif rng.random() < 0.7:
            story.is_refused()
        else:
            story.goes_on(START_OVER)


@pytest.mark.parametrize(
    "way", [way if way in SHORT else pytest.param(way, marks=pytest.mark.soak) for way in WAYS]
)
def test_each_difference_is_named(way: str, tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """Nothing there, another timeline, an older backup, a copy that went on by itself; and what to do.
    A run that is refused touches nothing.
    """
    story = Story(way, tmp_path, instance)
    story.goes_on()
    story.put_aside()
    story.goes_on()
    older, _ = story.aside[0]

    def why() -> str:
        return said(story.run())

    story.comes_back(older, (1,))
    assert "its timeline ends before slot" in why()
    story.is_refused()
    with dg.DagsterInstance.ephemeral() as other:
        assert story.run(instance=other).success
    story.held = (1, 99)
    assert "its timeline has another record in slot" in why()
    story.another()
    assert "it has the timeline" in why()
    story.away()
    assert "it has no checkpoint of that job" in why()
    assert not story.store.exists()
    assert "launch one run with the tag `dstl/start_over: true`" in why()
    story.goes_on(START_OVER)
    story.goes_on()


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Days]:
    """The job `days` in a folder."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield Days(days_code, instance, (tmp_path / "store").as_uri(), days_code._nothing)


def test_the_sensor_and_the_checks_say_the_same(stored: Days, tmp_path: Path) -> None:
    """With and without a cursor, whatever is there; no partition goes, and nothing is written."""
    assert stored.run("2024-01-01").success
    daemon, fresh = Daemon(stored), Daemon(stored, name="fresh")
    daemon.tick()
    cursor = daemon.cursor
    (tmp_path / "store").rename(tmp_path / "aside")
    for each in (daemon, fresh):
        with pytest.raises(ConflictError, match=REFUSED):
            each.tick()
    checks = build_checkpoint_checks(days_code.JOB, changelog=stored.resource())
    found = dg.materialize([checks], instance=stored.instance, selection=dg.AssetSelection.all_asset_checks())
    results = [
        result
        for event in found.all_events
        for result in [event.event_specific_data]
        if "check" in str(event.event_type_value).lower() and hasattr(result, "passed")
    ]
    assert len(results) == 7
    assert all(not result.passed and REFUSED in (result.description or "") for result in results)
    assert not (tmp_path / "store").exists()
    assert stored.shown_checkpoints() == ["chk-00000001"]
    (tmp_path / "aside").rename(tmp_path / "store")
    assert daemon.tick() == "slot 3: nothing new"
    assert daemon.cursor == cursor


def test_a_sensor_that_a_person_starts_over_shows_what_the_store_has(stored: Days, tmp_path: Path) -> None:
    """By its cursor it follows the other store; set again, it shows the first one once more."""
    for day in ("2024-01-01", "2024-01-02"):
        days_code.make_outside(stored.uri, day)
    daemon = Daemon(stored)
    daemon.tick()
    other = replace(stored, uri=f"{stored.uri}-other")
    days_code.make_outside(other.uri, "2024-01-01")
    daemon.days = other
    with pytest.raises(ConflictError, match=r'\{"start_over": true\}'):
        daemon.tick()
    daemon.cursor = '{"start_over": true}'
    daemon.tick()
    daemon.tick()
    assert other.shown_checkpoints() == ["chk-00000001"]
    daemon.days = stored
    with pytest.raises(ConflictError, match=REFUSED):
        daemon.tick()
    daemon.cursor = '{"start_over": true}'
    daemon.tick()
    assert daemon.tick() == "slot 6: nothing new"
    assert stored.shown_checkpoints() == ["chk-00000001", "chk-00000002"]
    assert [event.partition for event in stored.events("checkpoints")][-1] == "chk-00000002"
    assert stored.run("2024-01-03").success


def test_a_run_that_started_over_speaks_for_the_store(stored: Days, tmp_path: Path) -> None:
    """The sensor follows it, though its cursor is of another timeline, also if the run died unreported."""
    assert stored.run("2024-01-01").success
    daemon = Daemon(stored)
    daemon.tick()
    other = replace(stored, uri=f"{stored.uri}-other", options={})
    run = stored.instance.add_run(dg.DagsterRun("days", status=dg.DagsterRunStatus.FAILURE, tags=START_OVER))
    days_code.make_outside(other.uri, "2024-01-01", owner=f"dagster-run:{run.run_id}")
    daemon.days = other
    daemon.tick()
    newest = stored.events("checkpoints")[-1]
    assert newest.tags["dstl/timeline"] == other.coordinator().timeline.tail().timeline_id
    assert daemon.tick() == "slot 3: nothing new"


def test_a_sensor_that_saw_only_an_attempt_follows_the_run_that_began_anew(stored: Days) -> None:
    """The store was emptied before its first checkpoint: the instance knows no other than the run's."""
    days_code.make_outside(stored.uri, "2024-01-01", until="opened")
    daemon = Daemon(stored)
    assert daemon.tick() == "slot 1: nothing new"
    other = replace(stored, uri=f"{stored.uri}-other", options={})
    assert other.run("2024-01-01", tags=START_OVER).success
    daemon.days = other
    daemon.tick()
    assert daemon.tick() == "slot 3: nothing new"


def test_a_sensor_follows_a_run_that_started_over_in_an_older_backup(stored: Days, tmp_path: Path) -> None:
    """The timeline has the name of before, and ended before the sensor's cursor; undone days are failed."""
    assert stored.run("2024-01-01").success
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    assert stored.run("2024-01-02").success
    daemon = Daemon(stored)
    daemon.tick()
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "backup").rename(tmp_path / "store")
    with pytest.raises(ConflictError, match="as in an older backup"):
        daemon.tick()
    stored.run("2024-01-01", tags=START_OVER)
    daemon.tick()
    assert daemon.tick() == "slot 3: nothing new"
    assert stored.shown_checkpoints() == ["chk-00000001"]
    assert failed_partitions(stored, "state") == {"2024-01-02"}


def test_maintenance_is_refused_as_well(stored: Days, tmp_path: Path) -> None:
    """A clean-up or a restore of an empty store takes no partition away."""
    assert stored.run("2024-01-01").success
    (tmp_path / "store").rename(tmp_path / "aside")
    (tmp_path / "store").mkdir()
    cleanup = build_cleanup_job(days_code.JOB).execute_in_process(
        instance=stored.instance, resources={"changelog": stored.resource()}, raise_on_error=False
    )
    restore = build_maintenance(days_code.JOB, "restore").execute_in_process(
        instance=stored.instance,
        resources={"changelog": stored.resource()},
        partition_key="chk-00000001",
        run_config=restore_run_config(1, 1),
        raise_on_error=False,
    )
    assert all(REFUSED in said(each) for each in (cleanup, restore))
    assert list((tmp_path / "store").iterdir()) == []
    assert stored.shown_checkpoints() == ["chk-00000001"]


def test_a_job_that_was_dropped_is_started_over_by_one_run(stored: Days) -> None:
    """The drop is not Dagster's: the sentence names the tag, and the runs after that need none."""
    stored.files = 0  # what it published stays, and would be in the way
    assert stored.run("2024-01-01").success
    dropped = CliRunner().invoke(main, ["jobs", "drop", "days", "--store", stored.uri, "--yes"])
    assert dropped.exit_code == 0, dropped.output
    refused = stored.run("2024-01-01")
    assert "dstl/start_over: true" in said(refused)
    assert stored.run("2024-01-01", tags=START_OVER).success
    assert stored.shown_checkpoints() == ["chk-00000001"]
    assert stored.run("2024-01-02").success


def test_a_copy_of_the_tag_starts_nothing_over_again(stored: Days) -> None:
    """Dagster copies a run's tags to its re-executions, which may be weeks later: after a failure it is still
    the same start.
    """
    stored.files = 0
    assert stored.run("2024-01-01").success
    shutil.rmtree(stored.uri.removeprefix("file://"))
    again = stored.run("2024-01-01", tags=START_OVER)
    assert again.success
    shutil.rmtree(stored.uri.removeprefix("file://"))
    of = {"job_name": "days", "parent_run_id": again.run_id, "root_run_id": again.run_id, "tags": START_OVER}
    copied = dg.DagsterRun(**of)
    with pytest.raises(ConflictError, match="launch one run with the tag `dstl/start_over: true`"):
        require_shown_timeline(copied, stored.instance, stored.coordinator())
    failed = dg.DagsterRun("days", status=dg.DagsterRunStatus.FAILURE, tags=START_OVER)
    stored.instance.add_run(failed)
    resumed = dg.DagsterRun(**(of | {"parent_run_id": failed.run_id}))
    assert require_shown_timeline(resumed, stored.instance, stored.coordinator()).away is not None


def test_it_is_noticed_under_keys_with_a_prefix(days: Days) -> None:
    """As of a module that is loaded with one: what was shown stands under those keys."""
    job = days.code.JOB
    shown = [spec.replace_attributes(key=["eu", *spec.key.path]) for spec in dstl.checkpoint_asset_specs(job)]
    sensor = dstl.build_checkpoint_sensor(job)

    def tick() -> dg.SensorResult:
        resources = {"changelog": days.resource()}
        defs = dg.Definitions(assets=shown, sensors=[sensor], resources=resources)
        with dg.build_sensor_context(
            instance=days.instance, definitions=defs, resources=resources
        ) as context:
            return sensor(context)

    days.code.make_outside(days.uri, "2024-01-01")
    for event in tick().asset_events:
        days.instance.report_runless_asset_event(event)
    days.uri = f"{days.uri}-emptied"
    with pytest.raises(ConflictError, match=REFUSED):
        tick()
