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

`kind` is one of `ErrorKind`, a short, stable code for programs; the message is for people and says what
happened, to what, and what to do next. Owns the classes and the kinds. Does not own when one is raised, nor
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
]


class ErrorKind(StrEnum):
    """What went wrong, for programs. Each is equal to its text: `error.kind == "attempt_open"`.

    Append-only: no kind is renamed, removed, or given another meaning. The text of a kind that this release
    does not know (told by a process of a later one) becomes a kind of that text, which is no member.
    """

    # -- any component
    ERROR = "error"
    """An error of a class that gives no kind of its own. Read the message."""
    INVALID_INPUT = "invalid_input"
    """The call or an option is wrong. Change it as the message says."""
    NOT_FOUND = "not_found"
    """The named object or bucket is not there. Check the name; it was deleted or never made."""
    CONFLICT = "conflict"
    """Something else is where this was to be. Read what is there, then decide."""
    FENCED = "fenced"
    """The attempt was aborted, taken over, or ended by a restore. Stop; begin again with a new attempt."""
    CLOSED = "closed"
    """The component was closed before the call or during it. Open a new one."""
    UNAVAILABLE = "unavailable"
    """The service did not answer, or cannot now: the outcome is unknown. Repeat the call."""
    FORMAT = "format"
    """Stored bytes are not what they claim to be. Leave them; restore a copy or go back."""
    INTERNAL = "internal"
    """An invariant of this package does not hold. Report it as a bug."""
    WRONG_THREAD = "wrong_thread"
    """A component of one thread was used by another. Make one for each thread."""
    MISSING_EXTRA = "missing_extra"
    """The store's client library is not installed. Install the extra that the message names."""

    # -- timeline
    ATTEMPT_OPEN = "attempt_open"
    """Another owner's attempt is open. Wait, or take over if it is dead."""
    ALREADY_APPLIED = "already_applied"
    """The batch with this idempotency key is in a checkpoint already. Write nothing for it."""
    ALREADY_COMPLETED = "already_completed"
    """The attempt has completed its checkpoint. Go on with compose-commit."""
    NO_ATTEMPT = "no_attempt"
    """The attempt never was on this timeline. Check the job and the store."""
    PARENT_MOVED = "parent_moved"
    """Another checkpoint completed since the caller looked. Look again, then trigger again."""
    UNCOMMITTED = "uncommitted"
    """The last checkpoint's files are not published yet. Run compose-commit first."""
    UNRESOLVED = "unresolved"
    """A resolution of a blocked file is not carried out yet. Run compose-commit first."""
    UNRETRACTED = "unretracted"
    """Files that a restore left behind may still be there. Trigger again, which retracts them."""
    ABANDONED = "abandoned"
    """A restore left the checkpoint behind. Read it through a savepoint, or take another one."""
    NO_CHECKPOINT = "no_checkpoint"
    """There is no completed checkpoint, or none of this id. List the checkpoints."""
    CHECKPOINT_GONE = "checkpoint_gone"
    """The checkpoint was subsumed and cleaned up. Take one that `list()` shows."""
    SAVEPOINT_EXISTS = "savepoint_exists"
    """The savepoint's name keeps another checkpoint. Release it, or take another name."""
    NOT_BLOCKED = "not_blocked"
    """The file is not a blocked one of this checkpoint. Take a name that the message lists."""
    SLOT_TAKEN = "slot_taken"
    """Another writer's record took the slot first. Read the timeline, then decide again."""
    OUTCOME_UNKNOWN = "outcome_unknown"
    """A record's or document's write was not answered, and it is not there yet. Run the step again."""
    CONTENTION = "contention"
    """Other writers came first too many times. See who writes so much, then try again."""
    HISTORY_HOLE = "history_hole"
    """A record is missing, though a later one exists. Restore the record from a backup."""
    BAD_SNAPSHOT = "bad_snapshot"
    """A snapshot is not the sum of the records before it. Remove one written by hand; else report it."""
    NEWER_VERSION = "newer_version"
    """A later release wrote the document or record. Upgrade here."""
    BAD_JOB_NAME = "bad_job_name"
    """The job's name cannot be part of object names. Take letters, digits, dots, underscores, dashes."""

    # -- checkpoints
    NO_REPORT = "no_report"
    """The attempt stored no report: its work did not finish. Run the appending step again."""
    OTHER_REPORT = "other_report"
    """The attempt stored another report already. Trigger a new attempt."""
    NO_MANIFEST = "no_manifest"
    """A manifest is gone: cleaned up, or never recorded. Take another checkpoint."""
    OTHER_MANIFEST = "other_manifest"
    """The attempt recorded another manifest already. Trigger a new attempt."""
    CHANGELOG_MISSING = "changelog_missing"
    """A reported changelog file is not in the store. Run the appending step again."""
    COMPONENT_MISSING = "component_missing"
    """A reported component of a file is not in the store. Run the writing step again."""
    NOT_AS_REPORTED = "not_as_reported"
    """An object is not what its task reported: another wrote there. Run the appending step again."""
    TARGET_EXISTS = "target_exists"
    """A foreign object has the final name of a file. Move it away, or write to another name."""
    ALREADY_EXISTS = "already_exists"
    """An object has the final name at a first commit. For a repeat, use `commit_after_recovery`."""
    FOREIGN_OBJECT = "foreign_object"
    """An object of somebody else has a name that is ours to write. Move it away."""
    SOURCES_MISSING = "sources_missing"
    """The components of a file are gone, and so is the file. Write it again, unless it was moved."""
    PARTIAL_WRITE = "partial_write"
    """The store took only part of a write. Recover from the last persisted state."""
    FORMAT_NEWER = "format_newer"
    """A later release serialized the recoverable. Upgrade here."""
    UPLOAD_FAILED = "upload_failed"
    """A changelog upload failed for good. Write the state anew above it, or begin a new log."""
    TIMEOUT = "timeout"
    """An upload's attempt took too long. Nothing: the next attempt runs beside it."""
    INTERRUPTED = "interrupted"
    """An upload was interrupted before it began. Repeat the call."""
    DAMAGED = "damaged"
    """State that a restore or fold would go on from is damaged. Take the newest verified checkpoint."""

    # -- state
    NO_STATE = "no_state"
    """The operator has no state at this checkpoint. Check its name; give a schema to begin."""
    STATE_MISSING = "state_missing"
    """A manifest that the state needs is gone. Take another checkpoint."""
    NOT_KEYED = "not_keyed"
    """The operator's log has no schema, so it is no keyed state. Read it with a changelog reader."""
    NO_OPERATOR = "no_operator"
    """The checkpoint has no operator of this name. Take a name that the message lists."""
    KEYS_FROZEN = "keys_frozen"
    """Key columns or max_parallelism are not those the operator began with. Use another operator name."""
    SCHEMA_CHANGE = "schema_change"
    """The columns do not fit those that are stored. Keep the old ones, or use another operator name."""
    DUPLICATE_KEY = "duplicate_key"
    """A key occurs more than once in one checkpoint. Aggregate the rows by key first."""
    UNSUPPORTED_TYPE = "unsupported_type"
    """A column's type cannot be kept, or cannot be a key. Cast it, or leave it out."""
    CHECKSUM = "checksum"
    """A part of a changelog file does not have its checksum. Restore a copy, or another checkpoint."""
    VERSION = "version"
    """A later release wrote the changelog file's footer. Upgrade here."""
    TARGET_NOT_EMPTY = "target_not_empty"
    """The export's folder holds something else. Take an empty folder."""

    # -- storage
    PRECONDITION_FAILED = "precondition_failed"
    """The object is not as the precondition demands. Read it, then decide."""
    NO_PERMISSION = "no_permission"
    """No valid credentials, or no permission. Fix the credentials or the bucket's policy."""
    UPLOAD_LOST = "upload_lost"
    """The upload is gone, and made nothing. Write the object again."""
    FILE_AND_FOLDER = "file_and_folder"
    """On this disk the name would be both a file and a folder. Take another name."""
    BUSY = "busy"
    """The object's folder is removed again and again. Find out who removes it, then repeat the call."""
    UPLOAD_DAMAGED = "upload_damaged"
    """The service received other bytes than were sent, and made nothing. Write the object again."""

    # -- Spark and Dagster
    STORE_NOT_SHARED = "store_not_shared"
    """Spark's tasks cannot see the store. Use `file://` or `gs://`."""
    OTHER_QUERY = "other_query"
    """The job's state belongs to another streaming query. Keep the old checkpointLocation, or adopt."""
    BATCH_GAP = "batch_gap"
    """A streaming query is ahead of the job's state. Go back with the query too, or adopt."""
    NO_JAVA = "no_java"
    """No usable Java is on this machine. Run the command in the message."""
    NO_CACHE_FOLDER = "no_cache_folder"
    """No folder can be written to keep the Java launcher in. Set XDG_CACHE_HOME."""
    OUT_OF_ORDER = "out_of_order"
    """The partition does not follow the state's position. Start at the next partition."""
    BAD_CURSOR = "bad_cursor"
    """The sensor's cursor is not one of this sensor. Set it as the message says, or clear it."""
    TIMELINE_REPLACED = "timeline_replaced"
    """The store was emptied or replaced behind the sensor's cursor. Clear it, or restore the store."""
    WRONG_CONFIG = "wrong_config"
    """The run's config names another checkpoint than its tags. Use `commit_run_config`."""
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
        kind: without one, the kind of the class.
    """

    default_kind: ClassVar[ErrorKind] = ErrorKind.ERROR

    def __init__(self, message: str, kind: ErrorKind | None = None) -> None:
        # All arguments stand in `args`, which is what makes every subclass picklable: Spark and Dagster both
        # carry exceptions between processes. As plain text, since a release without the kind may read it.
        super().__init__(message, str(kind or self.default_kind))

    @property
    def message(self) -> str:
        """The text for people."""
        return str(self.args[0])

    @property
    def kind(self) -> str:
        """The code for programs: the text of an `ErrorKind`. Plain text, for JSON and Dagster's metadata."""
        return str(self.args[1])

    def __str__(self) -> str:
        return self.message


class InvalidInputError(DstlError, ValueError):
    """The caller asked for something that cannot be done as asked."""

    default_kind = ErrorKind.INVALID_INPUT


class NotFoundError(DstlError):
    """A named object, checkpoint or key does not exist (any more)."""

    default_kind = ErrorKind.NOT_FOUND


class ConflictError(DstlError):
    """A precondition failed, or a rival decision or a foreign object is there already."""

    default_kind = ErrorKind.CONFLICT


class FencedError(ConflictError):
    """The attempt was aborted, taken over, or ended by a restore; nothing of it may be published."""

    default_kind = ErrorKind.FENCED


class ClosedError(DstlError):
    """The component was closed before or during the call."""

    default_kind = ErrorKind.CLOSED


class UnavailableError(DstlError):
    """The service did not answer, or answered that it cannot now.

    For a call that changes something this means *unknown*: the effect may have happened.
    """

    default_kind = ErrorKind.UNAVAILABLE


class FormatError(DstlError):
    """Stored bytes are truncated, corrupt, foreign, or of a newer version."""

    default_kind = ErrorKind.FORMAT


class InternalError(DstlError):
    """An invariant of this package does not hold. Always a bug."""

    default_kind = ErrorKind.INTERNAL
