"""Steps 3 to 7 as Dagster ops: retryable, each reading the truth again from the store.

Owns the translation of a step into an op: what is passed on, logged and reported. Holds no rule of the
protocol. What ops hand to each other is a reference (the JSON form of an attempt), never a result to be
trusted: `persist_op` reads the tasks' report, `confirm_op` the manifest, and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dstl_dagster.checkpoint import Attempt, Checkpoint, CheckpointCoordinator, load_report
from dstl_dagster.errors import ConflictError, InvalidInputError
from dstl_dagster.format.readable import readable_bytes
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.lineage import (
    checkpoint_materialization,
    files_materialization,
    state_metadata,
)
from dstl_dagster.orchestration.resources import ChangelogStorageResource

__all__ = [
    "DEFAULT_RETRY_POLICY",
    "CheckpointOps",
    "build_checkpoint_ops",
    "cleanup_op",
    "compose_commit_op",
    "confirm_op",
    "persist_op",
]

DEFAULT_RETRY_POLICY = dg.RetryPolicy(
    max_retries=3, delay=1.0, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS
)
"""For steps that may be run any number of times: about 1, 2 and 4 seconds apart."""

Reference = dict[str, Any]


@dataclass(frozen=True)
class CheckpointOps:
    """The four ops behind a user's own, in the order they run."""

    persist: dg.OpDefinition
    confirm: dg.OpDefinition
    compose_commit: dg.OpDefinition
    cleanup: dg.OpDefinition

    def __iter__(self) -> Any:
        return iter((self.persist, self.confirm, self.compose_commit, self.cleanup))


def build_checkpoint_ops(
    assets: Callable[[str], JobAssets] = JobAssets, *, retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY
) -> CheckpointOps:
    """The ops, with the asset keys under which they report.

    Args:
        assets: from a job's name to its asset keys; the default is `<job>/state`, `<job>/files` and
            `<job>/checkpoints`.
        retry_policy: for failures of a whole step; short network failures are retried inside.
    """

    @dg.op(name="persist", out=dg.Out(dict), retry_policy=retry_policy, tags={"dstl/step": "4"})
    def persist(
        context: dg.OpExecutionContext,
        reference: dict,
        changelog: ChangelogStorageResource,  # type: ignore[type-arg] # Dagster takes no dict[str, Any]
    ) -> Reference:
        """Steps 3 and 4: check that everything the tasks reported is durable, and write the manifest."""
        attempt, coordinator = _begin(reference, changelog)
        if _is_complete(attempt, coordinator):
            context.log.info(f"step 4 record: already in checkpoint {attempt.checkpoint_id}, nothing to do")
            return reference
        report = load_report(coordinator.store, attempt)
        manifest = coordinator.record(
            attempt, report.operators, report.files, report.positions, persist_seconds=report.seconds
        )
        context.log.info(
            f"step 4 record: checkpoint {attempt.checkpoint_id} has {manifest.changes} changed rows "
            f"({readable_bytes(manifest.state_bytes)} of changelog) and {len(manifest.files)} files "
            f"({readable_bytes(manifest.file_bytes)}); nothing of it is visible yet"
        )
        return reference

    @dg.op(name="confirm", out=dg.Out(dict), retry_policy=retry_policy, tags={"dstl/step": "5"})
    def confirm(
        context: dg.OpExecutionContext,
        reference: dict,
        changelog: ChangelogStorageResource,  # type: ignore[type-arg] # as above
    ) -> Reference:
        """Step 5, the commit point: the checkpoint is complete from here on."""
        attempt, coordinator = _begin(reference, changelog)
        checkpoint = coordinator.confirm(attempt)
        context.log.info(f"step 5 confirm: checkpoint {checkpoint.checkpoint_id} is complete")
        _report_checkpoint(context, assets(attempt.job), checkpoint, changelog.uri)
        return reference

    @dg.op(name="compose_commit", out=dg.Out(dict), retry_policy=retry_policy, tags={"dstl/step": "6"})
    def compose_commit(
        context: dg.OpExecutionContext,
        reference: dict,
        changelog: ChangelogStorageResource,  # type: ignore[type-arg] # as above
    ) -> Reference:
        """Step 6: compose every file of the checkpoint to its final name."""
        attempt, coordinator = _begin(reference, changelog)
        before = coordinator.get(attempt.checkpoint_id)
        (checkpoint,) = coordinator.compose_commit(attempt.checkpoint_id)
        published = len(checkpoint.manifest.files) - len(checkpoint.blocked)
        again = " (they already were)" if before.committed else ""
        context.log.info(
            f"step 6 compose-commit: {published} files of checkpoint {checkpoint.checkpoint_id} are "
            f"published{again}"
        )
        _report_files(context, assets(attempt.job), checkpoint, changelog.uri)
        if checkpoint.blocked:
            raise dg.Failure(
                description=(
                    f"{len(checkpoint.blocked)} files of checkpoint {checkpoint.checkpoint_id} are blocked: "
                    "another object has the final name. Nothing of it was touched. Move it away or keep it, "
                    "and see the list below."
                ),
                metadata={file.name: file.reason for file in checkpoint.blocked},
                allow_retries=False,
            )
        return reference

    @dg.op(name="cleanup", out=dg.Out(dict), retry_policy=retry_policy, tags={"dstl/step": "7"})
    def cleanup(
        context: dg.OpExecutionContext,
        reference: dict,
        changelog: ChangelogStorageResource,  # type: ignore[type-arg] # as above
    ) -> Reference:
        """Step 7: give up checkpoints beyond retention, and delete what nothing needs."""
        attempt, coordinator = _begin(reference, changelog)
        report = coordinator.clean_up()
        keys = assets(attempt.job)
        name = keys.partitions.name
        assert name is not None
        for checkpoint_id in report.subsumed:
            context.instance.delete_dynamic_partition(name, keys.partition_key(checkpoint_id))
        context.log.info(
            f"step 7 clean up: {len(report.deleted)} objects ({readable_bytes(report.deleted_bytes)}) "
            f"deleted, {len(report.subsumed)} checkpoints given up"
        )
        context.add_output_metadata(state_metadata(coordinator.get(attempt.checkpoint_id)))
        return reference

    return CheckpointOps(persist, confirm, compose_commit, cleanup)


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


def _report_checkpoint(
    context: dg.OpExecutionContext, assets: JobAssets, checkpoint: Checkpoint, store_uri: str
) -> None:
    partition = assets.partition_key(checkpoint.checkpoint_id)
    assert assets.partitions.name is not None
    context.instance.add_dynamic_partitions(assets.partitions.name, [partition])
    if not _is_reported(context, assets.checkpoints_key, partition):
        context.log_event(checkpoint_materialization(assets, checkpoint, store_uri))


def _report_files(
    context: dg.OpExecutionContext, assets: JobAssets, checkpoint: Checkpoint, store_uri: str
) -> None:
    partition = context.partition_key if context.has_partition_key else None
    if not checkpoint.manifest.files or (
        partition is not None and _is_reported(context, assets.files_key, partition)
    ):
        return
    context.log_event(files_materialization(assets, checkpoint, store_uri, partition))


def _is_reported(context: dg.OpExecutionContext, key: dg.AssetKey, partition: str) -> bool:
    """An event was written by an earlier try of this step, or by somebody else who looked."""
    found = context.instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition]), limit=1
    )
    return bool(found.records)


persist_op, confirm_op, compose_commit_op, cleanup_op = build_checkpoint_ops()
