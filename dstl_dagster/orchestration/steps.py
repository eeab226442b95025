"""The steps of a checkpoint and the work between batches, as Dagster runs them: act, report, log.

Owns what each step logs and which events it writes. Does not own which op runs it (`ops`,
`maintenance`), restoring (`restoring`), which events are written (`reconcile`), or any rule of the protocol
(`checkpoint`). Every step reads the truth from the store and may run any number of times. The docstring of a
step is what Dagster shows as the description of its op.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg

from dstl_dagster.checkpoint import Attempt, Checkpoint, CheckpointCoordinator, CleanUp, Verification
from dstl_dagster.clock import SystemClock
from dstl_dagster.concurrency import Progress
from dstl_dagster.errors import ConflictError, ErrorKind
from dstl_dagster.format import counted, readable_bytes
from dstl_dagster.keyed import load_report
from dstl_dagster.orchestration.code_location import (
    assets_in,
    code_location,
    definition_of,
)
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.owners import OwnerRuns
from dstl_dagster.orchestration.partitions import partition_of
from dstl_dagster.orchestration.report.failed_partitions import leave_as_it_was, mark_partitions, settle_marks
from dstl_dagster.orchestration.report.findings import evaluations_beside
from dstl_dagster.orchestration.report.links import how_to_resolve
from dstl_dagster.orchestration.report.reconcile import Reconcile, Report, partition_changes
from dstl_dagster.orchestration.report.shown import Page
from dstl_dagster.timeline import CheckpointEntry, Restored

_PROGRESS_LINES = 10
_PROBLEMS_SHOWN = 20


@dataclass(frozen=True)
class Step:
    """The inputs of a step. The keys are those that the run's code location has for the job's assets, the
    partitions those of the job's state and files: by default of the op's asset or job.
    """

    context: dg.OpExecutionContext
    assets: JobAssets
    coordinator: CheckpointCoordinator
    partitions_def: dg.PartitionsDefinition[Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "assets", assets_in(self.context, self.assets))

    @property
    def page(self) -> Page:
        """The job's assets, on the instance of the run."""
        return Page(self.assets, self.context.instance, definitions=code_location(self.context))

    def reconcile(self, own: Checkpoint | None = None, *, shows_state: bool = False) -> Reconcile:
        """For the page that the run's definitions make. `own`: the checkpoint of the run's own batch.
        `shows_state`: events show the state of the run's asset, and not its output.
        """
        context, key = self.context, self.assets.state_key
        definition = self.partitions_def or definition_of(context)
        has_state = shows_state and context.has_assets_def and key in context.assets_def.keys
        page = replace(
            self.page,
            files=definition,
            states={key: definition} if has_state else {},
            chosen={} if own is None else {own.attempt: partition_of(context)},
        )
        read = () if own is None else (own,)
        return Reconcile(page, self.coordinator, self.coordinator.timeline.seen(), "run", read)

    def write(self, report: Report) -> None:
        """Marks first, then events."""
        for mark in report.marks:
            mark_partitions(self.page, mark)
        for event in report.events:
            self.context.log_event(event)

    def progress(self, doing: str, things: str) -> Progress:
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


def confirm(step: Step, attempt: Attempt) -> Checkpoint:
    """Step 5, the commit point: the checkpoint is complete from here on."""
    cost = step.coordinator.running_cost()
    checkpoint = step.coordinator.confirm(attempt)
    step.context.log.info(
        f"step 5 confirm: checkpoint {checkpoint.checkpoint_id} is complete. {cost.in_words()}"
    )
    report_checkpoint(step, checkpoint)
    return checkpoint


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
    if report:
        report_files(step, checkpoint)
    report_checks(step)
    if checkpoint.blocked:
        raise _blocked(checkpoint)


def clean_up(step: Step, *, preview: bool = False) -> CleanUp:
    """Step 7: subsume checkpoints beyond retention, and delete what nothing references. Each object is a
    line of the step's standard output, which Dagster keeps, before it goes.
    """
    cost = step.coordinator.running_cost()

    def goes(uri: str, generation: int) -> None:
        print(json.dumps({"uri": uri, "generation": generation}), flush=True)

    report = step.coordinator.clean_up(dry_run=preview, deleted=goes)
    spent = cost.in_words()
    match_partitions(step)
    nothing_yet = "preview, nothing was changed: " if preview else ""
    step.context.log.info(f"{nothing_yet}{_clean_up_summary(report)}. {spent}")
    return report


# ---- between batches ----


def materialize(step: Step) -> None:
    """Merge the changelog into a base, for each operator for which that is due."""
    from dstl_dagster.checkpoint import materialize as merge_changelog  # Arrow: not while definitions load

    checkpoint = merge_changelog(
        step.coordinator, progress=step.progress("materialize", "ranges of key groups")
    )
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
    """Write what the instance is missing of a completed checkpoint, and of the one before if its run died."""
    parent = step.coordinator.timeline.seen().checkpoints.get(checkpoint.parent or 0)
    if parent is not None:
        _catch_up(step, parent)
    _add_partition(step, checkpoint.checkpoint_id)
    step.write(step.reconcile(checkpoint).record(checkpoint.entry.completed))


def report_files(step: Step, checkpoint: Checkpoint) -> None:
    """Write what the instance is missing of a committed checkpoint."""
    committed, context = checkpoint.entry.committed, step.context
    if committed is None:
        return
    # The state is the output of this run, unless that is about to fail for its files.
    reconcile = step.reconcile(checkpoint, shows_state=bool(checkpoint.blocked))
    report = reconcile.record(committed)
    step.write(report)
    partition, key = partition_of(context), step.assets.state_key
    if reconcile.page.states and partition is not None and not report.materialized(key):
        leave_as_it_was(reconcile.page, key, partition, context.run_id)


def report_restored(step: Step, restored: Restored) -> None:
    """Write what the instance is missing of a restore, and show the checkpoint that counts again."""
    reconcile = step.reconcile()
    step.write(reconcile.record(restored))
    step.write(reconcile.newest(Report(), restored))


def _catch_up(step: Step, entry: CheckpointEntry) -> None:
    """Report a checkpoint whose run died after step 5: this run published its files, and knows."""
    reconcile, owner = step.reconcile(shows_state=True), entry.completed.owner
    lacking = reconcile.record(entry.completed)
    if entry.committed is not None:
        lacking += reconcile.record(entry.committed)
    if not lacking or OwnerRuns(step.context.instance).are_alive(owner):  # then it reports it itself
        return
    # Before the next one's: the page lists partitions as they were added.
    _add_partition(step, entry.checkpoint_id)
    step.write(lacking)
    step.context.log.info(f"reported checkpoint {entry.checkpoint_id}, whose owner {owner} did not")


def _add_partition(step: Step, checkpoint_id: int) -> None:
    assets = step.assets
    step.context.instance.add_dynamic_partitions(
        assets.partitions_name, [assets.partition_key(checkpoint_id)]
    )


def report_checks(step: Step) -> None:
    """Evaluate the checks that cost next to nothing, so that a new checkpoint does not show as unchecked."""
    context = step.context
    own = context.assets_def.partitions_def if context.has_assets_def else None
    view = step.coordinator.timeline.seen()
    page = replace(step.page.with_states(), files=step.partitions_def or own)
    for event in evaluations_beside(page, view, SystemClock()):
        context.log_event(event)  # type: ignore[arg-type] # it does take one


def show_again(step: Step) -> None:
    """Let the job's assets show what the store has, after they have shown another store."""
    step.write(step.reconcile(shows_state=True).whole_store(Report()))
    match_partitions(step)


def match_partitions(step: Step) -> None:
    """Make the dynamic partitions those of the checkpoints that can be restored now."""
    settle_marks(step.page)
    # By what is retained, not by what this run did: an earlier try, or another run, may have died in between.
    instance, name = step.context.instance, step.assets.partitions_name
    missing, stale = partition_changes(step.page, step.coordinator)
    if missing:
        instance.add_dynamic_partitions(name, missing)
    for partition in stale:
        instance.delete_dynamic_partition(name, partition)


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
            f"Resolve it: {how_to_resolve(number, first.name)}"
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
            f"checkpoint {found.checkpoint_id} of job {coordinator.job!r} is damaged, in "
            f"{counted(len(found.problems), 'place')}. The first: {found.problems[0]}. Restore the objects "
            f"from a backup, {way_out}"
        ),
        metadata={"problems": dg.MetadataValue.md("\n".join(shown))},
        allow_retries=False,
    )
