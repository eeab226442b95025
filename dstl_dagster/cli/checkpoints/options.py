"""The options that all checkpoint commands share: the store, the job and its settings."""

from __future__ import annotations

import functools
import getpass
import os
from collections.abc import Callable, Iterable
from typing import Any

import click

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.settings import CheckpointOptions, GSFileSystemOptions
from dstl_dagster.storage import open_store

__all__ = ["as_json_option", "job_options"]

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--store`, `--job` and `-o`, and passes the command a `coordinator` in their place."""

    @click.option(
        "--store",
        "uri",
        required=True,
        envvar="DSTL_STORE",
        help="file:///folder or gs://bucket/prefix. Default: $DSTL_STORE.",
    )
    @click.option("--job", required=True, envvar="DSTL_JOB", help="The job's name. Default: $DSTL_JOB.")
    @click.option(
        "-o",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="A setting of the job that is not the default: dstl.checkpoint.* or gs.writer.*.",
    )
    @functools.wraps(command)
    def with_coordinator(uri: str, job: str, settings: tuple[str, ...], **others: Any) -> Any:
        return command(coordinator=_coordinator(uri, job, settings), **others)

    return with_coordinator


def _coordinator(uri: str, job: str, settings: Iterable[str]) -> CheckpointCoordinator:
    ours: dict[str, Any] = {}
    files: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(f"-o takes KEY=VALUE, not {setting!r}")
        (files if key.startswith("gs.") else ours)[key] = value
    file_options = GSFileSystemOptions.from_mapping(files, alone=True)
    return CheckpointCoordinator(
        job,
        open_store(uri, file_options),
        CheckpointOptions.from_mapping(ours, alone=True),
        owner=f"dstl-command:{_user()}",
        file_options=file_options,
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container running under a uid that has no user name.
        return f"uid-{os.getuid()}"
