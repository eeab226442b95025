"""Steps 3 to 7 as Dagster ops: retryable, each reading the truth again from the store.

Owns the translation of a step into an op: what is passed on, logged and reported. Holds no rule of the
protocol. What ops hand to each other is a reference (the JSON form of an attempt), never a result to be
trusted: `persist_op` reads the tasks' report, `confirm_op` the manifest, and so on.
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dstl_dagster.checkpoint import Attempt, Checkpoint, CheckpointCoordinator, CleanUp, load_report
from dstl_dagster.errors import ConflictError, InvalidInputError
from dstl_dagster.format import readable_bytes
from dstl_dagster.orchestration.failures import without_useless_retries
from dstl_dagster.orchestration.keys import TAG_STEP, JobAssets
from dstl_dagster.orchestration.lineage import Reporter, state_metadata
from dstl_dagster.orchestration.partitions import partition_of
from dstl_dagster.orchestration.reporting import unreported_checkpoint, unreported_files
from dstl_dagster.orchestration.resources import ChangelogStorageResource
from dstl_dagster.timeline import Ending

__all__ = [
    "DEFAULT_RETRY_POLICY",
    "CheckpointOps",
    "blocked_failure",
    "build_checkpoint_ops",
    "cleaned_up",
    "cleanup_op",
    "compose_commit_op",
    "confirm_op",
    "forget_given_up_partitions",
    "persist_op",
    "progress_to",
]

DEFAULT_RETRY_POLICY = dg.RetryPolicy(
    max_retries=3, delay=1.0, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS
)
"""For steps that may be run any number of times: about 1, 2 and 4 seconds apart."""

Reference = dict[str, Any]
_PROGRESS_LINES = 10


@dataclass(frozen=True)
class CheckpointOps:
    """The four ops behind a user's own, in the order they run."""

    persist: dg.OpDefinition
    confirm: dg.OpDefinition
    compose_commit: dg.OpDefinition
    cleanup: dg.OpDefinition

    def __iter__(self) -> Iterator[Callable[[Any], Any]]:
        """Each as a step of a graph, under its short name."""
        return iter(
            (
                self.persist.alias("persist"),
                self.confirm.alias("confirm"),
                self.compose_commit.alias("compose_commit"),
                self.cleanup.alias("cleanup"),
            )
        )


@dataclass(frozen=True)
class _Step:
    """What the body of a step works with."""

    context: dg.OpExecutionContext
    attempt: Attempt
    coordinator: CheckpointCoordinator
    assets: JobAssets
    store_uri: str


def build_checkpoint_ops(
    assets: Callable[[str], JobAssets] = JobAssets,
    *,
    prefix: str = "",
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
) -> CheckpointOps:
    """The ops, with the asset keys under which they report.

    Args:
        assets: from a job's name to its asset keys; the default is `<job>/state`, `<job>/files` and
            `<job>/checkpoints`.
        prefix: of the ops' names, which Dagster wants different among all that it loads together.
        retry_policy: for failures of a whole step; short network failures are retried inside.
    """

    def op(name: str, number: str, body: Callable[[_Step], None]) -> dg.OpDefinition:
        @dg.op(
            name=f"{prefix}{name}",
            description=body.__doc__,
            out=dg.Out(dict),
            retry_policy=retry_policy,
            tags={TAG_STEP: number},
        )
        def step(
            context: dg.OpExecutionContext,
            reference: dict,  # type: ignore[type-arg] # Dagster takes no dict[str, Any]
            changelog: ChangelogStorageResource,
        ) -> dict:  # type: ignore[type-arg] # as above
            with without_useless_retries(f"step {number}"):
                attempt, coordinator = _begin(reference, changelog)
            where = f"step {number} of checkpoint {attempt.checkpoint_id}, job {attempt.job!r}"
            with without_useless_retries(where, {"attempt": str(attempt.attempt), "store": changelog.uri}):
                if _is_given_up(attempt, coordinator):
                    context.log.info(
                        f"step {number}: checkpoint {attempt.checkpoint_id} was completed, and retention has "
                        "given it up since: nothing to do"
                    )
                else:
                    body(_Step(context, attempt, coordinator, assets(attempt.job), changelog.uri))
            return reference

        return step

    return CheckpointOps(
        persist=op("persist", "4", _persist),
        confirm=op("confirm", "5", _confirm),
        compose_commit=op("compose_commit", "6", _compose_commit),
        cleanup=op("cleanup", "7", _cleanup),
    )


def _persist(step: _Step) -> None:
    """Steps 3 and 4: check that everything the tasks reported is durable, and write the manifest."""
    attempt, coordinator = step.attempt, step.coordinator
    if _is_complete(attempt, coordinator):
        step.context.log.info(f"step 4 record: already in checkpoint {attempt.checkpoint_id}, nothing to do")
        return
    report = load_report(coordinator.store, attempt)
    manifest = coordinator.record(
        attempt, report.operators, report.files, report.positions, persist_seconds=report.seconds
    )
    step.context.log.info(
        f"step 4 record: checkpoint {attempt.checkpoint_id} has {manifest.changes} changed rows "
        f"({readable_bytes(manifest.state_bytes)} of changelog) and {len(manifest.files)} files "
        f"({readable_bytes(manifest.file_bytes)}); nothing of it is visible yet"
    )


def _confirm(step: _Step) -> None:
    """Step 5, the commit point: the checkpoint is complete from here on."""
    checkpoint = step.coordinator.confirm(step.attempt)
    step.context.log.info(f"step 5 confirm: checkpoint {checkpoint.checkpoint_id} is complete")
    _report_checkpoint(step, checkpoint)


def _compose_commit(step: _Step) -> None:
    """Step 6: compose every file of the checkpoint to its final name."""
    log = step.context.log
    (checkpoint,) = step.coordinator.compose_commit(
        step.attempt.checkpoint_id, progress=progress_to(step.context)
    )
    published = len(checkpoint.manifest.files) - len(checkpoint.blocked)
    log.info(
        f"step 6 compose-commit: {published} files of checkpoint {checkpoint.checkpoint_id} "
        f"({readable_bytes(checkpoint.manifest.file_bytes)} in all) are published"
    )
    _report_files(step, checkpoint)
    if checkpoint.blocked:
        raise blocked_failure(checkpoint)


def _cleanup(step: _Step) -> None:
    """Step 7: give up checkpoints beyond retention, and delete what nothing needs."""
    report = step.coordinator.clean_up()
    forget_given_up_partitions(step.context.instance, step.assets, step.coordinator)
    step.context.log.info(cleaned_up(report))
    checkpoint = step.coordinator.get(step.attempt.checkpoint_id)
    step.context.add_output_metadata(state_metadata(checkpoint))


def _begin(
    reference: Reference, changelog: ChangelogStorageResource
) -> tuple[Attempt, CheckpointCoordinator]:
    attempt = Attempt.from_json(reference)
    coordinator = changelog.coordinator(attempt.job)
    if coordinator.store.uri != attempt.store_uri:
        raise InvalidInputError(
            f"this step is configured for {coordinator.store.uri}, but the attempt was made in "
            f"{attempt.store_uri}: give all ops of a job the same ChangelogStorageResource"
        )
    return attempt, coordinator


def _is_complete(attempt: Attempt, coordinator: CheckpointCoordinator) -> bool:
    try:
        coordinator.require_open(attempt)
    except ConflictError as error:
        if error.kind != "already_completed":
            raise
        return True
    return False


def _is_given_up(attempt: Attempt, coordinator: CheckpointCoordinator) -> bool:
    """Retention took the checkpoint that this attempt made: its manifest may be gone, its batch is not."""
    fate = coordinator.timeline.tail().fate(attempt.attempt)
    return fate is not None and fate.ending is Ending.SUBSUMED


def forget_given_up_partitions(
    instance: dg.DagsterInstance, assets: JobAssets, coordinator: CheckpointCoordinator
) -> None:
    """By what is there and not by what this call gave up: an earlier try may have ended in between."""
    # First the partitions: each stands for a checkpoint that the timeline, read later, must show.
    shown = instance.get_dynamic_partitions(assets.partitions_name)
    retained = {assets.partition_key(entry.checkpoint_id) for entry in coordinator.timeline.tail().retained}
    for partition in shown:
        if partition not in retained:
            instance.delete_dynamic_partition(assets.partitions_name, partition)


def blocked_failure(checkpoint: Checkpoint) -> dg.Failure:
    """What a step ends with whose checkpoint has files that are blocked."""
    first, number = checkpoint.blocked[0], checkpoint.checkpoint_id
    return dg.Failure(
        description=(
            f"{len(checkpoint.blocked)} files of checkpoint {number} are blocked: another object has the "
            f"final name, and was not touched. The other files are published. The first: {first.name}: "
            f"{first.reason}. Say what becomes of it: `dstl checkpoints resolve {number} {first.name}` with "
            "`--keep` or `--replace`"
        ),
        metadata={file.name: file.reason for file in checkpoint.blocked},
        allow_retries=False,
    )


def cleaned_up(report: CleanUp) -> str:
    """What step 7 did, as a line of the log."""
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(report.reasons.items()))
    return (
        f"step 7 clean up: {report.objects} objects ({readable_bytes(report.deleted_bytes)}) deleted"
        f"{f' ({why})' if why else ''}, {len(report.subsumed)} checkpoints given up"
    )


def progress_to(
    context: dg.OpExecutionContext, doing: str = "step 6 compose-commit", things: str = "files"
) -> Callable[[int, int], None]:
    """Tells Dagster how far a step is: in its log each tenth of the things, and at the end."""

    def tell(done: int, total: int) -> None:
        every = max(1, total // _PROGRESS_LINES)
        if done % every == 0 or done == total:
            context.log.info(f"{doing}: {done} of {total} {things}")

    return tell


def _report_checkpoint(step: _Step, checkpoint: Checkpoint) -> None:
    partition = step.assets.partition_key(checkpoint.checkpoint_id)
    step.context.instance.add_dynamic_partitions(step.assets.partitions_name, [partition])
    for event in unreported_checkpoint(step.context.instance, step.assets, checkpoint, _reporter(step)):
        step.context.log_event(event)


def _report_files(step: _Step, checkpoint: Checkpoint) -> None:
    for event in unreported_files(
        step.context.instance, step.assets, checkpoint, _reporter(step), partition_of(step.context)
    ):
        step.context.log_event(event)


def _reporter(step: _Step) -> Reporter:
    return Reporter("run", step.store_uri)


persist_op, confirm_op, compose_commit_op, cleanup_op = build_checkpoint_ops()
