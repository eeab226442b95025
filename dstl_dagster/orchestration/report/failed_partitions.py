"""Marks: how Dagster shows a partition that no run of Dagster's put where it is.

Owns the runs that are marks, and their end. Does not own which partitions are marked, and when (`reconcile`,
`opening`).

Dagster cannot take a materialization back, and it has no way to say that a partition of an external asset is
not in order. It shows a partition by the run that planned it last, unless a newer materialization says
otherwise: as failed if that run failed. So a mark is a run that plans partitions. It starts nothing, and no
alert or retry follows: those go by events that it does not have.

A mark that has failed lets its partitions show as failed, until each is materialized again: then it is
settled, and has succeeded. A run that is refused before it tried anything may fail without taking its
partition along: that is planned anew, by the run that had planned it before, or by a mark that was canceled.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

import dagster as dg
from dagster._core.events import AssetMaterializationPlannedData  # no public name; since Dagster 0.14

from dstl_dagster.orchestration.keys import TAG_JOB, TAG_MARK, JobAssets
from dstl_dagster.orchestration.report.links import first_names
from dstl_dagster.orchestration.report.shown import Page

_MARKED = "dstl/marked"
_STEP = "mark"
_PLANNED = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
_STATUS = {
    dg.DagsterEventType.RUN_FAILURE: dg.DagsterRunStatus.FAILURE,
    dg.DagsterEventType.RUN_CANCELED: dg.DagsterRunStatus.CANCELED,
}
_TRIES = 25
"""Planned events of one partition that are looked through: a run plans it once, and its re-executions do."""
_SETTLED = "settled; "


@dataclass(frozen=True)
class Mark:
    """Partitions that are not in order.

    Attributes:
        cause: names the mark: one cause leaves one, however often it is written.
        about, why: a few words for the list of runs, a sentence for the page of the mark's run.
        partitions: by asset; those that are in order again must be left out.
        alone: all other marks of the job end: they were of another store.
    """

    cause: str
    about: str
    why: str
    partitions: Mapping[dg.AssetKey, tuple[str, ...]]
    tags: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False


def mark_partitions(page: Page, mark: Mark) -> None:
    """Let Dagster show these partitions as failed until they are materialized anew. Idempotent."""
    instance = page.instance
    if mark.alone:
        _end_others(page, mark)
    if not mark.partitions:
        return
    run = _run_of(page, mark, dg.DagsterEventType.RUN_FAILURE)
    if _MARKED in run.tags and run.status is dg.DagsterRunStatus.FAILURE:
        return
    _end(instance, run, dg.DagsterEventType.RUN_FAILURE)
    instance.report_engine_event(f"A mark, and no run. {mark.why}", run)
    for key, partitions in mark.partitions.items():
        for partition in partitions:
            _plan(instance, run, key, partition)
    named = sorted({partition for each in mark.partitions.values() for partition in each})
    said = f"{mark.about}: {first_names(named)}"
    instance.add_run_tags(run.run_id, {_MARKED: "true", TAG_MARK: said})


def leave_as_it_was(page: Page, key: dg.AssetKey, partition: str, refused: str) -> None:
    """Let a run of this partition fail without it, because it has tried nothing. `refused`: the run."""
    before = planned_before(page.instance, key, partition, refused)
    if before is None:
        before = _untried(page, key)
        said = f"{partition}: run {refused} was refused, and tried nothing"
        page.instance.report_engine_event(said, before)
    _plan(page.instance, before, key, partition)


def _untried(page: Page, key: dg.AssetKey) -> dg.DagsterRun:
    """The mark of what shows as if no run had been."""
    about = "left as they were, by runs that were refused"
    mark = Mark(f"untried/{page.assets.job}", about, "", {key: ()})
    return _run_of(page, mark, dg.DagsterEventType.RUN_CANCELED)


def planned_before(
    instance: dg.DagsterInstance, key: dg.AssetKey, partition: str, run_id: str
) -> dg.DagsterRun | None:
    """The run that decides how the partition shows, but for this one; `None` if a materialization does."""
    wanted = dg.EventRecordsFilter(_PLANNED, asset_key=key, asset_partitions=[partition])
    newest = instance.get_latest_storage_id_by_partition(
        key, dg.DagsterEventType.ASSET_MATERIALIZATION, {partition}
    ).get(partition, 0)
    # The instance's own method asks for them by run, or newest materializations first.
    for record in instance.event_log_storage.get_event_records(wanted, limit=_TRIES):
        if record.run_id != run_id:
            return instance.get_run_by_id(record.run_id) if record.storage_id > newest else None
    return None


def settle_marks(page: Page) -> None:
    """End the marks whose partitions have all been materialized since."""
    for run, planned in _failing(page):
        if _MARKED in run.tags and all(_are_newer(page.instance, run, *each) for each in planned.items()):
            _settle(page.instance, run)


def _end_others(page: Page, mark: Mark) -> None:
    """End all marks but this one: their partitions show as if there had been none."""
    for run, planned in _failing(page):
        if run.run_id != _id_of(mark):
            for key, partitions in planned.items():
                for partition in partitions:
                    _plan(page.instance, _untried(page, key), key, partition)
            _settle(page.instance, run)


def _failing(page: Page) -> list[tuple[dg.DagsterRun, dict[dg.AssetKey, set[str]]]]:
    """The marks that have not ended, each with the partitions that it planned, by asset."""
    ours = dg.RunsFilter(job_name=_name(page.assets), statuses=[dg.DagsterRunStatus.FAILURE])
    found = []
    for run in page.instance.get_runs(ours):
        planned: dict[dg.AssetKey, set[str]] = {}
        for record in page.instance.get_records_for_run(run.run_id, of_type=_PLANNED).records:
            event = record.event_log_entry.dagster_event
            if event is not None and event.asset_key is not None and event.partition is not None:
                planned.setdefault(event.asset_key, set()).add(event.partition)
        found.append((run, planned))
    return found


def _settle(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    _end(instance, run, dg.DagsterEventType.RUN_SUCCESS)
    said = run.tags.get(TAG_MARK, "").removeprefix(_SETTLED)
    instance.add_run_tags(run.run_id, {TAG_MARK: f"{_SETTLED}{said}"})


def _are_newer(
    instance: dg.DagsterInstance, run: dg.DagsterRun, key: dg.AssetKey, partitions: set[str]
) -> bool:
    """Whether each partition was materialized after the mark planned it.

    By the events of the asset: of those of a run SQLite has a database, and ids, of its own.
    """
    wanted = dg.EventRecordsFilter(_PLANNED, asset_key=key, asset_partitions=[*partitions])
    newest = instance.get_latest_storage_id_by_partition(
        key, dg.DagsterEventType.ASSET_MATERIALIZATION, partitions
    )
    return all(
        record.run_id != run.run_id or newest.get(str(record.partition_key), 0) > record.storage_id
        for record in instance.event_log_storage.get_event_records(wanted)
    )


def _name(assets: JobAssets) -> str:
    """Of no job: the list of runs shows it for what it is."""
    return f"{assets.group_name}_mark"


def _run_of(page: Page, mark: Mark, end: dg.DagsterEventType) -> dg.DagsterRun:
    """The run of a mark that was begun, or a new one, which has ended."""
    run_id, instance, assets = _id_of(mark), page.instance, page.assets
    known = instance.get_run_by_id(run_id)
    if known is not None:
        return known
    run = instance.add_run(
        dg.DagsterRun(
            job_name=_name(assets),
            run_id=run_id,
            status=_STATUS[end],
            asset_selection=frozenset(mark.partitions),
            tags={TAG_JOB: assets.job, TAG_MARK: mark.about, **mark.tags},
        )
    )
    _end(instance, run, dg.DagsterEventType.RUN_START)
    _end(instance, run, end)
    return run


def _id_of(mark: Mark) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"dstl/marks/{mark.cause}"))


def _end(instance: dg.DagsterInstance, run: dg.DagsterRun, kind: dg.DagsterEventType) -> None:
    """Give the run this status and its time, by no event that sensors, alerts or retries go by."""
    instance.run_storage.handle_run_event(run.run_id, dg.DagsterEvent(kind.value, run.job_name))


def _plan(instance: dg.DagsterInstance, run: dg.DagsterRun, key: dg.AssetKey, partition: str) -> None:
    planned = AssetMaterializationPlannedData(key, partition=partition)
    event = dg.DagsterEvent.build_asset_materialization_planned_event(run.job_name, _STEP, planned)
    instance.report_dagster_event(event, run.run_id)
