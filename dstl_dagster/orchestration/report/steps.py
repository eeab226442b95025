"""The steps of a checkpoint and the work between batches, as Dagster runs them: act, report, log.

Owns what each step logs and which events it writes. Does not own which op runs it (`ops`, `commit`,
`maintenance`), restoring (`restore_job`), what an event says (`lineage`), or any rule of the protocol
(`checkpoint`). Every step reads the truth from the store and may run any number of times. The docstring of a
step is what Dagster shows as the description of its op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg

from dstl_dagster.checkpoint import (
    Attempt,
    Checkpoint,
    CheckpointCoordinator,
    CleanUp,
    Verification,
    load_report,
)
from dstl_dagster.clock import SystemClock
from dstl_dagster.errors import ConflictError, ErrorKind
from dstl_dagster.format import counted, readable_bytes
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.owners import OwnerRuns, owner_in, owner_of
from dstl_dagster.orchestration.partitions import partition_in, partition_of
from dstl_dagster.orchestration.program import assets_in, code_location, state_of
from dstl_dagster.orchestration.report.agreement import findings_beside
from dstl_dagster.orchestration.report.findings import age_allowed, evaluations, of_age
from dstl_dagster.orchestration.report.lineage import Reporter
from dstl_dagster.orchestration.report.marks import leave_as_it_was, mark_partitions, settle_marks
from dstl_dagster.orchestration.report.reporting import (
    PartitionChanges,
    are_files_reported,
    blocked_mark,
    is_reported,
    partition_changes,
    unreported_checkpoint,
    unreported_files,
    unreported_state,
)
from dstl_dagster.orchestration.report.restores import newest_again
from dstl_dagster.storage import RunningCost

__all__ = [
    "Step",
    "clean_up",
    "compose_commit",
    "confirm",
    "is_complete",
    "match_partitions",
    "materialize",
    "persist",
    "report_checkpoint",
    "report_checks",
    "report_files",
    "show_again",
    "verify",
]

_PROGRESS_LINES = 10
_PROBLEMS_SHOWN = 20


@dataclass(frozen=True)
class Step:
    """What a step works with: the context of its op, the job's asset keys, and the job's control plane.

    The keys are those that the run's code location has for these assets.
    """

    context: dg.OpExecutionContext
    assets: JobAssets
    coordinator: CheckpointCoordinator

    def __post_init__(self) -> None:
        object.__setattr__(self, "assets", assets_in(self.context, self.assets))

    @property
    def reporter(self) -> Reporter:
        coordinator, owner = self.coordinator, owner_of(self.context.run)
        view = coordinator.timeline.seen()
        return Reporter("run", coordinator.store.uri, view.timeline_id, coordinator.prices, owner, view=view)

    def show(self, metadata: Mapping[str, Any]) -> None:
        """On the output of the step's op. One with several outputs, or none, has no place for it."""
        if len(self.context.op_def.output_defs) == 1:
            self.context.add_output_metadata(dict(metadata))

    def progress(self, doing: str, things: str) -> Callable[[int, int], None]:
        """A callback that logs how far the step is: after each tenth of the things, and at the end."""

        def log(done: int, total: int) -> None:
            every = max(1, total // _PROGRESS_LINES)
            if done % every == 0 or done == total:
                self.context.log.info(f"{doing}: {done} of {total} {things}")

        return log


# ---- of a batch ----


def persist(step: Step, attempt: Attempt) -> None:
    """Steps 3 and 4: check that everything the tasks reported is durable, and write the manifest."""
    cost = step.coordinator.running_cost()
    if is_complete(step.coordinator, attempt):
        step.context.log.info(f"step 4 record: checkpoint {attempt.checkpoint_id} is complete: nothing to do")
        return
    report = load_report(step.coordinator.store, attempt)
    manifest = step.coordinator.record_report(attempt, report, cost=cost)
    step.context.log.info(
        f"step 4 record: checkpoint {attempt.checkpoint_id} has {manifest.changes} changed rows "
        f"({readable_bytes(manifest.state_bytes)} of changelog) and {counted(len(manifest.files), 'file')} "
        f"({readable_bytes(manifest.file_bytes)}), none of it visible yet. {cost.in_words()}"
    )
    for sentence in manifest.begun_beside_idle:
        step.context.log.warning(sentence)


def confirm(step: Step, attempt: Attempt) -> None:
    """Step 5, the commit point: the checkpoint is complete from here on."""
    cost = step.coordinator.running_cost()
    checkpoint = step.coordinator.confirm(attempt)
    step.context.log.info(
        f"step 5 confirm: checkpoint {checkpoint.checkpoint_id} is complete. {cost.in_words()}"
    )
    _show_cost(step, 5, cost)
    _catch_up_parent(step, checkpoint)
    report_checkpoint(step, checkpoint)


def compose_commit(
    step: Step, checkpoint_id: int, *, attempt: Attempt | None = None, report: bool = True
) -> None:
    """Step 6: compose every file of the checkpoint to its final name."""
    # Without `report` the event is left to the sensor, which knows the partition that the files belong to.
    cost = step.coordinator.running_cost()
    (checkpoint,) = step.coordinator.compose_commit(
        checkpoint_id, attempt=attempt, progress=step.progress("step 6 compose-commit", "files")
    )
    published = counted(len(checkpoint.manifest.files) - len(checkpoint.blocked), "file")
    step.context.log.info(
        f"step 6 compose-commit: published {published} of checkpoint {checkpoint_id} "
        f"({readable_bytes(checkpoint.manifest.file_bytes)} in all). {cost.in_words()}"
    )
    _show_cost(step, 6, cost)
    if report:
        report_files(step, checkpoint)
    report_checks(step)
    if checkpoint.blocked:
        _keep_state_green(step, checkpoint)
        raise _blocked(checkpoint)


def clean_up(step: Step) -> None:
    """Step 7: subsume checkpoints beyond retention, and delete what nothing references."""
    cost = step.coordinator.running_cost()
    report = step.coordinator.clean_up()
    spent = cost.in_words()
    _show_cost(step, 7, cost)
    match_partitions(step)
    step.context.log.info(f"{_clean_up_summary(report)}. {spent}")


# ---- between batches ----


def materialize(step: Step) -> None:
    """Fold the changelog into a base, for each operator for which that is due."""
    from dstl_dagster.checkpoint import materialize as fold  # Arrow: not while definitions load

    checkpoint = fold(step.coordinator, progress=step.progress("fold", "ranges of key groups"))
    if checkpoint is None:
        step.context.log.info(f"no operator of {step.assets.job} is due: each log is short beside its base")
        return
    step.context.log.info(
        f"checkpoint {checkpoint.checkpoint_id} holds the whole state as a base of "
        f"{readable_bytes(checkpoint.manifest.state_bytes)}"
    )
    report_checkpoint(step, checkpoint)
    report_checks(step)


def verify(step: Step) -> None:
    """Read back everything that the last checkpoint references."""
    latest = step.coordinator.latest()
    if latest is None:
        step.context.log.info(f"job {step.assets.job!r} has no checkpoint yet: nothing to verify")
        return
    found = step.coordinator.verify(latest.checkpoint_id, progress=step.progress("verify", "checks"))
    for note in found.notes:
        step.context.log.info(f"verify: {note}")
    if not found.ok:
        raise _damaged(step.coordinator, found)
    step.context.log.info(
        f"verify: {counted(found.objects, 'object')} ({readable_bytes(found.bytes)}) of checkpoint "
        f"{latest.checkpoint_id} of {step.assets.job} were read back, all intact"
    )


# ---- events ----


def report_checkpoint(step: Step, checkpoint: Checkpoint) -> None:
    """Write the events of a completed checkpoint that the instance lacks, and add its partition."""
    partition = step.assets.partition_key(checkpoint.checkpoint_id)
    step.context.instance.add_dynamic_partitions(step.assets.partitions_name, [partition])
    for event in unreported_checkpoint(step.context.instance, step.assets, checkpoint, step.reporter):
        step.context.log_event(event)


def report_files(step: Step, checkpoint: Checkpoint) -> None:
    """Write the event of a committed checkpoint's files, where the instance lacks it."""
    partition = partition_of(step.context)
    _report_files(step, checkpoint, step.reporter, partition)


def _report_files(step: Step, checkpoint: Checkpoint, reporter: Reporter, partition: str | None) -> None:
    instance = step.context.instance
    mark = blocked_mark(step.assets, checkpoint, partition)
    if mark is not None:
        mark_partitions(instance, step.assets, mark)
    for event in unreported_files(instance, step.assets, checkpoint, reporter, partition):
        step.context.log_event(event)


def _keep_state_green(step: Step, checkpoint: Checkpoint) -> None:
    """The run is about to fail for its files, but the state has the batch, and is in order."""
    context, instance, assets = step.context, step.context.instance, step.assets
    if not context.has_assets_def or assets.state_key not in context.assets_def.keys:
        return
    partition = partition_of(context)
    events = unreported_state(instance, assets, checkpoint, step.reporter, partition)
    for event in events:
        context.log_event(event)
    if not events and partition is not None:
        leave_as_it_was(instance, assets, assets.state_key, partition, context.run_id)


def report_checks(step: Step, partitions_def: dg.PartitionsDefinition[Any] | None = None) -> None:
    """Evaluate the checks that cost next to nothing, so that a new checkpoint does not show as unchecked.

    `partitions_def`: of the job's state, where the step is not one of the state's own asset.
    """
    own = step.context.assets_def.partitions_def if step.context.has_assets_def else None
    found = findings_beside(
        step.context.instance,
        step.assets,
        step.coordinator.timeline.seen(),
        PartitionChanges([], []),  # clean-up, the next step, makes them
        partitions_def or own,
    )
    allowed = age_allowed(code_location(step.context), step.assets)
    if allowed is not None:
        found.append(of_age(step.coordinator.timeline.seen(), SystemClock(), allowed))
    for event in evaluations(step.context.instance, step.assets, found):
        step.context.log_event(event)  # type: ignore[arg-type] # it does take one


def show_again(step: Step) -> None:
    """Let the job's assets show what the store has, after they have shown another store."""
    last = step.coordinator.timeline.seen().last_completed
    if last is not None:
        checkpoint = step.coordinator.get(last.checkpoint_id)
        for event in newest_again(step.context.instance, step.assets, checkpoint, step.reporter):
            step.context.log_event(event)
    match_partitions(step)


def _catch_up_parent(step: Step, checkpoint: Checkpoint) -> None:
    """Report the checkpoint before, if its run died after step 5: this run published it, and knows."""
    coordinator, instance, assets = step.coordinator, step.context.instance, step.assets
    entry = (
        None if checkpoint.parent is None else coordinator.timeline.seen().checkpoints.get(checkpoint.parent)
    )
    if entry is None:
        return
    completed, definition = entry.completed, _partitions_def(step.context)
    partition = partition_in(definition, completed, instance)
    has_state = step.context.has_assets_def and (definition is None or partition is not None)
    if has_state and len(assets.state_keys) > 1:
        made_by = state_of(assets, coordinator.get(entry.checkpoint_id))
        has_state = made_by is not None and made_by.state_key == assets.state_key
    own = assets.partition_key(entry.checkpoint_id)
    if (
        is_reported(instance, assets.checkpoints_key, own, completed)
        and (
            not completed.files or are_files_reported(instance, assets, partition, completed, entry.committed)
        )
        and (not has_state or is_reported(instance, assets.state_key, partition, completed))
    ):
        return
    owner = owner_in(coordinator.timeline, completed)
    if owner is not None and OwnerRuns(instance).are_alive(owner):
        return  # it reports it itself
    parent = coordinator.get(entry.checkpoint_id)
    reporter = replace(step.reporter, owner=owner)
    # Before the next one's: the page lists partitions as they were added.
    instance.add_dynamic_partitions(assets.partitions_name, [own])
    for event in unreported_checkpoint(instance, assets, parent, reporter):
        step.context.log_event(event)
    if parent.committed:
        _report_files(step, parent, reporter, partition)
    for event in unreported_state(instance, assets, parent, reporter, partition) if has_state else ():
        step.context.log_event(event)
    step.context.log.info(f"reported checkpoint {entry.checkpoint_id}, whose run {owner} did not")


def _partitions_def(context: dg.OpExecutionContext) -> dg.PartitionsDefinition[str] | None:
    return context.assets_def.partitions_def if context.has_assets_def else context.job_def.partitions_def


def match_partitions(step: Step) -> None:
    """Make the dynamic partitions those of the checkpoints that can be restored now."""
    settle_marks(step.context.instance, step.assets)
    # By what is retained, not by what this run did: an earlier try, or another run, may have died in between.
    instance, name = step.context.instance, step.assets.partitions_name
    changes = partition_changes(instance, step.assets, step.coordinator)
    if changes.missing:
        instance.add_dynamic_partitions(name, changes.missing)
    for partition in changes.stale:
        instance.delete_dynamic_partition(name, partition)


def _show_cost(step: Step, number: int, cost: RunningCost) -> None:
    """On the output of the step's op: no manifest has it, which was written before."""
    step.show({f"cost of step {number}": cost.in_words()})


# ---- in words ----


def is_complete(coordinator: CheckpointCoordinator, attempt: Attempt) -> bool:
    """Whether an earlier try did steps 4 and 5. Raises: ConflictError where the attempt ended otherwise."""
    try:
        coordinator.require_open(attempt)
    except ConflictError as error:
        if error.kind != ErrorKind.ALREADY_COMPLETED:
            raise
        return True
    return False


def _blocked(checkpoint: Checkpoint) -> dg.Failure:
    first, number = checkpoint.blocked[0], checkpoint.checkpoint_id
    count = f"{len(checkpoint.blocked)} of {len(checkpoint.manifest.files)}"
    return dg.Failure(
        description=(
            f"blocked: {count} files of checkpoint {number}. Their final names belong to other objects, "
            f"which were left untouched; all others are published. The first: {first.name}: {first.reason}. "
            f"Resolve it: `dstl checkpoints resolve {number} {first.name}` with `--keep` or `--replace`"
        ),
        metadata={file.name: file.reason for file in checkpoint.blocked},
        allow_retries=False,
    )


def _clean_up_summary(report: CleanUp) -> str:
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(report.reasons.items()))
    return (
        f"step 7 clean up: {counted(report.objects, 'object')} ({readable_bytes(report.deleted_bytes)}) "
        f"deleted{f' ({reasons})' if reasons else ''}, {counted(len(report.subsumed), 'checkpoint')} subsumed"
    )


def _damaged(coordinator: CheckpointCoordinator, found: Verification) -> dg.Failure:
    undamaged, _ = coordinator.newest_verified()
    if undamaged is None:
        way_out = "there is no older checkpoint without damage"
    elif undamaged.checkpoint_id == found.checkpoint_id:
        way_out = "or do without them: the state is undamaged, and the job can go on"
    else:
        way_out = f"or roll the job back: the state of checkpoint {undamaged.checkpoint_id} is undamaged"
    shown = [f"* `{problem.object_name}` {problem.what}" for problem in found.problems[:_PROBLEMS_SHOWN]]
    return dg.Failure(
        description=(
            f"checkpoint {found.checkpoint_id} of job {coordinator.job!r} is damaged: {len(found.problems)} "
            f"problems. The first: {found.problems[0]}. Restore the objects from a backup, {way_out}"
        ),
        metadata={"problems": dg.MetadataValue.md("\n".join(shown))},
        allow_retries=False,
    )
