from dstl_dagster.keyed.conditions import (
    Condition as Condition,
    Replaced as Replaced,
    replaced_scope as replaced_scope,
)
from dstl_dagster.keyed.diff import (
    Beside as Beside,
    KeyChange as KeyChange,
    StateDiff as StateDiff,
    beside as beside,
    changed_rows as changed_rows,
    compared_runs as compared_runs,
    diff_checkpoints as diff_checkpoints,
    diff_states as diff_states,
    key_history as key_history,
    paired_rows as paired_rows,
)
from dstl_dagster.keyed.entries import (
    OperatorEntry as OperatorEntry,
    RunLists as RunLists,
    StateRows as StateRows,
    StateSizes as StateSizes,
    load_list as load_list,
)
from dstl_dagster.keyed.export import (
    Export as Export,
    export_checkpoint as export_checkpoint,
    export_state as export_state,
)
from dstl_dagster.keyed.keyed_state import (
    KeyedState as KeyedState,
    StateAt as StateAt,
    folded as folded,
    is_keyed as is_keyed,
    schema_of as schema_of,
    split_count as split_count,
)
from dstl_dagster.keyed.manifest import (
    Manifest as Manifest,
    load_manifest as load_manifest,
    require_same_manifest as require_same_manifest,
    store_manifest as store_manifest,
)
from dstl_dagster.keyed.merge import (
    due_operators as due_operators,
    merge_of_all as merge_of_all,
    with_due_merges as with_due_merges,
    write_merge as write_merge,
)
from dstl_dagster.keyed.merge_policy import DueMerge as DueMerge, MergePolicy as MergePolicy
from dstl_dagster.keyed.replace import (
    Grouped as Grouped,
    Replacement as Replacement,
    Scope as Scope,
    replacements as replacements,
)
from dstl_dagster.keyed.reports import (
    AttemptReport as AttemptReport,
    FileReport as FileReport,
    Files as Files,
    Handles as Handles,
    OperatorReport as OperatorReport,
    as_file_reports as as_file_reports,
    as_operator_reports as as_operator_reports,
    load_report as load_report,
    refuse_wrong_ttl as refuse_wrong_ttl,
    store_report as store_report,
)
from dstl_dagster.keyed.runs import Merge as Merge, Run as Run, merged_runs as merged_runs
from dstl_dagster.keyed.scan import Filters as Filters, KeyGroups as KeyGroups, StateScan as StateScan
from dstl_dagster.keyed.shared_files import (
    SharedFiles as SharedFiles,
    changes_to_json as changes_to_json,
    held_if_small as held_if_small,
    small_from_outcome as small_from_outcome,
)
from dstl_dagster.keyed.sources import (
    Measure as Measure,
    NameChange as NameChange,
    Source as Source,
    merged_sources as merged_sources,
    source_id as source_id,
)
from dstl_dagster.keyed.writer import (
    open_attempt_changelog as open_attempt_changelog,
    write_range as write_range,
    write_rows as write_rows,
)
