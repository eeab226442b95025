"""The asset checks of a job's checkpoints: each passes if all is well, and otherwise names what is not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from dstl_dagster import ChangelogStorageResource, build_checkpoint_checks, checkpoint_asset_specs
from dstl_dagster.errors import UnavailableError
from dstl_dagster.orchestration.inject import resources
from dstl_dagster.settings import CostBudget
from dstl_dagster.storage import ANY, CheckpointCost, Cost, open_store
from dstl_dagster.testing.fault_schedules import Fault, Request
from dstl_dagster.testing.fault_store import FaultStore

if TYPE_CHECKING:
    from tests.dagster.conftest import Days

pytestmark = pytest.mark.dagster

NAMES = [
    *("checkpoint_age", "files_published", "manifest_readable", "no_blocked_files", "objects_present"),
    *("orphan_bytes", "partitions_match_timeline"),
]


def checked(days: Days, *, bound: bool = False, **options: Any) -> dict[str, tuple[bool, str]]:
    """Run the checks; what each says."""
    result = _run(days, bound=bound, **options)
    assert result.success, days.failure(result)
    found = {each.check_name: each for each in result.get_asset_check_evaluations()}
    assert sorted(found) == sorted([*NAMES, *(["cost_budget"] if options.get("budget") else [])])
    return {name: (each.passed, str(each.description)) for name, each in found.items()}


def _run(days: Days, *, bound: bool = False, **options: Any) -> dg.ExecuteInProcessResult:
    given: dict[str, ChangelogStorageResource] = {"changelog": days.resource()} if bound else {}
    checks = build_checkpoint_checks(days.code.JOB, **given, **options)
    defs = dg.Definitions(
        assets=[*checkpoint_asset_specs(days.code.JOB), dg.AssetSpec(days.code.JOB.state_key)],
        asset_checks=[checks],
        jobs=[dg.define_asset_job("checks", selection=dg.AssetSelection.checks(checks))],
        resources={} if bound else {"changelog": days.resource()},
    )
    return defs.resolve_job_def("checks").execute_in_process(instance=days.instance, raise_on_error=False)


@pytest.mark.parametrize("bound", [False, True])
def test_a_job_in_order_passes(bound: bool, days: Days) -> None:
    """Right after a run all of them pass, with the resource by name or given, and say what they looked at."""
    days.run("2024-01-01")
    before = days.objects()
    said = checked(days, bound=bound)
    assert all(passed for passed, _ in said.values()), said
    assert said["manifest_readable"][1] == "checkpoint 1: its manifest, and those it needs, can be read"
    assert said["objects_present"][1].startswith("1 object, ")
    assert "0 objects, 0 B of at most 1 GiB" in said["orphan_bytes"][1]
    added = {name for name, generation in days.objects().items() if before.get(name) != generation}
    assert added <= {"dstl/days/server-clock"}, (
        "a check writes nothing but the object that reads the server's clock"
    )


def test_a_job_without_a_checkpoint_only_warns(days: Days) -> None:
    """Before the first run nothing is wrong: only its age says that nothing is there, once."""
    result = _run(days, budget=CostBudget(requests=1))
    found = {each.check_name: each for each in result.get_asset_check_evaluations()}
    assert found["manifest_readable"].description == "the job has no checkpoint yet"
    (warned,) = (each for each in found.values() if not each.passed)
    assert (warned.check_name, warned.severity) == ("checkpoint_age", dg.AssetCheckSeverity.WARN)


def test_a_lost_manifest_is_found(days: Days) -> None:
    """The last checkpoint's; the other checks say what they could not look at."""
    days.run("2024-01-01")
    days.run("2024-01-02")
    last = days.coordinator().get(2)
    days.store.delete(last.entry.completed.manifest, precondition=ANY)
    for mark in days.store.list("dstl/days/clean-up/"):
        days.store.delete(
            mark.name, precondition=ANY
        )  # with it, what the manifest names is known to be needed
    said = checked(days)
    assert not said["manifest_readable"][0]
    assert last.entry.completed.manifest in said["manifest_readable"][1]
    assert said["objects_present"] == (False, "no checkpoint is readable")
    assert said["orphan_bytes"][1].startswith("unknown: ")


def _gone(days: Days, name: str) -> None:
    days.store.delete(name, precondition=ANY)


def _shorter(days: Days, name: str) -> None:
    days.store.put(name, days.store.get(name)[:-1], precondition=ANY)


@pytest.mark.parametrize(("damage", "word"), [(_gone, "is missing"), (_shorter, "bytes, not")])
def test_a_lost_object_is_found(damage: Callable[[Days, str], None], word: str, days: Days) -> None:
    """An object that the state needs, of an older checkpoint too: missing, or of another size."""
    days.run("2024-01-01")
    days.run("2024-01-02")
    report = days.coordinator().get(1).manifest.operators["totals"].report
    ((stream, _),) = report.handles[0].handles_and_offsets
    damage(days, stream.name)
    said = checked(days)
    assert said["manifest_readable"][0]
    passed, text = said["objects_present"]
    assert not passed
    assert stream.name in text
    assert word in text


def test_too_much_left_lying_about_is_found(days: Days) -> None:
    """The garbage of dead attempts counts against the budget."""
    days.run("2024-01-01")
    dead = days.coordinator().trigger()
    days.code.write_change(days.store, dead, b"left behind")
    days.coordinator().abort(dead)
    assert checked(days)["orphan_bytes"][0]
    passed, text = checked(days, orphan_budget_bytes=10)["orphan_bytes"]
    assert not passed
    assert text.startswith("1 object, ")
    assert "of at most 10 B: run step 7 (clean up)" in text


def test_an_old_checkpoint_is_found(days: Days) -> None:
    """By the time of its record."""
    days.run("2024-01-01")

    class Later:
        def now(self) -> Any:
            entry = days.coordinator().timeline.tail().last_completed
            assert entry is not None
            return entry.completed.recorded_at + timedelta(hours=37)

    passed, text = checked(days, clock=Later())["checkpoint_age"]
    assert not passed
    assert text == "checkpoint 1 is 1 d 13 h old, at most 1 d 12 h is allowed"


def test_a_store_that_is_away_is_no_finding(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step fails and is retried: nothing is reported about a job that could not be read."""
    days.run("2024-01-01")

    class Away:
        def decide(self, request: Request) -> Fault | None:
            return Fault.ERROR_BEFORE

        def deliver_late_effect(self) -> bool:
            return False

    monkeypatch.setattr(resources, "open_store", lambda uri, _: FaultStore(open_store(uri), Away()))
    monkeypatch.setattr("dagster.RetryPolicy.calculate_delay", lambda self, attempt: 0.0)
    result = _run(days)
    assert not result.success
    assert not result.get_asset_check_evaluations()
    assert len(days.retries(result)) == 3
    assert UnavailableError.__name__ in str(result.get_step_failure_events()[0].step_failure_data.error)


def test_a_budget_holds_each_of_its_limits(days: Days) -> None:
    """The last checkpoint's requests, bytes and money, against those limits that are set."""
    days.run("2024-01-01")
    cost = days.coordinator().get(1).manifest.cost
    assert cost is not None
    usd = cost.total.usd(days.coordinator().prices)
    spent = CostBudget(cost.total.requests, cost.total.bytes_up + cost.total.bytes_down, usd)
    assert spent.requests
    assert spent.bytes
    within, said = checked(days, budget=spent)["cost_budget"]
    assert within, said
    assert said.startswith(f"checkpoint 1 cost {spent.requests} requests, ")
    for budget in (
        CostBudget(requests=spent.requests - 1),
        CostBudget(bytes=spent.bytes - 1),
        CostBudget(usd=0.99 * usd),
    ):
        within, said = checked(days, budget=budget)["cost_budget"]
        assert not within
        assert "allowed are" in said
        assert "dstl checkpoints show" in said


@pytest.mark.parametrize("counted", [None, CheckpointCost({"record": Cost()})])
def test_a_cost_of_which_a_part_was_counted_is_unknown(
    days: Days, monkeypatch: pytest.MonkeyPatch, counted: CheckpointCost | None
) -> None:
    """It passes no budget that is set, and says why."""
    days.run("2024-01-01")
    monkeypatch.setattr("dstl_dagster.keyed.documents.manifest.CheckpointCost.from_json", lambda _: counted)
    within, said = checked(days, budget=CostBudget(requests=10_000))["cost_budget"]
    assert not within
    assert said == "unknown: not all requests of checkpoint 1 were counted"
