"""Commands that only read: list, show, timeline, audit, verify."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import islice

import click

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
from dstl_dagster.cli.options import is_quiet
from dstl_dagster.cli.output import say, show
from dstl_dagster.cli.tables import checkpoint_json, checkpoint_table
from dstl_dagster.timeline import AsOf, Snapshot, record_to_plain

__all__ = ["audit_command", "list_command", "show_command", "timeline_command", "verify_command"]

_PATIENCE_SECONDS = 2.0


def progress_of(what: str, clock: Callable[[], float] = time.monotonic) -> Callable[[int, int], None]:
    """A callback that prints the progress of long work to stderr: each tenth, after the first 2 seconds."""
    began, quiet = clock(), is_quiet()

    def show(done: int, count: int) -> None:
        if quiet or count < 2 or clock() - began < _PATIENCE_SECONDS:
            return
        if done == count or done % max(1, count // 10) == 0:
            say(f"{done} of {count} {what}", err=True)

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
        show(checkpoint_table(checkpoints))
    else:
        say(f"job {coordinator.job!r} has no checkpoint in {coordinator.store.uri}")


@click.command("show")
@id_argument
@job_options
@as_json_option
def show_command(coordinator: CheckpointCoordinator, at: AsOf, as_json: bool) -> None:
    """Show the contents of checkpoint ID: state by operator, files, positions, and what it cost.

    Money is at list prices: set yours by -o dstl.prices.class-a-per-thousand=0.01.
    """
    checkpoint = coordinator.at(at)
    prices, later = coordinator.prices, coordinator.later_cost(checkpoint)
    if as_json:
        shown = {"cost": cost_json(checkpoint, later, prices), "manifest": checkpoint.manifest.to_json()}
        click.echo(json.dumps(checkpoint_json(checkpoint) | shown))
        return
    show(*checkpoint_sections(checkpoint), *cost_sections(checkpoint, later, prices))


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
        show(timeline_table(record for record in records if not isinstance(record, Snapshot)))


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
            say(line)
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
            say(line)
    sys.exit(0 if found.ok else 1)
