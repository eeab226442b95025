"""Commands that only read: list, show, timeline, audit, verify."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import islice

import click
from rich.console import Console

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.cli.checkpoints.cost import cost_json, cost_sections
from dstl_dagster.cli.checkpoints.options import AT, as_json_option, id_argument, job_options
from dstl_dagster.cli.checkpoints.tables import (
    audit_json,
    audit_lines,
    checkpoint_sections,
    timeline_table,
    verification_json,
    verification_lines,
)
from dstl_dagster.cli.tables import TABLE_WIDTH, checkpoint_json, checkpoint_table
from dstl_dagster.timeline import AsOf, Snapshot, record_to_plain

__all__ = ["audit_command", "list_command", "show_command", "timeline_command", "verify_command"]


def console() -> Console:
    """Wide enough for a table, even in a pipe or a narrow terminal."""
    return Console(width=max(TABLE_WIDTH, Console().width), highlight=False)


def progress_of(what: str) -> Callable[[int, int], None]:
    """A callback that prints the progress of long work to stderr, at each tenth."""

    def show(done: int, count: int) -> None:
        if count > 1 and (done == count or done % max(1, count // 10) == 0):
            click.echo(f"{done} of {count} {what}", err=True)

    return show


@click.command("list")
@job_options
@as_json_option
def list_command(coordinator: CheckpointCoordinator, as_json: bool) -> None:
    """List the checkpoints that can be restored, oldest first; with --json, one object a line."""
    checkpoints = coordinator.list()
    if as_json:
        for checkpoint in checkpoints:
            click.echo(json.dumps(checkpoint_json(checkpoint)))
    elif checkpoints:
        console().print(checkpoint_table(checkpoints))
    else:
        click.echo(f"job {coordinator.job!r} has no checkpoint in {coordinator.store.uri}")


@click.command("show")
@id_argument
@job_options
@as_json_option
def show_command(coordinator: CheckpointCoordinator, at: AsOf, as_json: bool) -> None:
    """Show the contents of checkpoint ID: state by operator, files, positions, and what it cost.

    Money is at list prices: set yours by -o dstl.prices.class-a-per-thousand=0.01 -o dstl.prices.as-of=DAY.
    """
    checkpoint = coordinator.at(at)
    prices, later = coordinator.prices, coordinator.later_cost(checkpoint)
    if as_json:
        shown = {"cost": cost_json(checkpoint, later, prices), "manifest": checkpoint.manifest.to_json()}
        click.echo(json.dumps(checkpoint_json(checkpoint) | shown))
        return
    target = console()
    for section in (*checkpoint_sections(checkpoint), *cost_sections(checkpoint, later, prices)):
        target.print(section)


@click.command("timeline")
@click.option("--after", type=click.IntRange(0), default=0, help="Show records after this slot.")
@click.option("--limit", type=click.IntRange(1), help="Show at most this many records.")
@job_options
@as_json_option
def timeline_command(
    coordinator: CheckpointCoordinator, after: int, limit: int | None, as_json: bool
) -> None:
    """Show the job's decisions, oldest first; with --json, one object a line."""
    records = islice(coordinator.timeline.records(after), limit)
    if as_json:
        for record in records:
            click.echo(json.dumps(record_to_plain(record)))
    else:
        console().print(timeline_table(record for record in records if not isinstance(record, Snapshot)))


@click.command("audit")
@job_options
@as_json_option
def audit_command(coordinator: CheckpointCoordinator, as_json: bool) -> None:
    """Check the timeline against the objects in the store. Exits with 1 if anything is damaged or blocked.

    Reads metadata only; `verify` reads the bytes.
    """
    audit = coordinator.audit()
    if as_json:
        click.echo(json.dumps(audit_json(audit)))
    else:
        for line in audit_lines(audit):
            click.echo(line)
    sys.exit(0 if audit.in_order else 1)


@click.command("verify")
@click.argument("at", type=AT, metavar="[ID]", required=False)
@job_options
@as_json_option
def verify_command(coordinator: CheckpointCoordinator, at: AsOf | None, as_json: bool) -> None:
    """Read back everything that checkpoint ID (default: the last) references. Exits with 1 if damaged."""
    checkpoint_id = coordinator.at(at).checkpoint_id
    found = coordinator.verify(checkpoint_id, progress=None if as_json else progress_of("checks"))
    if as_json:
        click.echo(json.dumps(verification_json(found)))
    else:
        for line in verification_lines(found):
            click.echo(line)
    sys.exit(0 if found.ok else 1)
