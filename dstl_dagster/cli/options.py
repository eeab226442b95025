"""The options of commands: the store, the job, a checkpoint, `-o KEY=VALUE`, `--json`, `-v`, `-q`.

Owns the command-line form. Does not own the keys or their precedence (`settings.JobOptions`).
"""

from __future__ import annotations

import functools
import getpass
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.cli.output import set_quiet
from dstl_dagster.cli.working import open_working
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings import JobOptions, parse_lines
from dstl_dagster.timeline import AsOf, missing_job


def with_job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `-o`, `--options-file`, `-v` and `-q`, and passes the command `job_options` in their place."""

    @click.option(
        *("-o", "-D", "--option", "settings"),
        multiple=True,
        metavar="KEY=VALUE",
        help="An option of the job that is not the default, such as dstl.checkpoint.*, dstl.dfs.* or gs.*; "
        "may be repeated.",
    )
    @click.option(
        "--options-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="A file of such options, a line each. -o goes before it, and it before $DSTL_OPTIONS.",
    )
    @click.option("-v", "--verbose", is_flag=True, help="Log on stderr what is decided and requested.")
    @click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
    @functools.wraps(command)
    def with_options(
        settings: tuple[str, ...], options_file: Path | None, verbose: bool, quiet: bool, **others: Any
    ) -> Any:
        if verbose:
            logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
        set_quiet(quiet=quiet)
        return command(job_options=_resolved(settings, options_file), **others)

    return with_options


def _resolved(settings: Iterable[str], options_file: Path | None) -> JobOptions:
    call: dict[str, object] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(f"-o takes KEY=VALUE, not {setting!r}")
        if call.setdefault(key, value) != value:
            raise click.UsageError(f"-o gives {key} twice: {call[key]!r} and {value!r}")
    configured = None
    if options_file is not None:
        try:
            configured = parse_lines(options_file.read_text(encoding="utf-8"), str(options_file))
        except UnicodeDecodeError as error:
            raise InvalidInputError(f"{options_file} is not text in UTF-8: {error}") from error
    return JobOptions.resolve(call, configured)


class _At(click.ParamType):  # type: ignore[type-arg] # generic in newer releases alone
    """A checkpoint by id, partition, savepoint or time."""

    name = "at"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> AsOf:
        try:
            return value if isinstance(value, AsOf) else AsOf.of_text(value)
        except InvalidInputError as error:
            self.fail(str(error), param, ctx)


AT = _At()

store_option = click.option(
    "--store",
    "uri",
    required=True,
    envvar="DSTL_STORE",
    show_envvar=True,
    help="file:///folder or gs://bucket/prefix.",
)
id_argument = click.argument("at", type=AT, metavar="ID")
dry_run_option = click.option("--dry-run", is_flag=True, help="Change nothing: show what would be done.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one document a line.")


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--store`, `--job` and the job's options, and passes on a `coordinator` in their place.

    No command begins a job: one that the store does not have is an error, and so is a store without a folder.
    """

    @store_option
    @click.option("--job", envvar="DSTL_JOB", help="The job's name. Required; default: $DSTL_JOB.")
    @with_job_options
    @functools.wraps(command)
    def with_coordinator(uri: str, job: str | None, job_options: JobOptions, **others: Any) -> Any:
        if not job:
            raise click.UsageError(
                "name the job, by --job or DSTL_JOB: `dstl jobs list` shows which there are"
            )
        coordinator = CheckpointCoordinator(
            job, open_working(uri, job_options.files), job_options, owner=f"dstl-command:{user_name()}"
        )
        # An audit lists what records that are missing do not explain.
        if not coordinator.timeline.tail(even_lost=command.__name__ == "audit_command").slot:
            raise missing_job(coordinator.store, job)
        return command(coordinator=coordinator, **others)

    return with_coordinator


def user_name() -> str:
    """The user that runs this command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container running under a uid that has no user name.
        return f"uid-{os.getuid()}"
