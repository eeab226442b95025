"""Asset checks of a job's checkpoints: one table of what each is about, and what it finds.

Owns the checks that read the store, and which there are. Does not own those that cost next to nothing and are
evaluated beside a checkpoint as well (`findings`). A check changes nothing, except that finding
garbage writes one small object to read the server's clock.
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Final, NamedTuple

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import DstlError, FormatError, InvalidInputError, NotFoundError, UnavailableError
from dstl_dagster.format import counted, measure, mebibytes, readable_bytes, readable_duration
from dstl_dagster.orchestration.code_location import assets_in, code_location
from dstl_dagster.orchestration.failures import DEFAULT_RETRY_POLICY
from dstl_dagster.orchestration.inject.resources import ChangelogStorageResource, with_changelog
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.report import findings
from dstl_dagster.orchestration.report.findings import MAX_AGE_HOURS, NONE_YET, Finding, partitions_finding
from dstl_dagster.orchestration.report.reconcile import partition_changes
from dstl_dagster.orchestration.report.shown import Page
from dstl_dagster.orchestration.timeline_check import compare_timeline
from dstl_dagster.settings import CostBudget, parse_float

_GIB = 1024**3
DEFAULT_MAX_AGE = timedelta(days=1, hours=12)
"""A daily job may be half a day late."""
_SHOWN = 20


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
            checkpoint may lose; `delete_share`, that of deletes among its changes; `null_keys`, the number
            of its rows that have a null in a key column; `unchanged_days`.
        partitions_def: of the job's state and files, where the partition of a batch is its idempotency key,
            as it is unless the batch names another. Without it `partitions_match_timeline` compares the
            partitions of the checkpoints alone.
    """
    assets = JobAssets.of(job)
    limits: dict[str, Any] = {
        **dict.fromkeys(name for name, check in CHECKS.items() if "{" not in check.about),
        "orphan_bytes": orphan_budget_bytes,
        findings.AGE: max_age,
        **({"cost_budget": budget} if budget else {}),
        **parse_limits(data or {}),
    }
    check_clock = clock or SystemClock()

    def results(
        context: dg.AssetCheckExecutionContext, changelog: ChangelogStorageResource
    ) -> Iterator[dg.AssetCheckResult]:
        chosen = {key.name for key in context.selected_asset_check_keys}
        op_context, coordinator = context.op_execution_context, changelog.coordinator(assets.job)
        found, definitions = assets_in(op_context, assets), code_location(op_context)
        page = Page(found, op_context.instance, partitions_def, definitions=definitions)
        if findings.PARTITIONS in chosen:
            page = page.with_plain()
        page = page.with_states()
        look = _Look(page, coordinator, check_clock)
        # None looks at a store that is not the one that was shown.
        away = compare_timeline(page.instance, coordinator, *page.assets.showing_keys).away
        for name, limit in limits.items():
            if name in chosen:
                result = look.find(name, limit) if away is None else Finding(False, away)
                yield dg.AssetCheckResult(asset_key=found.checkpoints_key, **result.fields(name))

    return dg.multi_asset_check(
        name=f"{assets.group_name}_checkpoint_checks",
        specs=[
            dg.AssetCheckSpec(
                name,
                asset=assets.checkpoints_key,
                description=CHECKS[name].about.format(CHECKS[name].words(limit)),
                # By this the sensor knows what it allows.
                metadata={MAX_AGE_HOURS: max_age / timedelta(hours=1)} if name == findings.AGE else None,
            )
            for name, limit in limits.items()
        ],
        # Without it Dagster's page cannot run checks of an asset that it does not materialize.
        can_subset=True,
        retry_policy=DEFAULT_RETRY_POLICY,
    )(with_changelog(changelog, results))


def parse_limits(data: Mapping[str, float | str]) -> dict[str, float]:
    """The limits of checks of the data. Raises: InvalidInputError for another name, or a limit that is
    none.
    """
    for name in data.keys() - {*_DATA}:
        raise InvalidInputError(f"{name!r} is no check of the data: they are {', '.join(_DATA)}")
    limits = {name: parse_float(name, limit, minimum=0) for name, limit in data.items()}
    for name in _SHARES:
        if limits.get(name, 0) > 1:
            raise InvalidInputError(f"{name} is a share, 0 to 1, not {limits[name]}")
    return limits


@dataclass(frozen=True)
class _Look:
    """One run of the checks. What several of them read is read once, and only for those that run."""

    page: Page
    coordinator: CheckpointCoordinator
    clock: Clock

    @cached_property
    def readable(self) -> tuple[Checkpoint | None, Finding]:
        """The last checkpoint, if its manifests can be read.

        Raises: UnavailableError: nothing is found of a store that does not answer.
        """
        try:
            latest = self.coordinator.latest()
        except UnavailableError:
            raise
        except DstlError as error:
            return None, Finding(False, str(error))
        if latest is None:
            return None, Finding(True, NONE_YET)
        operators = latest.manifest.operators
        depth = max((len(entry.runs) for entry in operators.values()), default=0)
        measures = {"operators": len(operators), "runs that a restore reads": depth}
        said = f"checkpoint {latest.checkpoint_id}: its manifest, and those it needs, can be read"
        return latest, Finding(True, said, measures=measures)

    def find(self, name: str, limit: Any) -> Finding:
        """Of the check of this name."""
        check = CHECKS[name]
        if not check.is_of_latest:
            return check.find(self, limit)
        if self.readable[0] is not None:
            return check.find(self, self.readable[0], limit)
        if self.coordinator.timeline.seen().last_completed is None:
            return Finding(True, NONE_YET)
        return Finding(False, "no checkpoint is readable", warn=True)


class _Check(NamedTuple):
    """What a check finds, by a look and its limit, and by the last checkpoint where it is about that. Its
    description has a place for the limit, if it has one; `words`: of the limit.
    """

    about: str
    find: Callable[..., Finding]
    is_of_latest: bool = False
    words: Callable[[Any], Any] = lambda limit: limit


# ---- the store ----


def _objects(look: _Look, latest: Checkpoint, _: None) -> Finding:
    problems: list[str] = []
    files, size = latest.manifest.changelog_files, 0
    for stream in files:
        found = look.coordinator.store.stat(stream.name)
        size += 0 if found is None else found.size
        if found is None:
            problems.append(f"{stream.name} is missing")
        elif stream.stored_bytes not in (None, found.size):
            problems.append(f"{stream.name} has {found.size} bytes, not {stream.stored_bytes}")
    text = f"{counted(len(files), 'object')}, {readable_bytes(size)}"
    if problems:
        text += ": " + "; ".join(problems[:_SHOWN])
    measures = {"objects": len(files), "MiB": mebibytes(size), "problems": len(problems)}
    return Finding(not problems, text, measures=measures)


def _orphans(look: _Look, most_bytes: int) -> Finding:
    """What the next clean-up would delete."""
    try:
        report = look.coordinator.clean_up(dry_run=True)
    except (FormatError, NotFoundError) as error:
        # Unknown rather than too much: clean-up deletes nothing either.
        return Finding(False, f"unknown: {error}", warn=True)
    within = report.deleted_bytes <= most_bytes
    text = (
        f"{counted(report.objects, 'object')}, {readable_bytes(report.deleted_bytes)} of at most "
        f"{readable_bytes(most_bytes)}{'' if within else ': run step 7 (clean up)'}"
    )
    measures = {"orphan objects": report.objects, "orphan MiB": mebibytes(report.deleted_bytes)}
    return Finding(within, text, warn=True, measures=measures)


def _cost(look: _Look, latest: Checkpoint, budget: CostBudget) -> Finding:
    """Of steps 1 to 4."""
    total = latest.manifest.counted_cost
    if total is None:
        text = f"unknown: not all requests of checkpoint {latest.checkpoint_id} were counted"
        return Finding(False, text, warn=True)
    usd = total.usd(look.coordinator.prices)
    moved = total.bytes_up + total.bytes_down
    spent = CostBudget(total.requests, moved, usd)
    over = [
        limit
        for limit in ("requests", "bytes", "usd")
        if getattr(budget, limit) is not None and getattr(spent, limit) > getattr(budget, limit)
    ]
    text = f"checkpoint {latest.checkpoint_id} cost {_in_words(spent)}; allowed are {_in_words(budget)}"
    if over:
        text += ". `dstl checkpoints show` has the steps: look for many small files, retries and reads"
    measures = {
        "requests": total.requests,
        "MiB moved": mebibytes(moved),
        "cost micro-USD": measure(usd * 1_000_000),
    }
    return Finding(not over, text, warn=True, measures=measures)


def _in_words(budget: CostBudget) -> str:
    limits = (
        None if budget.requests is None else counted(budget.requests, "request"),
        None if budget.bytes is None else f"{readable_bytes(budget.bytes)} moved",
        None if budget.usd is None else f"{budget.usd:.6f} USD",
    )
    return ", ".join(limit for limit in limits if limit is not None)


def _partitions(look: _Look, _: None) -> Finding:
    changes = partition_changes(look.page, look.coordinator)
    return partitions_finding(look.page, look.coordinator.timeline.seen(), changes)


# ---- the data, by manifests alone ----


def _row_drop(look: _Look, latest: Checkpoint, most: float) -> Finding:
    """By the bounds of both: a drop that is certain."""
    rows, which = latest.manifest.rows, f"checkpoint {latest.checkpoint_id}"
    try:
        before = None if latest.parent is None else look.coordinator.get(latest.parent)
    except NotFoundError:
        before = None
    if before is None:
        return _limited("row drop", 0.0, most, f"{which} has none before it to be compared with")
    were = before.manifest.rows
    if rows is None or rows.most is None or were is None or not were.least:
        return _limited(
            "row drop", 0.0, most, f"unknown: the rows of {which}, or of the one before, were not counted"
        )
    text = f"{which} has {rows.in_words()} rows, and the one before had {were.in_words()}"
    return _limited("row drop", max(0.0, 1 - rows.most / were.least), most, text)


def _delete_share(_: _Look, latest: Checkpoint, most: float) -> Finding:
    deletes = sum(entry.report.deletes for entry in latest.manifest.operators.values())
    changes = latest.manifest.changes
    text = f"{deletes:,} of {changes:,} changes of checkpoint {latest.checkpoint_id} are deletes"
    return _limited("delete share", deletes / changes if changes else 0.0, most, text)


def _null_keys(_: _Look, latest: Checkpoint, most: float) -> Finding:
    found = sum(entry.report.null_keys for entry in latest.manifest.operators.values())
    upserts = sum(entry.report.upserts for entry in latest.manifest.operators.values())
    text = f"{found:,} of {upserts:,} upserts of checkpoint {latest.checkpoint_id} have a null in their key"
    return _limited("null keys", found, most, text)


def _unchanged_days(look: _Look, latest: Checkpoint, most: float) -> Finding:
    """Since the newest retained checkpoint that changed something; else since before the oldest."""
    changed = latest
    for entry in reversed(look.coordinator.timeline.seen().retained):
        changed = look.coordinator.get(entry.checkpoint_id)
        if changed.manifest.changes:
            break
    since = look.clock.now() - changed.entry.completed.recorded_at
    what = "changed something" if changed.manifest.changes else "is the oldest one, and changed nothing"
    text = f"checkpoint {changed.checkpoint_id} {what}, {readable_duration(since)} ago"
    return _limited("unchanged days", since / timedelta(days=1), most, text)


def _limited(measured: str, found: float, most: float, text: str) -> Finding:
    return Finding(found <= most, text, warn=True, measures={measured: found})


_SHARES: Final = ("row_drop", "delete_share")
_DATA: Final = (*_SHARES, "null_keys", "unchanged_days")
"""The checks of the data."""

CHECKS: Final[Mapping[str, _Check]] = {
    "manifest_readable": _Check(
        "The manifest of the last checkpoint can be read, and so can those it needs.",
        lambda look, _: look.readable[1],
    ),
    "objects_present": _Check(
        "Every object that the last checkpoint's state needs is there, with its size.", _objects, True
    ),
    findings.PUBLISHED: _Check(
        "Every file of the last checkpoint has its final name.",
        lambda look, _: findings.unpublished_files(look.coordinator.timeline.tail(), look.clock),
    ),
    findings.BLOCKED: _Check(
        "No file waits for a person: a foreign object has the name of each that does.",
        lambda look, _: findings.blocked_files(look.coordinator.timeline.tail()),
    ),
    findings.PARTITIONS: _Check(
        "What Dagster shows as materialized and as restorable is what the timeline holds, also after a "
        "restore.",
        _partitions,
    ),
    "orphan_bytes": _Check("Unreferenced objects take up at most {}.", _orphans, words=readable_bytes),
    findings.AGE: _Check(
        "The last checkpoint is at most {} old.",
        lambda look, most: findings.of_age(look.coordinator.timeline.tail(), look.clock, most),
        words=readable_duration,
    ),
    "cost_budget": _Check("The last checkpoint cost at most {}.", _cost, True, _in_words),
    "row_drop": _Check(
        "The last checkpoint has at most {:.0%} fewer rows than the one before.", _row_drop, True
    ),
    "delete_share": _Check(
        "At most {:.0%} of what the last checkpoint changed was deleted.", _delete_share, True
    ),
    "null_keys": _Check("At most {:,.0f} rows of the last checkpoint have a null key.", _null_keys, True),
    "unchanged_days": _Check("Something has changed within {:g} days.", _unchanged_days, True),
}
"""By name, in the order of Dagster's page; those with a limit only where there is one."""
