from dstl_dagster.keyed.read.conditions import (
    Condition as Condition,
    Replaced as Replaced,
    Scope as Scope,
    partition_columns_of as partition_columns_of,
    replaced_scope as replaced_scope,
)
from dstl_dagster.keyed.read.diff import (
    StateDiff as StateDiff,
    compared_runs as compared_runs,
    diff_checkpoints as diff_checkpoints,
    diff_states as diff_states,
)
from dstl_dagster.keyed.documents.entries import (
    OperatorEntry as OperatorEntry,
    RunLists as RunLists,
    load_list as load_list,
    require_same_document as require_same_document,
)
from dstl_dagster.keyed.read.export import Export as Export, export_checkpoint as export_checkpoint
from dstl_dagster.keyed.read.keyed_state import (
    KeyedState as KeyedState,
    StateAt as StateAt,
    replayed as replayed,
    is_keyed as is_keyed,
    schema_of as schema_of,
)
from dstl_dagster.keyed.documents.manifest import (
    Manifest as Manifest,
    load_manifest as load_manifest,
    store_manifest as store_manifest,
)
from dstl_dagster.keyed.merge.merge import (
    MergeExecutor as MergeExecutor,
    MergedRange as MergedRange,
    RunMerge as RunMerge,
    due_operators as due_operators,
    with_due_merges as with_due_merges,
    with_merge as with_merge,
)
from dstl_dagster.keyed.merge.policy import DueMerge as DueMerge
from dstl_dagster.keyed.write.replace import (
    Grouped as Grouped,
    Replacement as Replacement,
    replacements as replacements,
)
from dstl_dagster.keyed.documents.reports import (
    AttemptReport as AttemptReport,
    FileReport as FileReport,
    OperatorReport as OperatorReport,
    load_report as load_report,
    store_report as store_report,
)
from dstl_dagster.keyed.documents.row_count import StateRows as StateRows
from dstl_dagster.keyed.documents.runs import Run as Run, merged_runs as merged_runs
from dstl_dagster.keyed.read.scan import Filters as Filters, KeyGroups as KeyGroups, StateScan as StateScan
from dstl_dagster.keyed.write.shared_files import (
    SharedFiles as SharedFiles,
    changes_to_json as changes_to_json,
    held_if_small as held_if_small,
    small_from_outcome as small_from_outcome,
)
from dstl_dagster.keyed.documents.sources import (
    Measure as Measure,
    NameChange as NameChange,
    Source as Source,
    merged_sources as merged_sources,
    name_in_id as name_in_id,
    source_id as source_id,
)
from dstl_dagster.keyed.write.writer import (
    open_attempt_changelog as open_attempt_changelog,
    write_range as write_range,
    write_rows as write_rows,
)
from dstl_dagster.keyed.read.history import KeyChange as KeyChange, key_history as key_history
from dstl_dagster.keyed.read.pairs import Beside as Beside, beside as beside, changed_rows as changed_rows
