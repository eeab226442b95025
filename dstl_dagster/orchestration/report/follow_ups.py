"""What is told on a checkpoint's page after its own event: who follows it, and what became of its files.

Owns these observations. Does not own the event of the checkpoint (`lineage`), or who asks for them
(`reporting`). An event says what was so when it was written, and is never changed; so what comes later is an
observation of the same partition, which Dagster shows beside it.

Only checkpoints that can be restored have a page, so nothing is told of others: a backlog of thousands costs
no more than what is retained.
"""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint
from dstl_dagster.orchestration.keys import TAG_CHECKPOINT, TAG_VERSION, JobAssets
from dstl_dagster.orchestration.report.chain import partition_link
from dstl_dagster.orchestration.report.lineage import Reporter, files_version
from dstl_dagster.orchestration.report.places import published

__all__ = ["child_follow_up", "files_follow_up"]


def child_follow_up(
    assets: JobAssets, checkpoint: Checkpoint, reporter: Reporter
) -> list[dg.AssetObservation]:
    """On the parent's page: the checkpoint that follows. None where the parent has no page."""
    parent, attempt = checkpoint.parent, checkpoint.attempt
    if parent is None or not _has_page(reporter, parent):
        return []
    child = assets.partition_key(checkpoint.checkpoint_id)
    link = {"child checkpoint": dg.MetadataValue.md(partition_link(assets.checkpoints_key, child))}
    said = f"checkpoint {checkpoint.checkpoint_id} follows"
    return [_observation(assets, parent, said, f"{attempt}-child", link)]


def files_follow_up(
    assets: JobAssets, checkpoint: Checkpoint, reporter: Reporter
) -> list[dg.AssetObservation]:
    """On its own page: whether its files have their final names. None where it has no page."""
    number = checkpoint.checkpoint_id
    if not _has_page(reporter, number):
        return []
    version = f"{files_version(checkpoint.attempt, checkpoint.entry.committed)}-files"
    said = f"what step 6 made of the files of checkpoint {number}"
    return [_observation(assets, number, said, version, published(checkpoint))]


def _has_page(reporter: Reporter, checkpoint_id: int) -> bool:
    """As of the reporter's view. A restore takes the page away, and has its own word there."""
    view = reporter.view
    return view is not None and any(entry.checkpoint_id == checkpoint_id for entry in view.retained)


def _observation(
    assets: JobAssets, checkpoint_id: int, said: str, version: str, metadata: Mapping[str, dg.MetadataValue]
) -> dg.AssetObservation:
    return dg.AssetObservation(
        asset_key=assets.checkpoints_key,
        partition=assets.partition_key(checkpoint_id),
        description=said,
        tags={TAG_CHECKPOINT: str(checkpoint_id), TAG_VERSION: version},
        metadata=metadata,
    )
