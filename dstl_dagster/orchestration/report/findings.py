"""The findings on a job's checkpoints, by the timeline and by what Dagster shows: without a look at objects.

Owns these findings, how one reads as a check of Dagster's, and the comparison of the partitions that Dagster
shows with those that the timeline holds. Does not own the checks that read the store (`watch.checks`), or
adding and deleting the partitions of checkpoints (`reconcile`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (  # no public name
    AssetCheckEvaluationTargetMaterializationData,
)

from dstl_dagster.clock import Clock
from dstl_dagster.format import counted, measure, readable_duration
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.partitions import has_partition, held_by, is_held
from dstl_dagster.orchestration.report.links import first_names, how_to_resolve
from dstl_dagster.orchestration.report.shown import Page
from dstl_dagster.orchestration.timeline_check import Shown, shown_in
from dstl_dagster.timeline import BlockedFile, TimelineView

AGE: Final = "checkpoint_age"
PUBLISHED: Final = "files_published"
BLOCKED: Final = "no_blocked_files"
PARTITIONS: Final = "partitions_match_timeline"
NONE_YET: Final = "the job has no checkpoint yet"
MAX_AGE_HOURS: Final = "dstl/max_age_hours"
"""The metadata of the spec of the check of the age."""
_SHOWN = 20
_PUBLISHING = timedelta(minutes=15)
"""A checkpoint whose files are not published yet is at work for so long, and in trouble after that."""
_ARCHIVED_AT_ONCE = 100
"""Each asks the store, unlike a batch since the newest snapshot, or one whose event says its checkpoint. The
latest partitions, which a restore takes away first."""
_ARCHIVED_BESIDE = 5
"""The same beside a checkpoint: only partitions after all that are known to be held, as a rule none."""
_SENTENCES = {
    "materialized, but in no checkpoint": "in no checkpoint, as after a restore, but shown as materialized, "
    "which a backfill of what is missing skips: turn the checkpoint sensor on, or choose each by itself",
    "partitions to run again": "in no checkpoint any more, and shown as failed: launch a backfill of what "
    "is failed or missing",
    "partitions missing in Dagster": "in the state, but not shown as materialized: run again, nothing is "
    "applied twice",
    "checkpoints to add": "restorable, but without a partition: turn the checkpoint sensor on",
    "checkpoints to take away": "not restorable any more, but with a partition: run clean-up, or turn the "
    "checkpoint sensor on",
}
_RUNS = 10
_Changes = tuple[Sequence[str], Sequence[str]]
_PARTITION_TAGS = ("dagster/partition", "dagster/asset_partition_range_start")
"""Of a run that was launched for one, and of a run of a backfill."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one check: in one sentence what was found, and what to do about it; numbers, which
    Dagster plots; and other metadata. `warn`: not passing is no error.
    """

    passed: bool
    text: str
    warn: bool = False
    measures: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    def fields(self, name: str) -> dict[str, Any]:
        """Of a result, or an evaluation, of the check of this name."""
        return {
            "check_name": name,
            "passed": self.passed,
            "severity": dg.AssetCheckSeverity.WARN if self.warn else dg.AssetCheckSeverity.ERROR,
            "description": self.text,
            "metadata": {**self.measures, **self.details},
        }


def evaluations_beside(page: Page, view: TimelineView, clock: Clock) -> list[dg.AssetCheckEvaluation]:
    """Those that a step or a sensor writes beside a checkpoint, the newest that the instance holds, by next
    to no requests. `view`: of what is about to be shown, so the partitions of checkpoints are not compared.

    Where the page does not know them that finding is left out: it would replace that of a check that does.
    """
    found = {PUBLISHED: unpublished_files(view, clock), BLOCKED: blocked_files(view)}
    assets = page.assets
    # Of partitions without an order those that are in the archive, and lost, may be any.
    if isinstance(page.files, dg.TimeWindowPartitionsDefinition) or (page.files and not view.snapshot_slot):
        found[PARTITIONS] = partitions_finding(page, view, thorough=False)
    allowed = _age_allowed(page)
    if allowed is not None:  # unlike Dagster's own freshness it sees how old what is reported late is
        found[AGE] = of_age(view, clock, allowed)
    # Without a target Dagster compares times to see whether a check is older than the checkpoint, and SQLite
    # keeps that of a check in whole seconds.
    target = None
    for newest in page.instance.fetch_materializations(assets.checkpoints_key, limit=1).records:
        target = AssetCheckEvaluationTargetMaterializationData(
            storage_id=newest.storage_id, run_id=newest.run_id, timestamp=newest.timestamp
        )
    return [
        dg.AssetCheckEvaluation(
            asset_key=assets.checkpoints_key, target_materialization_data=target, **each.fields(name)
        )
        for name, each in found.items()
    ]


def _age_allowed(page: Page) -> timedelta | None:
    """What the job's check of the age allows; `None` where the page's definitions have none."""
    key, definitions = dg.AssetCheckKey(page.assets.checkpoints_key, AGE), page.definitions
    if definitions is None or key not in definitions.asset_graph.asset_check_keys:
        return None
    hours = definitions.asset_graph.get_check_spec(key).metadata.get(MAX_AGE_HOURS)
    return None if hours is None else timedelta(hours=hours)


def of_age(view: TimelineView, clock: Clock, max_age: timedelta) -> Finding:
    """How old the last checkpoint is, by the clock of its writer."""
    entry = view.last_completed
    if entry is None:
        return Finding(False, NONE_YET, warn=True)
    age = clock.now() - entry.completed.recorded_at
    allowed = readable_duration(max_age)
    text = f"checkpoint {entry.checkpoint_id} is {readable_duration(age)} old, at most {allowed} is allowed"
    hours = measure(max(age.total_seconds(), 0.0) / 3600)
    return Finding(age <= max_age, text, warn=True, measures={"age hours": hours})


def unpublished_files(view: TimelineView, clock: Clock) -> Finding:
    """Whether all files of the last checkpoint have their final names."""
    entry = view.last_completed
    if entry is None:
        return Finding(True, NONE_YET)
    files = len(entry.completed.files)
    blocked = () if entry.committed is None else entry.committed.blocked
    waiting = files if entry.committed is None else len(blocked)
    which = f"{waiting} of {files} files of checkpoint {entry.checkpoint_id}"
    young = clock.now() - entry.completed.recorded_at < _PUBLISHING
    if blocked:
        text = f"{which} are blocked, the first: {_resolve(entry.checkpoint_id, blocked[0])}"
    elif not waiting:
        are = "is" if files == 1 else "are"
        text = f"{counted(files, 'file')} of checkpoint {entry.checkpoint_id} {are} published"
    else:
        text = (
            f"{which} are not published yet: step 6 (compose-commit) is due. If no run is at it, launch one: "
            "the job's next batch, or its commit job"
        )
    measures = {"files": files, "unpublished files": waiting}
    # What waits for a moment only warns.
    return Finding(not waiting, text, warn=young and not blocked, measures=measures)


def blocked_files(view: TimelineView) -> Finding:
    """Whether some checkpoint has files that only a person can publish."""
    blocked = [
        (entry.checkpoint_id, file)
        for entry in view.retained
        if entry.committed is not None
        for file in entry.committed.blocked
    ]
    measures = {"blocked files": len(blocked)}
    if not blocked:
        return Finding(True, "no file is blocked", measures=measures)
    first, file = blocked[0]
    table = dg.MetadataValue.table(
        [
            dg.TableRecord({"checkpoint": str(number), "file": each.name, "reason": each.reason})
            for number, each in blocked[:_SHOWN]
        ]
    )
    are = "is" if len(blocked) == 1 else "are"
    text = f"{counted(len(blocked), 'file')} {are} blocked, the first: {_resolve(first, file)}"
    return Finding(False, text, measures=measures, details={"blocked": table})


def _resolve(checkpoint_id: int, file: BlockedFile) -> str:
    return f"{file.name}: {file.reason}. {how_to_resolve(checkpoint_id, file.name)}"


def partitions_finding(
    page: Page, view: TimelineView, changes: _Changes = ((), ()), *, thorough: bool = True
) -> Finding:
    """Compare the two. `changes`: as of `partition_changes`, unless the caller is about to make them.

    `thorough`: look at the events of the partitions that the view does not cover, and look up a hundred of
    those that do not say it; otherwise the few that come after all that it does.
    """
    days = _days(page, view, thorough)
    wrong = dict(zip(_SENTENCES, (*days, *changes), strict=True))
    text = "; ".join(
        f"{first_names(keys)} {'is' if len(keys) == 1 else 'are'} {_SENTENCES[what]}"
        for what, keys in wrong.items()
        if keys
    )
    return Finding(
        passed=not text,
        text=text or "Dagster's partitions are those of the timeline",
        # What a person would take for done; what is shown for what it is only warns.
        warn=not days[0],
        measures={what: len(keys) for what, keys in wrong.items()},
        details=_table(wrong),
    )


def _table(wrong: dict[str, Sequence[str]]) -> dict[str, dg.MetadataValue]:
    rows = [dg.TableRecord({"partition": key, "what": what}) for what, keys in wrong.items() for key in keys]
    return {"differences": dg.MetadataValue.table(rows)} if rows else {}


def _days(page: Page, view: TimelineView, thorough: bool) -> tuple[list[str], list[str], list[str]]:
    """Partitions that no checkpoint holds, shown as materialized and as failed, and partitions that are held
    and not shown as materialized; each sorted.
    """
    assets = page.assets
    if page.files is None:
        return [], [], []
    # Each in its own words: a week may have the name of a day.
    definitions = {key: page.states.get(key) or page.files for key in assets.state_keys}
    definitions[assets.files_key] = page.files
    shown = {key: _statuses(page, key, definition) for key, definition in definitions.items()}
    distinct = {id(each): each for each in definitions.values()}
    undone: dict[str, set[dg.AssetPartitionStatus]] = {}
    for key in _to_look_up(shown, page, view, thorough):
        held = {place: is_held(view, each, key) for place, each in distinct.items()}  # by a request, maybe
        for asset, statuses in shown.items():
            if key in statuses and _is_lost(page, view, asset, key, held[id(definitions[asset])]):
                undone.setdefault(key, set()).add(statuses[key])
    green = [key for key, each in undone.items() if dg.AssetPartitionStatus.MATERIALIZED in each]
    red = [key for key, each in undone.items() if each == {dg.AssetPartitionStatus.FAILED}]
    unseen = {
        key
        for asset in assets.state_keys
        for key in _names(view)
        if _is_unseen(view, key, asset, shown[asset], assets)
        and has_partition(definitions[asset], key, page.instance)
        and is_held(view, definitions[asset], key)
        and not _is_at_work(page.instance, key)
    }
    return sorted(green), sorted(red), sorted(unseen)


def _is_lost(page: Page, view: TimelineView, asset: dg.AssetKey, key: str, is_held: bool) -> bool:
    """Whether no checkpoint holds what an asset shows of a partition. `is_held`: one holds a batch of its
    name.
    """
    own = held_by(view, key, asset, page.assets)
    if own or (own is None and is_held and len(page.assets.state_keys) == 1):
        return not is_held
    # Its batch is in the archive, by its name alone; or has a name of its own.
    numbers = _of_timeline(shown_in(page.newest(asset, key)), view)
    return any(map(view.is_abandoned, numbers)) if numbers else own is False or not is_held


def _is_unseen(
    view: TimelineView,
    key: str,
    asset: dg.AssetKey,
    statuses: Mapping[str, dg.AssetPartitionStatus],
    assets: JobAssets,
) -> bool:
    """Whether the asset does not show a partition that it made; or, where it is alone, that the job holds.
    The state of a job outside of Dagster has no partitions.
    """
    if not statuses or statuses.get(key) not in (dg.AssetPartitionStatus.FAILED, None):
        return False
    own = held_by(view, key, asset, assets)
    return len(assets.state_keys) == 1 if own is None else own


def _statuses(
    page: Page, key: dg.AssetKey, definition: dg.PartitionsDefinition[Any]
) -> dict[str, dg.AssetPartitionStatus]:
    """Of the partitions that were ever materialized, as Dagster's page has them."""
    ever = sorted(page.materialized(key))
    found = (ever and page.instance.get_status_by_partition(key, ever, definition)) or {}
    # Dagster has no status for a definition of one's own.
    return {each: found.get(each) or dg.AssetPartitionStatus.MATERIALIZED for each in ever}


def _of_timeline(shown: Iterable[Shown], view: TimelineView) -> list[int]:
    return [each.checkpoint_id for each in shown if each.timeline_id == view.timeline_id]


def _to_look_up(
    shown: Mapping[dg.AssetKey, Iterable[str]], page: Page, view: TimelineView, thorough: bool
) -> list[str]:
    """Those that cost no request, those whose events show what a restore undid, and the latest others."""
    names, keys = _names(view), {key for each in shown.values() for key in each}
    free, others = list(keys & names), sorted(keys - names, reverse=True)
    if not view.snapshot_slot:
        return free + others
    if thorough:
        undone, unsaid = _unsure(shown, others, page, view)
        return free + undone + unsaid[:_ARCHIVED_AT_ONCE]
    held = {batch.key for batch, ids in view.keys.items() if not all(map(view.is_abandoned, ids))}
    # Partitions become state in order: what comes before one that is held is held as well. The batch of a run
    # without partitions, and that of a driver, is before or after none.
    last = max(
        (key for key in held if page.files and has_partition(page.files, key, page.instance)), default=""
    )
    return free + [key for key in others if key > last][:_ARCHIVED_BESIDE]


def _unsure(
    shown: Mapping[dg.AssetKey, Iterable[str]], keys: Iterable[str], page: Page, view: TimelineView
) -> tuple[list[str], list[str]]:
    """Of these partitions those whose events show what a restore undid, and those whose events do not say of
    which checkpoint of this timeline they are.
    """
    names = _names(view)
    said = [page.checkpoints(asset, lambda key: key not in names) for asset in shown]
    undone, unsaid = [], []
    for key in keys:
        numbers = [_of_timeline(each[key], view) for each in said if key in each]
        if any(view.is_abandoned(each) for some in numbers for each in some):
            undone.append(key)
        elif not numbers or not all(numbers):
            unsaid.append(key)
    return undone, unsaid


def _names(view: TimelineView) -> set[str]:
    """Of the batches since the newest snapshot."""
    return {batch.key for batch in view.keys}


def _is_at_work(instance: dg.DagsterInstance, partition: str) -> bool:
    """A run of the partition has not ended: its last step materializes the state."""
    return any(
        not run.is_finished
        for tag in _PARTITION_TAGS
        for run in instance.get_runs(dg.RunsFilter(tags={tag: partition}), limit=_RUNS)
    )
