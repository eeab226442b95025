"""The command about the columns of keyed state: show them and the TTL, drop, rename."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import click

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator, change_columns, changed_schema
from dstl_dagster.cli.checkpoints.options import AT, as_json_option, job_options
from dstl_dagster.cli.checkpoints.rows import keyed_operators, one_operator
from dstl_dagster.cli.output import Table, say, show
from dstl_dagster.cli.tables import checkpoint_json
from dstl_dagster.format import StateTtl
from dstl_dagster.state import ColumnChanges, StateSchema
from dstl_dagster.timeline import AsOf

__all__ = ["schema_command"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@click.command("schema")
@click.option("--operator", help="Only this one. To change columns, optional if the job has only one.")
@click.option("--at", type=AT, help="At this checkpoint. Default: the last one.")
@click.option("--drop", "drop", multiple=True, metavar="COLUMN", help="Drop this column; may be repeated.")
@click.option(
    "--rename", "rename", multiple=True, metavar="OLD=NEW", help="Rename a column; may be repeated."
)
@click.option("--dry-run", is_flag=True, help="Only show the columns as they would be.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@job_options
@as_json_option
def schema_command(
    coordinator: CheckpointCoordinator,
    operator: str | None,
    at: AsOf | None,
    drop: tuple[str, ...],
    rename: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show the columns of keyed state; with --drop or --rename, change them in a checkpoint of its own.

    No row is rewritten, and older checkpoints keep their columns. Change the job's code at the same time: a
    batch that still writes an old name adds a new column. Names are exact.
    """
    changes = ColumnChanges.of(drop, dict(_renamed(each) for each in rename))
    if changes and at is not None:
        raise click.UsageError("columns are changed at the last checkpoint: leave out --at")
    checkpoint = coordinator.at(at)
    if not changes:
        names = keyed_operators(checkpoint.manifest) if operator is None else [operator]
        for name in names:
            schema = changed_schema(coordinator, checkpoint, name, changes)
            _show(name, schema, checkpoint.manifest.operators[name].report.ttl, as_json=as_json)
        return
    operator = one_operator(checkpoint.manifest, operator)
    after = changed_schema(coordinator, checkpoint, operator, changes)
    if dry_run:
        _show(operator, after, None, as_json=as_json)
        return
    if not yes:
        _show(operator, after, None, as_json=False)
        click.confirm(
            f"Continue after checkpoint {checkpoint.checkpoint_id} like this?", abort=True, err=True
        )
    _show_made(change_columns(coordinator, checkpoint, operator, changes), operator, as_json=as_json)


def _renamed(option: str) -> tuple[str, str]:
    old, equals, new = option.partition("=")
    if not equals:
        raise click.UsageError(f"--rename takes OLD=NEW, not {option!r}")
    return old, new


def _show(operator: str, schema: StateSchema, ttl: StateTtl | None, *, as_json: bool) -> None:
    columns = list(_columns(schema))
    if as_json:
        dropped = sorted(schema.column_ids.dropped.values())
        shown_ttl = {} if ttl is None else {"ttl": ttl.to_json()}
        click.echo(json.dumps({"operator": operator, "columns": columns, "dropped": dropped, **shown_ttl}))
        return
    table = Table("column", "type", "key", "id", title=f"Columns of {operator}")
    for each in columns:
        shown = (each["name"], each["type"], "key" if each["key"] else "", each["id"])
        table.add_row(*map(str, shown))
    show(table)
    if schema.column_ids.dropped:
        say(f"dropped: {', '.join(sorted(schema.column_ids.dropped.values()))}")

    if ttl is not None and ttl.ttl_us is not None:
        say(_ttl_in_words(ttl, schema))


def _ttl_in_words(ttl: StateTtl, schema: StateSchema) -> str:
    column = schema.columns.names[schema.ids.index(ttl.column)]
    named = f"rows end {timedelta(microseconds=ttl.ttl_us or 0)} after {column}"
    clock = "the time of writing" if ttl.processing_time else "event time"
    if ttl.now_us is None:
        return f"{named} ({clock}); no row had a time yet"
    return f"{named} ({clock}); now is {_EPOCH + timedelta(microseconds=ttl.now_us):%Y-%m-%d %H:%M:%S} UTC"


def _columns(schema: StateSchema) -> Iterator[dict[str, object]]:
    for field, column_id in zip(schema.columns, schema.ids, strict=True):
        key = field.name in schema.key_columns
        yield {"name": field.name, "type": str(field.type), "key": key, "id": column_id}


def _show_made(made: Checkpoint, operator: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(checkpoint_json(made)))
    else:
        say(f"checkpoint {made.checkpoint_id} has the changed columns of {operator}")
