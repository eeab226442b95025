"""`dstl checkpoints`: a job's checkpoints on any store, with neither Spark nor Dagster."""

from __future__ import annotations

import json

import click
from rich.console import Console

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.cli.tables import TABLE_WIDTH, checkpoint_json, checkpoint_table
from dstl_dagster.storage import open_store

__all__ = ["checkpoints_group"]


@click.group("checkpoints")
def checkpoints_group() -> None:
    """Look at the checkpoints of a job."""


@checkpoints_group.command("list")
@click.argument("uri")
@click.option("--job", required=True, help="The job's name.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
def list_command(uri: str, job: str, as_json: bool) -> None:
    """List what can be restored to, oldest first. URI is the store: file:///folder or gs://bucket/prefix."""
    checkpoints = CheckpointCoordinator(job, open_store(uri)).list()
    if as_json:
        for checkpoint in checkpoints:
            click.echo(json.dumps(checkpoint_json(checkpoint)))
    elif checkpoints:
        Console(width=max(TABLE_WIDTH, Console().width)).print(checkpoint_table(checkpoints))
    else:
        click.echo(f"job {job!r} has no checkpoint in {uri}")
