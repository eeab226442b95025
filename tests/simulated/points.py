"""What can go wrong, and where: the vocabulary of fault points.

Owns the names. Does not own what a harm does to a run (`sweep`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dstl_dagster.testing.fault_schedules import Fault


class Harm(StrEnum):
    """What goes wrong with one request, and when what is still in flight arrives."""

    CRASH_BEFORE = "crash_before"  # the process dies; the request was never sent
    CRASH_AFTER = "crash_after"  # it has its effect; the process dies before the answer
    CRASH_LATE = "crash_late"  # the process dies; the effect comes after the step has run again
    CRASH_LAST = "crash_last"  # the process dies; the effect comes at the very end
    ERROR = "error"  # no effect, and UnavailableError
    LOST_ANSWER = "lost_answer"  # the effect, and UnavailableError
    LATE_EFFECT = "late_effect"  # UnavailableError; the effect comes after the step has run again
    REPEATED = "repeated"  # succeeds, and the same request arrives again when the step is over
    DELAY = "delay"  # succeeds after two hours
    PAUSE = "pause"  # the process stops, and resumes as a zombie after another has run the step
    LONG_PAUSE = "long_pause"  # the same, but it resumes at the very end


FAULTS = {
    Harm.CRASH_BEFORE: Fault.CRASH_BEFORE,
    Harm.CRASH_AFTER: Fault.CRASH_AFTER,
    Harm.CRASH_LATE: Fault.CRASH_LATE,
    Harm.CRASH_LAST: Fault.CRASH_LATE,
    Harm.ERROR: Fault.ERROR_BEFORE,
    Harm.LOST_ANSWER: Fault.LOST_ANSWER,
    Harm.LATE_EFFECT: Fault.LATE_EFFECT,
    Harm.REPEATED: Fault.REPEATED,
    Harm.DELAY: Fault.DELAY,
}
SOON = (Harm.CRASH_LATE, Harm.LATE_EFFECT, Harm.REPEATED, Harm.PAUSE)
"""What is still in flight arrives after the step has run again; for other harms, at the very end."""
_OF_ANY = (Harm.CRASH_BEFORE, Harm.ERROR, Harm.PAUSE, Harm.LONG_PAUSE)
_OF_CHANGES = (
    Harm.CRASH_AFTER,
    Harm.CRASH_LATE,
    Harm.CRASH_LAST,
    Harm.LOST_ANSWER,
    Harm.LATE_EFFECT,
    Harm.REPEATED,
)
"""For a request that changes nothing, each of these is the same as one of those above."""


def harms_of(*, changes: bool, waits: bool) -> tuple[Harm, ...]:
    """The harms that have distinct outcomes for a request that changes something, or nothing.

    `waits`: whether passing time matters to the job.
    """
    return (*_OF_ANY, *((Harm.DELAY,) if waits else ()), *(_OF_CHANGES if changes else ()))


@dataclass(frozen=True, order=True)
class Point:
    """Where something goes wrong: request `request` (from 0) of step `step` of a history."""

    history: str
    step: int
    request: int
    harm: Harm

    def __str__(self) -> str:
        return f"{self.history}:{self.step}:{self.request}:{self.harm}"

    @classmethod
    def parse(cls, text: str) -> Point:
        """The inverse of `str`. Raises: ValueError."""
        history, step, request, harm = text.split(":")
        return cls(history, int(step), int(request), Harm(harm))


@dataclass(frozen=True, order=True)
class Duel:
    """Two consecutive steps of a script run concurrently, in turns.

    The first one sends `first` requests, the second one `second`, the first one `further` more. Then the
    second one runs to its end, both steps run again as after a crash, and the first one runs to its end.
    """

    history: str
    step: int
    first: int
    second: int
    further: int

    def __str__(self) -> str:
        return f"{self.history}:{self.step}:{self.first}:{self.second}:{self.further}"

    @classmethod
    def parse(cls, text: str) -> Duel:
        """The inverse of `str`. Raises: ValueError."""
        history, *numbers = text.split(":")
        step, first, second, further = map(int, numbers)
        return cls(history, step, first, second, further)
