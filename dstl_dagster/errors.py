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

    One where a handler acts differently; the rest stands in the message. The text of a kind that this process
    does not know (sent by a later release) becomes a kind with that text that is not a member.
    """

    # -- any component
    ERROR = "error"
    """An error whose class defines no kind of its own. Read the message."""
    INVALID_INPUT = "invalid_input"
    """The call or an option is wrong. Change it as the message says."""
    NOT_FOUND = "not_found"
    """The named thing does not exist. Check the name; it was deleted or never created."""
    CONFLICT = "conflict"
    """Another object or decision got there first. Read it, then decide."""
    FENCED = "fenced"
    """The attempt was aborted, taken over, or ended by a restore. Stop; start over with a new attempt."""
    CLOSED = "closed"
    """The component was closed before or during the call. Open a new one."""
    UNAVAILABLE = "unavailable"
    """The service did not answer or is unavailable: the outcome is unknown. Repeat the call."""
    FORMAT = "format"
    """Stored bytes are not what they claim to be. Leave them alone; restore a copy or an older checkpoint."""
    INTERNAL = "internal"
    """An invariant of this package does not hold. Report it as a bug."""
    NOT_INSTALLED = "not_installed"
    """A library, Java, or the executors' Python is not installed. Do what the message says."""

    # -- timeline
    ATTEMPT_OPEN = "attempt_open"
    """Another owner's attempt is open. Wait or, if it is dead, abort it or take over."""
    ALREADY_APPLIED = "already_applied"
    """The batch with this idempotency key is already in a checkpoint. Write nothing for it."""
    ALREADY_COMPLETED = "already_completed"
    """The attempt has already completed its checkpoint. Continue with compose-commit."""
    MOVED = "moved"
    """Another writer's decision came first since the caller looked. Look again, then decide again."""
    UNFINISHED = "unfinished"
    """An earlier checkpoint is not published, resolved or retracted yet. Run compose-commit, then trigger."""
    ABANDONED = "abandoned"
    """A restore abandoned the checkpoint. Read it through a savepoint, or pick another one."""
    NO_CHECKPOINT = "no_checkpoint"
    """There is no completed checkpoint, or none with this id. List the checkpoints."""
    CHECKPOINT_GONE = "checkpoint_gone"
    """The checkpoint was subsumed and cleaned up. Pick one that `list()` shows."""
    CONTENTION = "contention"
    """Concurrent writers got in first too many times. Find out who writes so often, then try again."""
    JOB_GONE = "job_gone"
    """The job was dropped, or its store emptied or replaced, since this process read it. Start again."""
    HISTORY_HOLE = "history_hole"
    """A record is missing, but a later one exists. Restore the record from a backup."""
    NEWER_VERSION = "newer_version"
    """A later release wrote the document, record or file. Upgrade this process."""

    # -- checkpoints
    UNCLAIMED = "unclaimed"
    """A source or operator of the job is defined nowhere. Rename it, drop it, or say that it is meant."""
    OTHER_SOURCE = "other_source"
    """Another asset or op uses the source, or it counts its batches otherwise. Name another source."""
    NOT_WRITTEN = "not_written"
    """The attempt's report, or an object as reported, is not in the store. Run the writing step again."""
    OTHER_REPORT = "other_report"
    """The attempt already stored a different report or manifest. Trigger a new attempt."""
    FOREIGN_OBJECT = "foreign_object"
    """A foreign object is at a name that the call writes. Move it away, or write to another name."""
    UPLOAD_FAILED = "upload_failed"
    """An upload failed permanently. Write again what comes after the last persisted state."""
    TIMEOUT = "timeout"
    """An upload attempt timed out. Do nothing: the next attempt runs beside it."""
    DAMAGED = "damaged"
    """State that a restore or merge needs is damaged. Restore the newest verified checkpoint."""

    # -- state
    NO_STATE = "no_state"
    """The checkpoint has no state of this operator. Check its name; pass a schema to start from nothing."""
    STATE_MISSING = "state_missing"
    """An object that the state needs is gone, and no record permitted that. Put it back, or restore."""
    SCHEMA_CHANGE = "schema_change"
    """Columns, key or max_parallelism do not fit the stored ones. Keep them, or use another operator name."""
    DUPLICATE_KEY = "duplicate_key"
    """A key occurs more than once in one checkpoint. Aggregate the rows by key first."""
    UNSUPPORTED_TYPE = "unsupported_type"
    """A column's type or text cannot be stored, be a key, or be exported. Cast it, or leave it out."""

    # -- storage
    NO_PERMISSION = "no_permission"
    """No valid credentials, or no permission. Fix the credentials, or the rights to the bucket or folder."""
    UPLOAD_LOST = "upload_lost"
    """The upload was lost or damaged, and created no object. Write the object again."""

    # -- Spark and Dagster
    OTHER_QUERY = "other_query"
    """The job's state belongs to another query, or is behind this one. Keep or rewind the query, or adopt."""
    OUT_OF_ORDER = "out_of_order"
    """The partition does not follow the state's position. Start at the next partition."""
    TIMELINE_REPLACED = "timeline_replaced"
    """The store is not the one that Dagster was shown. Mount or restore that, or start over by tag."""

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
