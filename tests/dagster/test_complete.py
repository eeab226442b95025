"""Steps 4 to 7 in one op: one process instead of four, and nothing lost by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from dstl_dagster import build_checkpoint_job, build_state_asset
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.orchestration.define import ops
from dstl_dagster.orchestration.inject import resources
from dstl_dagster.storage import open_store
from dstl_dagster.storage.accounting.cost import CostMeter
from dstl_dagster.storage.accounting.metered import metered

if TYPE_CHECKING:
    from tests.dagster.conftest import Days

pytestmark = pytest.mark.dagster

FIRST = "2024-01-01"
STEPS = ("record_report", "confirm", "compose_commit", "clean_up")


def run(days: Days, day: str = FIRST, *, separate_steps: bool = False) -> dg.ExecuteInProcessResult:
    """One day, by the asset as it is built by default."""
    code = days.code
    state = build_state_asset(
        code.JOB,
        code.build_update(days.body, files=days.files),
        partitions_def=code.DAYS,
        retry_policy=code.AT_ONCE,
        separate_steps=separate_steps,
    )
    return dg.materialize(
        [state],
        partition_key=day,
        instance=days.instance,
        resources={"changelog": days.resource()},
        raise_on_error=False,
    )


def steps_of(result: dg.ExecuteInProcessResult) -> list[str]:
    return [event.step_key.rpartition(".")[2] for event in result.all_events if event.is_step_success]


def test_a_partition_is_two_steps_by_default(days: Days) -> None:
    """The user's, and one for steps 4 to 7, whose log tells each of them."""
    result = run(days)
    assert steps_of(result) == ["update", "complete"]
    assert days.kinds() == ["opened", "completed", "committed"]
    said = days.logged(result)
    assert [number for number in "4567" if f"step {number} " in said] == list("4567")


@pytest.mark.parametrize("day", ["2024-01-01", "2024-01-02"])
def test_dagster_shows_the_same_as_with_separate_steps(day: str, days: Days) -> None:
    """Each asset has the same events and metadata."""
    shown = {}
    for separate_steps in (True, False):
        with dg.DagsterInstance.ephemeral() as days.instance:
            days.uri = f"{days.uri}-{separate_steps}"
            run(days, separate_steps=separate_steps)
            if day != FIRST:
                run(days, day, separate_steps=separate_steps)
            shown[separate_steps] = {
                asset: [(each.partition, sorted(each.metadata)) for each in days.events(asset)]
                for asset in ("state", "state/totals", "files", "checkpoints")
            }
    assert shown[False] == shown[True]


@pytest.mark.parametrize("after", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("step", STEPS)
def test_a_retry_goes_on_where_the_timeline_stands(
    step: str, after: bool, days: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`complete` dies before or behind one of its steps: its retry does the rest, without `update`."""
    real: Callable[..., Any] = getattr(CheckpointCoordinator, step)
    died: list[str] = []

    def dying(*arguments: Any, **named: Any) -> Any:
        if died:
            return real(*arguments, **named)
        died.append(step)
        if after:
            real(*arguments, **named)
        raise RuntimeError("killed")

    monkeypatch.setattr(CheckpointCoordinator, step, dying)
    result = run(days)
    assert result.success
    assert died == [step]
    assert days.retries(result) == ["complete"]
    assert days.kinds() == ["opened", "completed", "committed"]
    assert [len(days.events(asset)) for asset in ("state", "files", "checkpoints")] == [1, 1, 1]
    assert days.store.get(f"out/{FIRST}/0.txt") == b"first line\nsecond line\n"


def test_a_subsumed_checkpoint_is_left_alone(days: Days) -> None:
    """A zombie of `complete` wakes up after its checkpoint was subsumed: none of the four steps acts."""
    days.options = {"execution.checkpointing.num-retained": "1"}
    first = run(days)
    run(days, "2024-01-02")
    reference = first.output_for_node("days__state.update")
    records = len(days.kinds())
    complete = ops.StepOps(lambda _job: days.code.JOB, prefix="again_").complete()

    @dg.op(out=dg.Out(dict))
    def given() -> Any:
        return reference

    @dg.job(resource_defs={"changelog": days.resource()})
    def again() -> None:
        complete(given())

    result = again.execute_in_process(instance=days.instance)
    assert result.success
    assert "already subsumed: nothing to do" in days.logged(result)
    assert len(days.kinds()) == records


def test_one_process_asks_the_store_less_often(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ops look for the timeline's tail each on their own; one looks once."""
    requests = {}
    for separate_steps in (True, False):
        meter = CostMeter()
        with monkeypatch.context() as patched:
            patched.setattr(
                resources, "open_store", lambda uri, _, meter=meter: metered(open_store(uri), meter)
            )
            with dg.DagsterInstance.ephemeral() as days.instance:
                days.uri = f"{days.uri}-{separate_steps}"
                assert run(days, separate_steps=separate_steps).success
        requests[separate_steps] = meter.cost.requests
    assert requests == {True: 46, False: 41}


def test_a_plain_job_has_the_same_choice(days: Days) -> None:
    """`build_checkpoint_job`: two ops, or five."""
    update = days.code.build_update(source=None)
    for separate_steps, count in ((False, 2), (True, 5)):
        job = build_checkpoint_job(f"plain_{count}", update, separate_steps=separate_steps)
        assert len(job.graph.nodes) == count
        result = job.execute_in_process(instance=days.instance, resources={"changelog": days.resource()})
        assert result.success
    assert days.kinds()[:3] == ["opened", "completed", "committed"]


def test_two_updates_of_one_run_are_two_batches(days: Days) -> None:
    """In a run without a partition: by the run alone the second would be taken for the first, and dropped."""
    update = days.code.build_update(source=None)

    @dg.job(resource_defs={"changelog": days.resource()})
    def both() -> None:
        between, last = (ops.StepOps(prefix=f"{name}_").complete() for name in ("first", "second"))
        last(update.alias("again")(after=between(update())))

    result = both.execute_in_process(instance=days.instance)
    keys = [each.entry.completed.idempotency_key for each in days.coordinator().list()]
    assert keys == [f"run:{result.run_id}/{name}" for name in ("update", "again")]
