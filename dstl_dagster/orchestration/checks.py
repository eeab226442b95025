"""Asset checks of a job's checkpoints: can the last one be restored, is it young, is little left lying about.

Owns what is asked and how an answer looks. A check changes nothing; telling garbage asks the server for its
time, by writing one small object.
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

from collections.abc import Callable, Iterator
from datetime import timedelta

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import DstlError, FormatError, NotFoundError, UnavailableError
from dstl_dagster.format import readable_bytes
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.ops import DEFAULT_RETRY_POLICY
from dstl_dagster.orchestration.resources import ChangelogStorageResource

__all__ = ["DEFAULT_MAX_AGE", "build_checkpoint_checks"]

_GIB = 1024**3
DEFAULT_MAX_AGE = timedelta(days=1, hours=12)
"""A daily job may be half a day late."""
_SHOWN = 20
MANIFEST, OBJECTS, ORPHANS, AGE = "manifest_readable", "objects_present", "orphan_bytes", "checkpoint_age"


def build_checkpoint_checks(
    job: str | JobAssets,
    *,
    orphan_budget_bytes: int = _GIB,
    max_age: timedelta = DEFAULT_MAX_AGE,
    changelog: ChangelogStorageResource | None = None,
    clock: Clock | None = None,
) -> dg.AssetChecksDefinition:
    """Four checks of `<job>/checkpoints`, in one step.

    `manifest_readable` and `objects_present` look at the last checkpoint: its manifests, and each object
    that its state needs, by size. `orphan_bytes` is what the next clean-up would delete. `checkpoint_age`
    is by the writer's clock.
    """
    assets = job if isinstance(job, JobAssets) else JobAssets(job)
    asked_clock = clock or SystemClock()
    descriptions = {
        MANIFEST: "The last checkpoint's manifest, and the older ones it needs, can be read.",
        OBJECTS: "Every object that the last checkpoint's state needs is there, with its size.",
        ORPHANS: f"What nothing needs is below {readable_bytes(orphan_budget_bytes)}.",
        AGE: f"The last checkpoint is younger than {max_age}.",
    }

    def results(resource: ChangelogStorageResource) -> Iterator[dg.AssetCheckResult]:
        coordinator = resource.coordinator(assets.job)
        latest, readable = _readable(assets, coordinator)
        yield readable
        yield _present(assets, coordinator, latest)
        yield _orphans(assets, coordinator, orphan_budget_bytes)
        yield _age(assets, coordinator, asked_clock, max_age)

    return dg.multi_asset_check(
        name=f"{assets.group_name}_checkpoint_checks",
        specs=[
            dg.AssetCheckSpec(name, asset=assets.checkpoints_key, description=said)
            for name, said in descriptions.items()
        ],
        retry_policy=DEFAULT_RETRY_POLICY,
    )(_with_changelog(changelog, results))


def _with_changelog(
    given: ChangelogStorageResource | None,
    results: Callable[[ChangelogStorageResource], Iterator[dg.AssetCheckResult]],
) -> Callable[..., Iterator[dg.AssetCheckResult]]:
    """The function that Dagster calls. A given resource is not bound by its name, which is one for all."""

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
        raise  # not a finding: the store is away, and the step is tried again
    except DstlError as error:
        return None, _result(assets, MANIFEST, False, str(error))
    return latest, _result(assets, MANIFEST, True, f"checkpoint {latest.checkpoint_id} can be restored to")


def _present(
    assets: JobAssets, coordinator: CheckpointCoordinator, latest: Checkpoint | None
) -> dg.AssetCheckResult:
    if latest is None:
        return _result(assets, OBJECTS, False, "there is no readable checkpoint", warn=True)
    wrong: list[str] = []
    count = size = 0
    for operator in latest.manifest.operators:
        try:
            state = coordinator.operator_state(latest, operator)
        except NotFoundError as error:
            wrong.append(str(error))
            continue
        for handle in () if state is None else state.handles:
            for stream, _offset in handle.handles_and_offsets:
                there = coordinator.store.stat(stream.name)
                count, size = count + 1, size + (0 if there is None else there.size)
                if there is None:
                    wrong.append(f"{stream.name} is gone")
                elif stream.stored_bytes not in (None, there.size):
                    wrong.append(f"{stream.name} has {there.size} bytes, not {stream.stored_bytes}")
    said = f"{count} objects, {readable_bytes(size)}"
    if wrong:
        said += ": " + "; ".join(wrong[:_SHOWN])
    return _result(assets, OBJECTS, not wrong, said)


def _orphans(assets: JobAssets, coordinator: CheckpointCoordinator, budget_bytes: int) -> dg.AssetCheckResult:
    try:
        report = coordinator.clean_up(dry_run=True)
    except (FormatError, NotFoundError) as error:
        # Not how much there is, but that nobody can tell: clean-up deletes nothing then.
        return _result(assets, ORPHANS, False, f"cannot be told: {error}", warn=True)
    said = (
        f"{report.objects} objects, {readable_bytes(report.deleted_bytes)} of at most "
        f"{readable_bytes(budget_bytes)}"
    )
    within = report.deleted_bytes <= budget_bytes
    return _result(assets, ORPHANS, within, said if within else f"{said}: run step 7 (clean up)", warn=True)


def _age(
    assets: JobAssets, coordinator: CheckpointCoordinator, clock: Clock, max_age: timedelta
) -> dg.AssetCheckResult:
    entry = coordinator.timeline.tail().last_completed
    if entry is None:
        return _result(assets, AGE, False, "the job has no checkpoint yet", warn=True)
    age = clock.now() - entry.completed.recorded_at
    said = f"checkpoint {entry.checkpoint_id} is {timedelta(seconds=round(age.total_seconds()))} old"
    return _result(assets, AGE, age <= max_age, f"{said}, at most {max_age} is allowed", warn=True)


def _result(
    assets: JobAssets, name: str, passed: bool, said: str, *, warn: bool = False
) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=assets.checkpoints_key,
        check_name=name,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN if warn else dg.AssetCheckSeverity.ERROR,
        description=said,
        metadata={"found": said},
    )
