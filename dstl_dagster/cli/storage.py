"""`dstl storage`: look at a place before trusting it. Owns the words; `storage.preflight` the findings."""

from __future__ import annotations

import json
import sys

import click

__all__ = ["storage_group"]


@click.group("storage")
def storage_group() -> None:
    """Object storage: is it fit to keep checkpoints?"""


@storage_group.command("check")
@click.argument("uri")
@click.option(
    "--checkpoint-retention",
    metavar="DURATION",
    help="How long the oldest checkpoint is kept, e.g. '30 d'; lifecycle rules are held against it.",
)
@click.option("--write/--no-write", default=True, show_default=True, help="Make and delete small objects.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def check_command(uri: str, checkpoint_retention: str | None, write: bool, as_json: bool) -> None:
    """Check the bucket or folder URI (gs://bucket/prefix, file:///folder). Exit status 1: do not use it."""
    from dstl_dagster.settings.units import parse_duration
    from dstl_dagster.storage import Severity, check_store, open_store

    retention = (
        None
        if checkpoint_retention is None
        else parse_duration("--checkpoint-retention", checkpoint_retention)
    )
    findings = check_store(open_store(uri), checkpoint_retention=retention, write_probe=write)
    if as_json:
        click.echo(json.dumps([vars(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            click.echo(f"{finding.severity.upper()} {finding.code}: {finding.message}")
        if not findings:
            click.echo(f"{uri}: nothing found")
    if any(finding.severity is Severity.ERROR for finding in findings):
        sys.exit(1)
