"""Keyed state at a checkpoint: what tasks report, the manifest that names it, and its rows.

Owns the documents of a checkpoint (reports, manifest), and reading and writing state through them. Does not
own whether a checkpoint counts (`timeline`), or the steps that create one (`checkpoint`).

Modules that read or write rows are imported on first use: they need Arrow, and a sensor needs only documents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstl_dagster._lazy import lazy_face
from dstl_dagster.keyed.carried import MAX_CARRIED_BYTES, carried_on
from dstl_dagster.keyed.cost import (
    COMPOSE_COMMIT,
    CONFIRM,
    OWN_WRITE,
    PERSIST,
    RECORD,
    TRIGGER,
    CheckpointCost,
    Spending,
    StepCost,
    list_price_usd,
)
from dstl_dagster.keyed.coverage import Uncovered
from dstl_dagster.keyed.given import Files, Handles, as_file_reports, as_operator_reports
from dstl_dagster.keyed.manifest import (
    BaseAndLog,
    Manifest,
    OperatorEntry,
    load_manifest,
    require_same_manifest,
    store_manifest,
)
from dstl_dagster.keyed.operator_log import (
    OperatorLayer,
    OperatorState,
    loading,
    operator_layers,
    operator_state,
)
from dstl_dagster.keyed.read_ahead import ManifestLoader, RecentManifests
from dstl_dagster.keyed.reports import (
    AttemptReport,
    Compaction,
    FileReport,
    OperatorReport,
    load_report,
    store_report,
)
from dstl_dagster.keyed.sources import Measure, NameChange, Source, merged_sources, source_id
from dstl_dagster.keyed.state_rows import StateRows

if TYPE_CHECKING:
    from dstl_dagster.keyed.bases import base_and_log, due_operators, with_base, write_base
    from dstl_dagster.keyed.compaction import compaction_of
    from dstl_dagster.keyed.diff import StateDiff, compared_runs, diff_checkpoints, diff_states, paired_rows
    from dstl_dagster.keyed.due import due_key_groups, is_due, key_groups_to_compact
    from dstl_dagster.keyed.export import Export, export_checkpoint, export_state
    from dstl_dagster.keyed.folding import compacted, with_due_bases
    from dstl_dagster.keyed.history import KeyChange, key_history
    from dstl_dagster.keyed.keyed_state import (
        KeyedState,
        StateAt,
        evolved_schema,
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
    from dstl_dagster.keyed.merge_rows import Beside, beside, changed_rows
    from dstl_dagster.keyed.replacing import Grouped, Replacement, Scope, replacements
    from dstl_dagster.keyed.shared_files import (
        SharedFiles,
        changes_to_json,
        held_if_small,
        small_from_outcome,
    )
    from dstl_dagster.keyed.state_scan import Filters, KeyGroups, StateScan
    from dstl_dagster.keyed.ttl_rules import refuse_wrong_ttl

__all__ = [
    "COMPOSE_COMMIT",
    "CONFIRM",
    "MAX_CARRIED_BYTES",
    "OWN_WRITE",
    "PERSIST",
    "RECORD",
    "TRIGGER",
    "AttemptReport",
    "BaseAndLog",
    "Beside",
    "CheckpointCost",
    "Compaction",
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
    "ManifestLoader",
    "Measure",
    "NameChange",
    "OperatorEntry",
    "OperatorLayer",
    "OperatorReport",
    "OperatorState",
    "RecentManifests",
    "Replacement",
    "Scope",
    "SharedFiles",
    "Source",
    "Spending",
    "StateAt",
    "StateDiff",
    "StateRows",
    "StateScan",
    "StepCost",
    "Uncovered",
    "as_file_reports",
    "as_operator_reports",
    "base_and_log",
    "beside",
    "carried_on",
    "changed_rows",
    "changes_to_json",
    "compacted",
    "compaction_of",
    "compared_runs",
    "diff_checkpoints",
    "diff_states",
    "due_key_groups",
    "due_operators",
    "evolved_schema",
    "export_checkpoint",
    "export_state",
    "folded",
    "held_if_small",
    "is_due",
    "is_keyed",
    "key_groups_to_compact",
    "key_history",
    "list_price_usd",
    "load_manifest",
    "load_report",
    "loading",
    "merged_sources",
    "open_attempt_changelog",
    "operator_layers",
    "operator_state",
    "paired_rows",
    "refuse_wrong_ttl",
    "replacements",
    "require_same_manifest",
    "schema_of",
    "small_from_outcome",
    "source_id",
    "split_count",
    "store_manifest",
    "store_report",
    "with_base",
    "with_due_bases",
    "write_base",
    "write_range",
    "write_rows",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "bases": ["base_and_log", "due_operators", "with_base", "write_base"],
        "compaction": ["compaction_of"],
        "diff": ["StateDiff", "compared_runs", "diff_checkpoints", "diff_states", "paired_rows"],
        "due": ["due_key_groups", "is_due", "key_groups_to_compact"],
        "export": ["Export", "export_checkpoint", "export_state"],
        "folding": ["compacted", "with_due_bases"],
        "history": ["KeyChange", "key_history"],
        "keyed_state": [
            "KeyedState",
            "StateAt",
            "evolved_schema",
            "folded",
            "is_keyed",
            "schema_of",
            "split_count",
        ],
        "merge_rows": ["Beside", "beside", "changed_rows"],
        "replacing": ["Grouped", "Replacement", "Scope", "replacements"],
        "shared_files": ["SharedFiles", "changes_to_json", "held_if_small", "small_from_outcome"],
        "state_scan": ["Filters", "KeyGroups", "StateScan"],
        "keyed_writer": ["open_attempt_changelog", "write_range", "write_rows"],
        "ttl_rules": ["refuse_wrong_ttl"],
    },
)
