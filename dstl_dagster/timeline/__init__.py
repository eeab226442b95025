"""The decisions about a job: numbered records, the race for the next slot, and what the records add up to.

Owns whether something may happen now (`decisions`), and what has been decided. Does not own manifests, state
or files: a record only names them, and they are stored elsewhere.

Modules are imported on first use: a Spark task needs few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstl_dagster._lazy import lazy_face

if TYPE_CHECKING:
    from dstl_dagster.timeline import decisions
    from dstl_dagster.timeline.as_of import AsOf, AtLike
    from dstl_dagster.timeline.attempt import Attempt, PlannedAttempt, attempt_id
    from dstl_dagster.timeline.documents import write_once
    from dstl_dagster.timeline.grace import GraceClock
    from dstl_dagster.timeline.lost import unexplained
    from dstl_dagster.timeline.missing import (
        gone_checkpoint,
        job_names,
        missing_job,
        missing_object,
        refuse_renamed,
    )
    from dstl_dagster.timeline.record_codec import record_to_plain
    from dstl_dagster.timeline.records import (
        Aborted,
        BatchKey,
        BatchKeyLike,
        BlockedFile,
        Committed,
        Completed,
        Fenced,
        FinalFile,
        Opened,
        Released,
        Resolution,
        Resolved,
        Restored,
        Savepoint,
        Snapshot,
        Subsumed,
        TimelineRecord,
    )
    from dstl_dagster.timeline.timeline import DROP_WAIT_SECONDS, Timeline
    from dstl_dagster.timeline.view import CheckpointEntry, Ending, Fate, Retraction, TimelineView

__all__ = [
    "DROP_WAIT_SECONDS",
    "Aborted",
    "AsOf",
    "AtLike",
    "Attempt",
    "BatchKey",
    "BatchKeyLike",
    "BlockedFile",
    "CheckpointEntry",
    "Committed",
    "Completed",
    "Ending",
    "Fate",
    "Fenced",
    "FinalFile",
    "GraceClock",
    "Opened",
    "PlannedAttempt",
    "Released",
    "Resolution",
    "Resolved",
    "Restored",
    "Retraction",
    "Savepoint",
    "Snapshot",
    "Subsumed",
    "Timeline",
    "TimelineRecord",
    "TimelineView",
    "attempt_id",
    "decisions",
    "gone_checkpoint",
    "job_names",
    "missing_job",
    "missing_object",
    "record_to_plain",
    "refuse_renamed",
    "unexplained",
    "write_once",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "decisions": ["decisions"],
        "as_of": ["AsOf", "AtLike"],
        "attempt": ["Attempt", "PlannedAttempt", "attempt_id"],
        "documents": ["write_once"],
        "grace": ["GraceClock"],
        "record_codec": ["record_to_plain"],
        "records": [
            "Aborted",
            "BatchKey",
            "BatchKeyLike",
            "BlockedFile",
            "Committed",
            "Completed",
            "Fenced",
            "FinalFile",
            "Opened",
            "Released",
            "Resolution",
            "Resolved",
            "Restored",
            "Savepoint",
            "Snapshot",
            "Subsumed",
            "TimelineRecord",
        ],
        "timeline": ["DROP_WAIT_SECONDS", "Timeline"],
        "view": ["CheckpointEntry", "Ending", "Fate", "Retraction", "TimelineView"],
        "lost": ["unexplained"],
        "missing": [
            "gone_checkpoint",
            "job_names",
            "missing_job",
            "missing_object",
            "refuse_renamed",
        ],
    },
)
