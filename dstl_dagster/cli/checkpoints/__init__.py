"""`dstl checkpoints`: a job's checkpoints on any store, with neither Spark nor Dagster.

Owns the group. Commands that inspect are in `looking`, those about rows in `rows`, the one about columns in
`columns`, those about operators and sources in `names`, those that change the timeline in `deciding`, and the
options that all of them share in `options`.
"""

from __future__ import annotations

import click

from dstl_dagster.cli.checkpoints.columns import schema_command
from dstl_dagster.cli.checkpoints.correcting import correct_command
from dstl_dagster.cli.checkpoints.deciding import (
    abort_command,
    gc_command,
    release_command,
    resolve_command,
    restore_command,
    savepoint_command,
)
from dstl_dagster.cli.checkpoints.looking import (
    audit_command,
    list_command,
    show_command,
    timeline_command,
    verify_command,
)
from dstl_dagster.cli.checkpoints.names import operator_command, source_command
from dstl_dagster.cli.checkpoints.rows import (
    diff_command,
    export_command,
    history_command,
    materialize_command,
)

__all__ = ["checkpoints_group"]


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
