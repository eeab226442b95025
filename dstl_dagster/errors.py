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
    """What went wrong, for programs. Each kind equals its text: `error.kind == "attempt_open"`.

    Append-only: no kind is ever renamed, removed or given another meaning. The text of a kind that this
    release does not know (sent by a later one) becomes a kind with that text that is not a member.
    """

    # -- any component
    ERROR = "error"
    """An error whose class defines no kind of its own. Read the message."""
    INVALID_INPUT = "invalid_input"
    """The call or an option is wrong. Change it as the message says."""
    NOT_FOUND = "not_found"
    """The named object or bucket does not exist. Check the name; it was deleted or never created."""
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
    WRONG_THREAD = "wrong_thread"
    """A single-threaded component was used from another thread. Create one per thread."""
    MISSING_EXTRA = "missing_extra"
    """A library that the call needs is not installed. Install the extra that the message names."""

    # -- timeline
    ATTEMPT_OPEN = "attempt_open"
    """Another owner's attempt is open. Wait or, if it is dead, abort it or take over."""
    ALREADY_APPLIED = "already_applied"
    """The batch with this idempotency key is already in a checkpoint. Write nothing for it."""
    ALREADY_COMPLETED = "already_completed"
    """The attempt has already completed its checkpoint. Continue with compose-commit."""
    NO_ATTEMPT = "no_attempt"
    """The attempt was never on this timeline. Check the job and the store."""
    PARENT_MOVED = "parent_moved"
    """Another checkpoint completed since the caller looked. Look again, then trigger again."""
    UNCOMMITTED = "uncommitted"
    """The last checkpoint's files are not published yet. Run compose-commit first."""
    UNRESOLVED = "unresolved"
    """A resolution of a blocked file has not been carried out yet. Run compose-commit first."""
    UNRETRACTED = "unretracted"
    """Files of checkpoints that a restore abandoned may still be there. Trigger again to retract them."""
    ABANDONED = "abandoned"
    """A restore abandoned the checkpoint. Read it through a savepoint, or pick another one."""
    NO_CHECKPOINT = "no_checkpoint"
    """There is no completed checkpoint, or none with this id. List the checkpoints."""
    CHECKPOINT_GONE = "checkpoint_gone"
    """The checkpoint was subsumed and cleaned up. Pick one that `list()` shows."""
    SAVEPOINT_EXISTS = "savepoint_exists"
    """A savepoint of this name keeps another checkpoint. Release it, or pick another name."""
    NOT_BLOCKED = "not_blocked"
    """The checkpoint has no blocked file of this name. Pick a name that the message lists."""
    SLOT_TAKEN = "slot_taken"
    """Another writer's record took the slot first. Read the timeline, then decide again."""
    OUTCOME_UNKNOWN = "outcome_unknown"
    """The write of a record or document was not acknowledged, and it is not there yet. Run the step again."""
    CONTENTION = "contention"
    """Concurrent writers got in first too many times. Find out who writes so often, then try again."""
    JOB_GONE = "job_gone"
    """The job was dropped, or its store emptied or replaced, since this process read it. Start again."""
    HISTORY_HOLE = "history_hole"
    """A record is missing, but a later one exists. Restore the record from a backup."""
    BAD_SNAPSHOT = "bad_snapshot"
    """A snapshot does not match the records before it. Remove it if written by hand; else report it."""
    NEWER_VERSION = "newer_version"
    """A later release wrote the document or record. Upgrade this process."""
    BAD_JOB_NAME = "bad_job_name"
    """The job's name cannot be part of object names. Use letters, digits, dots, underscores, dashes."""

    # -- checkpoints
    UNCLAIMED_SOURCE = "unclaimed_source"
    """A source is new to the job, and one that it has is defined nowhere. Rename or drop that."""
    UNCLAIMED_OPERATOR = "unclaimed_operator"
    """A source no longer writes an operator that has state. Rename it, drop it, or say that it is meant."""
    OTHER_MEASURE = "other_measure"
    """A source counts its batches by something else than before. Go on as before, or name another source."""
    SHARED_SOURCE = "shared_source"
    """Two assets or ops use one source. Give each a source of its own."""
    NO_REPORT = "no_report"
    """The attempt stored no report: its work did not finish. Run the appending step again."""
    OTHER_REPORT = "other_report"
    """The attempt already stored a different report. Trigger a new attempt."""
    NO_MANIFEST = "no_manifest"
    """A manifest is gone: cleaned up, or never recorded. Pick another checkpoint."""
    OTHER_MANIFEST = "other_manifest"
    """The attempt already recorded a different manifest. Trigger a new attempt."""
    CHANGELOG_MISSING = "changelog_missing"
    """A reported changelog file is not in the store. Run the appending step again."""
    COMPONENT_MISSING = "component_missing"
    """A reported component of a file is not in the store. Run the writing step again."""
    FOREIGN_CHANGELOG = "foreign_changelog"
    """A reported changelog file is another attempt's, so a clean-up may delete it. Write per attempt."""
    RESERVED_NAME = "reserved_name"
    """A file's final name lies among the objects that jobs keep for themselves. Use another folder."""
    NOT_AS_REPORTED = "not_as_reported"
    """An object is not what its task reported: another writer replaced it. Run the appending step again."""
    TARGET_EXISTS = "target_exists"
    """A foreign object is already at a file's final name. Move it away, or write to another name."""
    ALREADY_EXISTS = "already_exists"
    """An object is at the final name on a first commit. To repeat a commit, use `commit_after_recovery`."""
    FOREIGN_OBJECT = "foreign_object"
    """A foreign object is at a name that only this job may write. Move it away."""
    SOURCES_MISSING = "sources_missing"
    """The components of a file are gone, and so is the file. Write it again, unless it was moved away."""
    PARTIAL_WRITE = "partial_write"
    """The store took only part of a write. Recover from the last persisted state."""
    FORMAT_NEWER = "format_newer"
    """A later release serialized the recoverable. Upgrade this process."""
    UPLOAD_FAILED = "upload_failed"
    """A changelog upload failed permanently. Write the state anew above it, or start a new log."""
    TIMEOUT = "timeout"
    """An upload attempt timed out. Do nothing: the next attempt runs beside it."""
    INTERRUPTED = "interrupted"
    """An upload was interrupted before it started. Repeat the call."""
    DAMAGED = "damaged"
    """State that a restore or merge needs is damaged. Restore the newest verified checkpoint."""

    # -- state
    NO_STATE = "no_state"
    """The operator has no state at this checkpoint. Check its name; pass a schema to start from nothing."""
    STATE_MISSING = "state_missing"
    """An object that the state needs is gone, and no record permitted that. Put it back, or restore."""
    NOT_KEYED = "not_keyed"
    """The operator's log has no schema, so it is not keyed state. Read it with a changelog reader."""
    NO_OPERATOR = "no_operator"
    """The checkpoint has no operator of this name. Pick a name that the message lists."""
    KEYS_FROZEN = "keys_frozen"
    """Key columns or max_parallelism differ from the operator's first write. Use another operator name."""
    SCHEMA_CHANGE = "schema_change"
    """The columns are incompatible with the stored ones. Keep the old ones, or use another operator name."""
    DUPLICATE_KEY = "duplicate_key"
    """A key occurs more than once in one checkpoint. Aggregate the rows by key first."""
    UNSUPPORTED_TYPE = "unsupported_type"
    """A column's type cannot be stored, or cannot be a key. Cast it, or leave it out."""
    CHECKSUM = "checksum"
    """Part of a changelog file does not match its checksum. Restore a copy, or another checkpoint."""
    VERSION = "version"
    """A later release wrote the changelog file's footer. Upgrade this process."""
    TARGET_NOT_EMPTY = "target_not_empty"
    """The export's folder holds something else. Use an empty folder."""
    NOT_UTF8 = "not_utf8"
    """A column has text that is not UTF-8, which the target cannot hold. Export the column as bytes."""

    # -- storage
    PRECONDITION_FAILED = "precondition_failed"
    """The object does not meet the precondition. Read it, then decide."""
    NO_PERMISSION = "no_permission"
    """No valid credentials, or no permission. Fix the credentials, or the rights to the bucket or folder."""
    UPLOAD_LOST = "upload_lost"
    """The upload session is gone and created no object. Write the object again."""
    FILE_AND_FOLDER = "file_and_folder"
    """On a local disk the name would be both a file and a folder. Use another name."""
    BUSY = "busy"
    """The object's folder keeps being removed. Find out who removes it, then repeat the call."""
    UPLOAD_DAMAGED = "upload_damaged"
    """The service received bytes other than those sent, and created no object. Write the object again."""

    # -- Spark and Dagster
    STORE_NOT_SHARED = "store_not_shared"
    """Spark's tasks cannot reach the store. Use `file://` or `gs://`."""
    OTHER_QUERY = "other_query"
    """The job's state belongs to another streaming query. Keep the old checkpointLocation, or adopt."""
    BATCH_GAP = "batch_gap"
    """A streaming query is ahead of the job's state. Rewind the query too, or adopt."""
    NO_JAVA = "no_java"
    """This machine has no usable Java. Run the command in the message."""
    OUT_OF_ORDER = "out_of_order"
    """The partition does not follow the state's position. Start at the next partition."""
    BAD_CURSOR = "bad_cursor"
    """The cursor is not one that this sensor wrote. Set it as the message says, or clear it."""
    TIMELINE_REPLACED = "timeline_replaced"
    """The store is not the one that Dagster was shown. Mount or restore that, or start over by tag."""
    WRONG_CONFIG = "wrong_config"
    """The run's config names a different checkpoint than its tags. Use `commit_run_config`."""
    NOT_APPLIED = "not_applied"
    """The simulated batch is in no checkpoint of the current chain. Trigger it first."""

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
        return self.kind != ErrorKind.NO_PERMISSION  # somebody has to grant it


class UploadTimeoutError(UnavailableError, TimeoutError):
    """An attempt to upload took longer than its policy allows."""

    default_kind = ErrorKind.TIMEOUT


class FormatError(DstlError, OSError):
    """Stored bytes are truncated, corrupt, foreign, or of a newer version."""

    default_kind = ErrorKind.FORMAT


class InternalError(DstlError):
    """An invariant of this package does not hold. Always a bug."""

    default_kind = ErrorKind.INTERNAL
