"""Steps 3 to 7 of a batch as Dagster ops, and the plain job of a user's own op with these behind it.

Owns what ops hand to each other: a reference (the JSON form of an attempt), never a result to be trusted.
Does not own what a step does (`steps`) or which errors are retried (`failures`).
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import dagster as dg

from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.code_location import assets_in
from dstl_dagster.orchestration.failures import DEFAULT_RETRY_POLICY, without_useless_retries
from dstl_dagster.orchestration.inject.repeated_run import observe_if_unchanged
from dstl_dagster.orchestration.inject.resources import ChangelogStorageResource, FilesInside, with_changelog
from dstl_dagster.orchestration.keys import TAG_STEP, JobAssets, dagster_name
from dstl_dagster.orchestration.report.events import output_of_state
from dstl_dagster.orchestration.steps import Step, clean_up, compose_commit, confirm, persist
from dstl_dagster.timeline import Ending

Reference = Any  # the JSON form of an attempt: Dagster takes no dict[str, Any] here


def _checked(_context: Any, value: Any) -> dg.TypeCheck:
    """Whether an op handed on its batch's reference."""
    if isinstance(value, dict) and "attempt" in value:
        return dg.TypeCheck(success=True)
    said = "nothing" if value is None else f"a {type(value).__name__}"
    return dg.TypeCheck(
        success=False,
        description=f"the op before this one returned {said}, and not the reference of its batch: end it "
        "with `return batch.reference`",
    )


class _BatchReference(dg.DagsterType):
    """What the op that does steps 1 to 3 hands on; by its type that op's resources are checked on load.

    Not by a copy of the user's op: several jobs may use it, and Dagster knows it by identity.
    """

    def __init__(self, prefix: str = "", update: dg.OpDefinition | None = None) -> None:
        super().__init__(_checked, name=f"{prefix}batch_reference")
        self._update = update

    def get_resource_requirements(self, *asked: Any, **by_name: Any) -> Iterator[Any]:
        yield from super().get_resource_requirements(*asked, **by_name)
        if self._update is not None:
            yield FilesInside(self._update)


Body = Callable[[Step, Attempt], object]


def build_steps(
    update: dg.OpDefinition,
    assets: Callable[[str], JobAssets] = JobAssets.of,
    *,
    separate_steps: bool,
    **arguments: Any,
) -> Callable[[Any], Any]:
    """What stands inside a graph behind `update`: `complete`, or the four ops. Others: as of `StepOps`."""
    if not isinstance(update, dg.OpDefinition):
        raise InvalidInputError(f"update is the op that does steps 1 to 3: decorate {update!r} with @dg.op")
    ops = StepOps(assets, update=update, **arguments)
    if not separate_steps:
        return ops.complete().alias("complete")

    def one_after_another(reference: Any) -> Any:
        for name, op in zip(_STEPS, ops.separate(), strict=True):
            reference = op.alias(name)(reference)
        return reference

    return one_after_another


@dataclass(frozen=True)
class StepOps:
    """Makes the ops behind a user's own, `update`.

    Attributes:
        assets: from a job's name to the asset keys under which they report.
        prefix: of the ops' names, which must be unique among all that Dagster loads together.
        ends: nothing follows the last one, which then returns nothing, so that Dagster stores nothing for it.
        changelog: where the job lives; without it, the resource named `changelog`.
    """

    assets: Callable[[str], JobAssets] = JobAssets.of
    prefix: str = ""
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY
    pool: str | None = None
    ends: bool = False
    changelog: ChangelogStorageResource | None = None
    update: dg.OpDefinition | None = None

    def separate(self) -> list[dg.OpDefinition]:
        """Steps 4, 5, 6 and 7."""
        return [
            self._op(name, number, body.__doc__, [(number, does)], is_last=number == "7")
            for name, (number, body, does) in _STEPS.items()
        ]

    def complete(self) -> dg.OpDefinition:
        """All of them.

        Each step reads the truth from the store, so a retry runs all four again, and those that are done find
        that out: nothing that separate ops would keep is lost, but three processes.
        """
        about = "Steps 4 to 7: record, confirm (the commit point), compose-commit, clean up. A retry goes on "
        about += "where the timeline stands."
        steps = [(number, does) for number, _, does in _STEPS.values()]
        return self._op("complete", "4-7", about, steps, is_last=True)

    @cached_property
    def _reference(self) -> _BatchReference:
        """One for all: Dagster takes no two types of a name."""
        return _BatchReference(self.prefix, self.update)

    def _op(
        self,
        name: str,
        number: str,
        description: str | None,
        steps: Sequence[tuple[str, Body]],
        *,
        is_last: bool,
    ) -> dg.OpDefinition:
        """Of these steps. `is_last`: the output is the materialization of a graph-backed asset."""
        ends = is_last and self.ends
        decorator = dg.op(
            name=f"{self.prefix}{name}",
            description=description,
            ins={"reference": dg.In(self._reference)},
            out=dg.Out(dg.Nothing if ends else dict, is_required=not is_last),
            retry_policy=self.retry_policy,
            tags={TAG_STEP: number},
            pool=self.pool,
        )

        def step(
            context: dg.OpExecutionContext, reference: Reference, changelog: ChangelogStorageResource
        ) -> Reference:
            _run(steps, context, self.assets, reference, changelog)
            return reference

        def last(
            context: dg.OpExecutionContext, reference: Reference, changelog: ChangelogStorageResource
        ) -> Iterator[dg.Output[Any]]:
            attempt = _run(steps, context, self.assets, reference, changelog)
            shown, value = assets_in(context, self.assets(attempt.job)), None if ends else reference
            if observe_if_unchanged(context, shown, attempt):
                return
            if not context.has_assets_def:
                yield dg.Output(value)
                return
            made = output_of_state(context, shown, _begin(reference, changelog)[1], attempt, step="4-7")
            # Not `set_data_version`: of an asset that depends on itself Dagster would warn of two versions.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", dg.BetaWarning)  # of the argument `data_version`
                output = dg.Output(
                    value, metadata=made.metadata, tags=made.tags, data_version=made.data_version
                )
            yield output

        body = with_changelog(self.changelog, last if is_last else step)
        body.__doc__ = description  # also for `help`
        return decorator(body)


def _run(
    steps: Sequence[tuple[str, Body]],
    context: dg.OpExecutionContext,
    assets: Callable[[str], JobAssets],
    reference: Reference,
    changelog: ChangelogStorageResource,
) -> Attempt:
    """Steps one after another, of an attempt that is not subsumed. Each finds out by itself if it is done."""
    with without_useless_retries(f"step {steps[0][0]}"):
        attempt, coordinator = _begin(reference, changelog)
        shown = assets(attempt.job)
        if shown.job != attempt.job:
            raise InvalidInputError(
                f"the op has opened its batch with job={attempt.job!r}, and "
                f"{shown.state_key.to_user_string()} is the state of job {shown.job!r}: open it as of that"
            )
    for number, body in steps:
        where = f"step {number} of checkpoint {attempt.checkpoint_id}, job {attempt.job!r}"
        with without_useless_retries(where, {"attempt": str(attempt.attempt), "store": changelog.uri}):
            if _is_subsumed(context, number, attempt, coordinator):
                break
            body(Step(context, shown, coordinator), attempt)
    return attempt


_STEPS: Final[Mapping[str, tuple[str, Callable[..., Any], Body]]] = {
    "persist": ("4", persist, persist),
    "confirm": ("5", confirm, confirm),
    "compose_commit": (
        "6",
        compose_commit,
        lambda step, attempt: compose_commit(step, attempt.checkpoint_id, attempt=attempt),
    ),
    "cleanup": ("7", clean_up, lambda step, _: clean_up(step)),
}
"""The ops in their order: the number of the step, the function whose docstring Dagster shows, and how it is
called.
"""


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
    coordinator.timeline.start_at(attempt)
    return attempt, coordinator


def _is_subsumed(
    context: dg.OpExecutionContext, number: str, attempt: Attempt, coordinator: CheckpointCoordinator
) -> bool:
    """The checkpoint of this attempt is subsumed: its batch is applied, its manifest may be gone."""
    fate = coordinator.timeline.seen().fate(attempt.attempt)
    if fate is None or fate.ending is not Ending.SUBSUMED:
        return False
    context.log.info(
        f"step {number}: checkpoint {attempt.checkpoint_id} is complete and already subsumed: nothing to do"
    )
    return True


persist_op, confirm_op, compose_commit_op, cleanup_op = StepOps().separate()


def build_checkpoint_job(
    name: str,
    update: dg.OpDefinition,
    *,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
    separate_steps: bool = False,
    **job_arguments: Any,
) -> dg.JobDefinition:
    """update -> complete, or update -> persist -> confirm -> compose_commit -> cleanup, as a plain job.

    Args:
        name: the name of the Dagster job.
        update: the user's op; it takes nothing and returns `batch.reference`.
        partitions_def: makes the partition of a run the idempotency key of its batch.
        retry_policy: of what stands behind `update`.
        separate_steps: as of `build_state_asset`.
        job_arguments: passed on to `GraphDefinition.to_job` (resource_defs, executor_def, tags, ...).

    Raises: InvalidInputError for a name that Dagster does not take, or an `update` that is no op.
    """
    prefix = f"{dagster_name(name, 'name')}_"
    complete = build_steps(update, separate_steps=separate_steps, prefix=prefix, retry_policy=retry_policy)

    @dg.graph(name=name)
    def steps() -> None:
        complete(update())

    return steps.to_job(name=name, partitions_def=partitions_def, **job_arguments)
