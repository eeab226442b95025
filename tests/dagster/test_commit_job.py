"""Step 6 left to Dagster: the sensor requests a run of it, and no second one while that may succeed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from dstl_dagster import build_maintenance
from dstl_dagster.orchestration.operate.maintenance import commit_run_config

if TYPE_CHECKING:
    from tests.dagster.conftest import Daemon, Days

    DaemonOf = Callable[..., Daemon]

pytestmark = pytest.mark.dagster


def reported(days: Days, asset: str = "checkpoints") -> list[str | None]:
    """The partitions of all materialisations, in the order in which they were written."""
    return [event.partition for event in days.events(asset)]


def test_a_completed_checkpoint_is_committed_by_a_run(days: Days, daemon_of: DaemonOf) -> None:
    """The job left step 6: one run is requested, and no other while it is alive or once it has succeeded."""
    daemon = daemon_of(commit=True)
    days.code.make_outside(days.uri, "2024-01-01", until="completed")
    daemon.tick()
    daemon.tick()
    (run,) = daemon.runs
    assert run[1] == 1
    daemon.end_runs(dg.DagsterRunStatus.SUCCESS)
    daemon.tick()
    assert len(daemon.runs) == 1


def test_a_renamed_sensor_asks_for_no_second_run(days: Days, daemon_of: DaemonOf) -> None:
    """Dagster forgets the run keys of another sensor, so the sensor looks at the runs themselves."""
    daemon = daemon_of(commit=True)
    days.code.make_outside(days.uri, "2024-01-01", until="completed")
    daemon.tick()
    renamed = daemon_of(commit=True, name="another_name")
    renamed.tick()
    assert renamed.runs == []


def test_a_failed_commit_run_is_asked_for_again(days: Days, daemon_of: DaemonOf) -> None:
    """Dagster never launches the key of a failed run again; the sensor requests another one, three times."""
    daemon = daemon_of(commit=True)
    days.code.make_outside(days.uri, "2024-01-01", until="completed")
    for _ in range(5):
        daemon.tick()
        daemon.end_runs(dg.DagsterRunStatus.FAILURE)
    assert [key.rpartition("/")[2] for key, _ in daemon.runs] == ["1", "2", "3"]


def test_a_committed_checkpoint_needs_no_run(days: Days, daemon_of: DaemonOf) -> None:
    """The job commits by itself: no run is requested."""
    daemon = daemon_of(commit=True)
    days.code.make_outside(days.uri, "2024-01-01")
    daemon.tick()
    assert daemon.runs == []


def test_the_commit_run_publishes_and_the_sensor_reports(days: Days, daemon_of: DaemonOf) -> None:
    """The run does steps 6 and 7; the next tick reports what it published, once."""
    daemon = daemon_of(commit=True)
    days.code.make_outside(days.uri, "2024-01-01", until="completed")
    daemon.tick()
    assert reported(days, "files") == []
    result = _run_commit(days, 1, tag="1")
    assert result.success
    assert days.store.get("out/2024-01-01/0.txt") == b"first line\nsecond line\n"
    daemon.end_runs(dg.DagsterRunStatus.SUCCESS)
    daemon.tick()
    daemon.tick()
    assert reported(days, "files") == ["2024-01-01"]
    assert days.kinds() == ["opened", "completed", "committed"]


def test_a_mistaken_config_is_refused(days: Days, daemon_of: DaemonOf) -> None:
    """The config must name the checkpoint of the run's tag; and there is no default to fall back to."""
    days.code.make_outside(days.uri, "2024-01-01", until="completed")
    refused = _run_commit(days, 1, tag="2")
    assert "the config of the sensor's run" in days.failure(refused)[1]
    assert days.kinds() == ["opened", "completed"]
    with pytest.raises(dg.DagsterInvalidConfigError):
        build_maintenance(days.code.JOB, "commit").execute_in_process(
            run_config={"ops": {"comit": {"config": {"job": "days", "checkpoint_id": 1}}}},
            resources={"changelog": days.resource()},
        )


def _run_commit(days: Days, checkpoint_id: int, tag: str) -> dg.ExecuteInProcessResult:
    return build_maintenance(days.code.JOB, "commit").execute_in_process(
        run_config=commit_run_config("days", checkpoint_id),
        resources={"changelog": days.resource()},
        tags={"dstl/checkpoint_id": tag},
        instance=days.instance,
        raise_on_error=False,
    )
