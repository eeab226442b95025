"""Commands that decide: savepoint, release, restore, resolve, gc."""

from __future__ import annotations

import json

import click

from dstl_dagster.checkpoint import CheckpointCoordinator, Resolution
from dstl_dagster.cli.checkpoints.options import as_json_option, job_options
from dstl_dagster.cli.checkpoints.rows import export_to
from dstl_dagster.cli.checkpoints.tables import clean_up_json, clean_up_lines
from dstl_dagster.cli.tables import checkpoint_json
from dstl_dagster.errors import NotFoundError

__all__ = ["gc_command", "release_command", "resolve_command", "restore_command", "savepoint_command"]

_ALL = 2**31
_ID = click.argument("checkpoint_id", type=click.IntRange(1), metavar="ID")


@click.command("savepoint")
@_ID
@click.argument("name")
@click.option("--export", "folder", metavar="FOLDER", help="Then also write its state there as Parquet.")
@job_options
def savepoint_command(
    coordinator: CheckpointCoordinator, checkpoint_id: int, name: str, folder: str | None
) -> None:
    """Keep checkpoint ID as NAME, whatever retention says."""
    coordinator.savepoint(checkpoint_id, name)
    click.echo(f"checkpoint {checkpoint_id} is kept as {name!r}")
    if folder is not None:
        export_to(coordinator, checkpoint_id, folder, None, as_json=False)


@click.command("release")
@click.argument("name")
@job_options
def release_command(coordinator: CheckpointCoordinator, name: str) -> None:
    """Give up the savepoint NAME; its checkpoint is then treated like others."""
    released = coordinator.release(name)
    click.echo(f"savepoint {name!r} is released" if released else f"there is no savepoint {name!r}")


@click.command("restore")
@click.argument("checkpoint_id", type=click.IntRange(1), metavar="[ID]", required=False)
@click.option("--newest-verified", is_flag=True, help="Instead of ID: the newest one whose state is whole.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@job_options
@as_json_option
def restore_command(
    coordinator: CheckpointCoordinator,
    checkpoint_id: int | None,
    newest_verified: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Let the job go on from checkpoint ID. Files of later checkpoints are taken back.

    Its state is read and held against its checksums first; where it is damaged nothing is changed.
    """
    if newest_verified == (checkpoint_id is not None):
        raise click.UsageError("say either ID or --newest-verified")
    if checkpoint_id is None:
        checkpoint_id = _newest_verified(coordinator)
    if not yes:
        last = coordinator.timeline.tail().last_completed_id or 0
        click.confirm(
            f"Go on from checkpoint {checkpoint_id}, leave later ones (the last is {last}) behind, and take "
            "their files back?",
            abort=True,
            err=True,
        )
    restored = coordinator.restore(checkpoint_id)
    if as_json:
        click.echo(json.dumps(checkpoint_json(restored)))
        return
    click.echo(f"job {coordinator.job!r} goes on from checkpoint {restored.checkpoint_id}")
    for source, position in sorted(restored.positions.items()):
        click.echo(f"source {source} at {position}")


def _newest_verified(coordinator: CheckpointCoordinator) -> int:
    checkpoint, damaged = coordinator.newest_verified()
    for found in damaged:
        for problem in found.problems:
            click.echo(f"DAMAGED checkpoint {found.checkpoint_id}: {problem}", err=True)
    if checkpoint is None:
        raise NotFoundError(f"job {coordinator.job!r} has no checkpoint that is whole", kind="no_checkpoint")
    return checkpoint.checkpoint_id


@click.command("resolve")
@_ID
@click.argument("name")
@click.option("--keep", "resolution", flag_value="keep", help="The foreign object stays; ours is given up.")
@click.option("--replace", "resolution", flag_value="replace", help="The foreign object goes; ours comes.")
@job_options
def resolve_command(
    coordinator: CheckpointCoordinator, checkpoint_id: int, name: str, resolution: str | None
) -> None:
    """Say what becomes of the blocked file NAME of checkpoint ID."""
    if resolution is None:
        raise click.UsageError("say --keep (the foreign object stays) or --replace (it goes, ours comes)")
    checkpoint = coordinator.resolve(checkpoint_id, name, Resolution(resolution))
    again = next((file for file in checkpoint.blocked if file.name == name), None)
    if again is not None:
        raise click.ClickException(f"{name} is blocked again: {again.reason}")
    done = "the foreign object stays" if resolution == "keep" else "ours is published"
    click.echo(
        f"{name}: {done}; {len(checkpoint.blocked)} blocked files are left in checkpoint {checkpoint_id}"
    )


@click.command("gc")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option(
    "--keep",
    type=click.IntRange(1),
    help="First give up checkpoints beyond the last KEEP. Without it no checkpoint is given up.",
)
@job_options
@as_json_option
def gc_command(coordinator: CheckpointCoordinator, dry_run: bool, keep: int | None, as_json: bool) -> None:
    """Delete what nothing needs: the rest of given-up checkpoints, and what dead attempts left."""
    # Retention is the job's own setting, which this command does not know: only an explicit word shortens it.
    report = coordinator.clean_up(dry_run=dry_run, num_retained=keep or _ALL)
    if as_json:
        click.echo(json.dumps(clean_up_json(report)))
        return
    for line in clean_up_lines(report):
        click.echo(line)
