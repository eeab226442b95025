"""What components measure, reported through one hook.

Owns the vocabulary (`Measurement`, `MetricsHook`) and two hooks: none, and memory. Does not own the
names of measurements (each component's module lists its own), or any vendor's client.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

__all__ = [
    "NO_METRICS",
    "InMemoryMetrics",
    "Measurement",
    "MeasurementKind",
    "MetricsHook",
]

_HISTOGRAM_WINDOW: Final = 1000
_logger = logging.getLogger(__name__)


class MeasurementKind(Enum):
    """How values of the same name are aggregated."""

    COUNTER = "counter"  # values are summed
    HISTOGRAM = "histogram"  # values form a distribution


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured event.

    Attributes:
        name: what was measured, such as `ChangelogStorage.uploadSizes`.
        kind: how to aggregate it.
        value: in the unit that its component documents.
        job: whose event it was; None where its component does not know.
        operator: whose; several that shared one event are joined by commas, ascending.
    """

    name: str
    kind: MeasurementKind
    value: float
    job: str | None = None
    operator: str | None = None


class MetricsHook(Protocol):
    """Where measurements go. Called from any thread, on the hot path: must return quickly.

    An exception raised by a hook is logged by the caller's guard and never fails the work.
    """

    def record(self, measurement: Measurement) -> None:
        """Called once per event, in no particular order across threads."""
        ...

    def register_gauge(self, name: str, read: Callable[[], float]) -> Callable[[], None]:
        """`read` returns the current value, from any thread. Calling the result unregisters the gauge."""
        ...


_Labels = tuple[str, str | None, str | None]


def _match(wanted: _Labels, labels: _Labels) -> bool:
    return all(each is None or each == found for each, found in zip(wanted, labels, strict=True))


class InMemoryMetrics:
    """Keeps every counter and the last 1,000 values of each histogram. For tests, notebooks and the CLI."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[_Labels, float] = {}
        self._histograms: dict[str, deque[Measurement]] = {}
        self._gauges: dict[str, Callable[[], float]] = {}

    def record(self, measurement: Measurement) -> None:
        with self._lock:
            if measurement.kind is MeasurementKind.COUNTER:
                labels = (measurement.name, measurement.job, measurement.operator)
                self._counters[labels] = self._counters.get(labels, 0) + measurement.value
            else:
                window = self._histograms.setdefault(measurement.name, deque(maxlen=_HISTOGRAM_WINDOW))
                window.append(measurement)

    def register_gauge(self, name: str, read: Callable[[], float]) -> Callable[[], None]:
        with self._lock:
            self._gauges[name] = read

        def end() -> None:
            with self._lock:
                if self._gauges.get(name) is read:
                    del self._gauges[name]

        return end

    def counter(self, name: str, *, job: str | None = None, operator: str | None = None) -> float:
        """The sum so far, of one job or operator if it is given; 0 for a name that was never recorded."""
        wanted = (name, job, operator)
        with self._lock:
            return sum(value for labels, value in self._counters.items() if _match(wanted, labels))

    def histogram(
        self, name: str, *, job: str | None = None, operator: str | None = None
    ) -> tuple[float, ...]:
        """The last values, oldest first, of one job or operator if it is given."""
        wanted = (name, job, operator)
        with self._lock:
            return tuple(
                each.value
                for each in self._histograms.get(name, ())
                if _match(wanted, (name, each.job, each.operator))
            )

    def gauge(self, name: str) -> float | None:
        """The current value; None if no such gauge is registered."""
        with self._lock:
            read = self._gauges.get(name)
        return None if read is None else read()


class GuardedMetrics:
    """A hook, or none, that cannot fail the work: what it raises is logged."""

    def __init__(self, hook: MetricsHook | None) -> None:
        self._hook = hook

    def record(self, measurement: Measurement) -> None:
        try:
            if self._hook is not None:
                self._hook.record(measurement)
        except Exception:
            _logger.warning("a metrics hook failed", exc_info=True)

    def register_gauge(self, name: str, read: Callable[[], float]) -> Callable[[], None]:
        try:
            if self._hook is not None:
                return self._hook.register_gauge(name, read)
        except Exception:
            _logger.warning("a metrics hook failed", exc_info=True)
        return lambda: None


NO_METRICS: Final[MetricsHook] = GuardedMetrics(None)
"""The hook that drops everything."""
