"""Progress as Spark tells it, counted over stages, told once, and harmless."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from dstl_dagster.spark.dataframes import progress as progress_module
from dstl_dagster.spark.dataframes.progress import watched


class Session:
    """The part of a Connect session that progress needs."""

    def __init__(self) -> None:
        self.handlers: list[Any] = []

    def registerProgressHandler(self, handler: Any) -> None:  # noqa: N802 - Spark's name
        self.handlers.append(handler)

    def removeProgressHandler(self, handler: Any) -> None:  # noqa: N802 - Spark's name
        self.handlers.remove(handler)

    def tell(self, *stages: tuple[int, int]) -> None:
        found = [SimpleNamespace(num_completed_tasks=ended, num_tasks=known) for ended, known in stages]
        for handler in self.handlers:
            handler(stages=found, inflight_tasks=1, operation_id="x", done=False)


def test_stages_are_summed_and_each_change_is_told() -> None:
    """A stage without tasks tells nothing; the handler is gone with the block, also after an error."""
    session, told = Session(), []

    def act() -> None:
        with watched(session, lambda *counts: told.append(counts)):  # type: ignore[arg-type]
            session.tell()
            session.tell((0, 2), (1, 3))
            session.tell((0, 2), (1, 3))
            session.tell((2, 2), (3, 3))
            raise KeyError

    with pytest.raises(KeyError):
        act()
    assert told == [(1, 5), (5, 5)]
    assert session.handlers == []


def test_a_display_that_fails_is_not_asked_again() -> None:
    """And the action goes on."""
    session, calls = Session(), []

    def progress(ended: int, known: int) -> None:
        calls.append((ended, known))
        raise RuntimeError("no terminal")

    with watched(session, progress):  # type: ignore[arg-type]
        session.tell((0, 2))
        session.tell((1, 2))
    assert calls == [(0, 2)]


def test_the_end_is_told_even_if_the_server_does_not() -> None:
    """What was known by then has ended; of an action that told nothing, nothing is said."""
    session, told = Session(), []
    for stages in ([(1, 2)], [(1, 2), (3, 3)], []):
        with watched(session, lambda *counts: told.append(counts)):  # type: ignore[arg-type]
            session.tell(*stages)
    assert told == [(1, 2), (2, 2), (4, 5), (5, 5)]


class Context:
    """The part of a `SparkContext` that a thread which watches jobs needs."""

    def addJobTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        del tag

    removeJobTag = addJobTag  # noqa: N815 - Spark's name


@pytest.mark.parametrize(("fails", "last"), [(False, (2, 2)), (True, (1, 2))])
def test_the_last_report_does_not_wait_for_sparks_tracker(
    monkeypatch: pytest.MonkeyPatch, fails: bool, last: tuple[int, int]
) -> None:
    """It learns of a task's end after the action has returned; of an action that failed, it is believed."""
    monkeypatch.setattr(progress_module, "_tasks", lambda *_: (1, 2))
    told: list[tuple[int, int]] = []
    session: Any = SimpleNamespace(sparkContext=Context())
    with contextlib.suppress(KeyError), watched(session, lambda *counts: told.append(counts)):
        if fails:
            raise KeyError
    assert told[-1] == last
