"""Sensors: reporting checkpoints that no run of Dagster reported, requesting runs for step 6, and aborting
attempts of dead runs.

Owns what Dagster expects of a sensor: the cursor's text, events, partition requests, and one line for the
page; and when a run is requested for step 6. Does not own what is new (`timeline_follower`), or what that run
does (`maintenance`).

Why a request is safe. Step 6 may run any number of times, by any number of processes: a run too many costs a
process, and a run too few leaves files unpublished. So what seems alive is waited for only for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg

from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator
from dstl_dagster.clock import Clock, SystemClock
from dstl_dagster.errors import ConflictError, NotFoundError
from dstl_dagster.format import counted, readable_time
from dstl_dagster.orchestration.inject.resources import ChangelogStorageResource, with_changelog
from dstl_dagster.orchestration.keys import TAG_ATTEMPT, TAG_CHECKPOINT, TAG_COMMIT, JobAssets
from dstl_dagster.orchestration.operate.maintenance import commit_run_config
from dstl_dagster.orchestration.owners import OwnerRuns, root_run_id, run_of_owner
from dstl_dagster.orchestration.report.failed_partitions import mark_partitions, settle_marks
from dstl_dagster.orchestration.report.findings import evaluations_beside
from dstl_dagster.orchestration.report.reconcile import partition_changes
from dstl_dagster.orchestration.report.shown import Page
from dstl_dagster.orchestration.watch.timeline_follower import Tick, TimelineFollower
from dstl_dagster.timeline import Committed, Completed, Restored


def build_checkpoint_sensor(
    job: str | JobAssets,
    *,
    name: str | None = None,
    changelog: ChangelogStorageResource | None = None,
    commit_job: dg.JobDefinition | None = None,
    partitions_def: dg.PartitionsDefinition[str] | None = None,
    patience: timedelta = timedelta(hours=1),
    minimum_interval_seconds: int = 30,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    clock: Clock | None = None,
) -> dg.SensorDefinition:
    """Reports every completed checkpoint that no run of this instance reported, in order, exactly once.

    For jobs that run outside Dagster (spark-submit, Dataproc, a streaming query), and to catch up on runs
    that died before they reported. It follows the timeline from its cursor, so that a tick costs what is
    new. Killed at any point, renamed, or with its cursor cleared, it reports nothing twice.

    Args:
        job: the job's name, or its asset keys.
        changelog: where the job lives; without it, the resource named `changelog`.
        commit_job: `build_maintenance(job, "commit")`, where the job leaves step 6 to Dagster: a run of it is
            requested while the last completed checkpoint is uncommitted and not made by a run that is alive.
        partitions_def: of the job's files: an idempotency key that is one of its keys is the partition of
            the checkpoint's files.
        patience: how long a run that seems alive is waited for, to report its checkpoint or to commit: its
            host may have died. What it does later changes nothing, and is reported once all the same.
    """
    named = JobAssets.of(job)
    tick_clock = clock or SystemClock()

    def follow(context: dg.SensorEvaluationContext, changelog: ChangelogStorageResource) -> dg.SensorResult:
        definitions = context.repository_def
        assets = named if definitions is None else named.found_in(definitions.asset_graph.asset_nodes)
        coordinator = changelog.coordinator(assets.job)
        page = Page(assets, context.instance, partitions_def, definitions=definitions).with_states()
        follower = TimelineFollower(page, coordinator, tick_clock, patience)
        start = follower.start(context.cursor)
        settle_marks(page)
        tick = follower.follow(start)
        for mark in tick.report.marks:
            mark_partitions(page, mark)
        requests = [] if commit_job is None else requests_to_commit(follower, tick)
        summary = _summary(assets, tick, requests)
        context.log.info(summary)
        partitions = _partition_requests(page, coordinator, tick)
        checks: list[dg.AssetCheckEvaluation] = []
        if tick.at_end and tick.cursor.slot != start.slot:
            checks = evaluations_beside(page, coordinator.timeline.seen(), tick_clock)
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else summary,
            cursor=tick.cursor.to_text(),
            asset_events=[*tick.report.events, *checks],
            dynamic_partitions_requests=partitions,
        )

    return dg.sensor(
        name=name or f"{named.group_name}_checkpoints",
        # By name: Dagster copies the job when it binds resources, and warns about its own parameters.
        job_name=None if commit_job is None else commit_job.name,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=f"Reports the checkpoints of job {named.job} that were made outside Dagster.",
    )(with_changelog(changelog, follow))


def build_abort_sensors(
    job: str | JobAssets,
    *,
    changelog: ChangelogStorageResource | None = None,
    minimum_interval_seconds: int = 30,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> list[dg.SensorDefinition]:
    """Two run status sensors, for canceled and for failed runs, that abort the attempt a run left open.

    A failed run keeps an attempt whose work is done (steps 1 to 3): re-execution from failure can still
    complete it. Without these sensors the attempt stays open until the job's next run fences it.
    """
    assets = JobAssets.of(job)

    def sensor(status: dg.DagsterRunStatus, word: str) -> dg.SensorDefinition:
        def abort(context: dg.RunStatusSensorContext, changelog: ChangelogStorageResource) -> dg.SkipReason:
            coordinator, owners = changelog.coordinator(assets.job), OwnerRuns(context.instance)
            outcome = _abort_open_attempt(coordinator, owners, context.dagster_run, word)
            context.log.info(outcome)
            return dg.SkipReason(outcome)

        return dg.run_status_sensor(
            run_status=status,
            name=f"{assets.group_name}_abort_{word}",
            minimum_interval_seconds=minimum_interval_seconds,
            default_status=default_status,
            description=f"Aborts an attempt of job {assets.job} that a {word} run left open.",
        )(with_changelog(changelog, abort))

    return [sensor(dg.DagsterRunStatus.CANCELED, "canceled"), sensor(dg.DagsterRunStatus.FAILURE, "failed")]


def _abort_open_attempt(
    coordinator: CheckpointCoordinator, owners: OwnerRuns, run: dg.DagsterRun, word: str
) -> str:
    """The outcome, as one line for the page."""
    opened = coordinator.timeline.tail().open_attempt
    if opened is None or run_of_owner(opened.owner) != root_run_id(run):
        return f"run {run.run_id} left no attempt of job {coordinator.job!r} open"
    if not owners.have_ended(opened.owner):
        return f"run {run.run_id} is being re-executed, which continues its attempt"
    attempt = Attempt(opened.checkpoint_id, opened.attempt, opened.parent, coordinator.job)
    report = attempt.names.report(attempt.attempt)
    if run.status == dg.DagsterRunStatus.FAILURE and coordinator.store.stat(report) is not None:
        return (
            f"run {run.run_id} failed with all its work done: re-execute it from failure to complete "
            f"checkpoint {opened.checkpoint_id}; otherwise the job's next run fences its attempt"
        )
    try:
        coordinator.abort(attempt, f"Dagster run {run.run_id} was {word}")
    except (ConflictError, NotFoundError) as error:
        return f"the attempt of run {run.run_id} was no longer open: {error}"
    return f"aborted the attempt of run {run.run_id} on checkpoint {opened.checkpoint_id}"


def _partition_requests(
    page: Page, coordinator: CheckpointCoordinator, tick: Tick
) -> list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest]:
    if not tick.restorable_changed:
        return []
    (missing, stale), partitions = partition_changes(page, coordinator), page.assets.partitions
    requests = partitions.build_add_request(missing), partitions.build_delete_request(stale)
    return [each for each in requests if each.partition_keys]


def _summary(assets: JobAssets, tick: Tick, requests: Sequence[dg.RunRequest]) -> str:
    """One line for the page, where a tick that only reported would look idle."""
    parts = []
    reported, published = tick.checkpoints(Completed), tick.checkpoints(Committed)
    if reported:
        first, last = assets.partition_key(reported[0]), assets.partition_key(reported[-1])
        parts.append(f"reported {first if first == last else f'{first} to {last}'}")
    elif published:
        parts.append(f"reported the files of {counted(len(published), 'checkpoint')}")
    parts += [f"reported the restore to {assets.partition_key(each)}" for each in tick.checkpoints(Restored)]
    if tick.report.events and not parts:
        parts.append("reported the state")
    if requests:
        parts.append(f"requested step 6 of checkpoint {requests[0].tags[TAG_CHECKPOINT]}")
    if tick.waiting is not None:
        parts.append(tick.waiting)
    elif not tick.at_end:
        parts.append("more in the next tick")
    return f"slot {tick.cursor.slot}: " + ("; ".join(parts) if parts else "nothing new")


_MAX_COMMIT_RUNS = 3
"""Runs requested to commit one checkpoint before a person has to look."""


def requests_to_commit(follower: TimelineFollower, tick: Tick) -> list[dg.RunRequest]:
    """A run for the checkpoint that waits for step 6, unless one seems alive or has succeeded; the tick says
    what is waited for.
    """
    coordinator, instance = follower.coordinator, follower.page.instance
    uncommitted = coordinator.timeline.tail().uncommitted if tick.at_end else []
    if not uncommitted:
        return []
    pending = uncommitted[0].completed
    step = f"step 6 of checkpoint {pending.checkpoint_id}"

    def may_still_do_it(who: str, since: datetime) -> bool:
        until = since + follower.patience
        if follower.clock.now() > until:
            return False
        tick.waiting = (
            f"waiting for {who}, since {readable_time(since)}; a run is requested if it has not "
            f"committed by {readable_time(until)}"
        )
        return True

    is_alive = OwnerRuns(instance).are_alive(pending.owner)
    if is_alive and may_still_do_it(f"{step}: {pending.owner}", pending.recorded_at):
        return []
    commit = f"{coordinator.job}/{pending.checkpoint_id}/{pending.attempt}"
    # The runs decide, not the run key alone: Dagster scopes a run key to the sensor's name, and never
    # launches the key of a failed run again.
    records = list(instance.get_run_records(dg.RunsFilter(tags={TAG_COMMIT: commit})))
    if any(record.dagster_run.is_success for record in records):
        return []
    for record in records:
        run, since = record.dagster_run, record.create_timestamp
        since = since if since.tzinfo else since.replace(tzinfo=UTC)
        what = f"{step}: run {run.run_id} ({run.status.value})"
        if not run.is_finished and may_still_do_it(what, since):
            return []
    if len(records) >= _MAX_COMMIT_RUNS:
        tick.waiting = (
            f"{step}: {len(records)} runs failed, or said nothing for long; find out why in the last, "
            f"{records[0].dagster_run.run_id}, then re-execute it"
        )
        return []
    tags = {TAG_COMMIT: commit, TAG_CHECKPOINT: str(pending.checkpoint_id), TAG_ATTEMPT: str(pending.attempt)}
    config = commit_run_config(coordinator.job, pending.checkpoint_id)
    return [dg.RunRequest(run_key=f"{commit}/{len(records) + 1}", run_config=config, tags=tags)]
