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
    from dstl_dagster.keyed.diff import StateDiff, compared_runs, diff_checkpoints, diff_states, paired_rows
    from dstl_dagster.keyed.entries import OperatorEntry, StateSizes
    from dstl_dagster.keyed.export import Export, export_checkpoint, export_state
    from dstl_dagster.keyed.given import Files, Handles, as_file_reports, as_operator_reports
    from dstl_dagster.keyed.history import KeyChange, key_history
    from dstl_dagster.keyed.keyed_state import (
        KeyedState,
        StateAt,
        folded,
        is_keyed,
        schema_of,
        split_count,
    )
    from dstl_dagster.keyed.keyed_writer import (
        open_attempt_changelog,
        write_range,
        write_rows,
    )
    from dstl_dagster.keyed.manifest import (
        Manifest,
        load_manifest,
        require_same_manifest,
        store_manifest,
    )
    from dstl_dagster.keyed.merge_policy import DueMerge, MergePolicy
    from dstl_dagster.keyed.merge_rows import Beside, beside, changed_rows
    from dstl_dagster.keyed.merging import due_operators, merge_of_all, with_due_merges, write_merge
    from dstl_dagster.keyed.replacing import Grouped, Replacement, Scope, replacements
    from dstl_dagster.keyed.reports import (
        AttemptReport,
        FileReport,
        OperatorReport,
        load_report,
        store_report,
    )
    from dstl_dagster.keyed.run_lists import RunLists, load_list
    from dstl_dagster.keyed.runs import Merge, Run, merged_runs
    from dstl_dagster.keyed.shared_files import (
        SharedFiles,
        changes_to_json,
        held_if_small,
        small_from_outcome,
    )
    from dstl_dagster.keyed.sources import Measure, NameChange, Source, merged_sources, source_id
    from dstl_dagster.keyed.state_rows import StateRows
    from dstl_dagster.keyed.state_scan import Filters, KeyGroups, StateScan
    from dstl_dagster.keyed.ttl_rules import refuse_wrong_ttl

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
        "entries": ["OperatorEntry", "StateSizes"],
        "given": ["Files", "Handles", "as_file_reports", "as_operator_reports"],
        "manifest": ["Manifest", "load_manifest", "require_same_manifest", "store_manifest"],
        "reports": ["AttemptReport", "FileReport", "OperatorReport", "load_report", "store_report"],
        "run_lists": ["RunLists", "load_list"],
        "runs": ["Merge", "Run", "merged_runs"],
        "sources": ["Measure", "NameChange", "Source", "merged_sources", "source_id"],
        "state_rows": ["StateRows"],
        "conditions": ["Condition", "Replaced", "replaced_scope"],
        "diff": ["StateDiff", "compared_runs", "diff_checkpoints", "diff_states", "paired_rows"],
        "export": ["Export", "export_checkpoint", "export_state"],
        "history": ["KeyChange", "key_history"],
        "keyed_state": [
            "KeyedState",
            "StateAt",
            "folded",
            "is_keyed",
            "schema_of",
            "split_count",
        ],
        "merge_policy": ["DueMerge", "MergePolicy"],
        "merging": ["due_operators", "merge_of_all", "with_due_merges", "write_merge"],
        "merge_rows": ["Beside", "beside", "changed_rows"],
        "replacing": ["Grouped", "Replacement", "Scope", "replacements"],
        "shared_files": ["SharedFiles", "changes_to_json", "held_if_small", "small_from_outcome"],
        "state_scan": ["Filters", "KeyGroups", "StateScan"],
        "keyed_writer": ["open_attempt_changelog", "write_range", "write_rows"],
        "ttl_rules": ["refuse_wrong_ttl"],
    },
)
