"""The command that corrects a batch: restore to before it, run it and those after it again."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import click

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.cli.checkpoints.options import as_json_option, job_options
from dstl_dagster.cli.output import say
from dstl_dagster.jobs import Correction, correct, plan_correction

__all__ = ["correct_command"]

_PLACE = "{batch}"


@click.command("correct")
@click.argument("batch", metavar="BATCH")
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@click.option(
    "--until", metavar="BATCH", help="The last batch to run again. Default: all that have ever run."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@job_options
@as_json_option
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
        _show(plan, to_stderr=as_json)
    if dry_run:
        return
    if not yes:
        click.confirm("Do it?", abort=True, err=True)
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
        say(f"run again, in order: {', '.join(plan.batches)}")


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


def _show(plan: Correction, *, to_stderr: bool) -> None:
    """What nobody has done yet."""
    if plan.restore_to is None:
        say(f"job {plan.job!r} was restored to before {plan.batch} already", err=to_stderr)
    else:
        say(f"job {plan.job!r} would be restored to checkpoint {plan.restore_to}", err=to_stderr)
    count = len(plan.batches)
    say(f"{count} batches would be run again: {', '.join(plan.batches)}", err=to_stderr)
    if plan.not_batches:
        ids = ", ".join(map(str, plan.not_batches))
        click.echo(
            f"no batch made the checkpoints {ids}: if they changed columns, change them again", err=to_stderr
        )


def _plain(plan: Correction) -> dict[str, Any]:
    return {**vars(plan), "keys": [key.to_json() for key in plan.keys]}
