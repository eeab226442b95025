"""Jobs that a person or a schedule runs between batches: clean up, materialize, verify.

Owns the Dagster jobs of one op, and their schedules, which ship stopped. Does not own what the op does
(`steps`), or rolling back (`restore_job`).
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

from collections.abc import Callable
from dataclasses import dataclass

import dagster as dg

from dstl_dagster.orchestration.failures import DEFAULT_RETRY_POLICY, without_useless_retries
from dstl_dagster.orchestration.inject.resources import ChangelogStorageResource
from dstl_dagster.orchestration.keys import TAG_JOB, TAG_STEP, JobAssets, dagster_name
from dstl_dagster.orchestration.owners import owner_of
from dstl_dagster.orchestration.report.steps import Step, clean_up, materialize, verify
from dstl_dagster.orchestration.timeline_check import require_shown_timeline

__all__ = [
    "build_cleanup_job",
    "build_cleanup_schedule",
    "build_materialize_job",
    "build_materialize_schedule",
    "build_verify_job",
    "build_verify_schedule",
]


@dataclass(frozen=True)
class _Work:
    """A job of one op.

    Attributes:
        name: of the op, and what the job's name ends with.
        number: of the step, as a tag of the op.
        run: what the op does.
        description: of the job; `{job}` is the job that it works on.
    """

    name: str
    number: str
    run: Callable[[Step], None]
    description: str


_CLEANUP = _Work(
    "cleanup",
    "7",
    clean_up,
    "Subsumes checkpoints of {job} beyond retention, deletes what nothing references.",
)
_MATERIALIZE = _Work(
    "materialize",
    "1-6",
    materialize,
    "Folds the changelog of {job} into a base, to keep state quick to read.",
)
_VERIFY = _Work("verify", "verify", verify, "Reads back all that the last checkpoint of {job} references.")


def build_cleanup_job(
    job: str | JobAssets,
    *,
    name: str | None = None,
    changelog: ChangelogStorageResource | None = None,
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
) -> dg.JobDefinition:
    """Step 7 by itself, for a job that nothing else cleans up after."""
    return _build_job(_CLEANUP, job, name, changelog, retry_policy)


def build_materialize_job(
    job: str | JobAssets,
    *,
    name: str | None = None,
    changelog: ChangelogStorageResource | None = None,
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
) -> dg.JobDefinition:
    """Folds the job's changelog into a base where that is due, as a checkpoint of its own.

    Refused while a batch of the job is open: run it between batches.
    """
    return _build_job(_MATERIALIZE, job, name, changelog, retry_policy)


def build_verify_job(
    job: str | JobAssets,
    *,
    name: str | None = None,
    changelog: ChangelogStorageResource | None = None,
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
) -> dg.JobDefinition:
    """Reads back everything that the last checkpoint references; fails naming each damaged object."""
    return _build_job(_VERIFY, job, name, changelog, retry_policy)


def build_cleanup_schedule(
    cleanup_job: dg.JobDefinition, cron_schedule: str = "23 * * * *"
) -> dg.ScheduleDefinition:
    """`build_cleanup_job(...)`, hourly. Ships stopped."""
    return _build_schedule(cleanup_job, cron_schedule)


def build_materialize_schedule(
    materialize_job: dg.JobDefinition, cron_schedule: str = "37 3 * * *"
) -> dg.ScheduleDefinition:
    """`build_materialize_job(...)`, every night. Ships stopped."""
    return _build_schedule(materialize_job, cron_schedule)


def build_verify_schedule(
    verify_job: dg.JobDefinition, cron_schedule: str = "47 4 * * 0"
) -> dg.ScheduleDefinition:
    """`build_verify_job(...)`, every Sunday. Ships stopped."""
    return _build_schedule(verify_job, cron_schedule)


def _build_job(
    work: _Work,
    job: str | JobAssets,
    name: str | None,
    changelog: ChangelogStorageResource | None,
    retry_policy: dg.RetryPolicy,
) -> dg.JobDefinition:
    assets = JobAssets.of(job)
    job_name = dagster_name(name or f"{assets.group_name}_{work.name}", "name")

    # Names of ops must be unique among all that is loaded together; the graph below gives them short ones.
    @dg.op(
        name=f"{job_name}_op",
        description=work.run.__doc__,
        tags={TAG_STEP: work.number},
        retry_policy=retry_policy,
        pool=assets.pool,
    )
    def step(context: dg.OpExecutionContext, changelog: ChangelogStorageResource) -> None:
        with without_useless_retries(f"{work.name} of job {assets.job!r}", {"store": changelog.uri}):
            # The run owns what it opens, as in a batch, so that a retry may end its own attempt.
            coordinator = changelog.coordinator(assets.job, owner=owner_of(context.run))
            require_shown_timeline(context.run, context.instance, coordinator)
            work.run(Step(context, assets, coordinator))

    @dg.graph(name=job_name)
    def steps() -> None:
        step.alias(work.name)()

    return steps.to_job(
        name=job_name,
        description=work.description.format(job=assets.job),
        resource_defs=None if changelog is None else {"changelog": changelog},
        tags={TAG_JOB: assets.job},
    )


def _build_schedule(job: dg.JobDefinition, cron_schedule: str) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name=f"{job.name}_schedule",
        target=job,
        cron_schedule=cron_schedule,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.STOPPED,
    )
