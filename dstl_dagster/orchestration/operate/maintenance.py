"""The one builder of what a person, a schedule or the checkpoint sensor runs between batches.

Owns the Dagster job of one op, its schedule, which ships stopped, and the ops that clone, swap, and
commit what was completed outside Dagster. Does not own what the others do: `steps`, `restoring`,
`correcting`, `watch.checks`.
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Literal, get_args, overload

import dagster as dg
from pydantic import Field

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.jobs import clone_job, swap_job
from dstl_dagster.orchestration.failures import DEFAULT_RETRY_POLICY, without_useless_retries
from dstl_dagster.orchestration.inject.resources import ChangelogStorageResource
from dstl_dagster.orchestration.keys import TAG_CHECKPOINT, TAG_JOB, TAG_STEP, JobAssets, dagster_name
from dstl_dagster.orchestration.operate.correcting import correct_partition
from dstl_dagster.orchestration.operate.restoring import RestoreConfig, restore
from dstl_dagster.orchestration.owners import owner_of
from dstl_dagster.orchestration.report.links import shown_lines
from dstl_dagster.orchestration.steps import (
    Step,
    clean_up,
    compose_commit,
    materialize,
    report_checkpoint,
    report_checks,
    verify,
)
from dstl_dagster.orchestration.timeline_check import require_shown_timeline
from dstl_dagster.timeline import AsOf

Work = Literal["cleanup", "materialize", "verify", "checks", "restore", "correct", "clone", "swap", "commit"]

_SCHEDULED: Final = ("cleanup", "materialize", "verify", "checks")
_OF_PARTITIONS: Final = ("restore", "correct")
_LAUNCHED: Final = (*_OF_PARTITIONS, "clone", "swap")
_OUT_OF_TURN: Final = (*_OF_PARTITIONS, "clone")
"""These wait for no pool: a restore ends what is at work."""


class CleanUpConfig(dg.Config):
    """How a clean-up is launched by a person."""

    preview: bool = Field(
        default=False,
        description="Only show what would be subsumed and deleted; the run succeeds, nothing is changed.",
    )


@overload
def build_maintenance(
    job: str | JobAssets,
    work: Work,
    *,
    when: None = None,
    name: str | None = None,
    changelog: ChangelogStorageResource | None = None,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    day_job: Callable[[], dg.JobDefinition] | None = None,
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
) -> dg.JobDefinition: ...
@overload
def build_maintenance(
    job: str | JobAssets,
    work: Work,
    *,
    when: str,
    name: str | None = None,
    changelog: ChangelogStorageResource | None = None,
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
) -> dg.ScheduleDefinition: ...
def build_maintenance(
    job: str | JobAssets,
    work: Work,
    *,
    when: str | None = None,
    name: str | None = None,
    changelog: ChangelogStorageResource | None = None,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    day_job: Callable[[], dg.JobDefinition] | None = None,
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
) -> dg.JobDefinition | dg.ScheduleDefinition:
    """The Dagster job `<job>_<work>`, or with `when` its schedule, which brings the job along.

    * `cleanup`: step 7 by itself, for a job that nothing else cleans up after. With the config
      `preview: true` the run shows the checkpoints and objects that would go, and changes nothing.
    * `materialize`: merges the changelog into a base where that is due, as a checkpoint of its own. Refused
      while a batch of the job is open: run it between batches.
    * `verify`: reads back everything that the last checkpoint references; fails naming each damaged object.
    * `checks`: runs the checks that `build_checkpoint_checks` made for the job, in the same definitions.
    * `restore`: rolls the job back: launch it for the partition of a checkpoint, `chk-00000042`. A run
      without config changes nothing: it fails with what it would undo, and with the config that confirms that
      (`restore_run_config`). Later checkpoints are abandoned: their files are retracted, their batches may
      run again, and Dagster shows those partitions as failed until they did. Ends an open attempt of
      any owner. A run of a backfill is refused.
    * `correct`: launch it for a partition, once its source is right. The job is restored to the checkpoint
      before it, which must be retained; then the partition and all after it that have ever run are run
      again, in order; refused if one is no partition of `day_job`. If one fails, so does this. A
      re-execution, or a launch for the one that failed, goes on there.
    * `clone`: begins the job that the config names with the state of a checkpoint, to recompute beside this
      one. `swap`: continues this job from the state of the clone that the config names, in one checkpoint.
    * `commit`: steps 6 and 7 of a checkpoint, for a job outside Dagster that leaves them to it: give it to
      `build_checkpoint_sensor`, which launches it with a config, and reports the files.

    Args:
        when: a cron expression, in UTC; the schedule ships stopped. those that a person launches, and
            `commit`, take none.
        name: of the job; by default `<job>_<work>`.
        changelog: where the job lives; without it, the resource named `changelog`. `checks` have their own.
        partitions_def: of the job's state and files, for `restore`: the check that names the partitions to
            run again is evaluated only with it. For `correct`: of `day_job`.
        day_job: for `correct`: returns the Dagster job that runs one partition, with its resources, such as
            `lambda: defs.resolve_job_def("orders_day")`; called when the op runs.
        retry_policy: of the op. A partition that `correct` runs is not retried by it: its own ops are.

    Raises: InvalidInputError for a work that is none of these, an argument that it does not take, a name that
    Dagster does not take.
    """
    assets = JobAssets.of(job)
    works = get_args(Work)
    if work not in works:
        raise InvalidInputError(f"{work!r} is no maintenance: it is {', '.join(works)}")
    job_name = dagster_name(name or f"{assets.group_name}_{work}", "name")
    if when is not None and work not in _SCHEDULED:
        by = "a person launches" if work in _LAUNCHED else "the checkpoint sensor launches"
        raise InvalidInputError(f"{by} {work}: leave `when` out")
    if (day_job is not None) != (work == "correct"):
        raise InvalidInputError("`day_job` is the job that `correct`, and nothing else, runs for a partition")
    if partitions_def is not None and work not in _OF_PARTITIONS:
        raise InvalidInputError(f"{work} is of no partition: leave `partitions_def` out")
    made: Any
    if work == "checks":
        made = dg.define_asset_job(
            job_name,
            selection=dg.AssetSelection.checks_for_assets(assets.checkpoints_key),
            description=f"Checks the last checkpoint of {assets.job}: the results are on the page of its "
            "checkpoints.",
        )
    else:
        made = _job(assets, work, job_name, changelog, retry_policy, partitions_def, day_job)
    return made if when is None else build_cleanup_schedule(made, when)


def build_cleanup_job(
    job: str | JobAssets,
    *,
    name: str | None = None,
    changelog: ChangelogStorageResource | None = None,
    retry_policy: dg.RetryPolicy = DEFAULT_RETRY_POLICY,
) -> dg.JobDefinition:
    """`build_maintenance(job, "cleanup")`: step 7 by itself."""
    return build_maintenance(job, "cleanup", name=name, changelog=changelog, retry_policy=retry_policy)


def build_cleanup_schedule(
    cleanup_job: dg.JobDefinition, cron_schedule: str = "23 * * * *"
) -> dg.ScheduleDefinition:
    """`build_cleanup_job(...)`, hourly. Ships stopped."""
    return dg.ScheduleDefinition(
        name=f"{cleanup_job.name}_schedule",
        target=cleanup_job,
        cron_schedule=cron_schedule,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.STOPPED,
    )


def _clean_up(step: Step) -> None:
    report = clean_up(step, preview=CleanUpConfig(**step.context.op_config).preview)
    goes = [*map(JobAssets.partition_key, report.subsumed), *report.deleted]
    shown = dg.MetadataValue.md(shown_lines(goes) or "nothing")
    counts = {"objects": report.objects, "list of all": "this step's stdout"} if report.objects else {}
    step.context.add_output_metadata({"goes" if report.dry_run else "gone": shown, **counts})


def _job(
    assets: JobAssets,
    work: str,
    job_name: str,
    changelog: ChangelogStorageResource | None,
    retry_policy: dg.RetryPolicy,
    partitions_def: dg.PartitionsDefinition[Any] | None,
    day_job: Callable[[], dg.JobDefinition] | None,
) -> dg.JobDefinition:
    number, run, about, config = _OPS[work]
    described = about.format(job=assets.job)
    if day_job is not None:
        run = partial(run, day_job=day_job)

    # Names of ops must be unique among all that is loaded together; the graph below gives them short ones.
    @dg.op(
        name=f"{job_name}_op",
        description=described,
        tags={TAG_STEP: number},
        retry_policy=retry_policy,
        pool=None if work in _OUT_OF_TURN else assets.pool,
        config_schema=None if config is None else config.to_fields_dict(),
    )
    def step(context: dg.OpExecutionContext, changelog: ChangelogStorageResource) -> None:
        with without_useless_retries(f"{work} of job {assets.job!r}", {"store": changelog.uri}):
            # The run owns what it opens, as in a batch, so that a retry may end its own attempt.
            coordinator = changelog.coordinator(assets.job, owner=owner_of(context.run))
            own = Step(context, assets, coordinator, partitions_def)
            require_shown_timeline(context.run, context.instance, coordinator, own.assets.checkpoints_key)
            run(own)

    @dg.graph(name=job_name)
    def steps() -> None:
        step.alias(work)()

    return steps.to_job(
        name=job_name,
        description=described,
        partitions_def=assets.partitions if work == "restore" else partitions_def,
        resource_defs=None if changelog is None else {"changelog": changelog},
        tags={TAG_JOB: assets.job},
    )


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
            f"for checkpoint {tagged or config.checkpoint_id} of {step.assets.job!r}: launch it with "
            "the config of the sensor's run"
        )
    compose_commit(step, config.checkpoint_id, report=False)
    clean_up(step)


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


_OPS: Final[Mapping[str, tuple[str, Callable[..., None], str, type[dg.Config] | None]]] = {
    "cleanup": (
        "7",
        _clean_up,
        "Subsumes checkpoints of {job} beyond retention, deletes what nothing references.",
        CleanUpConfig,
    ),
    "materialize": (
        "1-6",
        materialize,
        "Merges the changelog of {job} into a base, to keep state quick to read.",
        None,
    ),
    "verify": ("verify", verify, "Reads back all that the last checkpoint of {job} references.", None),
    "commit": (
        "6-7",
        commit,
        "Publishes the files of a checkpoint of {job} completed outside Dagster.",
        CommitConfig,
    ),
    "clone": ("clone", clone, "Begins a job with the state of {job}.", CloneConfig),
    "swap": ("swap", swap, "Continues {job} from the state of its clone.", SwapConfig),
    "restore": (
        "restore",
        restore,
        "Rolls {job} back to the checkpoint of the chosen partition.",
        RestoreConfig,
    ),
    "correct": (
        "correct",
        correct_partition,
        "Restores {job} to before a partition, and runs that and those after it again.",
        None,
    ),
}
"""The op of each work: the number of its step, what it does, its description, its config."""
