"""Steps 6 and 7 for a checkpoint that was completed outside Dagster, as a job of two ops.

Owns the job, and its config, which names the work. Does not own who asks for it (`sensors`).
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

from typing import Any

import dagster as dg

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import readable_bytes
from dstl_dagster.orchestration.failures import without_useless_retries
from dstl_dagster.orchestration.keys import TAG_CHECKPOINT, TAG_STEP, JobAssets
from dstl_dagster.orchestration.ops import (
    DEFAULT_RETRY_POLICY,
    blocked_failure,
    cleaned_up,
    forget_given_up_partitions,
    progress_to,
)
from dstl_dagster.orchestration.resources import ChangelogStorageResource

__all__ = ["CommitConfig", "build_commit_job", "commit_run_config"]

_COMMIT_OP = "compose_commit"


class CommitConfig(dg.Config):
    """Which checkpoint is to be committed. Nothing has a default: Dagster drops a key it does not know."""

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

    What it published is reported by the checkpoint sensor, from the timeline.
    """
    assets = job if isinstance(job, JobAssets) else JobAssets(job)
    job_name = name or f"{assets.group_name}_commit"

    # Names of ops must differ among all that is loaded together; the graph below gives them short ones.
    @dg.op(name=f"{job_name}_{_COMMIT_OP}", retry_policy=retry_policy, tags={TAG_STEP: "6"}, out=dg.Out(int))
    def compose_commit(
        context: dg.OpExecutionContext, config: CommitConfig, changelog: ChangelogStorageResource
    ) -> int:
        """Step 6: compose every file of the checkpoint to its final name."""
        with without_useless_retries(f"step 6 of checkpoint {config.checkpoint_id}, job {config.job!r}"):
            _require_meant(context, config, assets)
            (checkpoint,) = changelog.coordinator(assets.job).compose_commit(
                config.checkpoint_id, progress=progress_to(context)
            )
            manifest = checkpoint.manifest
            context.log.info(
                f"step 6 compose-commit: {len(manifest.files) - len(checkpoint.blocked)} files "
                f"({readable_bytes(manifest.file_bytes)} in all) of checkpoint {checkpoint.checkpoint_id}"
            )
            if checkpoint.blocked:
                raise blocked_failure(checkpoint)
        return config.checkpoint_id

    @dg.op(name=f"{job_name}_cleanup", retry_policy=retry_policy, tags={TAG_STEP: "7"})
    def cleanup(
        context: dg.OpExecutionContext, checkpoint_id: int, changelog: ChangelogStorageResource
    ) -> None:
        """Step 7: give up checkpoints beyond retention, and delete what nothing needs."""
        with without_useless_retries(f"step 7 after checkpoint {checkpoint_id}, job {assets.job!r}"):
            coordinator = changelog.coordinator(assets.job)
            report = coordinator.clean_up()
            forget_given_up_partitions(context.instance, assets, coordinator)
            context.log.info(cleaned_up(report))

    @dg.graph(name=job_name)
    def steps() -> None:
        cleanup.alias("cleanup")(compose_commit.alias(_COMMIT_OP)())

    return steps.to_job(
        name=job_name,
        resource_defs=None if changelog is None else {"changelog": changelog},
        description=f"Publishes the files of a checkpoint of {assets.job} that was completed elsewhere.",
        # A re-execution from failure may skip what it believes done; both steps may simply run again.
        tags={"dagster/retry_strategy": "ALL_STEPS"},
    )


def _require_meant(context: dg.OpExecutionContext, config: CommitConfig, assets: JobAssets) -> None:
    """The config must name what the run was asked for: a mistyped key would commit another checkpoint."""
    tagged = context.run.tags.get(TAG_CHECKPOINT)
    if config.job != assets.job or tagged not in (None, str(config.checkpoint_id)):
        raise InvalidInputError(
            f"the run's config names checkpoint {config.checkpoint_id} of job {config.job!r}, but the run is "
            f"for checkpoint {tagged or config.checkpoint_id} of {assets.job!r}: use commit_run_config(...)",
            kind="wrong_config",
        )
