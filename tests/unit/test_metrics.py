"""The metrics hook: what reaches it, and that it can fail nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from dstl_dagster.metrics import (
    NO_METRICS,
    InMemoryMetrics,
    LoggingMetrics,
    Measurement,
    MeasurementKind,
    fan_out,
)

COUNT = Measurement("uploads", MeasurementKind.COUNTER, 2)
SIZE = Measurement("sizes", MeasurementKind.HISTOGRAM, 5)


class Broken:
    """A vendor's hook on a bad day."""

    def record(self, measurement: Measurement) -> None:
        raise RuntimeError("the vendor is away")

    def register_gauge(self, name: str, read: Callable[[], float]) -> Callable[[], None]:
        raise RuntimeError("the vendor is away")


def test_memory_adds_counters_and_keeps_a_window() -> None:
    """Counters add up; a histogram keeps the last 1,000; a gauge is read until it ends."""
    metrics = InMemoryMetrics()
    for _ in range(3):
        metrics.record(COUNT)
    for value in range(1_200):
        metrics.record(Measurement("sizes", MeasurementKind.HISTOGRAM, value))
    assert (metrics.counter("uploads"), metrics.counter("never")) == (6, 0)
    assert metrics.histogram("sizes") == tuple(range(200, 1_200))
    end = metrics.register_gauge("queue", lambda: 7)
    assert metrics.gauge("queue") == 7
    end()
    assert metrics.gauge("queue") is None


def test_the_logging_adapter_writes_fields(caplog: pytest.LogCaptureFixture) -> None:
    """A constant message, with name and value as fields of the record."""
    with caplog.at_level(logging.DEBUG):
        metrics = LoggingMetrics()
        metrics.record(SIZE)
        metrics.register_gauge("queue", lambda: 3)()
    assert [(record.metric, record.value) for record in caplog.records] == [("sizes", 5), ("queue", 3)]  # type: ignore[attr-defined]  # fields of ours


def test_a_hook_that_raises_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The others are still fed, and the failure is logged."""
    metrics = InMemoryMetrics()
    hook = fan_out([Broken(), None, metrics])
    hook.record(COUNT)
    end = hook.register_gauge("queue", lambda: 1)
    assert (metrics.counter("uploads"), metrics.gauge("queue")) == (2, 1)
    end()
    assert "a metrics hook failed" in caplog.text
    NO_METRICS.record(COUNT)
    NO_METRICS.register_gauge("queue", lambda: 1)()


def test_sums_are_kept_by_job_and_operator() -> None:
    """Without one of them they are of all; an event that several shared is its own."""
    metrics = InMemoryMetrics()
    for job, operator, value in (("orders", "totals", 1), ("orders", "late", 2), ("clicks", None, 4)):
        metrics.record(Measurement("uploads", MeasurementKind.COUNTER, value, job, operator))
        metrics.record(Measurement("sizes", MeasurementKind.HISTOGRAM, value, job, operator))
    assert metrics.counter("uploads") == 7
    assert metrics.counter("uploads", job="orders") == 3
    assert metrics.counter("uploads", operator="late") == 2
    assert metrics.counter("uploads", job="clicks", operator="late") == 0
    assert metrics.histogram("sizes", job="orders") == (1, 2)
    assert metrics.histogram("sizes") == (1, 2, 4)
