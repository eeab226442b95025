"""What a job without Dagster does after its batch."""

from __future__ import annotations

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.keyed import load_report
from dstl_dagster.spark import CheckpointBatch


def complete(coordinator: CheckpointCoordinator, batch: CheckpointBatch) -> Checkpoint:
    """Steps 4 to 6."""
    coordinator.record_report(batch.attempt, load_report(coordinator.store, batch.attempt))
    coordinator.confirm(batch.attempt)
    (done,) = coordinator.compose_commit()
    return done
