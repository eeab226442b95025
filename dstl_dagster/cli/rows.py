"""Commands about the rows of keyed state: diff, history, export, materialize."""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click
import pyarrow as pa

from dstl_dagster.checkpoint import CheckpointCoordinator, CheckpointReader, materialize
from dstl_dagster.cli.options import AT, dry_run_option, id_argument, job_options, progress_of
from dstl_dagster.cli.output import Table, answer, say, show
from dstl_dagster.cli.render import changes_table, checkpoint_json
from dstl_dagster.errors import ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.format import counted, readable_bytes
from dstl_dagster.keyed import (
    KeyChange,
    Manifest,
    StateAt,
    StateDiff,
    diff_checkpoints,
    due_operators,
    export_checkpoint,
    is_keyed,
    key_history,
)
from dstl_dagster.state import RawText, python_rows
from dstl_dagster.timeline import AsOf

_OLDER, _NEWER = "before", "after"
_BASE64 = "base64"

operator_option = click.option(
    "--operator", help="The operator whose state to read. Optional if the job has only one."
)


@click.command("diff")
@click.argument("older_at", type=AT, metavar="OLDER")
@click.argument("newer_at", type=AT, metavar="NEWER")
@operator_option
@click.option("--newer-job", metavar="JOB", help="NEWER is of this job of the store, such as a clone.")
@click.option(
    "--limit",
    type=click.IntRange(0, sys.maxsize),
    default=20,
    show_default=True,
    help="Show at most this many rows.",
)
@job_options
def diff_command(
    coordinator: CheckpointCoordinator,
    older_at: AsOf,
    newer_at: AsOf,
    operator: str | None,
    newer_job: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show which rows were added, changed and removed from checkpoint OLDER to NEWER.

    --json prints all of them, one per line.
    """
    other = CheckpointReader(newer_job or coordinator.job, coordinator.store, coordinator.job_options)
    older, newer = coordinator.at(older_at).manifest, other.at(newer_at).manifest
    operator = one_operator(newer, operator) if newer.operators else one_operator(older, operator)
    counts = {"added": 0, "changed": 0, "removed": 0}
    shown: list[tuple[str, Mapping[str, Any]]] = []
    for found in diff_checkpoints(coordinator.store, older, newer, operator):
        counts["added"] += found.added.num_rows
        counts["changed"] += found.after.num_rows
        counts["removed"] += found.removed.num_rows
        if as_json:
            for document in _documents(found):
                click.echo(json.dumps(_finite(document), default=_plain))
        elif len(shown) < limit:
            shown += _lines(found, limit - len(shown))
    if as_json:
        return
    if shown:
        show(changes_table(shown))
    total = sum(counts.values())
    if total > len(shown):
        say(f"and {total - len(shown):,} more rows; --limit shows more, --json all")
    said = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    say(f"{operator}, checkpoint {older.checkpoint_id} to {newer.checkpoint_id}: {said}")


@click.command("history")
@click.argument("key", nargs=-1, required=True, metavar="COLUMN=VALUE...")
@operator_option
@click.option("--at", type=AT, help="Up to this checkpoint. Default: the last one.")
@job_options
def history_command(
    coordinator: CheckpointCoordinator,
    key: tuple[str, ...],
    operator: str | None,
    at: AsOf | None,
    as_json: bool,
) -> None:
    """Show the changes of one key, checkpoint by checkpoint.

    A value is one of its column's type, as JSON or text: id=5, day=2026-11-01, 'name="5"', tail=null.
    Bytes, or text that is not UTF-8: 'name={"base64": "/w=="}'. --json prints such text the same way.
    """
    manifest = coordinator.at(at).manifest
    operator = one_operator(manifest, operator)
    state = StateAt.existing(coordinator.store, manifest, operator)
    changes = key_history(coordinator.store, manifest, operator, _key_of(state, key))
    if as_json:
        for change in changes:
            click.echo(json.dumps(_finite(vars(change)), default=_plain))
    elif changes:
        show(_history_table(changes))
        merged = max((each.checkpoint_id for each in changes if each.change == "from before"), default=None)
        if merged is not None:
            say(f"of changes up to {merged} the last is left: --at {merged}, while retained, has each")
    else:
        say(f"operator {operator!r} has no change of {' '.join(key)}")


@click.command("export")
@id_argument
@click.argument("folder", metavar="FOLDER")
@click.option("--operator", help="Only this one. Default: every operator with keyed state.")
@click.option(
    "--as-bytes",
    "as_bytes",
    multiple=True,
    metavar="COLUMN",
    help="Write this column's text as binary, for text that is not UTF-8. Needs --operator; may be repeated.",
)
@job_options
def export_command(
    coordinator: CheckpointCoordinator,
    at: AsOf,
    folder: str,
    operator: str | None,
    as_bytes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write the state at checkpoint ID as Parquet below FOLDER: file:///folder, or gs://bucket/prefix.

    One folder per operator; its _SUCCESS is written last. The folder has to be empty.
    """
    if as_bytes and operator is None:
        raise click.UsageError("--as-bytes names a column of one operator: add --operator")
    manifest = coordinator.at(at).manifest
    names = [operator] if operator is not None else keyed_operators(manifest)
    if not names:
        raise NotFoundError(
            f"checkpoint {manifest.checkpoint_id} has no keyed state to export", kind=ErrorKind.NO_STATE
        )
    for name in names:
        done = export_checkpoint(
            coordinator.store,
            manifest,
            name,
            folder,
            as_bytes=as_bytes,
            progress=progress_of(f"parts of {name}"),
            options=coordinator.job_options,
        )
        files = f"{readable_bytes(done.size_bytes)} in {counted(len(done.uris), 'file')} below {folder}"
        document = {"operator": name, "uris": done.uris, "rows": done.rows, "bytes": done.size_bytes}
        answer(as_json, document, f"{name}: {counted(done.rows, 'row')}, {files}")


@click.command("materialize")
@click.option("--operator", "operators", multiple=True, help="Only this one; may be repeated.")
@click.option("--force", is_flag=True, help="Even if nothing is due.")
@dry_run_option
@job_options
def materialize_command(
    coordinator: CheckpointCoordinator,
    operators: tuple[str, ...],
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Merge states with runs that are due, as a checkpoint of its own, to keep them quick to read."""
    if dry_run:
        manifest = coordinator.at().manifest
        due = due_operators(manifest, coordinator.options, operators or None, force=force)
        answer(as_json, {"operators": due}, f"would be merged: {', '.join(due) or 'none'}")
        return
    made = materialize(coordinator, operators or None, force, progress=progress_of("merged"))
    if made is None:
        answer(as_json, None, "nothing is due to be merged; --force merges it anyway")
        return
    merged = [name for name, entry in made.manifest.operators.items() if not entry.is_idle]
    said = f"checkpoint {made.checkpoint_id} merged the state of: {', '.join(sorted(merged))}"
    answer(as_json, checkpoint_json(made), said)


def keyed_operators(manifest: Manifest) -> list[str]:
    """The operators with keyed state, sorted."""
    return sorted(name for name, entry in manifest.operators.items() if is_keyed(entry.report))


def one_operator(manifest: Manifest, operator: str | None) -> str:
    """The operator of this name; `None`: the only one. Raises: InvalidInputError if there are several."""
    if operator is not None:
        return operator
    names = sorted(manifest.operators)
    if len(names) != 1:
        known = ", ".join(names) or "none"
        raise InvalidInputError(
            f"choose one with --operator: checkpoint {manifest.checkpoint_id} has {known}"
        )
    return names[0]


def _key_of(state: StateAt, words: tuple[str, ...]) -> dict[str, Any]:
    types = {field.name: field.type for field in state.schema.columns}
    key = {}
    for word in words:
        column, equals, value = word.partition("=")
        if not equals:
            raise click.UsageError(f"expected COLUMN=VALUE, not {word!r}")
        if column in key:
            raise click.UsageError(f"{column!r} has two values: a history is of one key")
        try:
            key[column] = _value(value, types.get(column, pa.string()))
        except (pa.ArrowException, OverflowError) as error:
            raise click.UsageError(
                f"{value!r} is no value of column {column!r}, which is {types[column]}"
            ) from error
    return key


def _value(text_given: str, kind: pa.DataType) -> Any:
    try:
        value = json.loads(text_given)
    except ValueError:
        value = text_given
    if isinstance(value, dict) and set(value) == {_BASE64}:
        try:
            return base64.b64decode(value[_BASE64], validate=True)
        except (TypeError, ValueError) as error:
            raise click.UsageError(f"{text_given!r} is not base64: {error}") from error
    if value is None:
        return None
    # name=5 means the text "5" where the column is text; null is null everywhere.
    text = value if isinstance(value, str) else text_given
    is_text = pa.types.is_string(kind) or pa.types.is_binary(kind)
    return text if is_text else pa.scalar(text).cast(kind).as_py()


def _documents(found: StateDiff) -> Iterator[dict[str, Any]]:
    for row in python_rows(found.added):
        yield {"change": "added", _OLDER: None, _NEWER: row}
    for before, after in zip(python_rows(found.before), python_rows(found.after), strict=True):
        yield {"change": "changed", _OLDER: before, _NEWER: after}
    for row in python_rows(found.removed):
        yield {"change": "removed", _OLDER: row, _NEWER: None}


def _lines(found: StateDiff, limit: int) -> list[tuple[str, Mapping[str, Any]]]:
    tables = (
        ("+", found.added.slice(0, limit)),
        ("-", found.removed.slice(0, limit)),
    )
    lines: list[tuple[str, Mapping[str, Any]]] = [
        (sign, row) for sign, rows in tables for row in python_rows(rows)
    ]
    before, after = (python_rows(rows.slice(0, limit)) for rows in (found.before, found.after))
    for old, new in zip(before, after, strict=True):
        lines.append(("~", {name: _arrow(old[name], new[name]) for name in new}))
    return lines[:limit]


def _arrow(before: Any, after: Any) -> Any:
    return after if before == after or before is after else f"{before} -> {after}"


def _history_table(changes: list[KeyChange]) -> Any:
    columns = list(next((change.row for change in reversed(changes) if change.row is not None), {}))
    table = Table("checkpoint", "change", *columns, cut=columns)
    for change in changes:
        row = change.row or {}
        table.add_row(str(change.checkpoint_id), change.change, *(str(row.get(name, "")) for name in columns))
    return table


def _finite(value: Any) -> Any:
    """With text in place of NaN and infinities, which JSON does not have; as Spark's `to_json`."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    if isinstance(value, RawText):  # unlike any text, and unlike a binary value
        return {_BASE64: base64.b64encode(value).decode("ascii")}
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else str(value)
