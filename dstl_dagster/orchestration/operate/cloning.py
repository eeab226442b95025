"""Cloning a job, and swapping one for its clone, as runs that a person launches.

Owns the runs' config, and what they say. Does not own what a clone is (`jobs.clone`), or their job
(`maintenance`).
"""

# No postponed annotations here: Dagster reads the types of the config's fields as objects.

import dagster as dg
from pydantic import Field

from dstl_dagster.jobs import clone_job, swap_job
from dstl_dagster.orchestration.owners import owner_of
from dstl_dagster.orchestration.report.steps import Step, report_checkpoint, report_checks
from dstl_dagster.timeline import AsOf


class CloneConfig(dg.Config):
    """What is cloned, and under which name."""

    new: str = Field(description="The name of the job that begins.")
    at: str = Field(
        default="latest",
        description="With the state of this checkpoint: an id, a partition, a savepoint or a time.",
    )


class SwapConfig(dg.Config):
    """Whose state takes the place of the job's."""

    clone: str = Field(description="A job of the same store, which holds each batch that this one holds.")


def clone(step: Step) -> None:
    """Begin a job with the state of a checkpoint of this one."""
    config, assets = CloneConfig(**step.context.op_config), step.assets
    made = clone_job(
        step.coordinator.store,
        assets.job,
        config.new,
        step.coordinator.job_options,
        at=AsOf.of_text(config.at),
        owner=owner_of(step.context.run),
        progress=step.progress("clone", "files"),
    )
    step.context.log.info(f"job {config.new!r} begins with checkpoint {made.checkpoint_id} of {assets.job!r}")


def swap(step: Step) -> None:
    """Continue the job from the state of its clone, in one checkpoint."""
    name, assets = SwapConfig(**step.context.op_config).clone, step.assets
    made = swap_job(
        step.coordinator.store,
        assets.job,
        name,
        step.coordinator.job_options,
        owner=owner_of(step.context.run),
        progress=step.progress("swap", "files"),
    )
    step.coordinator.timeline.tail()  # the swap has written it
    step.context.log.info(f"checkpoint {made.checkpoint_id} of {assets.job!r} has the state of {name!r}")
    report_checkpoint(step, made)
    report_checks(step)
