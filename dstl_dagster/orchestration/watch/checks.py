"""Asset checks of a job's checkpoints.

Owns which checks there are, and what each run of them reads. Does not own what they find (`findings`,
`agreement`), or those that are evaluated beside a checkpoint (`agreement.evaluations_beside`).
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from typing import Any

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.format import readable_bytes
from dstl_dagster.orchestration.definitions import assets_in
from dstl_dagster.orchestration.failures import DEFAULT_RETRY_POLICY
from dstl_dagster.orchestration.inject.resources import ChangelogStorageResource
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.report import findings
from dstl_dagster.orchestration.report.agreement import partitions_finding
from dstl_dagster.orchestration.report.data_findings import DATA_CHECKS, data_finding, parse_limits
from dstl_dagster.orchestration.report.findings import Finding
from dstl_dagster.orchestration.report.reconcile import partition_changes
from dstl_dagster.orchestration.timeline_check import compare_timeline
from dstl_dagster.orchestration.watch.changelog import with_changelog
from dstl_dagster.settings import CostBudget

__all__ = [
    "DEFAULT_MAX_AGE",
    "build_checkpoint_checks",
]

_GIB = 1024**3
DEFAULT_MAX_AGE = timedelta(days=1, hours=12)
"""A daily job may be half a day late."""


@dataclass(frozen=True)
class _Limits:
    """What the checks of a job allow."""

    orphan_bytes: int
    max_age: timedelta
    budget: CostBudget | None
    data: Mapping[str, float]
    partitions_def: dg.PartitionsDefinition[Any] | None

    def descriptions(self) -> dict[str, str]:
        """Each check's, by its name; these are the checks that there are."""
        about = {
            findings.MANIFEST: "The manifest of the last checkpoint can be read, and so can those it needs.",
            findings.OBJECTS: "Every object that the last checkpoint's state needs is there, with its size.",
            findings.PUBLISHED: "Every file of the last checkpoint has its final name.",
            findings.BLOCKED: "No file waits for a person: a foreign object has the name of each that does.",
            findings.PARTITIONS: "What Dagster shows as materialized and as restorable is what the timeline "
            "holds, also after a restore.",
            findings.ORPHANS: f"Unreferenced objects take up at most {readable_bytes(self.orphan_bytes)}.",
            findings.AGE: f"The last checkpoint is at most {self.max_age} old.",
        }
        if self.budget:
            about[findings.COST] = f"The last checkpoint cost at most {findings.in_words(self.budget)}."
        return about | {name: DATA_CHECKS[name].format(limit) for name, limit in self.data.items()}


def build_checkpoint_checks(
    job: str | JobAssets,
    *,
    orphan_budget_bytes: int = _GIB,
    max_age: timedelta = DEFAULT_MAX_AGE,
    budget: CostBudget | None = None,
    data: Mapping[str, float] | None = None,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    changelog: ChangelogStorageResource | None = None,
    clock: Clock | None = None,
) -> dg.AssetChecksDefinition:
    """Seven checks of `<job>/checkpoints` in one op, each of which can run alone; `budget`, `data` add more.

    `manifest_readable` and `objects_present` inspect the last checkpoint: its manifests, and the size of
    each object that its state references. `files_published` and `no_blocked_files` are about step 6.
    `partitions_match_timeline` compares what Dagster shows with the timeline, and names the partitions to run
    again after a restore. `orphan_bytes` is what the next clean-up would delete. `checkpoint_age` goes by the
    writer's clock. `cost_budget` is about steps 1 to 4 of the last checkpoint, at the prices of the job's
    options.

    Args:
        data: limits of checks of the data, by manifests alone: `row_drop`, the share of rows that the last
            checkpoint may lose; `delete_share`, that of deletes among its changes; `unchanged_days`.
        partitions_def: of the job's state and files, where the partition of a batch is its idempotency key,
            as it is unless the batch names another. Without it `partitions_match_timeline` compares the
            partitions of the checkpoints alone.
    """
    assets = JobAssets.of(job)
    limits = _Limits(orphan_budget_bytes, max_age, budget, parse_limits(data or {}), partitions_def)
    check_clock = clock or SystemClock()

    def results(
        context: dg.AssetCheckExecutionContext, resource: ChangelogStorageResource
    ) -> Iterator[dg.AssetCheckResult]:
        chosen = {key.name for key in context.selected_asset_check_keys}
        instance = context.op_execution_context.instance
        shown = assets_in(context.op_execution_context, assets)
        look = _Look(shown, resource.coordinator(assets.job), limits, check_clock, instance)
        for finding in look.findings(chosen):
            yield finding.result(shown)

    return dg.multi_asset_check(
        name=f"{assets.group_name}_checkpoint_checks",
        specs=[
            dg.AssetCheckSpec(
                name,
                asset=assets.checkpoints_key,
                description=description,
                metadata=findings.age_limit(max_age) if name == findings.AGE else None,
            )
            for name, description in limits.descriptions().items()
        ],
        # Without it Dagster's page cannot run checks of an asset that it does not materialize.
        can_subset=True,
        retry_policy=DEFAULT_RETRY_POLICY,
    )(with_changelog(changelog, results))


@dataclass(frozen=True)
class _Look:
    """One run of the checks. What several of them read is read once, and only for those that run."""

    assets: JobAssets
    coordinator: CheckpointCoordinator
    limits: _Limits
    clock: Clock
    instance: dg.DagsterInstance

    @cached_property
    def readable(self) -> tuple[Checkpoint | None, Finding]:
        """The last checkpoint, if it can be read."""
        return findings.of_readability(self.coordinator)

    def findings(self, chosen: Collection[str]) -> Iterator[Finding]:
        """Those of the chosen checks. None looks at a store that is not the one that was shown."""
        away = compare_timeline(self.instance, self.coordinator).away
        for name, find in self._by_name().items():
            if name in chosen:
                yield find() if away is None else Finding(name, False, away)

    def _by_name(self) -> dict[str, Callable[[], Finding]]:
        coordinator, limits, clock = self.coordinator, self.limits, self.clock
        tail = coordinator.timeline.tail
        found: dict[str, Callable[[], Finding]] = {
            findings.MANIFEST: lambda: self.readable[1],
            findings.OBJECTS: lambda: findings.of_objects(coordinator, self.readable[0]),
            findings.PUBLISHED: lambda: findings.unpublished_files(tail(), clock),
            findings.BLOCKED: lambda: findings.blocked_files(tail()),
            findings.PARTITIONS: self._partitions,
            findings.ORPHANS: lambda: findings.of_orphans(coordinator, limits.orphan_bytes),
            findings.AGE: lambda: findings.of_age(tail(), clock, limits.max_age),
        }
        budget = limits.budget
        if budget:
            found[findings.COST] = lambda: findings.of_cost(coordinator, self.readable[0], budget)
        for name, limit in limits.data.items():
            found[name] = partial(self._data, name, limit)
        return found

    def _data(self, name: str, limit: float) -> Finding:
        return data_finding(name, limit, self.coordinator, self.readable[0], self.clock)

    def _partitions(self) -> Finding:
        changes = partition_changes(self.instance, self.assets, self.coordinator)
        return partitions_finding(
            self.instance, self.assets, self.coordinator.timeline.seen(), changes, self.limits.partitions_def
        )
