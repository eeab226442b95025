"""Commands that change the timeline: savepoint, release, restore, correct, resolve, abort, gc."""

from __future__ import annotations

import json
import shutil
import subprocess
from datetime import UTC, datetime
from typing import Any

import click

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.cli.options import (
    dry_run_option,
    id_argument,
    job_options,
    user_name,
    yes_option,
)
from dstl_dagster.cli.output import answer, confirm, local_time, say
from dstl_dagster.cli.render import checkpoint_json, clean_up_lines, plan_json, plan_lines
from dstl_dagster.errors import ErrorKind, NotFoundError
from dstl_dagster.format import names_in_words, nearest
from dstl_dagster.jobs import Correction, correct, plan_correction
from dstl_dagster.settings import parse_duration
from dstl_dagster.timeline import AsOf, Attempt, Resolution

_KEEP_ALL = 2**31
_RETENTION = ("execution.checkpointing.num-retained", "dstl.checkpoint.min-age")


@click.command("savepoint")
@id_argument
@click.argument("name")
@click.option("--for", "duration", metavar="DURATION", help="Clean-up releases it after so long: '365 d'.")
@job_options
def savepoint_command(
    coordinator: CheckpointCoordinator,
    at: AsOf,
    name: str,
    duration: str | None,
    as_json: bool,
) -> None:
    """Keep checkpoint ID as savepoint NAME, beyond the retention; "latest" is the last one."""
    checkpoint_id = coordinator.at(at).checkpoint_id
    until = None if duration is None else datetime.now(UTC) + parse_duration("--for", duration)
    checkpoint = coordinator.savepoint(checkpoint_id, name, until=until)
    end = "" if until is None else f", until {local_time(until)}"
    answer(as_json, checkpoint_json(checkpoint), f"checkpoint {checkpoint_id} is retained as {name!r}{end}")


@click.command("release")
@click.argument("name")
@job_options
def release_command(coordinator: CheckpointCoordinator, name: str, as_json: bool) -> None:
    """Release the savepoint NAME; retention then applies to its checkpoint again."""
    checkpoint_id = coordinator.timeline.seen().savepoints.get(name)
    if not coordinator.release(name):
        known = nearest(name, coordinator.timeline.seen().savepoints)
        said = f"did you mean {known}?" if known else "it has none"
        raise NotFoundError(
            f"job {coordinator.job!r} has no savepoint {name!r}; {said}", kind=ErrorKind.NO_CHECKPOINT
        )
    answer(
        as_json,
        {"savepoint": name, "checkpoint_id": checkpoint_id, "released": True},
        f"savepoint {name!r} is released",
    )


@click.command("restore")
@click.argument("at", metavar="[ID]", required=False)
@click.option(
    "--newest-verified", is_flag=True, help="Instead of ID: the newest checkpoint whose state is undamaged."
)
@dry_run_option
@yes_option
@job_options
def restore_command(
    coordinator: CheckpointCoordinator,
    at: str | None,
    newest_verified: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Roll the job back to checkpoint ID. Files of later checkpoints are retracted.

    First its state is read and verified against its checksums; if it is damaged, nothing is changed.

    To 0, before the first checkpoint, the job begins anew: run all batches again. Until one completes,
    readers see the state as it was.
    """
    if newest_verified == (at is not None):
        raise click.UsageError("give either ID or --newest-verified")
    if at is None:
        checkpoint_id = _newest_verified(coordinator)
    else:
        checkpoint_id = 0 if at == "0" else coordinator.at(AsOf.of_text(at)).checkpoint_id
    expected_last = None
    if dry_run or not yes:
        plan = coordinator.plan_restore(checkpoint_id)
        if dry_run:
            answer(as_json, plan_json(plan), *plan_lines(plan))
            return
        for line in plan_lines(plan):
            say(line, err=True)
        confirm(f"Roll back from checkpoint {plan.last} to {checkpoint_id}?")
        expected_last = plan.last
    restored = coordinator.restore(checkpoint_id, expected_last=expected_last)
    if restored is None:
        answer(
            as_json, {"checkpoint_id": 0}, f"job {coordinator.job!r} begins anew: run all its batches again"
        )
        return
    at_positions = [
        f"source {source} at {position}" for source, position in sorted(restored.positions.items())
    ]
    resumes = f"job {coordinator.job!r} resumes from checkpoint {restored.checkpoint_id}"
    answer(as_json, checkpoint_json(restored), resumes, *at_positions)


def _newest_verified(coordinator: CheckpointCoordinator) -> int:
    checkpoint, damaged = coordinator.newest_verified()
    for found in damaged:
        for problem in found.problems:
            say(f"DAMAGED checkpoint {found.checkpoint_id}: {problem}", err=True)
    if checkpoint is None:
        raise NotFoundError(
            f"job {coordinator.job!r} has no undamaged checkpoint", kind=ErrorKind.NO_CHECKPOINT
        )
    return checkpoint.checkpoint_id


@click.command("resolve")
@id_argument
@click.argument("name")
@click.option("--keep", "resolution", flag_value="keep", help="Keep the foreign object, drop ours.")
@click.option(
    "--replace", "resolution", flag_value="replace", help="Delete the foreign object, publish ours."
)
@job_options
def resolve_command(
    coordinator: CheckpointCoordinator, at: AsOf, name: str, resolution: str | None, as_json: bool
) -> None:
    """Resolve the blocked file NAME of checkpoint ID: keep the foreign object, or replace it."""
    if resolution is None:
        raise click.UsageError("say --keep (the foreign object stays) or --replace (ours is published)")
    checkpoint_id = coordinator.at(at).checkpoint_id
    checkpoint = coordinator.resolve(checkpoint_id, name, Resolution(resolution))
    again = next((file for file in checkpoint.blocked if file.name == name), None)
    if again is not None:
        raise click.ClickException(f"{name} is blocked again: {again.reason}")
    done = "the foreign object stays" if resolution == "keep" else "ours is published"
    left = f"{len(checkpoint.blocked)} blocked files are left in checkpoint {checkpoint_id}"
    answer(as_json, checkpoint_json(checkpoint), f"{name}: {done}; {left}")


@click.command("abort")
@click.option("--reason", default="by command", show_default=True, help="What the timeline says of it.")
@yes_option
@job_options
def abort_command(coordinator: CheckpointCoordinator, reason: str, yes: bool, as_json: bool) -> None:
    """End the open attempt, whose owner is dead: the next one may begin, and nothing of it becomes visible.

    An owner that is alive after all is refused at its next step, and starts over.
    """
    opened = coordinator.timeline.seen().open_attempt
    if opened is None:
        raise NotFoundError(f"job {coordinator.job!r} has no open attempt: there is nothing to abort")
    whose = f"attempt {opened.attempt} of {opened.owner!r} on checkpoint {opened.checkpoint_id}"
    if not yes:
        confirm(f"Abort {whose}, open since {local_time(opened.recorded_at)}?")
    attempt = Attempt(opened.checkpoint_id, opened.attempt, opened.parent, coordinator.job)
    coordinator.abort(attempt, f"{reason}, by {user_name()}")
    answer(
        as_json,
        {"attempt": str(opened.attempt), "checkpoint_id": opened.checkpoint_id},
        f"{whose} is aborted",
    )


@click.command("gc")
@dry_run_option
@click.option(
    "--keep",
    type=click.IntRange(1),
    help="First subsume checkpoints beyond the last KEEP. By default as the options num-retained and "
    "min-age say, and none if neither is given.",
)
@job_options
def gc_command(coordinator: CheckpointCoordinator, dry_run: bool, keep: int | None, as_json: bool) -> None:
    """Delete what nothing references: the rest of subsumed checkpoints, and what dead attempts left.

    With --json each object is a line before it goes; the last line sums up.
    """
    # The command knows the retention only from options: its default must not subsume anything.
    if keep is None and not any(map(coordinator.job_options.gives, _RETENTION)):
        keep = _KEEP_ALL

    def goes(uri: str, generation: int) -> None:
        if as_json:
            answer(as_json, {"uri": uri, "generation": generation})

    report = coordinator.clean_up(dry_run=dry_run, num_retained=keep, deleted=goes)
    answer(as_json, report, *clean_up_lines(report))


_PLACE = "{batch}"


@click.command("correct")
@click.argument("batch", metavar="BATCH")
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@click.option(
    "--until", metavar="BATCH", help="The last batch to run again. Default: all that have ever run."
)
@dry_run_option
@yes_option
@job_options
def correct_command(
    coordinator: CheckpointCoordinator,
    batch: str,
    command: tuple[str, ...],
    until: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Go back to before BATCH (a partition), then run it and all batches after it again, in order.

    Where no checkpoint right before it is retained, this begins with the batches after the newest that is, or
    with the very first.

    COMMAND runs one batch, for which {batch} stands in it, such as: dagster asset materialize -m defs
    --select orders/state --partition {batch}. It stops at the first batch that fails; `correct` with that
    batch goes on.

    Without COMMAND the job is only restored, and the batches to run again are listed.
    """
    plan = plan_correction(coordinator, batch, until)
    _require_runnable(command)
    if dry_run and as_json:
        click.echo(json.dumps(_plain(plan)))
    elif dry_run or not yes:
        for line in plan.in_words():
            say(line, err=as_json)
    if dry_run:
        return
    if not yes:
        confirm("Do it?")
    _correct(coordinator, plan, command, as_json=as_json)


def _correct(
    coordinator: CheckpointCoordinator, plan: Correction, command: tuple[str, ...], *, as_json: bool
) -> None:
    def run(each: str) -> None:
        words = [word.replace(_PLACE, each) for word in command]
        code = subprocess.run(words, check=False).returncode  # noqa: S603 - the user's own command
        if code:
            raise click.ClickException(
                f"batch {each} failed with exit code {code}, and nothing after it was run. When it can run, "
                f"go on with: dstl checkpoints correct {each} -- ..."
            )

    def progress(done: int, count: int, each: str) -> None:
        say(f"{done} of {count}: {each} is in checkpoint {coordinator.applied(each)}", err=as_json)

    if command:
        correct(coordinator, plan, run, progress=progress)
    elif plan.restore_to is not None:
        coordinator.restore(plan.restore_to)
    if as_json:
        click.echo(json.dumps({**_plain(plan), "latest": coordinator.timeline.tail().last_completed_id}))
    elif not command:
        say(f"run again, in order: {names_in_words(*plan.batches)}")


def _require_runnable(command: tuple[str, ...]) -> None:
    """Before anything is restored. Raises: UsageError."""
    if not command:
        return
    if not any(_PLACE in word for word in command):
        raise click.UsageError(f"COMMAND must say where the batch goes: write {_PLACE} in its place")
    if shutil.which(command[0]) is None:
        raise click.UsageError(
            f"COMMAND: there is no program {command[0]!r} here that can be run; nothing was changed"
        )


def _plain(plan: Correction) -> dict[str, Any]:
    return {**vars(plan), "keys": [key.to_json() for key in plan.keys]}
