"""The options that all checkpoint commands share: the store, the job and its settings."""

from __future__ import annotations

import functools
import getpass
import os
from collections.abc import Callable
from typing import Any

import click

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.cli.options import with_job_options
from dstl_dagster.cli.working import open_working
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings import JobOptions
from dstl_dagster.timeline import AsOf, missing_job, refuse_lost_records

__all__ = ["AT", "as_json_option", "id_argument", "job_options", "user_name"]


class _At(click.ParamType):  # type: ignore[type-arg] # generic in newer releases alone
    """A checkpoint by id, partition, savepoint or time."""

    name = "at"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> AsOf:
        try:
            return value if isinstance(value, AsOf) else AsOf.of_text(value)
        except InvalidInputError as error:
            self.fail(str(error), param, ctx)


AT = _At()

id_argument = click.argument("at", type=AT, metavar="ID")
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--store`, `--job` and the job's options, and passes on a `coordinator` in their place.

    No command begins a job: one that the store does not have is an error, and so is a store without a folder.
    """

    @click.option(
        "--store",
        "uri",
        required=True,
        envvar="DSTL_STORE",
        show_envvar=True,
        help="file:///folder or gs://bucket/prefix.",
    )
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
        if not coordinator.timeline.tail().slot:
            raise missing_job(coordinator.store, job)
        if command.__name__ != "audit_command":  # which lists them
            refuse_lost_records(coordinator.store, coordinator.timeline)
        return command(coordinator=coordinator, **others)

    return with_coordinator


def user_name() -> str:
    """Who runs this command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container running under a uid that has no user name.
        return f"uid-{os.getuid()}"
