"""The kinds of the layers above the engine: Spark's query and Java, Dagster's partitions, sensor and runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from dstl_dagster import JobAssets, build_maintenance
from dstl_dagster.clock import SystemClock
from dstl_dagster.errors import ErrorKind
from dstl_dagster.orchestration.inject.resources import ChangelogStorageResource
from dstl_dagster.orchestration.operate.maintenance import commit_run_config
from dstl_dagster.orchestration.partition_order import require_next_partition
from dstl_dagster.orchestration.report.shown import Page
from dstl_dagster.orchestration.watch.timeline_follower import CheckpointCursor, TimelineFollower
from dstl_dagster.spark.local import java
from dstl_dagster.spark.stores import require_shared
from dstl_dagster.spark.streaming.micro_batches import MicroBatch
from tests.simulated.actions import checkpoint_of

if TYPE_CHECKING:
    from tests.unit.errors.conftest import Case, Scenario

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
JOB = JobAssets("orders", operators=("totals",))


def _no_java(case: Case) -> None:
    case.patch.setattr(java, "_packaged_home", lambda: None)
    java.choose_java({"PATH": str(case.folder)}, system_places=())


def _timeline_replaced(case: Case) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        follower = TimelineFollower(Page(JOB, instance), case.coordinator(), SystemClock())
        follower.start('{"slot": 42}')


def _wrong_config(case: Case) -> None:
    """Dagster shows it as a failure that is not retried; the error is its cause."""
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(dg.Failure) as failure:
        build_maintenance(JOB, "commit").execute_in_process(
            run_config=commit_run_config("another", 1),
            resources={"changelog": ChangelogStorageResource(uri=case.folder.as_uri())},
            instance=instance,
        )
    assert failure.value.__cause__ is not None
    raise failure.value.__cause__


SCENARIOS: list[tuple[str, Scenario]] = [
    (ErrorKind.INVALID_INPUT, lambda _: require_shared("memory://orders")),
    (ErrorKind.OTHER_QUERY, lambda _: MicroBatch("new", 0).require_after(MicroBatch("old", 4), None)),
    (ErrorKind.OTHER_QUERY, lambda _: MicroBatch("query", 7).require_after(MicroBatch("query", 4), None)),
    (ErrorKind.OTHER_QUERY, lambda _: MicroBatch("query", 3).require_after(MicroBatch("query", 4), None)),
    (ErrorKind.NOT_INSTALLED, _no_java),
    (
        ErrorKind.OUT_OF_ORDER,
        lambda _: require_next_partition(
            DAYS, "2024-01-05", "2024-01-02T00:00:00+00:00", job="orders", source="days"
        ),
    ),
    (ErrorKind.INVALID_INPUT, lambda _: CheckpointCursor.from_text("somewhere")),
    (ErrorKind.TIMELINE_REPLACED, _timeline_replaced),
    (ErrorKind.INVALID_INPUT, _wrong_config),
    (ErrorKind.NO_CHECKPOINT, lambda case: checkpoint_of(case.coordinator(), 1)),
]


@pytest.mark.parametrize(("kind", "scenario"), SCENARIOS)
def test_a_kind_is_raised(kind: str, scenario: Scenario, check_kind: Callable[[str, Scenario], None]) -> None:
    """What the docstring of the kind says happens: this kind, and one of its classes."""
    check_kind(kind, scenario)


def test_no_kind_is_left_out(documented: dict[str, dict[str, set[str]]]) -> None:
    """Every kind of the section has a scenario."""
    assert {kind for kind, _ in SCENARIOS} >= set(documented["Spark and Dagster"])
