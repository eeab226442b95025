"""Asset checks of a job's checkpoints: can the last one be restored, is it recent, what did it cost, how much
garbage is there.

Owns the checks and how their results read. A check changes nothing, except that finding garbage writes one
small object to read the server's clock.
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

from collections.abc import Callable, Iterator
from datetime import timedelta

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import DstlError, FormatError, NotFoundError, UnavailableError
from dstl_dagster.format import readable_bytes
from dstl_dagster.keyed import list_price_usd
from dstl_dagster.orchestration.failures import DEFAULT_RETRY_POLICY
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.resources import ChangelogStorageResource
from dstl_dagster.settings import CostBudget

__all__ = ["DEFAULT_MAX_AGE", "build_checkpoint_checks"]

_GIB = 1024**3
DEFAULT_MAX_AGE = timedelta(days=1, hours=12)
"""A daily job may be half a day late."""
_SHOWN = 20
MANIFEST, OBJECTS, ORPHANS, AGE = "manifest_readable", "objects_present", "orphan_bytes", "checkpoint_age"
COST = "cost_budget"


def build_checkpoint_checks(
    job: str | JobAssets,
    *,
    orphan_budget_bytes: int = _GIB,
    max_age: timedelta = DEFAULT_MAX_AGE,
    budget: CostBudget | None = None,
    changelog: ChangelogStorageResource | None = None,
    clock: Clock | None = None,
) -> dg.AssetChecksDefinition:
    """Four checks of `<job>/checkpoints`, in one op; five with a `budget`.

    `manifest_readable` and `objects_present` inspect the last checkpoint: its manifests, and the size of
    each object that its state references. `orphan_bytes` is what the next clean-up would delete.
    `checkpoint_age` goes by the writer's clock. `cost_budget` is about steps 1 to 4 of the last checkpoint,
    at the prices of the job's options.
    """
    assets = JobAssets.of(job)
    check_clock = clock or SystemClock()
    descriptions = {
        MANIFEST: "The manifest of the last checkpoint can be read, and so can the older ones it references.",
        OBJECTS: "Every object that the state of the last checkpoint references exists, with the right size.",
        ORPHANS: f"Unreferenced objects take up at most {readable_bytes(orphan_budget_bytes)}.",
        AGE: f"The last checkpoint is at most {max_age} old.",
    }
    if budget:
        descriptions[COST] = f"The last checkpoint cost at most {_in_words(budget)}."

    def results(resource: ChangelogStorageResource) -> Iterator[dg.AssetCheckResult]:
        coordinator = resource.coordinator(assets.job)
        latest, readable = _readable(assets, coordinator)
        yield readable
        yield _present(assets, coordinator, latest)
        yield _orphans(assets, coordinator, orphan_budget_bytes)
        yield _age(assets, coordinator, check_clock, max_age)
        if budget:
            yield _cost(assets, coordinator, latest, budget)

    return dg.multi_asset_check(
        name=f"{assets.group_name}_checkpoint_checks",
        specs=[
            dg.AssetCheckSpec(name, asset=assets.checkpoints_key, description=description)
            for name, description in descriptions.items()
        ],
        retry_policy=DEFAULT_RETRY_POLICY,
    )(_with_changelog(changelog, results))


def _with_changelog(
    given: ChangelogStorageResource | None,
    results: Callable[[ChangelogStorageResource], Iterator[dg.AssetCheckResult]],
) -> Callable[..., Iterator[dg.AssetCheckResult]]:
    """The function that Dagster calls. A given resource is not bound by name: several jobs share the name."""

    def with_given() -> Iterator[dg.AssetCheckResult]:
        assert given is not None
        with given.process_config_and_initialize_cm() as resource:
            yield from results(resource)

    def with_injected(changelog: ChangelogStorageResource) -> Iterator[dg.AssetCheckResult]:
        yield from results(changelog)

    return with_injected if given is None else with_given


def _readable(
    assets: JobAssets, coordinator: CheckpointCoordinator
) -> tuple[Checkpoint | None, dg.AssetCheckResult]:
    try:
        latest = coordinator.latest()
        if latest is None:
            return None, _result(assets, MANIFEST, False, "the job has no checkpoint yet", warn=True)
        for operator in latest.manifest.operators:
            coordinator.operator_state(latest, operator)
    except UnavailableError:
        raise  # not a finding: the store is unavailable, and the op is retried
    except DstlError as error:
        return None, _result(assets, MANIFEST, False, str(error))
    return latest, _result(assets, MANIFEST, True, f"checkpoint {latest.checkpoint_id} can be restored")


def _present(
    assets: JobAssets, coordinator: CheckpointCoordinator, latest: Checkpoint | None
) -> dg.AssetCheckResult:
    if latest is None:
        return _result(assets, OBJECTS, False, "no checkpoint is readable", warn=True)
    problems: list[str] = []
    count = size = 0
    for operator in latest.manifest.operators:
        try:
            state = coordinator.operator_state(latest, operator)
        except NotFoundError as error:
            problems.append(str(error))
            continue
        for handle in () if state is None else state.handles:
            for stream in handle.streams:
                found = coordinator.store.stat(stream.name)
                count, size = count + 1, size + (0 if found is None else found.size)
                if found is None:
                    problems.append(f"{stream.name} is missing")
                elif stream.stored_bytes not in (None, found.size):
                    problems.append(f"{stream.name} has {found.size} bytes, not {stream.stored_bytes}")
    finding = f"{count} objects, {readable_bytes(size)}"
    if problems:
        finding += ": " + "; ".join(problems[:_SHOWN])
    return _result(assets, OBJECTS, not problems, finding)


def _orphans(assets: JobAssets, coordinator: CheckpointCoordinator, budget_bytes: int) -> dg.AssetCheckResult:
    try:
        report = coordinator.clean_up(dry_run=True)
    except (FormatError, NotFoundError) as error:
        # Unknown rather than too much: clean-up deletes nothing either.
        return _result(assets, ORPHANS, False, f"unknown: {error}", warn=True)
    finding = (
        f"{report.objects} objects, {readable_bytes(report.deleted_bytes)} of at most "
        f"{readable_bytes(budget_bytes)}"
    )
    within = report.deleted_bytes <= budget_bytes
    advice = "" if within else ": run step 7 (clean up)"
    return _result(assets, ORPHANS, within, finding + advice, warn=True)


def _age(
    assets: JobAssets, coordinator: CheckpointCoordinator, clock: Clock, max_age: timedelta
) -> dg.AssetCheckResult:
    entry = coordinator.timeline.tail().last_completed
    if entry is None:
        return _result(assets, AGE, False, "the job has no checkpoint yet", warn=True)
    age = clock.now() - entry.completed.recorded_at
    rounded = timedelta(seconds=round(age.total_seconds()))
    finding = f"checkpoint {entry.checkpoint_id} is {rounded} old, at most {max_age} is allowed"
    return _result(assets, AGE, age <= max_age, finding, warn=True)


def _cost(
    assets: JobAssets, coordinator: CheckpointCoordinator, latest: Checkpoint | None, budget: CostBudget
) -> dg.AssetCheckResult:
    if latest is None:
        return _result(assets, COST, False, "no checkpoint is readable", warn=True)
    cost = latest.manifest.cost
    if cost is None:
        finding = f"unknown: checkpoint {latest.checkpoint_id} was written by a release that did not count"
        return _result(assets, COST, False, finding, warn=True)
    total, usd = cost.total, list_price_usd(cost.total, coordinator.prices)
    spent = CostBudget(total.requests, total.bytes_up + total.bytes_down, usd)
    over = [
        name
        for name in ("requests", "bytes", "usd")
        if getattr(budget, name) is not None and getattr(spent, name) > getattr(budget, name)
    ]
    finding = f"checkpoint {latest.checkpoint_id} cost {_in_words(spent)}; allowed are {_in_words(budget)}"
    if over:
        finding += ". `dstl checkpoints show` has the steps: look for many small files, retries and reads"
    return _result(assets, COST, not over, finding, warn=True)


def _in_words(budget: CostBudget) -> str:
    limits = (
        None if budget.requests is None else f"{budget.requests:,} requests",
        None if budget.bytes is None else f"{readable_bytes(budget.bytes)} moved",
        None if budget.usd is None else f"{budget.usd:.6f} USD",
    )
    return ", ".join(limit for limit in limits if limit is not None)


def _result(
    assets: JobAssets, name: str, passed: bool, finding: str, *, warn: bool = False
) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=assets.checkpoints_key,
        check_name=name,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN if warn else dg.AssetCheckSeverity.ERROR,
        description=finding,
        metadata={"found": finding},
    )
