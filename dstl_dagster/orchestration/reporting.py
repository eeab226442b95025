"""Telling Dagster of a checkpoint once: what was told already, and what is left to tell.

Owns the question whether an event is there, and which runs are alive that will write it. Does not own what
the events say (`lineage`), or when they are written (`ops`, `sensors`).
"""

from __future__ import annotations

import uuid

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint
from dstl_dagster.orchestration.keys import OWNER_PREFIX, TAG_ATTEMPT, JobAssets
from dstl_dagster.orchestration.lineage import (
    Reporter,
    checkpoint_materialization,
    files_materialization,
    operator_materialization,
)

__all__ = ["OwnerRuns", "is_reported", "unreported_checkpoint", "unreported_files"]

_EVENTS_LOOKED_AT = 25
"""The newest: whoever reports again does so soon."""


def unreported_checkpoint(
    instance: dg.DagsterInstance, assets: JobAssets, checkpoint: Checkpoint, reporter: Reporter
) -> list[dg.AssetMaterialization]:
    """The events of a completed checkpoint that the instance does not hold.

    The checkpoint's own comes last: once it is there, all of them are.
    """
    partition = assets.partition_key(checkpoint.checkpoint_id)
    if is_reported(instance, assets.checkpoints_key, partition, checkpoint.attempt):
        return []
    told = [
        operator_materialization(assets, checkpoint, operator, reporter)
        for operator in assets.operators
        if operator in checkpoint.manifest.operators
    ]
    missing = [
        event for event in told if not is_reported(instance, event.asset_key, None, checkpoint.attempt)
    ]
    return [*missing, checkpoint_materialization(assets, checkpoint, reporter)]


def unreported_files(
    instance: dg.DagsterInstance,
    assets: JobAssets,
    checkpoint: Checkpoint,
    reporter: Reporter,
    partition: str | None,
) -> list[dg.AssetMaterialization]:
    """The event of a committed checkpoint's files, if it has any and the instance does not hold it."""
    if not checkpoint.manifest.files or is_reported(
        instance, assets.files_key, partition, checkpoint.attempt
    ):
        return []
    return [files_materialization(assets, checkpoint, reporter, partition)]


def is_reported(
    instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None, attempt: uuid.UUID
) -> bool:
    """Whether an earlier try, or somebody else who looked, wrote the event of this attempt."""
    found = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=key, asset_partitions=None if partition is None else [partition]),
        limit=_EVENTS_LOOKED_AT,
    )
    # By attempt: without partitions every checkpoint's event is of the same asset.
    return any(
        record.asset_materialization is not None
        and (record.asset_materialization.tags or {}).get(TAG_ATTEMPT) == str(attempt)
        for record in found.records
    )


class OwnerRuns:
    """The Dagster runs behind the owner of an attempt: its root run with all its re-executions."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance

    def are_known_and_over(self, owner: str) -> bool:
        """The owner is a run of this instance, and it and all its re-executions have ended."""
        runs = self._of(owner)
        return bool(runs) and all(run.is_finished for run in runs)

    def are_alive(self, owner: str) -> bool:
        """The owner is a run of this instance, and it or a re-execution of it has not ended."""
        return any(not run.is_finished for run in self._of(owner))

    def _of(self, owner: str) -> list[dg.DagsterRun]:
        if not owner.startswith(OWNER_PREFIX):
            return []
        root_run_id = owner.removeprefix(OWNER_PREFIX)
        runs = list(self._instance.get_runs(dg.RunsFilter(tags={"dagster/root_run_id": root_run_id})))
        root = self._instance.get_run_by_id(root_run_id)
        # A run that this instance does not know may be alive in another one.
        return runs if root is None else [*runs, root]
