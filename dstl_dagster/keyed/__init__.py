"""Keyed state at a checkpoint: what tasks report, the manifest that names it, and its rows.

Owns the documents of a checkpoint (reports, manifest), and reading and writing state through them. Does not
own whether a checkpoint counts (`timeline`), or the steps that create one (`checkpoint`).

Modules are imported on first use: those that read or write rows need Arrow, a sensor needs documents alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstl_dagster._lazy import lazy_face

if TYPE_CHECKING:
    from dstl_dagster.keyed.conditions import Condition, Replaced, replaced_scope
    from dstl_dagster.keyed.diff import (
        Beside,
        KeyChange,
        StateDiff,
        beside,
        changed_rows,
        compared_runs,
        diff_checkpoints,
        diff_states,
        key_history,
        paired_rows,
    )
    from dstl_dagster.keyed.entries import OperatorEntry, RunLists, StateRows, StateSizes, load_list
    from dstl_dagster.keyed.export import Export, export_checkpoint, export_state
    from dstl_dagster.keyed.keyed_state import KeyedState, StateAt, folded, is_keyed, schema_of, split_count
    from dstl_dagster.keyed.manifest import Manifest, load_manifest, require_same_manifest, store_manifest
    from dstl_dagster.keyed.merge import due_operators, merge_of_all, with_due_merges, write_merge
    from dstl_dagster.keyed.merge_policy import DueMerge, MergePolicy
    from dstl_dagster.keyed.replace import Grouped, Replacement, Scope, replacements
    from dstl_dagster.keyed.reports import (
        AttemptReport,
        FileReport,
        Files,
        Handles,
        OperatorReport,
        as_file_reports,
        as_operator_reports,
        load_report,
        refuse_wrong_ttl,
        store_report,
    )
    from dstl_dagster.keyed.runs import Merge, Run, merged_runs
    from dstl_dagster.keyed.scan import Filters, KeyGroups, StateScan
    from dstl_dagster.keyed.shared_files import (
        SharedFiles,
        changes_to_json,
        held_if_small,
        small_from_outcome,
    )
    from dstl_dagster.keyed.sources import Measure, NameChange, Source, merged_sources, source_id
    from dstl_dagster.keyed.writer import open_attempt_changelog, write_range, write_rows

__all__ = [
    "AttemptReport",
    "Beside",
    "Condition",
    "DueMerge",
    "Export",
    "FileReport",
    "Files",
    "Filters",
    "Grouped",
    "Handles",
    "KeyChange",
    "KeyGroups",
    "KeyedState",
    "Manifest",
    "Measure",
    "Merge",
    "MergePolicy",
    "NameChange",
    "OperatorEntry",
    "OperatorReport",
    "Replaced",
    "Replacement",
    "Run",
    "RunLists",
    "Scope",
    "SharedFiles",
    "Source",
    "StateAt",
    "StateDiff",
    "StateRows",
    "StateScan",
    "StateSizes",
    "as_file_reports",
    "as_operator_reports",
    "beside",
    "changed_rows",
    "changes_to_json",
    "compared_runs",
    "diff_checkpoints",
    "diff_states",
    "due_operators",
    "export_checkpoint",
    "export_state",
    "folded",
    "held_if_small",
    "is_keyed",
    "key_history",
    "load_list",
    "load_manifest",
    "load_report",
    "merge_of_all",
    "merged_runs",
    "merged_sources",
    "open_attempt_changelog",
    "paired_rows",
    "refuse_wrong_ttl",
    "replaced_scope",
    "replacements",
    "require_same_manifest",
    "schema_of",
    "small_from_outcome",
    "source_id",
    "split_count",
    "store_manifest",
    "store_report",
    "with_due_merges",
    "write_merge",
    "write_range",
    "write_rows",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "conditions": ["Condition", "Replaced", "replaced_scope"],
        "diff": [
            "Beside",
            "KeyChange",
            "StateDiff",
            "beside",
            "changed_rows",
            "compared_runs",
            "diff_checkpoints",
            "diff_states",
            "key_history",
            "paired_rows",
        ],
        "entries": ["OperatorEntry", "RunLists", "StateRows", "StateSizes", "load_list"],
        "export": ["Export", "export_checkpoint", "export_state"],
        "keyed_state": ["KeyedState", "StateAt", "folded", "is_keyed", "schema_of", "split_count"],
        "manifest": ["Manifest", "load_manifest", "require_same_manifest", "store_manifest"],
        "merge": ["due_operators", "merge_of_all", "with_due_merges", "write_merge"],
        "merge_policy": ["DueMerge", "MergePolicy"],
        "replace": ["Grouped", "Replacement", "Scope", "replacements"],
        "reports": [
            "AttemptReport",
            "FileReport",
            "Files",
            "Handles",
            "OperatorReport",
            "as_file_reports",
            "as_operator_reports",
            "load_report",
            "refuse_wrong_ttl",
            "store_report",
        ],
        "runs": ["Merge", "Run", "merged_runs"],
        "scan": ["Filters", "KeyGroups", "StateScan"],
        "shared_files": ["SharedFiles", "changes_to_json", "held_if_small", "small_from_outcome"],
        "sources": ["Measure", "NameChange", "Source", "merged_sources", "source_id"],
        "writer": ["open_attempt_changelog", "write_range", "write_rows"],
    },
)
