from dstl_dagster.format.changelog_file.reader import ChangelogFileReader as ChangelogFileReader
from dstl_dagster.format.changes import (
    META_KEY_GROUP as META_KEY_GROUP,
    StateChange as StateChange,
    StateChangeSet as StateChangeSet,
)
from dstl_dagster.format.column_ids import ColumnIds as ColumnIds
from dstl_dagster.format.handles import (
    ChangelogStateHandle as ChangelogStateHandle,
    SnapshotResult as SnapshotResult,
    StreamStateHandle as StreamStateHandle,
)
from dstl_dagster.format.key_group_ranges import (
    KeyGroupRange as KeyGroupRange,
    common_ranges as common_ranges,
    have_common as have_common,
    merged_ranges as merged_ranges,
    ranges_around as ranges_around,
    ranges_of_tasks as ranges_of_tasks,
)
from dstl_dagster.format.names import (
    COMPONENTS_PREFIX as COMPONENTS_PREFIX,
    JOBS_PREFIX as JOBS_PREFIX,
    JobNames as JobNames,
    attempt_half as attempt_half,
    attempt_of_component as attempt_of_component,
    validated_job as validated_job,
    validated_savepoint as validated_savepoint,
)
from dstl_dagster.format.readable import (
    breakable as breakable,
    counted as counted,
    measure as measure,
    mebibytes as mebibytes,
    names_in_words as names_in_words,
    nearest as nearest,
    readable_bytes as readable_bytes,
    readable_duration as readable_duration,
    readable_time as readable_time,
    unbroken as unbroken,
)
from dstl_dagster.format.sequence import SequenceNumber as SequenceNumber
from dstl_dagster.format.state_ttl import StateTtl as StateTtl
from dstl_dagster.format.stored import (
    NOT_STORED as NOT_STORED,
    Stored as Stored,
    from_fields as from_fields,
    plain_list as plain_list,
    plain_object as plain_object,
    to_fields as to_fields,
    whole_number as whole_number,
)
