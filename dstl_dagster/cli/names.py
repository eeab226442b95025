"""Commands about the names in a job: operators, sources and columns. Each shows, renames and drops.

Owns how they are shown and asked for. Does not own the change itself (`checkpoint.change_names`,
`checkpoint.change_columns`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

import click

from dstl_dagster.checkpoint import (
    Checkpoint,
    CheckpointCoordinator,
    change_columns,
    change_names,
    changed_schema,
)
from dstl_dagster.cli.options import (
    AT,
    dry_run_option,
    job_options,
    yes_option,
)
from dstl_dagster.cli.output import Table, answer, confirm, say, show
from dstl_dagster.cli.render import checkpoint_json, operators_json, operators_table, sources_table
from dstl_dagster.cli.rows import keyed_operators, one_operator
from dstl_dagster.format import StateTtl, readable_duration, readable_time
from dstl_dagster.keyed import NameChange, Source
from dstl_dagster.state import ColumnChanges, StateSchema
from dstl_dagster.timeline import AsOf


def _name_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds `--rename`, `--drop` and `--yes`."""
    for option in (
        click.option("--rename", multiple=True, metavar="OLD=NEW", help="A new name; may be repeated."),
        click.option("--drop", multiple=True, metavar="NAME", help="This one goes; may be repeated."),
        yes_option,
    ):
        command = option(command)
    return command


@click.command("operator")
@_name_options
@job_options
def operator_command(
    coordinator: CheckpointCoordinator,
    rename: tuple[str, ...],
    drop: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Show the operators of a job and which source writes each; with --rename or --drop, change them.

    That makes a checkpoint of its own, in which no row is rewritten. Older checkpoints stay as they are.
    With the last operator that a source wrote, its position goes: it begins anew. Change the program at the
    same time.
    """
    latest = coordinator.at()
    changes = NameChange(operators=_name_changes(rename, drop))
    if not changes:
        answer(as_json, operators_json(latest), operators_table(latest))
        return
    _change(coordinator, latest, changes, yes=yes, as_json=as_json)


@click.command("source")
@_name_options
@job_options
def source_command(
    coordinator: CheckpointCoordinator,
    rename: tuple[str, ...],
    drop: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Show the sources of a job and how far each is; with --rename or --drop, change them.

    That makes a checkpoint of its own. A source that was dropped begins anew where a program still has it,
    and the operators that it wrote stay.
    """
    latest = coordinator.at()
    changes = NameChange(sources=_name_changes(rename, drop))
    if not changes:
        shown = {name: each.to_json() for name, each in sorted(latest.manifest.sources.items())}
        answer(as_json, shown, sources_table(latest))
        return
    _change(coordinator, latest, changes, yes=yes, as_json=as_json)


def _name_changes(rename: tuple[str, ...], drop: tuple[str, ...]) -> dict[str, str | None]:
    """The new name of each; `None`: it goes."""
    found: dict[str, str | None] = dict.fromkeys(drop)
    for each in rename:
        old, equals, new = each.partition("=")
        if not equals or not new:
            raise click.UsageError(f"--rename takes OLD=NEW, not {each!r}")
        if old in found:
            raise click.UsageError(f"{old!r} is changed twice")
        found[old] = new
    return found


def _change(
    coordinator: CheckpointCoordinator, latest: Checkpoint, changes: NameChange, *, yes: bool, as_json: bool
) -> None:
    manifest = latest.manifest
    changes.require_known(manifest.operators, manifest.sources, coordinator.job)
    if not yes:
        for line in _lines(changes, manifest.sources):
            say(line, err=as_json)
        confirm(f"Continue after checkpoint {latest.checkpoint_id} like this?")
    made = change_names(coordinator, latest, changes)
    answer(as_json, checkpoint_json(made), f"checkpoint {made.checkpoint_id} has the changed names")


def _lines(changes: NameChange, sources: Mapping[str, Source]) -> Iterator[str]:
    for what, named in (("operator", changes.operators), ("source", changes.sources)):
        for old, new in named.items():
            if new is not None:
                yield f"{what} {old!r} is {new!r} from now on"
            elif what == "source" and sources[old].operators:
                stay = ", ".join(map(repr, sources[old].operators))
                yield f"source {old!r} goes; where still defined, it begins anew beside the rows of {stay}"
            else:
                yield f"{what} {old!r} goes"
    gone = changes.gone_sources(sources)
    for name in gone:
        yield f"source {name!r} goes too, as it wrote nothing else; where still defined, it begins anew"
    for name, source in sources.items():
        dropped = ", ".join(map(repr, changes.dropped_of(source)))
        if dropped and name not in gone and changes.sources.get(name, name) is not None:
            yield f"source {name!r} goes on from where it stands: its rows of {dropped} do not come again"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@click.command("schema")
@click.option("--operator", help="Only this one. To change columns, optional if the job has only one.")
@click.option("--at", type=AT, help="At this checkpoint. Default: the last one.")
@_name_options
@dry_run_option
@job_options
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
    named = _name_changes(rename, drop)
    changes = ColumnChanges.of(drop, {old: new for old, new in named.items() if new is not None})
    if changes and at is not None:
        raise click.UsageError("columns are changed at the last checkpoint: leave out --at")
    checkpoint = coordinator.at(at)
    if not changes:
        names = keyed_operators(checkpoint.manifest) if operator is None else [operator]
        for name in names:
            schema = changed_schema(coordinator, checkpoint, name, changes)
            _show_columns(name, schema, checkpoint.manifest.operators[name].report.ttl, as_json=as_json)
        return
    operator = one_operator(checkpoint.manifest, operator)
    after = changed_schema(coordinator, checkpoint, operator, changes)
    if dry_run:
        _show_columns(operator, after, None, as_json=as_json)
        return
    if not yes:
        _show_columns(operator, after, None, as_json=False)
        confirm(f"Continue after checkpoint {checkpoint.checkpoint_id} like this?")
    made = change_columns(coordinator, checkpoint, operator, changes)
    answer(
        as_json,
        checkpoint_json(made),
        f"checkpoint {made.checkpoint_id} has the changed columns of {operator}",
    )


def _show_columns(operator: str, schema: StateSchema, ttl: StateTtl | None, *, as_json: bool) -> None:
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
    named = f"rows end {readable_duration(timedelta(microseconds=ttl.ttl_us or 0))} after {column}"
    clock = "the time of writing" if ttl.processing_time else "event time"
    if ttl.now_us is None:
        return f"{named} ({clock}); no row had a time yet"
    return f"{named} ({clock}); now is {readable_time(_EPOCH + timedelta(microseconds=ttl.now_us))}"


def _columns(schema: StateSchema) -> Iterator[dict[str, object]]:
    for field, column_id in zip(schema.columns, schema.ids, strict=True):
        key = field.name in schema.key_columns
        yield {"name": field.name, "type": str(field.type), "key": key, "id": column_id}
