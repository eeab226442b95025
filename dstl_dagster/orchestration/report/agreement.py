"""Whether the partitions that Dagster shows are those that the timeline holds.

Owns the comparison: of the checkpoints that can be restored, and of the days (or hours) that are
materialized. Does not own adding and deleting the partitions of checkpoints (`reconcile`), or what is
reported of a restore (`steps`): Dagster keeps a materialized partition for ever, so that only a check can say
that a restore took it away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

from dstl_dagster.clock import Clock
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.partitions import has_partition
from dstl_dagster.orchestration.report.findings import (
    PARTITIONS,
    Finding,
    age_allowed,
    blocked_files,
    evaluations,
    of_age,
    unpublished_files,
)
from dstl_dagster.orchestration.report.reconcile import PartitionChanges
from dstl_dagster.timeline import TimelineView

__all__ = ["evaluations_beside", "partitions_finding"]

_ARCHIVED_AT_ONCE = 100
"""Each asks the store, unlike a batch since the newest snapshot. The latest partitions, which a restore
takes away first."""
_ARCHIVED_BESIDE = 5
"""The same beside a checkpoint: only partitions after all that are known to be held, as a rule none."""
_NAMED = 10
_SENTENCES = {
    "materialized, but in no checkpoint": "in no checkpoint, as after a restore, but shown as materialized, "
    "so that a backfill of what is missing skips it: turn the checkpoint sensor on, or choose each by itself",
    "partitions to run again": "in no checkpoint any more, and shown as failed: a backfill of what is failed "
    "or missing runs it again",
    "partitions that Dagster lacks": "in the state, but not shown as materialized: run it again, nothing is "
    "applied twice",
    "checkpoints to add": "restorable, but without a partition: turn the checkpoint sensor on",
    "checkpoints to take away": "not restorable any more, but with a partition: run clean-up, or turn the "
    "checkpoint sensor on",
}
_NOT_SHOWN = (dg.AssetPartitionStatus.FAILED, None)
_PARTITION_TAGS = ("dagster/partition", "dagster/asset_partition_range_start")
"""Of a run that was launched for one, and of a run of a backfill."""


def evaluations_beside(
    instance: dg.DagsterInstance,
    assets: JobAssets,
    view: TimelineView,
    definitions: dg.RepositoryDefinition | None,
    partitions_def: dg.PartitionsDefinition[Any] | None,
    clock: Clock,
) -> list[dg.AssetCheckEvaluation]:
    """Those that a step or a sensor writes beside a checkpoint: next to no requests.

    Args:
        view: of what is about to be shown: the partitions of checkpoints are not compared.
        definitions: have the limit of the check of the age, which is left out without one.
        partitions_def: as for `partitions_finding`, which is left out without: what a check that is given one
            found must not be replaced by less.
    """
    found = [unpublished_files(view, clock), blocked_files(view)]
    if partitions_def is not None:
        no_changes = PartitionChanges()
        found.append(partitions_finding(instance, assets, view, no_changes, partitions_def, thorough=False))
    allowed = age_allowed(definitions, assets)
    if allowed is not None:  # unlike Dagster's own freshness it sees how old what is reported late is
        found.append(of_age(view, clock, allowed))
    return evaluations(instance, assets, found)


def partitions_finding(
    instance: dg.DagsterInstance,
    assets: JobAssets,
    view: TimelineView,
    changes: PartitionChanges,
    partitions_def: dg.PartitionsDefinition[Any] | None,
    *,
    thorough: bool = True,
) -> Finding:
    """Compare the two.

    Args:
        changes: what the partitions of checkpoints need, as `reporting.partition_changes` tells; empty where
            the caller is about to make these changes.
        partitions_def: of the job's state and files, if the partition of a batch is its idempotency key.
        thorough: look up a hundred of the partitions that the view does not tell of; otherwise the few that
            come after all that it does.
    """
    days = _days(instance, assets, view, partitions_def, thorough)
    found = (*days, changes.missing, changes.stale)
    wrong = dict(zip(_SENTENCES, found, strict=True))
    text = "; ".join(
        f"{_listed(keys)} {'is' if len(keys) == 1 else 'are'} {_SENTENCES[what]}"
        for what, keys in wrong.items()
        if keys
    )
    return Finding(
        PARTITIONS,
        passed=not text,
        text=text or "Dagster's partitions are those of the timeline",
        # What a person would take for done; what is shown for what it is only warns.
        warn=not days[0],
        measures={what: len(keys) for what, keys in wrong.items()},
        details=_table(wrong),
    )


def _table(wrong: dict[str, list[str]]) -> dict[str, dg.MetadataValue]:
    rows = [dg.TableRecord({"partition": key, "what": what}) for what, keys in wrong.items() for key in keys]
    return {"differences": dg.MetadataValue.table(rows)} if rows else {}


def _days(
    instance: dg.DagsterInstance,
    assets: JobAssets,
    view: TimelineView,
    partitions_def: dg.PartitionsDefinition[Any] | None,
    thorough: bool,
) -> tuple[list[str], list[str], list[str]]:
    """Partitions that no checkpoint holds, shown as materialized and as failed, and partitions that are held
    and not shown as materialized; each sorted.
    """
    if partitions_def is None:
        return [], [], []
    of_state = {
        key: status
        for state in assets.state_keys
        for key, status in _statuses(instance, state, partitions_def).items()
    }
    of_files = _statuses(instance, assets.files_key, partitions_def)
    undone = [
        key for key in _to_look_up({*of_state, *of_files}, view, thorough) if view.applied_in(key) is None
    ]
    shown = {key: {of_state.get(key), of_files.get(key)} for key in undone}
    green = [key for key, each in shown.items() if dg.AssetPartitionStatus.MATERIALIZED in each]
    red = [key for key, each in shown.items() if each <= {dg.AssetPartitionStatus.FAILED, None}]
    # The state of a job outside of Dagster has no partitions.
    held = [key for key in _names(view) if of_state.get(key) in _NOT_SHOWN] if of_state else []
    unseen = [
        key
        for key in held
        if view.applied_in(key) is not None
        and has_partition(partitions_def, key, instance)
        and not _is_at_work(instance, key)
    ]
    return sorted(green), sorted(red), sorted(unseen)


def _statuses(
    instance: dg.DagsterInstance, key: dg.AssetKey, partitions_def: dg.PartitionsDefinition[Any]
) -> Mapping[str, dg.AssetPartitionStatus]:
    """Of the partitions that were ever materialized, as Dagster's page has them."""
    ever = sorted(instance.get_materialized_partitions(key))
    found = (ever and instance.get_status_by_partition(key, ever, partitions_def)) or {}
    # Dagster has no status for a definition of one's own.
    return {each: found.get(each) or dg.AssetPartitionStatus.MATERIALIZED for each in ever}


def _to_look_up(shown: Iterable[str], view: TimelineView, thorough: bool) -> list[str]:
    """Those that cost no request, and of the others the latest."""
    names = _names(view)
    free = [key for key in shown if key in names]
    others = sorted((key for key in shown if key not in names), reverse=True)
    if not view.snapshot_slot:
        return free + others
    if thorough:
        return free + others[:_ARCHIVED_AT_ONCE]
    held = [batch.key for batch, ids in view.keys.items() if not all(map(view.is_abandoned, ids))]
    # Partitions become state in order: what comes before one that is held is held as well.
    return free + [key for key in others if not held or key > max(held)][:_ARCHIVED_BESIDE]


def _names(view: TimelineView) -> set[str]:
    """Of the batches since the newest snapshot."""
    return {batch.key for batch in view.keys}


def _is_at_work(instance: dg.DagsterInstance, partition: str) -> bool:
    """A run of the partition has not ended: its last step materializes the state."""
    return any(
        not run.is_finished
        for tag in _PARTITION_TAGS
        for run in instance.get_runs(dg.RunsFilter(tags={tag: partition}), limit=_NAMED)
    )


def _listed(keys: list[str]) -> str:
    more = len(keys) - _NAMED
    return ", ".join(keys[:_NAMED]) + (f" and {more} more" if more > 0 else "")
