"""What steps 1 to 3 say on the page of their run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from dstl_dagster.orchestration.inject.batch_log import spark_log

if TYPE_CHECKING:
    from tests.dagster.conftest import Days

pytestmark = pytest.mark.dagster


def test_the_first_steps_say_what_they_did(days: Days) -> None:
    """Checkpoint, parent, try and positions; then each operator and file; then sums, requests and seconds."""
    days.run("2024-01-01")
    said = days.logged(days.run("2024-01-02"))
    assert "step 1 trigger: checkpoint 2 of days is open, on checkpoint 1, try 1 of this run, " in said
    assert "sources stand at calendar: 2024-01-02T00:00:00+00:00" in said
    assert "step 2 append: operator totals: 1 row written, 0 deleted, " in said
    assert "out/2024-01-02/0.txt: 2 rows, 23 B in 2 components, not visible yet" in said
    assert "step 3 persist: 1 changed rows (" in said
    assert "sources move to calendar: 2024-01-03T00:00:00+00:00. trigger: " in said
    assert ". persist: " in said.partition("step 3 persist")[2]


def test_a_jobs_first_batch_and_a_repeated_one_say_so(days: Days) -> None:
    """Before the first checkpoint there is no parent; a batch that was applied is not written again."""
    first = days.logged(days.run("2024-01-01"))
    assert "checkpoint 1 of days is open, with no state before it, try 1" in first
    assert "sources stand at their beginning" in first
    again = days.logged(days.run("2024-01-01"))
    assert "step 1 trigger: this batch is already in checkpoint 1: nothing to write" in again
    assert "step 3 persist: " not in again


def test_spark_says_how_far_it_is() -> None:
    """Every ten seconds one line, however often it is asked."""
    seconds = iter([0.0, 4.0, 10.0, 12.0, 19.0, 21.0])
    clock: Any = SimpleNamespace(monotonic_seconds=lambda: next(seconds))
    lines: list[str] = []
    context: Any = SimpleNamespace(log=SimpleNamespace(info=lines.append))
    log = spark_log(context, clock)
    for finished in range(1, 6):
        log(finished, 5)
    assert lines == [f"step 2 append: Spark has done {number} of 5 tasks" for number in (2, 5)]


def test_a_retry_says_which_it_is(days: Days) -> None:
    """The number of the try, and nothing of step 3 for the one that failed."""

    def fail_once(context: dg.OpExecutionContext, batch: object) -> None:
        if context.retry_number == 0:
            raise RuntimeError("the inbox was away")

    days.body = fail_once
    said = days.logged(days.run("2024-01-01"))
    assert "try 1 of this run" in said
    assert "try 2 of this run" in said
    assert said.count("step 3 persist: ") == 1
