"""The Dagster job that corrects a partition: restore to before it, run it and those after it again.

Owns how a partition is run inside the job, and what is reported of it. Does not own which partitions
those are, or their order (`jobs.correction`).

Each partition is a run of its own, with its own events and page, one after another in the process of the op:
a run that waits for other runs would hold a slot of the queue that they wait for.
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

import uuid
from collections.abc import Callable
from typing import Any

import dagster as dg

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.jobs import Correction, correct, plan_correction
from dstl_dagster.orchestration.failures import DEFAULT_RETRY_POLICY, without_useless_retries
from dstl_dagster.orchestration.inject.resources import ChangelogStorageResource
from dstl_dagster.orchestration.keys import (
    TAG_CORRECTION,
    TAG_JOB,
    TAG_STEP,
    TAG_TAKE_OVER,
    JobAssets,
    dagster_name,
)
from dstl_dagster.orchestration.operate.restore_job import report_restore
from dstl_dagster.orchestration.owners import owner_of, root_run_id
from dstl_dagster.orchestration.partitions import partition_of
from dstl_dagster.orchestration.report.steps import Step, match_partitions
from dstl_dagster.orchestration.timeline_check import require_shown_timeline

__all__ = ["build_correct_job"]


def build_correct_job(
    job: str | JobAssets,
    day_job: Callable[[], dg.JobDefinition],
    partitions_def: dg.PartitionsDefinition[Any],
    *,
    name: str | None = None,
    changelog: ChangelogStorageResource | None = None,
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
) -> dg.JobDefinition:
    """Corrects a partition: launch it for that one, once its source is right.

    The job is restored to the checkpoint before the partition, which must be retained; then the partition and
    all after it that have ever run are run again, in order. If one of them fails, so does this. A
    re-execution, or a launch for the one that failed, goes on there.

    Args:
        job: the job's name, or its asset keys.
        day_job: returns the Dagster job that runs one partition, with its resources, such as
            `lambda: defs.resolve_job_def("orders_day")`; called when the op runs.
        partitions_def: of that job.
        retry_policy: of the op. A partition that failed is not retried: its own ops are.
    """
    assets = JobAssets.of(job)
    job_name = dagster_name(name or f"{assets.group_name}_correct", "name")

    @dg.op(
        name=f"{job_name}_op",
        description="Restore to before the partition, then run it and those after it again.",
        tags={TAG_STEP: "correct"},
        retry_policy=retry_policy,
    )
    def step(context: dg.OpExecutionContext, changelog: ChangelogStorageResource) -> None:
        with without_useless_retries(f"correct of job {assets.job!r}", {"store": changelog.uri}):
            _correct(context, assets, changelog, day_job)

    @dg.graph(name=job_name)
    def steps() -> None:
        step.alias("correct")()

    return steps.to_job(
        name=job_name,
        description=f"Restores {assets.job} to before a partition, and runs that and those after it again.",
        partitions_def=partitions_def,
        resource_defs=None if changelog is None else {"changelog": changelog},
        tags={TAG_JOB: assets.job},
    )


def _correct(
    context: dg.OpExecutionContext,
    assets: JobAssets,
    changelog: ChangelogStorageResource,
    day_job: Callable[[], dg.JobDefinition],
) -> None:
    partition = partition_of(context)
    if partition is None:
        raise InvalidInputError("no partition chosen: launch this job for the partition to correct")
    coordinator = changelog.coordinator(assets.job, owner=owner_of(context.run))
    require_shown_timeline(context.run, context.instance, coordinator)
    plan = plan_correction(coordinator, partition)
    _log_plan(context, plan)
    definition = day_job()
    # The same for every try of this run and its re-executions: a late one must not undo what ran since.
    request_id = uuid.uuid5(uuid.NAMESPACE_URL, f"{root_run_id(context.run)}/correct/{partition}")

    def run(each: str) -> None:
        if each == plan.batches[0]:  # the restore is behind us: the page shows what is to run again
            step = Step(context, assets, coordinator)
            match_partitions(step)
            report_restore(step, request_id)
        result = definition.execute_in_process(
            instance=context.instance,
            partition_key=each,
            raise_on_error=False,
            # What a killed try of this op left open is this correction's.
            tags={TAG_CORRECTION: context.run_id, TAG_TAKE_OVER: "true"},
        )
        if not result.success:
            raise dg.Failure(
                description=(
                    f"partition {each} failed (run {result.run_id}), and none after it was run: see why, "
                    f"then re-execute this run, or launch one for {each}: both go on there"
                ),
                metadata={"partition": each, "run": result.run_id},
                allow_retries=False,
            )

    def progress(done: int, count: int, each: str) -> None:
        context.log.info(
            f"correct: {done} of {count} partitions: {each} is in checkpoint {coordinator.applied(each)}"
        )

    correct(coordinator, plan, run, request_id=request_id, progress=progress)
    context.add_output_metadata(
        {"partitions": len(plan.batches), "first": partition, "last": plan.batches[-1]}
    )


def _log_plan(context: dg.OpExecutionContext, plan: Correction) -> None:
    before = (
        "is before it already" if plan.restore_to is None else f"goes back to checkpoint {plan.restore_to}"
    )
    context.log.info(
        f"correct: {plan.job} {before}; {len(plan.batches)} partitions: {', '.join(plan.batches)}"
    )
    if plan.not_batches:
        context.log.warning(
            f"correct: no batch made the checkpoints {', '.join(map(str, plan.not_batches))}: if they "
            "changed columns, change them again"
        )
