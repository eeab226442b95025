"""What a check of a job's checkpoints finds: by the timeline, the store, and what Dagster shows.

Owns the findings, and how one reads as a result of Dagster's. Does not own which of them are checked when
(`checks`, `steps`, `sensors`). A finding changes nothing, except that finding garbage writes one small
object to read the server's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (  # no public name
    AssetCheckEvaluationTargetMaterializationData,
)

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.clock import Clock
from dstl_dagster.errors import DstlError, FormatError, NotFoundError, UnavailableError
from dstl_dagster.format import counted, readable_bytes
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.report.measures import MICRO, measure, mebibytes
from dstl_dagster.settings import CostBudget
from dstl_dagster.timeline import BlockedFile, TimelineView

__all__ = [
    "AGE",
    "BLOCKED",
    "COST",
    "MANIFEST",
    "OBJECTS",
    "ORPHANS",
    "PARTITIONS",
    "PUBLISHED",
    "Finding",
    "age_allowed",
    "age_limit",
    "blocked_files",
    "evaluations",
    "in_words",
    "of_age",
    "of_cost",
    "of_none",
    "of_objects",
    "of_orphans",
    "of_readability",
    "unpublished_files",
]

MANIFEST: Final = "manifest_readable"
OBJECTS: Final = "objects_present"
ORPHANS: Final = "orphan_bytes"
AGE: Final = "checkpoint_age"
COST: Final = "cost_budget"
PUBLISHED: Final = "files_published"
BLOCKED: Final = "no_blocked_files"
PARTITIONS: Final = "partitions_match_timeline"

_MAX_AGE_HOURS = "dstl/max_age_hours"
_SHOWN = 20
_NONE_YET: Final = "the job has no checkpoint yet"
_PUBLISHING = timedelta(minutes=15)
"""A checkpoint whose files are not published yet is at work for so long, and in trouble after that."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes:
        name: of the check.
        passed: all is well.
        text: one sentence: what was found, and what to do about it.
        warn: not passing is a warning, no error.
        measures: numbers, which Dagster plots.
        details: more metadata, such as a table of what is wrong.
    """

    name: str
    passed: bool
    text: str
    warn: bool = False
    measures: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    def result(self, assets: JobAssets) -> dg.AssetCheckResult:
        """For the op that runs the check."""
        return dg.AssetCheckResult(asset_key=assets.checkpoints_key, **self._fields())

    def evaluation(
        self, assets: JobAssets, target: AssetCheckEvaluationTargetMaterializationData | None
    ) -> dg.AssetCheckEvaluation:
        """For a step or a sensor that reports it beside a checkpoint, the one of `target`."""
        return dg.AssetCheckEvaluation(
            asset_key=assets.checkpoints_key, target_materialization_data=target, **self._fields()
        )

    def _fields(self) -> dict[str, Any]:
        return {
            "check_name": self.name,
            "passed": self.passed,
            "severity": dg.AssetCheckSeverity.WARN if self.warn else dg.AssetCheckSeverity.ERROR,
            "description": self.text,
            "metadata": {**self.measures, **self.details},
        }


def evaluations(
    instance: dg.DagsterInstance, assets: JobAssets, found: Iterable[Finding]
) -> list[dg.AssetCheckEvaluation]:
    """The findings as events of the newest checkpoint that the instance holds.

    Without it Dagster compares times to see whether a check is older than the checkpoint, and SQLite keeps
    that of a check in whole seconds.
    """
    newest = instance.fetch_materializations(assets.checkpoints_key, limit=1).records
    target = (
        AssetCheckEvaluationTargetMaterializationData(
            storage_id=newest[0].storage_id, run_id=newest[0].run_id, timestamp=newest[0].timestamp
        )
        if newest
        else None
    )
    return [each.evaluation(assets, target) for each in found]


def of_readability(coordinator: CheckpointCoordinator) -> tuple[Checkpoint | None, Finding]:
    """The last checkpoint, if its manifests can be read.

    Raises: UnavailableError: nothing is found of a store that does not answer.
    """
    try:
        latest = coordinator.latest()
        if latest is None:
            return None, Finding(MANIFEST, True, _NONE_YET)
    except UnavailableError:
        raise
    except DstlError as error:
        return None, Finding(MANIFEST, False, str(error))
    depth = max((len(entry.runs) for entry in latest.manifest.operators.values()), default=0)
    measures = {"operators": len(latest.manifest.operators), "runs that a restore reads": depth}
    return latest, Finding(
        MANIFEST, True, f"checkpoint {latest.checkpoint_id} can be restored", measures=measures
    )


def of_objects(coordinator: CheckpointCoordinator, latest: Checkpoint | None) -> Finding:
    """Whether each object that the state references is there, with its size."""
    if latest is None:
        return of_none(coordinator, OBJECTS)
    problems: list[str] = []
    count = size = 0
    for entry in latest.manifest.operators.values():
        for handle in entry.handles:
            for stream in handle.streams:
                found = coordinator.store.stat(stream.name)
                count, size = count + 1, size + (0 if found is None else found.size)
                if found is None:
                    problems.append(f"{stream.name} is missing")
                elif stream.stored_bytes not in (None, found.size):
                    problems.append(f"{stream.name} has {found.size} bytes, not {stream.stored_bytes}")
    text = f"{counted(count, 'object')}, {readable_bytes(size)}"
    if problems:
        text += ": " + "; ".join(problems[:_SHOWN])
    measures = {"objects": count, "MiB": mebibytes(size), "problems": len(problems)}
    return Finding(OBJECTS, not problems, text, measures=measures)


def of_none(coordinator: CheckpointCoordinator, name: str) -> Finding:
    """Without a checkpoint that can be read: all is well only while there is none at all."""
    if coordinator.timeline.seen().last_completed is None:
        return Finding(name, True, _NONE_YET)
    return Finding(name, False, "no checkpoint is readable", warn=True)


def of_orphans(coordinator: CheckpointCoordinator, budget_bytes: int) -> Finding:
    """What the next clean-up would delete, against a budget."""
    try:
        report = coordinator.clean_up(dry_run=True)
    except (FormatError, NotFoundError) as error:
        # Unknown rather than too much: clean-up deletes nothing either.
        return Finding(ORPHANS, False, f"unknown: {error}", warn=True)
    within = report.deleted_bytes <= budget_bytes
    text = (
        f"{counted(report.objects, 'object')}, {readable_bytes(report.deleted_bytes)} of at most "
        f"{readable_bytes(budget_bytes)}{'' if within else ': run step 7 (clean up)'}"
    )
    measures = {"orphan objects": report.objects, "orphan MiB": mebibytes(report.deleted_bytes)}
    return Finding(ORPHANS, within, text, warn=True, measures=measures)


def age_limit(max_age: timedelta) -> dict[str, float]:
    """The metadata of the check's spec, by which the sensor knows what it allows."""
    return {_MAX_AGE_HOURS: max_age.total_seconds() / 3600}


def age_allowed(repository: dg.RepositoryDefinition | None, assets: JobAssets) -> timedelta | None:
    """What the job's check of the age allows in these definitions; `None` where they have none."""
    key = dg.AssetCheckKey(assets.checkpoints_key, AGE)
    if repository is None or key not in repository.asset_graph.asset_check_keys:
        return None
    hours = repository.asset_graph.get_check_spec(key).metadata.get(_MAX_AGE_HOURS)
    return None if hours is None else timedelta(hours=hours)


def of_age(view: TimelineView, clock: Clock, max_age: timedelta) -> Finding:
    """How old the last checkpoint is, by the clock of its writer."""
    entry = view.last_completed
    if entry is None:
        return Finding(AGE, False, _NONE_YET, warn=True)
    age = clock.now() - entry.completed.recorded_at
    rounded = timedelta(seconds=round(age.total_seconds()))
    text = f"checkpoint {entry.checkpoint_id} is {rounded} old, at most {max_age} is allowed"
    hours = measure(max(age.total_seconds(), 0.0) / 3600)
    return Finding(AGE, age <= max_age, text, warn=True, measures={"age hours": hours})


def of_cost(coordinator: CheckpointCoordinator, latest: Checkpoint | None, budget: CostBudget) -> Finding:
    """What steps 1 to 4 of the last checkpoint cost, against a budget."""
    if latest is None:
        return of_none(coordinator, COST)
    cost = latest.manifest.cost
    if cost is None:
        text = f"unknown: the requests of checkpoint {latest.checkpoint_id} were not counted"
        return Finding(COST, False, text, warn=True)
    total, usd = cost.total, cost.total.usd(coordinator.prices)
    moved = total.bytes_up + total.bytes_down
    spent = CostBudget(total.requests, moved, usd)
    over = [
        limit
        for limit in ("requests", "bytes", "usd")
        if getattr(budget, limit) is not None and getattr(spent, limit) > getattr(budget, limit)
    ]
    text = f"checkpoint {latest.checkpoint_id} cost {in_words(spent)}; allowed are {in_words(budget)}"
    if over:
        text += ". `dstl checkpoints show` has the steps: look for many small files, retries and reads"
    measures = {
        "requests": total.requests,
        "MiB moved": mebibytes(moved),
        "cost micro-USD": measure(usd * MICRO),
    }
    return Finding(COST, not over, text, warn=True, measures=measures)


def unpublished_files(view: TimelineView, clock: Clock) -> Finding:
    """Whether all files of the last checkpoint have their final names."""
    entry = view.last_completed
    if entry is None:
        return Finding(PUBLISHED, True, _NONE_YET)
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
    return Finding(PUBLISHED, not waiting, text, warn=young and not blocked, measures=measures)


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
        return Finding(BLOCKED, True, "no file is blocked", measures=measures)
    first, file = blocked[0]
    table = dg.MetadataValue.table(
        [
            dg.TableRecord({"checkpoint": str(number), "file": each.name, "reason": each.reason})
            for number, each in blocked[:_SHOWN]
        ]
    )
    are = "is" if len(blocked) == 1 else "are"
    text = f"{counted(len(blocked), 'file')} {are} blocked, the first: {_resolve(first, file)}"
    return Finding(BLOCKED, False, text, measures=measures, details={"blocked": table})


def _resolve(checkpoint_id: int, file: BlockedFile) -> str:
    way_out = f"`dstl checkpoints resolve {checkpoint_id} {file.name}` with `--keep` or `--replace`"
    return f"{file.name}: {file.reason}. {way_out}"


def in_words(budget: CostBudget) -> str:
    """What a budget allows, or what was spent."""
    limits = (
        None if budget.requests is None else counted(budget.requests, "request"),
        None if budget.bytes is None else f"{readable_bytes(budget.bytes)} moved",
        None if budget.usd is None else f"{budget.usd:.6f} USD",
    )
    return ", ".join(limit for limit in limits if limit is not None)
