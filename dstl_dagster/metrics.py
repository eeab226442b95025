"""Measurements of components, reported through one hook.

Owns the vocabulary (`Measurement`, `MetricsHook`) and three hooks: none, a logger, memory. Does not own the
names of measurements (each component's module lists its own), or any vendor's client.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

__all__ = [
    "NO_METRICS",
    "InMemoryMetrics",
    "LoggingMetrics",
    "Measurement",
    "MeasurementKind",
    "MetricsHook",
    "fan_out",
]

_HISTOGRAM_WINDOW: Final = 1000


class MeasurementKind(Enum):
    """How values of the same name are aggregated."""

    COUNTER = "counter"  # values are summed
    HISTOGRAM = "histogram"  # values form a distribution


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured event.

    Attributes:
        name: of the measured value, such as `ChangelogStorage.uploadSizes`.
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

    An exception raised by a hook is logged by the caller's guard (`fan_out`) and never fails the work.
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
        """The sum so far, of one job or operator if it is set; 0 for a name that was never recorded."""
        wanted = (name, job, operator)
        with self._lock:
            return sum(value for labels, value in self._counters.items() if _match(wanted, labels))

    def histogram(
        self, name: str, *, job: str | None = None, operator: str | None = None
    ) -> tuple[float, ...]:
        """The last values, oldest first, of one job or operator if it is set."""
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


class LoggingMetrics:
    """Writes each measurement to a logger, by default at DEBUG, as fields of a constant message."""

    def __init__(self, logger: logging.Logger | None = None, level: int = logging.DEBUG) -> None:
        self._logger = logger or logging.getLogger(__name__)
        self._level = level

    def record(self, measurement: Measurement) -> None:
        if self._logger.isEnabledFor(self._level):
            fields = {
                "metric": measurement.name,
                "metric_kind": measurement.kind.value,
                "value": measurement.value,
                "job": measurement.job,
                "operator": measurement.operator,
            }
            self._logger.log(self._level, "measured %(metric)s = %(value)s", fields, extra=fields)

    def register_gauge(self, name: str, read: Callable[[], float]) -> Callable[[], None]:
        # Nothing polls a logger, so a gauge is logged once, when its component unregisters it.
        def end() -> None:
            fields = {"metric": name, "metric_kind": "gauge", "value": read()}
            self._logger.log(self._level, "measured %(metric)s = %(value)s", fields, extra=fields)

        return end


class _FanOut:
    """Several hooks as one. None of them can fail the work."""

    def __init__(self, hooks: tuple[MetricsHook, ...]) -> None:
        self._hooks = hooks
        self._logger = logging.getLogger(__name__)

    def record(self, measurement: Measurement) -> None:
        for hook in self._hooks:
            try:
                hook.record(measurement)
            except Exception:
                self._logger.warning("a metrics hook failed", exc_info=True)

    def register_gauge(self, name: str, read: Callable[[], float]) -> Callable[[], None]:
        ends = []
        for hook in self._hooks:
            try:
                ends.append(hook.register_gauge(name, read))
            except Exception:
                self._logger.warning("a metrics hook failed", exc_info=True)

        def end() -> None:
            for end_one in ends:
                end_one()

        return end


def fan_out(hooks: Iterable[MetricsHook | None]) -> MetricsHook:
    """One hook that feeds all of these (None is skipped). What they raise is logged and swallowed."""
    present = tuple(hook for hook in hooks if hook is not None)
    return _FanOut(present)


NO_METRICS: Final[MetricsHook] = _FanOut(())
"""The hook that drops everything."""
