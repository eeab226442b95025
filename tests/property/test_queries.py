"""Streaming queries, batches and runs mixed up on one job. Longer: `queries.py`, or `-m soak`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.spark.streaming.micro_batches import MicroBatch
from dstl_dagster.timeline import decisions
from tests.property import queries

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize(
    "seeds", [range(20), pytest.param(range(20, 5_000), marks=[pytest.mark.soak, pytest.mark.timeout(7_200)])]
)
def test_each_batch_once_and_the_wrong_ones_are_refused(seeds: range) -> None:
    """Whatever dies or fails, and in whichever turns they work; see `queries`."""
    found = {seed: queries.outcome(seed) for seed in seeds}
    assert {seed: faults for seed, faults in found.items() if faults} == {}


def accept_any_query(patch: Patch) -> None:
    patch.setattr(MicroBatch, "require_after", lambda *_: None)


def open_in_the_planner(patch: Patch) -> None:
    real = CheckpointCoordinator.plan

    def plan(self: CheckpointCoordinator, **given: object) -> object:
        planned, parent = real(self, **given)  # type: ignore[arg-type]
        self.begin(planned)
        return planned, parent

    patch.setattr(CheckpointCoordinator, "plan", plan)


def forget_what_was_applied(patch: Patch) -> None:
    real = MicroBatch.require_after

    def require_after(self: MicroBatch, last: MicroBatch | None, adopt_after: str | None) -> None:
        if last is None or last.query_id != self.query_id or last.batch_id < self.batch_id:
            real(self, last, adopt_after)

    patch.setattr(MicroBatch, "is_in", lambda *_: False)
    patch.setattr(MicroBatch, "require_after", require_after)
    patch.setattr(decisions, "refuse_applied", lambda *_: None)


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (accept_any_query, "micro-batches"),
        (open_in_the_planner, "right"),
        (forget_what_was_applied, "micro-batches"),
    ],
)
def test_a_broken_sink_is_seen(broken: Callable[[Patch], None], fault: str, monkeypatch: Patch) -> None:
    """Within the first worlds."""
    broken(monkeypatch)
    assert any(each.startswith(fault) for seed in range(20) for each in queries.outcome(seed))
