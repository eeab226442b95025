"""`dstl jobs`: the jobs of a store, what one is, cloning one, swapping one for its clone, dropping one.

Owns how they are shown and asked for. Does not own finding, cloning or dropping them (`jobs`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from dstl_dagster.checkpoint import CheckpointReader
from dstl_dagster.cli.options import (
    AT,
    dry_run_option,
    open_working,
    progress_of,
    store_option,
    user_name,
    with_job_options,
    yes_option,
)
from dstl_dagster.cli.output import Table, answer, confirm, local_time, say, show
from dstl_dagster.cli.render import checkpoint_json, operators_table, sources_table
from dstl_dagster.errors import NotFoundError
from dstl_dagster.format import counted, readable_bytes
from dstl_dagster.jobs import (
    Drop,
    JobSummary,
    clone_job,
    drop_job,
    list_jobs,
    plan_drop,
    swap_job,
)
from dstl_dagster.settings import JobOptions
from dstl_dagster.storage import open_store
from dstl_dagster.timeline import AsOf


@click.group("jobs")
def jobs_group() -> None:
    """List the jobs of a store; show, clone, swap or drop one."""


@jobs_group.command("list")
@store_option
@with_job_options
def list_command(uri: str, job_options: JobOptions, as_json: bool) -> None:
    """List the jobs of a store, each with its last checkpoint; with --json, one object a line."""
    store = open_working(uri, job_options.files)
    found = list_jobs(store, job_options)
    if as_json:
        for each in found:
            answer(as_json, each)
    elif not found:
        if store.prefix and next(iter(store.list()), None) is None:
            raise NotFoundError(f"there is nothing below {store.uri}: check the prefix")
        say(f"there is no job in {store.uri}")
    else:
        right = ("checkpoint", "restorable", "state")
        table = Table("job", "checkpoint", "completed", "batch", "restorable", "state", "", right=right)
        for each in found:
            table.add_row(*_cells(each))
        show(table)


def _cells(each: JobSummary) -> list[str]:
    running = "" if each.open_owner is None else f"running: {each.open_owner}"
    return [
        each.job,
        "-" if each.checkpoint_id is None else str(each.checkpoint_id),
        "" if each.completed_at is None else local_time(each.completed_at),
        each.batch or "",
        str(each.retained),
        "" if each.state_bytes is None else readable_bytes(each.state_bytes),
        running if each.problem is None else f"PROBLEM: {each.problem}",
    ]


@jobs_group.command("show")
@click.argument("job")
@store_option
@with_job_options
def show_command(job: str, uri: str, job_options: JobOptions, as_json: bool) -> None:
    """Show what JOB is: its sources, by what each is measured, and the operators that each writes."""
    latest = CheckpointReader(job, open_working(uri, job_options.files), job_options).at()
    answer(as_json, checkpoint_json(latest), sources_table(latest), operators_table(latest))


@jobs_group.command("clone")
@click.argument("job", metavar="JOB")
@click.argument("new", metavar="NEW")
@click.option("--at", type=AT, help="Of this checkpoint. Default: the last one.")
@click.option("--to", metavar="URI", help="The store of NEW. Default: that of JOB.")
@store_option
@with_job_options
def clone_command(
    job: str, new: str, at: AsOf | None, to: str | None, uri: str, job_options: JobOptions, as_json: bool
) -> None:
    """Begin job NEW with the state of JOB, how far its sources are, and the batches that it holds.

    NEW shares nothing with JOB; files that JOB published stay JOB's. Run it again where it was interrupted.
    """
    store = open_working(uri, job_options.files)
    made = clone_job(
        store,
        job,
        new,
        job_options,
        at=at,
        to=None if to is None else open_store(to, job_options.files),
        owner=f"dstl-jobs-clone:{user_name()}",
        progress=progress_of("files copied"),
    )
    answer(
        as_json, checkpoint_json(made), f"job {new!r} begins with checkpoint {made.checkpoint_id} of {job!r}"
    )


@jobs_group.command("swap")
@click.argument("job", metavar="JOB")
@click.argument("clone", metavar="CLONE")
@yes_option
@store_option
@with_job_options
def swap_command(job: str, clone: str, yes: bool, uri: str, job_options: JobOptions, as_json: bool) -> None:
    """Continue JOB from the state of CLONE, in one checkpoint of JOB.

    CLONE must hold all batches that JOB holds, and stays as it is. A restore of JOB to the checkpoint before
    takes the swap back.
    """
    store = open_working(uri, job_options.files)
    if not yes:
        last, state = (CheckpointReader(each, store, job_options).at() for each in (job, clone))
        confirm(
            f"Continue job {job!r} after checkpoint {last.checkpoint_id} from checkpoint "
            f"{state.checkpoint_id} of {clone!r}?"
        )
    made = swap_job(
        store,
        job,
        clone,
        job_options,
        owner=f"dstl-jobs-swap:{user_name()}",
        progress=progress_of("files copied"),
    )
    answer(
        as_json,
        checkpoint_json(made),
        f"checkpoint {made.checkpoint_id} of {job!r} has the state of {clone!r}",
    )


@jobs_group.command("drop")
@click.argument("job")
@dry_run_option
@click.option("--force", is_flag=True, help="Even if it is running, or cannot be read.")
@yes_option
@store_option
@with_job_options
def drop_command(
    job: str, dry_run: bool, force: bool, yes: bool, uri: str, job_options: JobOptions, as_json: bool
) -> None:
    """Delete all that JOB keeps for itself: state, checkpoints, savepoints. Files that it published stay.

    Run it again to finish a drop that was interrupted. Exits with 1 if objects were left, which a task of a
    dead run wrote meanwhile.
    """
    store = open_working(uri, job_options.files)
    if dry_run or not yes:
        plan = plan_drop(store, job, job_options)
        if dry_run:
            _show(plan, as_json=as_json)
            return
        for line in _lines(plan):
            say(line, err=as_json)
        confirm("Delete all of it?")
    done = drop_job(store, job, job_options, owner=f"dstl-jobs-drop:{user_name()}", force=force)
    _show(done, as_json=as_json)
    sys.exit(1 if done.left else 0)


def _show(drop: Drop, *, as_json: bool) -> None:
    answer(as_json, drop, *_lines(drop))


def _lines(drop: Drop) -> Iterator[str]:
    how = "deleted" if drop.done else "would be deleted"
    yield f"job {drop.job!r}: {counted(drop.objects, 'object')} {how}, {readable_bytes(drop.size_bytes)}"
    for kind, count in drop.kinds.items():
        yield f"  {count:,} {kind}"
    if not drop.done:
        if drop.checkpoints:
            yield f"checkpoints that go: {', '.join(map(str, drop.checkpoints))}"
        for name, checkpoint_id in sorted(drop.savepoints.items()):
            yield f"savepoint {name!r} goes, of checkpoint {checkpoint_id}"
        yield "files that it published stay"
        if drop.open_owner is not None:
            yield f"RUNNING: {drop.open_owner!r} makes a checkpoint of it; --force drops it nevertheless"
        if drop.problem is not None:
            yield f"PROBLEM: {drop.problem}; --force drops it nevertheless"
    if drop.left:
        yield f"{drop.left:,} objects were written meanwhile: run it again"
