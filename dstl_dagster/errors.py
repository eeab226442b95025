"""Every error that dstl_dagster raises on purpose, classed by what its handler does next.

    DstlError                   anything of ours
    ├── InvalidInputError       v the call is wrong: change the call or the config
    ├── NotFoundError           o the named thing does not exist: never created, or deleted since
    ├── ConflictError           o a rival's decision or a foreign object is in the way: read it, then decide
    │   └── FencedError         o this attempt is dead: stop, do nothing more under its name
    ├── ClosedError           v o the component was closed: open a new one
    ├── UnavailableError        o the outcome is unknown, or the service is down: repeat the same call
    │   └── UploadTimeoutError  o t an upload attempt took too long; another one runs beside it
    ├── FormatError             o stored bytes are not what they claim to be: do not trust, do not delete
    └── InternalError             an invariant of this package was violated: report it

Also Python's own: v ValueError, o OSError, t TimeoutError. So `except OSError` catches what storage may do to
a call, as with Python's files, and a closed component is a ValueError, as a closed file is. None has an
`errno`. Code of this package that means the operating system's errors alone lets a DstlError pass first.

`kind` is one of `ErrorKind`, a short, stable code for programs; the message is for people and says what
happened, to what, and what to do next. Owns the classes and the kinds. Does not own when one is raised, or
which of them Dagster may retry (`orchestration.failures`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

__all__ = [
    "ClosedError",
    "ConflictError",
    "DstlError",
    "ErrorKind",
    "FencedError",
    "FormatError",
    "InternalError",
    "InvalidInputError",
    "NotFoundError",
    "UnavailableError",
    "UploadTimeoutError",
]


class ErrorKind(StrEnum):
    """The kind of an error, for programs. Each kind equals its text: `error.kind == "attempt_open"`.

    Each has the classes of its errors, the cause, and the remedy.
    One where a handler acts differently; the rest stands in the message. The text of a kind that this process
    does not know (sent by a later release) becomes a kind with that text that is not a member.
    """

    # -- Any component
    ERROR = "error"
    """`DstlError`: a class without a kind of its own. Read the message."""
    INVALID_INPUT = "invalid_input"
    """`InvalidInputError`: the call or an option is wrong. Change it as the message says."""
    NOT_FOUND = "not_found"
    """`NotFoundError`: the name was never created, or was deleted. Use another."""
    CONFLICT = "conflict"
    """`ConflictError`: another object or decision was first. Read it, then decide."""
    FENCED = "fenced"
    """`FencedError`: the attempt was aborted, taken over or undone. Stop; start a new one."""
    CLOSED = "closed"
    """`ClosedError`: the component is closed. Open a new one."""
    UNAVAILABLE = "unavailable"
    """`UnavailableError`: the service did not answer; the outcome is unknown. Repeat the call."""
    FORMAT = "format"
    """`FormatError`: stored bytes are not as claimed. Leave them; restore an older checkpoint."""
    INTERNAL = "internal"
    """`InternalError`: a bug. Report it."""
    NOT_INSTALLED = "not_installed"
    """`InvalidInputError`: a library, Java, or the executors' Python is missing. Install it."""

    # -- Timeline
    ATTEMPT_OPEN = "attempt_open"
    """`ConflictError`: another owner's attempt is open. Wait; if it is dead, abort it."""
    ALREADY_APPLIED = "already_applied"
    """`ConflictError`: a checkpoint already has this idempotency key. Write nothing."""
    ALREADY_COMPLETED = "already_completed"
    """`ConflictError`: the attempt has completed its checkpoint. Continue with compose-commit."""
    MOVED = "moved"
    """`ConflictError`: another writer decided first. Look again, then decide."""
    UNFINISHED = "unfinished"
    """`ConflictError`: an earlier checkpoint is not published. Run compose-commit, then trigger."""
    ABANDONED = "abandoned"
    """`ConflictError`: a restore abandoned the checkpoint. Pick another, or read its savepoint."""
    NO_CHECKPOINT = "no_checkpoint"
    """`NotFoundError`: no completed checkpoint has this id. List the checkpoints."""
    CHECKPOINT_GONE = "checkpoint_gone"
    """`NotFoundError`: the checkpoint was cleaned up. Pick a listed one."""
    CONTENTION = "contention"
    """`UnavailableError`, `ConflictError`: others were first too often. Reduce writers, then try again."""
    JOB_GONE = "job_gone"
    """`NotFoundError`: the job was dropped or its store replaced. Restart the process."""
    HISTORY_HOLE = "history_hole"
    """`FormatError`: a record is missing before a later one. Restore it from a backup."""
    NEWER_VERSION = "newer_version"
    """`FormatError`: a later release wrote the object. Upgrade this process."""

    # -- Checkpoints
    UNCLAIMED = "unclaimed"
    """`ConflictError`: a source or operator is defined nowhere. Rename, drop or confirm it."""
    OTHER_SOURCE = "other_source"
    """`ConflictError`: another asset has the source, or counts otherwise. Name another source."""
    NOT_WRITTEN = "not_written"
    """`NotFoundError`, `ConflictError`: the report, or its object, is missing. Run the writing step again."""
    OTHER_REPORT = "other_report"
    """`ConflictError`: the attempt has another report or manifest. Trigger a new attempt."""
    FOREIGN_OBJECT = "foreign_object"
    """`ConflictError`: a foreign object has the name. Move it, or use another name."""
    UPLOAD_FAILED = "upload_failed"
    """`UnavailableError`: an upload failed permanently. Write again from the last persisted state."""
    TIMEOUT = "timeout"
    """`UploadTimeoutError`: an upload attempt timed out. Do nothing; the next one runs beside it."""
    DAMAGED = "damaged"
    """`FormatError`: state of a restore or merge is damaged. Restore the newest verified checkpoint."""

    # -- State
    NO_STATE = "no_state"
    """`NotFoundError`, `InvalidInputError`: no such operator is there. Check the name, or pass a schema."""
    STATE_MISSING = "state_missing"
    """`NotFoundError`: an object of the state disappeared. Restore it, or an older checkpoint."""
    SCHEMA_CHANGE = "schema_change"
    """`InvalidInputError`: columns, key or max_parallelism differ. Use those stored, or another operator."""
    DUPLICATE_KEY = "duplicate_key"
    """`InvalidInputError`: a key occurs twice in a checkpoint. Aggregate the rows first."""
    UNSUPPORTED_TYPE = "unsupported_type"
    """`InvalidInputError`: the type or text cannot be stored or exported. Cast the column."""

    # -- Storage
    NO_PERMISSION = "no_permission"
    """`InvalidInputError`, `UnavailableError`: credentials or rights are missing. Fix them."""
    UPLOAD_LOST = "upload_lost"
    """`NotFoundError`, `FormatError`: an upload created no object. Write it again."""

    # -- Spark and Dagster
    OTHER_QUERY = "other_query"
    """`ConflictError`: the state belongs to another query, or is behind. Rewind it, or adopt."""
    OUT_OF_ORDER = "out_of_order"
    """`ConflictError`: the partition does not follow the position. Start at the next."""
    TIMELINE_REPLACED = "timeline_replaced"
    """`ConflictError`: Dagster knows another store. Mount that, or start over by tag."""

    @classmethod
    def _missing_(cls, value: object) -> ErrorKind | None:
        if not isinstance(value, str):
            return None
        unknown = str.__new__(cls, value)
        unknown._name_ = unknown._value_ = value
        return unknown


class DstlError(Exception):
    """The root of all errors of this package.

    Args:
        message: what happened, to what, and what to do next.
        kind: by default, the kind of the class.
    """

    default_kind: ClassVar[ErrorKind] = ErrorKind.ERROR

    def __init__(self, message: str, kind: ErrorKind | None = None) -> None:
        # Everything is in `args`, which makes every subclass picklable: Spark and Dagster both carry
        # exceptions between processes. The kind is plain text, so a release without it can unpickle it.
        # They are set, not handed over: an OSError takes a pair for its number and its text.
        super().__init__()
        self.args = (message, str(kind or self.default_kind))
        # In every traceback, of another process too: of the exception, Spark brings its text alone.
        self.add_note(f"kind: {self.kind}")

    @property
    def message(self) -> str:
        """The text for people."""
        return str(self.args[0])

    @property
    def kind(self) -> str:
        """The code for programs: the text of an `ErrorKind`. Plain text, for JSON and Dagster's metadata."""
        return str(self.args[1])

    @property
    def is_transient(self) -> bool:
        """Whether the same call may succeed later, with nothing changed."""
        return False

    def __str__(self) -> str:
        return self.message


class InvalidInputError(DstlError, ValueError):
    """The caller asked for something that cannot be done as asked."""

    default_kind = ErrorKind.INVALID_INPUT


class NotFoundError(DstlError, OSError):
    """A named object, checkpoint or key does not exist, or no longer does."""

    default_kind = ErrorKind.NOT_FOUND


class ConflictError(DstlError, OSError):
    """A precondition failed, or a rival's decision or a foreign object is already there."""

    default_kind = ErrorKind.CONFLICT


class FencedError(ConflictError):
    """The attempt was aborted, taken over, or ended by a restore; nothing it wrote may be published."""

    default_kind = ErrorKind.FENCED


class ClosedError(DstlError, ValueError, OSError):
    """The component was closed before or during the call."""

    default_kind = ErrorKind.CLOSED


class UnavailableError(DstlError, OSError):
    """The service did not answer, or answered that it is unavailable.

    For a call that changes something the outcome is *unknown*: the effect may have happened.
    """

    default_kind = ErrorKind.UNAVAILABLE

    @property
    def is_transient(self) -> bool:
        return self.kind != ErrorKind.NO_PERMISSION  # it has to be granted


class UploadTimeoutError(UnavailableError, TimeoutError):
    """An attempt to upload took longer than its policy allows."""

    default_kind = ErrorKind.TIMEOUT


class FormatError(DstlError, OSError):
    """Stored bytes are truncated, corrupt, foreign, or of a newer version."""

    default_kind = ErrorKind.FORMAT


class InternalError(DstlError):
    """An invariant of this package does not hold. Always a bug."""

    default_kind = ErrorKind.INTERNAL
