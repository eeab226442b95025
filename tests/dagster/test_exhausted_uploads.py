"""A changelog upload whose retries are exhausted, inside a Dagster run: abort, and the step is made anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dstl_dagster.orchestration.inject import resources
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.storage import open_store
from dstl_dagster.testing.fault_schedules import Fault, Request
from dstl_dagster.testing.fault_store import FaultStore

if TYPE_CHECKING:
    from tests.dagster.conftest import Days

pytestmark = pytest.mark.dagster

ATTEMPTS = FsStateChangelogOptions.for_batches().max_upload_attempts


class Away:
    """The first requests that write a changelog file get no answer, and have no effect."""

    def __init__(self, requests: int) -> None:
        self.left = requests

    def decide(self, request: Request) -> Fault | None:
        if "/changelog/" not in request.name or request.method not in ("put", "open_write") or self.left == 0:
            return None
        self.left -= 1
        return Fault.ERROR_BEFORE

    def deliver_late_effect(self) -> bool:
        return False


def test_exhausted_upload_retries_abort_and_the_step_runs_again(
    days: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every attempt of the upload fails: the checkpoint is aborted, Dagster's retry opens a new one, once."""
    away = Away(ATTEMPTS)
    monkeypatch.setattr(resources, "open_store", lambda uri, _: FaultStore(open_store(uri), away))
    result = days.run("2024-01-01")
    assert result.success, days.failure(result)
    assert away.left == 0
    assert days.retries(result) == ["update"]
    assert days.kinds() == ["opened", "aborted", "opened", "completed", "committed"]


def test_fewer_failures_are_the_uploads_own_affair(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """One less: the last attempt of the upload succeeds, and neither the timeline nor Dagster hears of it."""
    away = Away(ATTEMPTS - 1)
    monkeypatch.setattr(resources, "open_store", lambda uri, _: FaultStore(open_store(uri), away))
    result = days.run("2024-01-01")
    assert result.success, days.failure(result)
    assert away.left == 0
    assert days.retries(result) == []
    assert days.kinds() == ["opened", "completed", "committed"]
