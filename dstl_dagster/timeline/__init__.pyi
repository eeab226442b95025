from dstl_dagster.timeline import decisions as decisions
from dstl_dagster.timeline.as_of import AsOf as AsOf, AtLike as AtLike
from dstl_dagster.timeline.attempt import (
    Attempt as Attempt,
    PlannedAttempt as PlannedAttempt,
    attempt_id as attempt_id,
    is_attempt_of as is_attempt_of,
)
from dstl_dagster.timeline.archive import write_once as write_once
from dstl_dagster.timeline.grace import GraceClock as GraceClock
from dstl_dagster.timeline.missing import job_names as job_names
from dstl_dagster.timeline.lost import unexplained as unexplained
from dstl_dagster.timeline.missing import (
    gone_checkpoint as gone_checkpoint,
    missing_job as missing_job,
    missing_object as missing_object,
    refuse_renamed as refuse_renamed,
)
from dstl_dagster.timeline.records import (
    RUN_WINDOW as RUN_WINDOW,
    Aborted as Aborted,
    BatchKey as BatchKey,
    BatchKeyLike as BatchKeyLike,
    BlockedFile as BlockedFile,
    Committed as Committed,
    Completed as Completed,
    Fenced as Fenced,
    FinalFile as FinalFile,
    Opened as Opened,
    Released as Released,
    Resolution as Resolution,
    Resolved as Resolved,
    Restored as Restored,
    Savepoint as Savepoint,
    Snapshot as Snapshot,
    Subsumed as Subsumed,
    TimelineRecord as TimelineRecord,
)
from dstl_dagster.timeline.replay import next_view as next_view
from dstl_dagster.timeline.timeline import DROP_WAIT_SECONDS as DROP_WAIT_SECONDS, Timeline as Timeline
from dstl_dagster.timeline.view import (
    CheckpointEntry as CheckpointEntry,
    Ending as Ending,
    Fate as Fate,
    Retraction as Retraction,
    TimelineView as TimelineView,
)
