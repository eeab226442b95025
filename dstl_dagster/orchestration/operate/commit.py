"""Steps 6 and 7 of a checkpoint that was completed outside Dagster.

Owns the run's config, which names the work. Does not own requesting a run of it (`watch.committing`), its
job (`maintenance`), or what the steps do (`steps`).
"""

# No postponed annotations here: Dagster reads the types of the config's fields as objects.

from typing import Any

import dagster as dg

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.steps import Step, clean_up, compose_commit
from dstl_dagster.orchestration.tags import TAG_CHECKPOINT

_COMMIT_OP = "commit"


class CommitConfig(dg.Config):
    """Which checkpoint to commit. No field has a default: Dagster silently drops config under a wrong key."""

    job: str
    checkpoint_id: int


def commit_run_config(job: str, checkpoint_id: int) -> dict[str, Any]:
    """The run config of a run of `build_maintenance(job, "commit")`."""
    return {"ops": {_COMMIT_OP: {"config": {"job": job, "checkpoint_id": checkpoint_id}}}}


def commit(step: Step) -> None:
    """Publish the files of the checkpoint that the config names, then clean up.

    The sensor reports them, from the timeline: it knows the partition that they belong to.
    """
    config = CommitConfig(**step.context.op_config)
    tagged = step.context.run.tags.get(TAG_CHECKPOINT)
    # A typo would commit another checkpoint than the run was requested for.
    if config.job != step.assets.job or tagged not in (None, str(config.checkpoint_id)):
        raise InvalidInputError(
            f"the run's config names checkpoint {config.checkpoint_id} of job {config.job!r}, but the run is "
            f"for checkpoint {tagged or config.checkpoint_id} of {step.assets.job!r}: use "
            "commit_run_config(...)"
        )
    compose_commit(step, config.checkpoint_id, report=False)
    clean_up(step)
