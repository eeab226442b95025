"""The options of a job on the command line: `-o KEY=VALUE`, a file of them, and the environment.

Owns the command-line form. Does not own the keys or their precedence (`settings.JobOptions`).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings import JobOptions, parse_lines

__all__ = ["is_quiet", "with_job_options"]

_QUIET = "dstl.quiet"


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
        click.get_current_context().meta[_QUIET] = quiet
        return command(job_options=_resolved(settings, options_file), **others)

    return with_options


def is_quiet() -> bool:
    """Whether the current command prints no progress."""
    return bool(click.get_current_context().meta.get(_QUIET))


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
