"""Every error that dstl_dagster raises on purpose, ordered by what its handler does next.

    DstlError                 anything of ours
    ├── InvalidInputError     the call is wrong (also a ValueError): change the call or the config
    ├── NotFoundError         the named thing is not there: it was never made, or it was deleted
    ├── ConflictError         somebody else's decision or object stands in the way: read, then decide
    │   └── FencedError       this attempt is dead: stop, do nothing more under its name
    ├── ClosedError           the component was closed: open a new one
    ├── UnavailableError      the outcome is unknown or the service is away: the same call may be repeated
    ├── FormatError           stored bytes are not what they claim to be: do not trust, do not delete
    └── InternalError         a promise of ours was broken: report it

`kind` is a short, stable code for programs (it never changes its meaning, and codes are only added);
the message is for people and says what happened, to what, and what to do next.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "ClosedError",
    "ConflictError",
    "DstlError",
    "FencedError",
    "FormatError",
    "InternalError",
    "InvalidInputError",
    "NotFoundError",
    "UnavailableError",
]


class DstlError(Exception):
    """The root of all errors of this package.

    Args:
        message: what happened, to what, and what to do next.
        kind: a stable code; without one, the code of the class.
    """

    default_kind: ClassVar[str] = "error"

    def __init__(self, message: str, kind: str | None = None) -> None:
        # All arguments stand in `args`, which is what makes every subclass picklable:
        # Spark and Dagster both carry exceptions between processes.
        super().__init__(message, kind or self.default_kind)

    @property
    def message(self) -> str:
        """The text for people."""
        return str(self.args[0])

    @property
    def kind(self) -> str:
        """The code for programs."""
        return str(self.args[1])

    def __str__(self) -> str:
        return self.message


class InvalidInputError(DstlError, ValueError):
    """The caller asked for something that cannot be done as asked."""

    default_kind = "invalid_input"


class NotFoundError(DstlError):
    """A named object, checkpoint or key does not exist (any more)."""

    default_kind = "not_found"


class ConflictError(DstlError):
    """A precondition failed, or a rival decision or a foreign object is there already."""

    default_kind = "conflict"


class FencedError(ConflictError):
    """The attempt was aborted, taken over, or ended by a restore; nothing of it may be published."""

    default_kind = "fenced"


class ClosedError(DstlError):
    """The component was closed before or during the call."""

    default_kind = "closed"


class UnavailableError(DstlError):
    """The service did not answer, or answered that it cannot now.

    For a call that changes something this means *unknown*: the effect may have happened.
    """

    default_kind = "unavailable"


class FormatError(DstlError):
    """Stored bytes are truncated, corrupt, foreign, or of a newer version."""

    default_kind = "format"


class InternalError(DstlError):
    """An invariant of this package does not hold. Always a bug."""

    default_kind = "internal"
