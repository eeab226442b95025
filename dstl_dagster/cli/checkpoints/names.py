"""The commands about the names of a job's operators and sources: show them, rename, drop.

Owns how they are shown and asked for. Does not own what a rename makes of them (`checkpoint.change_names`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import click

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator, NameChange, change_names
from dstl_dagster.cli.checkpoints.options import as_json_option, job_options
from dstl_dagster.cli.output import Table, say, show
from dstl_dagster.cli.tables import checkpoint_json
from dstl_dagster.errors import ErrorKind, NotFoundError

__all__ = ["operator_command", "operators_table", "source_command", "sources_table"]


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--rename", multiple=True, metavar="OLD=NEW", help="A new name; may be repeated."),
        click.option("--drop", multiple=True, metavar="NAME", help="This one goes; may be repeated."),
        click.option("--yes", is_flag=True, help="Do not ask."),
    ):
        command = option(command)
    return command


@click.command("operator")
@_options
@job_options
@as_json_option
def operator_command(coordinator: CheckpointCoordinator, as_json: bool, **asked: Any) -> None:
    """Show the operators of a job and which source writes each; with --rename or --drop, change them.

    That makes a checkpoint of its own, in which no row is rewritten. Older checkpoints stay as they are.
    Change the program at the same time.
    """
    latest = _latest(coordinator)
    changes = NameChange(operators=_changes(**asked))
    if not changes:
        _show(_operators(latest), operators_table(latest), as_json=as_json)
        return
    _change(coordinator, latest, changes, yes=asked["yes"], as_json=as_json)


@click.command("source")
@_options
@job_options
@as_json_option
def source_command(coordinator: CheckpointCoordinator, as_json: bool, **asked: Any) -> None:
    """Show the sources of a job and how far each is; with --rename or --drop, change them.

    That makes a checkpoint of its own. A source that was dropped begins anew where a program still has it,
    and the operators that it wrote stay.
    """
    latest = _latest(coordinator)
    changes = NameChange(sources=_changes(**asked))
    if not changes:
        shown = {name: each.to_json() for name, each in sorted(latest.manifest.sources.items())}
        _show(shown, sources_table(latest), as_json=as_json)
        return
    _change(coordinator, latest, changes, yes=asked["yes"], as_json=as_json)


def sources_table(checkpoint: Checkpoint) -> Table:
    """What feeds the job."""
    columns = ("source", "stands at", "by", "written last by", "operators")
    table = Table(*columns, title="Sources")
    for name, each in sorted(checkpoint.manifest.sources.items()):
        position = each.position if isinstance(each.position, str) else json.dumps(each.position)
        stands = "" if each.position is None else position
        cells = (name, stands, str(each.measure), each.by, ", ".join(each.operators))
        table.add_row(*cells)
    return table


def operators_table(checkpoint: Checkpoint) -> Table:
    """What the job keeps, and what writes it."""
    table = Table("operator", "written by", title="Operators")
    for name, sources in _operators(checkpoint).items():
        table.add_row(name, ", ".join(sources))
    return table


def _operators(checkpoint: Checkpoint) -> dict[str, list[str]]:
    sources = sorted(checkpoint.manifest.sources.items())
    return {
        operator: [name for name, each in sources if operator in each.operators]
        for operator in sorted(checkpoint.manifest.operators)
    }


def _latest(coordinator: CheckpointCoordinator) -> Checkpoint:
    latest = coordinator.latest()
    if latest is None:
        raise NotFoundError(f"job {coordinator.job!r} has no checkpoint yet", kind=ErrorKind.NO_CHECKPOINT)
    return latest


def _changes(rename: tuple[str, ...], drop: tuple[str, ...], yes: bool) -> dict[str, str | None]:  # noqa: ARG001 - click passes it
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
        for line in _lines(changes):
            say(line, err=as_json)
        click.confirm(f"Continue after checkpoint {latest.checkpoint_id} like this?", abort=True, err=True)
    made = change_names(coordinator, latest, changes)
    if as_json:
        click.echo(json.dumps(checkpoint_json(made)))
    else:
        say(f"checkpoint {made.checkpoint_id} has the changed names")


def _lines(changes: NameChange) -> Iterator[str]:
    for what, named in (("operator", changes.operators), ("source", changes.sources)):
        for old, new in named.items():
            yield f"{what} {old!r} goes" if new is None else f"{what} {old!r} is {new!r} from now on"


def _show(plain: Any, table: Table, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(plain))
    else:
        show(table)
