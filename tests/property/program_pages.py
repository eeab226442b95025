"""What Dagster shows of the programs of `programs`, and asks for: the sensors of their jobs, tick by tick.

A page that calls a day done is believed: no backfill runs it again. So what it shows as materialized, once a
sensor has followed the job to its end, is in the state, and what is in the state is shown; the check beside
it passes only where that is so. A downstream job is asked for once for each checkpoint.
"""

# No postponed annotations: Dagster reads the types of arguments as objects.

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dagster as dg

import dstl_dagster as dstl
from dstl_dagster.errors import DstlError
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.report.findings import partitions_finding
from dstl_dagster.orchestration.report.shown import Page
from dstl_dagster.timeline import Completed, Timeline
from tests.property.program_runs import changelog_of, definitions_of

if TYPE_CHECKING:
    from tests.property.programs import Program, World

_TICKS = 20
_ASSETS = ("asset", "function", "io manager", "plain asset")


@dataclass
class JobPage:
    """The page of one job, of the programs that are defined with it, and its sensors.

    Attributes:
        cursor, asked_to: of the sensor that reports, and of the one that asks for a job downstream.
        begins: the slot behind which that one began; `None` once the job was dropped.
        asked: the attempts that it has asked for.
        is_wiped: once, so that what was shown before may be missing.
    """

    world: "World"
    job: str
    cursor: str | None = None
    asked_to: str | None = None
    begins: int | None = None
    asked: list[str] = field(default_factory=list)
    is_wiped: bool = False

    def __post_init__(self) -> None:
        self.begins = self._timeline.tail().slot
        self.asked_to = f'{{"slot": {self.begins}}}'

    @property
    def _timeline(self) -> Timeline:
        return self.world.coordinator(self.job).timeline

    @property
    def _programs(self) -> "list[Program]":
        """Those that are assets."""
        return [each for each in self.world.programs if each.job == self.job and each.way in _ASSETS]

    def wipe(self) -> None:
        """As the button of Dagster's page does."""
        keys = {dg.AssetKey(each.asset_path) for each in self._programs}
        keys |= {self._assets().checkpoints_key}
        self.world.runner.instance.wipe_assets([*keys])
        self.is_wiped = True
        self.world.history.append(f"wipe the page of {self.job}")

    def forget(self) -> None:
        """The cursor of the sensor that reports is cleared."""
        self.cursor = None
        self.world.history.append(f"clear the cursor of {self.job}")

    def tick(self, meanwhile: Callable[[], None] | None = None) -> None:
        """Both sensors, to the end; then the page is looked at. `meanwhile`: during the second one's tick."""
        during = meanwhile
        try:
            before = self._check()
            for _ in range(_TICKS):
                if not self._report():
                    break
            for _ in range(_TICKS):
                if not self._ask(meanwhile):
                    break
                meanwhile = None
        except DstlError as error:
            self.world.history.append(f"the sensors of {self.job} refuse: {error}")
            return
        self.world.history.append(f"the sensors of {self.job} ticked; the check was {before}")
        if during is None:
            self._look()
            self._check()

    def last(self) -> None:
        """After everything: each checkpoint that is published, and still there, was asked for."""
        self.tick()
        begins, view = self.begins, self._timeline.tail()
        if begins is None or any("refuse" in each for each in self.world.history):
            return
        for entry in view.retained:
            completed, number = entry.completed, entry.checkpoint_id
            new = entry.committed is not None and completed.slot > begins
            if new and str(completed.attempt) not in self.asked:
                self.world.wrong.append(f"nothing asked for checkpoint {number} of {self.job}")

    # ---- the sensors ----

    def _evaluated(self, sensor: dg.SensorDefinition, cursor: str | None) -> Any:
        instance = self.world.runner.instance
        with dg.build_sensor_context(
            instance=instance, cursor=cursor, definitions=self._definitions()
        ) as context:
            return sensor(context)

    def _definitions(self) -> dg.Definitions:
        changelog = changelog_of(self.world.folder)
        works = [self.world.work_of(each) for each in self._programs]
        return definitions_of(works, changelog)

    def _report(self) -> bool:
        """One tick of the sensor that reports; whether it went on."""
        sensor = dstl.build_checkpoint_sensor(self.job, changelog=changelog_of(self.world.folder))
        result, instance, before = (
            self._evaluated(sensor, self.cursor),
            self.world.runner.instance,
            self.cursor,
        )
        for event in result.asset_events:
            instance.report_runless_asset_event(event)
        self.cursor = result.cursor
        return bool(self.cursor != before)

    def _ask(self, meanwhile: Callable[[], None] | None) -> bool:
        """One tick of the sensor that asks; whether it went on."""
        todo = [] if meanwhile is None else [meanwhile]

        def config(_completed: Completed) -> dict[str, Any]:
            if todo:
                todo.pop()()
            return {}

        sensor = dstl.build_downstream_sensor(
            self.job,
            "downstream",
            partitions_def=JobAssets(self.job).partitions,
            run_config=config,
            changelog=changelog_of(self.world.folder),
        )
        result, before = self._evaluated(sensor, self.asked_to), self.asked_to
        self.asked_to = result.cursor
        slots = {
            str(each.attempt): each.slot for each in self._timeline.records() if isinstance(each, Completed)
        }
        for request in result.run_requests or ():
            attempt = request.tags["dstl/attempt"]
            if attempt in self.asked:
                self.world.wrong.append(f"downstream of {self.job} was asked for {attempt} twice")
            if self.begins is not None and slots.get(attempt, self.begins + 1) <= self.begins:
                self.world.wrong.append(f"downstream of {self.job} was asked for {attempt}, from before it")
            self.asked.append(attempt)
        return bool(self.asked_to != before)

    # ---- what they show ----

    def _assets(self) -> JobAssets:
        graph = self._definitions().get_repository_def().asset_graph
        return JobAssets(self.job).found_in(graph.asset_nodes)

    def _done(self, program: "Program") -> set[str]:
        """The partitions that are shown as materialized."""
        definition, instance = program.definition, self.world.runner.instance
        key = dg.AssetKey(program.asset_path)
        ever = sorted(instance.get_materialized_partitions(key))
        if definition is None or not ever:
            return set()
        found = instance.get_status_by_partition(key, ever, definition) or {}
        return {each for each, status in found.items() if status == dg.AssetPartitionStatus.MATERIALIZED}

    def _untrue(self) -> set[tuple[str, str]]:
        """By mark, the partitions that are shown as done, and are not in the state."""
        there, found = self.world.days_in(self.job), set()
        for each in self._programs:
            for key in self._done(each):
                days = self.world.days_of(each, key, 0)
                if not all((each.mark, day) in there for day in days):
                    found.add((each.mark, key))
        return found

    def _look(self) -> None:
        for mark, key in sorted(self._untrue()):
            self.world.wrong.append(f"{self.job}: {key} of {mark} is shown, and is not in the state")
        there = self.world.days_in(self.job)
        for each in self._programs if not self.is_wiped else ():
            if each.way == "plain asset":
                continue  # of a run that died behind step 5 nothing shows the day, which may run again
            ever = self.world.runner.instance.get_materialized_partitions(dg.AssetKey(each.asset_path))
            for key in self.world.keys_of(each) if each.definition is not None else ():
                days = self.world.days_of(each, key or "", 0)
                if days and all((each.mark, day) in there for day in days) and key not in ever:
                    self.world.wrong.append(f"{self.job}: {key} of {each.mark} is there, and is not shown")

    def _check(self) -> str:
        """The check passes where the page is true; beside a checkpoint, by the last days alone."""
        definitions = [each.definition for each in self._programs if each.definition is not None]
        if not definitions:
            return "none"
        page = Page(self._assets(), self.world.runner.instance, definitions[0])
        view, untrue = self._timeline.tail(), self._untrue()
        found = partitions_finding(page, view)
        if found.passed and untrue:
            self.world.wrong.append(f"the check of {self.job} passes, and {sorted(untrue)} are not there")
        last = max((day for _, day in self.world.days_in(self.job) if day[0].isdigit()), default="")
        late = [key for _, key in untrue if key > last and "-" in key]
        if late and partitions_finding(page, view, thorough=False).passed:
            self.world.wrong.append(f"the check of {self.job} passes, and {late} are not there")
        return "passed" if found.passed else found.text
