"""Steps 6 and 7 of a checkpoint that was completed outside Dagster, as a job of two ops.

Owns the job, and its config, which names the work. Does not own who requests a run of it (`sensors`) or
what the steps do (`steps`).
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

from typing import Any

import dagster as dg

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.failures import DEFAULT_RETRY_POLICY, without_useless_retries
from dstl_dagster.orchestration.inject.resources import ChangelogStorageResource
from dstl_dagster.orchestration.keys import JobAssets, dagster_name
from dstl_dagster.orchestration.report.steps import Step, clean_up, compose_commit
from dstl_dagster.orchestration.tags import TAG_CHECKPOINT, TAG_STEP
from dstl_dagster.orchestration.timeline_check import require_shown_timeline

__all__ = ["CommitConfig", "build_commit_job", "commit_run_config"]

_COMMIT_OP = "compose_commit"


class CommitConfig(dg.Config):
    """Which checkpoint to commit. No field has a default: Dagster silently drops config under a wrong key."""

    job: str
    checkpoint_id: int


def commit_run_config(job: str, checkpoint_id: int) -> dict[str, Any]:
    """The run config of a run of `build_commit_job`."""
    return {"ops": {_COMMIT_OP: {"config": {"job": job, "checkpoint_id": checkpoint_id}}}}


def build_commit_job(
    job: str | JobAssets,
    *,
    name: str | None = None,
    changelog: ChangelogStorageResource | None = None,
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
) -> dg.JobDefinition:
    """compose_commit -> cleanup of one checkpoint of `job`. Either may run any number of times.

    The files it publishes are reported by the checkpoint sensor, from the timeline.
    """
    assets = JobAssets.of(job)
    job_name = dagster_name(name or f"{assets.group_name}_commit", "name")

    # Names of ops must be unique among all that is loaded together; the graph below gives them short ones.
    @dg.op(
        name=f"{job_name}_{_COMMIT_OP}",
        description=compose_commit.__doc__,
        retry_policy=retry_policy,
        tags={TAG_STEP: "6"},
        pool=assets.pool,
        out=dg.Out(int),
    )
    def commit(
        context: dg.OpExecutionContext, config: CommitConfig, changelog: ChangelogStorageResource
    ) -> int:
        with without_useless_retries(f"step 6 of checkpoint {config.checkpoint_id}, job {config.job!r}"):
            _require_same_work(context, config, assets)
            step = Step(context, assets, changelog.coordinator(assets.job))
            require_shown_timeline(context.run, context.instance, step.coordinator)
            compose_commit(step, config.checkpoint_id, report=False)
        return config.checkpoint_id

    @dg.op(
        name=f"{job_name}_cleanup",
        description=clean_up.__doc__,
        retry_policy=retry_policy,
        tags={TAG_STEP: "7"},
        pool=assets.pool,
    )
    def cleanup(
        context: dg.OpExecutionContext, checkpoint_id: int, changelog: ChangelogStorageResource
    ) -> None:
        with without_useless_retries(f"step 7 after checkpoint {checkpoint_id}, job {assets.job!r}"):
            step = Step(context, assets, changelog.coordinator(assets.job))
            require_shown_timeline(context.run, context.instance, step.coordinator)
            clean_up(step)

    @dg.graph(name=job_name)
    def steps() -> None:
        cleanup.alias("cleanup")(commit.alias(_COMMIT_OP)())

    return steps.to_job(
        name=job_name,
        resource_defs=None if changelog is None else {"changelog": changelog},
        description=f"Publishes the files of a checkpoint of {assets.job} completed outside Dagster.",
        # A re-execution from failure may skip ops that never ran; both steps are idempotent, so run them all.
        tags={"dagster/retry_strategy": "ALL_STEPS"},
    )


def _require_same_work(context: dg.OpExecutionContext, config: CommitConfig, assets: JobAssets) -> None:
    """The config must name what the run was requested for: a typo would commit another checkpoint."""
    tagged = context.run.tags.get(TAG_CHECKPOINT)
    if config.job != assets.job or tagged not in (None, str(config.checkpoint_id)):
        raise InvalidInputError(
            f"the run's config names checkpoint {config.checkpoint_id} of job {config.job!r}, but the run is "
            f"for checkpoint {tagged or config.checkpoint_id} of {assets.job!r}: use commit_run_config(...)"
        )
