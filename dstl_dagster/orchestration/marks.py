"""Marks: partitions that Dagster shows as failed, though no run of them failed.

Owns the runs that are marks. Does not own which partitions are marked, or why (`restores`, `reporting`).

Dagster cannot take a materialization back, and it lets nobody say that a partition of an external asset is
not in order. It shows a partition as failed while the newest that it knows of it is the plan of a run that
failed; a newer materialization clears that. So a mark is a run of that status which planned the partitions.
It starts nothing, and no alert or retry follows: those go by events that it does not have.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

import dagster as dg
from dagster._core.events import AssetMaterializationPlannedData  # no public name; since Dagster 0.14

from dstl_dagster.orchestration.keys import TAG_JOB, JobAssets

__all__ = ["Mark", "mark_partitions"]

_MARKED = "dstl/marked"
_STEP = "mark"


@dataclass(frozen=True)
class Mark:
    """Partitions that are not in order.

    Attributes:
        cause: names the mark: one cause leaves one, however often it is written.
        why: one sentence for the page of the mark's run.
        job_name: of the mark's run, for the list of runs.
        partitions: by asset; those that are in order again must be left out.
    """

    cause: str
    why: str
    job_name: str
    partitions: Mapping[dg.AssetKey, tuple[str, ...]]
    tags: Mapping[str, str] = field(default_factory=dict)


def mark_partitions(instance: dg.DagsterInstance, assets: JobAssets, mark: Mark) -> None:
    """Let Dagster show these partitions as failed until it is told of something newer. Idempotent."""
    if not mark.partitions:
        return
    run_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"dstl/marks/{mark.cause}"))
    run = instance.get_run_by_id(run_id) or instance.add_run(
        dg.DagsterRun(
            job_name=mark.job_name,
            run_id=run_id,
            status=dg.DagsterRunStatus.FAILURE,
            asset_selection=frozenset(mark.partitions),
            tags={TAG_JOB: assets.job, **mark.tags},
        )
    )
    if _MARKED in run.tags:
        return
    instance.report_engine_event(f"A mark, and no run. {mark.why}", run)
    for key, partitions in mark.partitions.items():
        for partition in partitions:
            planned = AssetMaterializationPlannedData(key, partition=partition)
            instance.report_dagster_event(
                dg.DagsterEvent.build_asset_materialization_planned_event(mark.job_name, _STEP, planned),
                run_id,
            )
    instance.add_run_tags(run_id, {_MARKED: "true"})
