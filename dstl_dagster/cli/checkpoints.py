"""`dstl checkpoints`: a job's checkpoints on any store, with neither Spark nor Dagster.

Owns the group, and the commands that inspect. Those about rows are in `rows`, those about names in `names`,
those that change the timeline in `decisions`.
"""

from __future__ import annotations

import json
import sys
from itertools import islice

import click

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.cli.decisions import (
    abort_command,
    correct_command,
    gc_command,
    release_command,
    resolve_command,
    restore_command,
    savepoint_command,
)
from dstl_dagster.cli.names import operator_command, schema_command, source_command
from dstl_dagster.cli.options import AT, id_argument, job_options, progress_of
from dstl_dagster.cli.output import answer, say, show
from dstl_dagster.cli.render import (
    audit_lines,
    checkpoint_json,
    checkpoint_sections,
    checkpoint_table,
    cost_json,
    cost_sections,
    timeline_table,
    verification_lines,
)
from dstl_dagster.cli.rows import (
    diff_command,
    export_command,
    history_command,
    materialize_command,
)
from dstl_dagster.errors import DstlError
from dstl_dagster.timeline import AsOf, Snapshot


@click.command("list")
@job_options
def list_command(coordinator: CheckpointCoordinator, as_json: bool) -> None:
    """List the checkpoints that can be restored, oldest first; with --json, one object a line."""
    problems: dict[int, DstlError] = {}
    checkpoints = coordinator.list(problems)
    if as_json:
        for checkpoint in checkpoints:
            answer(as_json, checkpoint_json(checkpoint))
    elif checkpoints:
        show(checkpoint_table(checkpoints))
    elif not problems:
        say(f"job {coordinator.job!r} has no checkpoint in {coordinator.store.uri}")
    for number, error in sorted(problems.items()):
        said = f"UNREADABLE checkpoint {number}: {error} [{error.kind}]"
        answer(as_json, {"checkpoint_id": number, "problem": str(error)}, said)
    if problems:
        sys.exit(1)


@click.command("show")
@id_argument
@job_options
def show_command(coordinator: CheckpointCoordinator, at: AsOf, as_json: bool) -> None:
    """Show the contents of checkpoint ID: state by operator, files, positions, and what it cost.

    Money is at list prices: set yours by -o dstl.prices.class-a-per-thousand=0.01.
    """
    checkpoint = coordinator.at(at)
    prices, later = coordinator.prices, coordinator.later_cost(checkpoint)
    more = {"cost": cost_json(checkpoint, later, prices), "manifest": checkpoint.manifest.to_json()}
    sections = (*checkpoint_sections(checkpoint), *cost_sections(checkpoint, later, prices))
    answer(as_json, checkpoint_json(checkpoint) | more, *sections)


@click.command("timeline")
@click.option("--after", type=click.IntRange(0), default=0, help="Show records after this slot.")
@click.option("--limit", type=click.IntRange(1, sys.maxsize), help="Show at most this many records.")
@job_options
def timeline_command(
    coordinator: CheckpointCoordinator, after: int, limit: int | None, as_json: bool
) -> None:
    """Show the job's decisions, oldest first; with --json, one object a line."""
    records = islice(coordinator.timeline.records(after), limit)
    if as_json:
        for record in records:
            click.echo(json.dumps(record.to_json()))
        return
    shown = [record for record in records if not isinstance(record, Snapshot)]
    show(timeline_table(shown) if shown else f"no record after slot {after}")


@click.command("audit")
@job_options
def audit_command(coordinator: CheckpointCoordinator, as_json: bool) -> None:
    """Check the timeline against the objects in the store. Exits with 1 if anything is damaged or blocked.

    Reads metadata only; `verify` reads the bytes.
    """
    audit = coordinator.audit()
    answer(as_json, {**vars(audit), "in_order": audit.in_order}, *audit_lines(audit))
    sys.exit(0 if audit.in_order else 1)


@click.command("verify")
@click.argument("at", type=AT, metavar="[ID]", required=False)
@job_options
def verify_command(coordinator: CheckpointCoordinator, at: AsOf | None, as_json: bool) -> None:
    """Read back everything that checkpoint ID (default: the last) references. Exits with 1 if damaged."""
    checkpoint_id = coordinator.at(at).checkpoint_id
    found = coordinator.verify(checkpoint_id, progress=progress_of("checks"))
    answer(as_json, {**vars(found), "ok": found.ok}, *verification_lines(found))
    sys.exit(0 if found.ok else 1)


@click.group("checkpoints")
def checkpoints_group() -> None:
    """Inspect the checkpoints of a job, restore one, keep one, clean up.

    Every command takes the store as --store (or $DSTL_STORE) and the job as --job (or $DSTL_JOB).

    Where a command takes a checkpoint (ID, --at), it may be an id (12), a partition (2001-01-05), a
    savepoint, a time (2026-11-22T18:00Z) for where the job stood then, or latest.
    """


for _command in (
    *(list_command, show_command, timeline_command, audit_command, verify_command),
    *(diff_command, history_command, export_command, materialize_command, schema_command),
    *(savepoint_command, release_command, restore_command, correct_command),
    *(operator_command, source_command, resolve_command, abort_command, gc_command),
):
    checkpoints_group.add_command(_command)
