"""`dstl storage`: check a store before trusting it, and tidy it. Owns the output only (`storage`)."""

from __future__ import annotations

import sys

import click

from dstl_dagster.cli.options import dry_run_option, require_folder, with_job_options
from dstl_dagster.cli.output import answer, is_quiet, say
from dstl_dagster.settings import JobOptions


@click.group("storage")
def storage_group() -> None:
    """Check that a store is fit to hold checkpoints, and tidy it."""


@storage_group.command("check")
@click.argument("uri")
@click.option(
    "--checkpoint-retention",
    metavar="DURATION",
    help="How long the oldest checkpoint is retained, e.g. '30 d'; lifecycle rules are checked against it.",
)
@click.option(
    "--timeout",
    default="20 s",
    show_default=True,
    metavar="DURATION",
    help="Give up on a request without a response after about this long.",
)
@click.option("--write/--no-write", default=True, show_default=True, help="Create and delete small objects.")
@with_job_options
def check_command(
    uri: str,
    checkpoint_retention: str | None,
    timeout: str,
    write: bool,
    job_options: JobOptions,
    as_json: bool,
) -> None:
    """Check the bucket or folder URI (gs://bucket/prefix, file:///folder). Exits with 1 if it is unfit."""
    from dstl_dagster.settings import GSFileSystemOptions, parse_duration
    from dstl_dagster.storage import Severity, check_store, open_store

    text = checkpoint_retention
    retention = None if text is None else parse_duration("--checkpoint-retention", text)
    limit = parse_duration("--timeout", timeout)
    attempt_milliseconds = max(1, round(limit.total_seconds() * 500))
    impatient = GSFileSystemOptions(
        http_connect_timeout=attempt_milliseconds,
        http_read_timeout=attempt_milliseconds,
        retry_total_timeout=limit,
    )

    options = JobOptions.of(job_options, impatient)

    def tell(step: str) -> None:
        if not (as_json or is_quiet()):
            say(f"{uri}: {step} (waits up to {timeout} for a response)", err=True)

    findings = check_store(
        open_store(uri, options.files), checkpoint_retention=retention, write_probe=write, progress=tell
    )
    lines = [f"{finding.severity.upper()} {finding.code}: {finding.message}" for finding in findings]
    answer(as_json, findings, *(lines or [f"{uri}: in order, nothing here would harm checkpoints"]))
    if any(finding.severity is Severity.ERROR for finding in findings):
        sys.exit(1)


@storage_group.command("forget-taken")
@click.argument("uri")
@dry_run_option
@with_job_options
def forget_taken_command(uri: str, dry_run: bool, job_options: JobOptions, as_json: bool) -> None:
    """Forget the objects of the folder URI (file:///folder) whose files were taken or removed.

    The store's records of them are deleted. A file that returns afterwards is a new object. Writers may go
    on meanwhile; every part of the folder has to be mounted.
    """
    from dstl_dagster.errors import InvalidInputError
    from dstl_dagster.storage import LocalObjectStore, open_store

    store = open_store(uri, job_options.files)
    if not isinstance(store, LocalObjectStore):
        raise InvalidInputError(f"{uri!r} is no folder: only such a store keeps anything beside its files")
    require_folder(store.root)
    names = list(store.forget_taken(dry_run=dry_run))
    answer(as_json, names, *names)
    say(f"{len(names)} {'to be forgotten' if dry_run else 'forgotten'}", err=True)
