"""Steps 3 to 7 of a batch as Dagster ops.

Owns what ops hand to each other: a reference (the JSON form of an attempt), never a result to be trusted.
Does not own what a step does (`steps`) or which errors are retried (`failures`).
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.applied import observe_if_unchanged
from dstl_dagster.orchestration.failures import DEFAULT_RETRY_POLICY, without_useless_retries
from dstl_dagster.orchestration.keys import TAG_STEP, JobAssets
from dstl_dagster.orchestration.lineage import state_metadata
from dstl_dagster.orchestration.resources import ChangelogStorageResource
from dstl_dagster.orchestration.steps import Step, clean_up, compose_commit, confirm, persist
from dstl_dagster.timeline import Ending

__all__ = [
    "CheckpointOps",
    "build_checkpoint_ops",
    "cleanup_op",
    "compose_commit_op",
    "confirm_op",
    "persist_op",
]

Reference = dict[str, Any]


@dataclass(frozen=True)
class CheckpointOps:
    """The four ops behind a user's own, in the order they run."""

    persist: dg.OpDefinition
    confirm: dg.OpDefinition
    compose_commit: dg.OpDefinition
    cleanup: dg.OpDefinition

    def __iter__(self) -> Iterator[Callable[[Any], Any]]:
        """Each as a node of a graph, under its short name."""
        return iter(
            (
                self.persist.alias("persist"),
                self.confirm.alias("confirm"),
                self.compose_commit.alias("compose_commit"),
                self.cleanup.alias("cleanup"),
            )
        )

    def invoke_after(self, reference: Any) -> Any:
        """Inside a graph: all four, one after the other, behind the op that returned `reference`."""
        for op in self:
            reference = op(reference)
        return reference


def build_checkpoint_ops(
    assets: Callable[[str], JobAssets] = JobAssets.of,
    *,
    prefix: str = "",
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
    pool: str | None = None,
    ends: bool = False,
) -> CheckpointOps:
    """The ops, with the asset keys under which they report.

    Args:
        assets: from a job's name to its asset keys; the default is `<job>/state`, `<job>/files` and
            `<job>/checkpoints`.
        prefix: of the ops' names, which must be unique among all that Dagster loads together.
        retry_policy: for failures of a whole step; short network failures are retried inside.
        pool: the concurrency pool of all four.
        ends: nothing follows `cleanup`, which then returns nothing, so that Dagster stores nothing for it.
    """

    def op(
        name: str,
        number: str,
        description: str | None,
        body: Callable[[Step, Attempt], None],
    ) -> dg.OpDefinition:
        @dg.op(
            name=f"{prefix}{name}",
            description=description,
            out=dg.Out(dict),
            retry_policy=retry_policy,
            tags={TAG_STEP: number},
            pool=pool,
        )
        def step(
            context: dg.OpExecutionContext,
            reference: dict,  # type: ignore[type-arg] # Dagster takes no dict[str, Any]
            changelog: ChangelogStorageResource,
        ) -> dict:  # type: ignore[type-arg] # as above
            _run(number, body, context, assets, reference, changelog)
            return reference

        return step

    return CheckpointOps(
        persist=op("persist", "4", persist.__doc__, persist),
        confirm=op("confirm", "5", confirm.__doc__, confirm),
        compose_commit=op("compose_commit", "6", compose_commit.__doc__, _compose_commit),
        cleanup=_build_cleanup_op(assets, prefix, retry_policy, pool, ends=ends),
    )


def _build_cleanup_op(
    assets: Callable[[str], JobAssets],
    prefix: str,
    retry_policy: dg.RetryPolicy,
    pool: str | None,
    *,
    ends: bool,
) -> dg.OpDefinition:
    """The last op of a graph-backed asset: its output is the materialization."""

    @dg.op(
        name=f"{prefix}cleanup",
        description=clean_up.__doc__,
        out=dg.Out(dg.Nothing if ends else dict, is_required=False),
        retry_policy=retry_policy,
        tags={TAG_STEP: "7"},
        pool=pool,
    )
    def cleanup(
        context: dg.OpExecutionContext,
        reference: dict,  # type: ignore[type-arg] # Dagster takes no dict[str, Any]
        changelog: ChangelogStorageResource,
    ) -> Iterator[dg.Output[Any]]:
        attempt = _run("7", _clean_up, context, assets, reference, changelog)
        if not observe_if_unchanged(context, assets(attempt.job), attempt.checkpoint_id):
            yield dg.Output(None if ends else reference)

    return cleanup


def _run(
    number: str,
    body: Callable[[Step, Attempt], None],
    context: dg.OpExecutionContext,
    assets: Callable[[str], JobAssets],
    reference: Reference,
    changelog: ChangelogStorageResource,
) -> Attempt:
    """One step, of an attempt that is not subsumed."""
    with without_useless_retries(f"step {number}"):
        attempt, coordinator = _begin(reference, changelog)
    where = f"step {number} of checkpoint {attempt.checkpoint_id}, job {attempt.job!r}"
    with without_useless_retries(where, {"attempt": str(attempt.attempt), "store": changelog.uri}):
        if not _is_subsumed(context, number, attempt, coordinator):
            body(Step(context, assets(attempt.job), coordinator), attempt)
    return attempt


def _compose_commit(step: Step, attempt: Attempt) -> None:
    compose_commit(step, attempt.checkpoint_id, attempt=attempt)


def _clean_up(step: Step, attempt: Attempt) -> None:
    clean_up(step)
    # Of the last op, which is that of the state.
    checkpoint = step.coordinator.get(attempt.checkpoint_id)
    step.context.add_output_metadata(state_metadata(checkpoint, step.coordinator.prices))


def _begin(
    reference: Reference, changelog: ChangelogStorageResource
) -> tuple[Attempt, CheckpointCoordinator]:
    attempt = Attempt.from_json(reference)
    coordinator = changelog.coordinator(attempt.job)
    if coordinator.store.uri != attempt.store_uri:
        raise InvalidInputError(
            f"this step is configured for {coordinator.store.uri}, but the attempt was opened in "
            f"{attempt.store_uri}: give all ops of a job the same ChangelogStorageResource"
        )
    return attempt, coordinator


def _is_subsumed(
    context: dg.OpExecutionContext, number: str, attempt: Attempt, coordinator: CheckpointCoordinator
) -> bool:
    """The checkpoint of this attempt is subsumed: its batch is applied, its manifest may be gone."""
    coordinator.timeline.start_at(attempt.snapshot_slot)
    fate = coordinator.timeline.tail().fate(attempt.attempt)
    if fate is None or fate.ending is not Ending.SUBSUMED:
        return False
    context.log.info(
        f"step {number}: checkpoint {attempt.checkpoint_id} is complete and already subsumed: nothing to do"
    )
    return True


persist_op, confirm_op, compose_commit_op, cleanup_op = build_checkpoint_ops()
