"""Correcting a partition: restore to before it, run it and those after it again.

Owns how a partition is run inside the op, and what is reported of it. Does not own which partitions
those are, or their order (`jobs.correction`).

Each partition is a run of its own, with its own events and page, one after another in the process of the op:
a run that waits for other runs would hold a slot of the queue that they wait for.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable

import dagster as dg

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.jobs import Correction, correct, plan_correction
from dstl_dagster.keyed import name_in_id
from dstl_dagster.orchestration.keys import TAG_CORRECTION, TAG_TAKE_OVER
from dstl_dagster.orchestration.operate.restoring import report_restore
from dstl_dagster.orchestration.owners import root_run_id
from dstl_dagster.orchestration.partitions import has_partition, partition_of
from dstl_dagster.orchestration.run_claims import is_in_job
from dstl_dagster.orchestration.steps import Step, match_partitions


def correct_partition(step: Step, day_job: Callable[[], dg.JobDefinition]) -> None:
    """Restore to before the partition, then run it and those after it again."""
    context, coordinator = step.context, step.coordinator
    partition = partition_of(context)
    if partition is None:
        raise InvalidInputError("no partition chosen: launch this job for the partition to correct")
    plan = plan_correction(coordinator, partition)
    for line in plan.in_words():
        context.log.info(f"correct: {line}")
    definition = day_job()
    _require_partitions(definition, plan.batches, context.instance)
    _require_writers(definition, plan, coordinator)
    # The same for every try of this run and its re-executions: a late one must not undo what ran since.
    request_id = uuid.uuid5(uuid.NAMESPACE_URL, f"{root_run_id(context.run)}/correct/{partition}")

    ran: list[str] = []

    def run(each: str) -> None:
        ran.append(each)
        if each == plan.batches[0]:  # the restore is behind us: the page shows what is to run again
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
    if not ran:
        context.log.warning(
            f"correct: this run, or the one that it re-executes, has corrected {partition} already: nothing "
            "was run. Launch a new run to correct it again"
        )
    context.add_output_metadata({"partitions": len(ran), "first": partition, "last": plan.batches[-1]})


def _require_partitions(
    definition: dg.JobDefinition, batches: Iterable[str], instance: dg.DagsterInstance
) -> None:
    """Raises: InvalidInputError for a batch that this job could not run again: the restore would undo it."""
    partitions = definition.partitions_def
    for batch in batches:
        if partitions is None or not has_partition(partitions, batch, instance):
            raise InvalidInputError(
                f"batch {batch!r} is no partition of {definition.name!r}, which is to run it again: nothing "
                "was changed. dstl checkpoints correct runs a command for each batch"
            )


def _require_writers(
    definition: dg.JobDefinition, plan: Correction, coordinator: CheckpointCoordinator
) -> None:
    """Raises: InvalidInputError for a batch of an asset that this job leaves out: likewise."""
    latest = coordinator.latest()
    sources = {} if latest is None else latest.manifest.sources
    for key in plan.keys:
        name = name_in_id(key.source)
        by = sources[name].by if name in sources else name
        if by.startswith("asset:") and not is_in_job(by, definition):
            raise InvalidInputError(
                f"{by.replace(':', ' ', 1)}, which made batch {key.key!r}, is not in {definition.name!r}, "
                "which is to run it again: nothing was changed. Select it there too"
            )
