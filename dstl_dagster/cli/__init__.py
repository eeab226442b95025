"""The `dstl` command: a table of subcommands, each loaded when it is called, and how errors are shown."""

from __future__ import annotations

import sys
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import click

from dstl_dagster.errors import DstlError

__all__ = ["main"]

_COMMANDS = {
    "changelog": ("changelog", "changelog_group", "Inspect changelog files."),
    "checkpoints": (
        "checkpoints",
        "checkpoints_group",
        "Inspect the checkpoints of a job, restore one, keep one, clean up.",
    ),
    "demo": (
        "demo",
        "demo_command",
        "Run real flights through Dagster and Spark, kill a step in the middle, and prove the result.",
    ),
    "gcs-server": (
        "gcs_server",
        "gcs_server_command",
        "Serve Google Cloud Storage on this machine only, without credentials, until SIGINT or SIGTERM.",
    ),
    "jobs": ("jobs", "jobs_group", "List the jobs of a store; show, clone, swap or drop one."),
    "storage": ("storage", "storage_group", "Check that a store is fit to hold checkpoints, and tidy it."),
}
"""Of each its module here, its name there, and its help's first sentence, as there: a test compares."""


class _LazyGroup(click.Group):
    """Imports a subcommand on use, so that `dstl --help` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command = getattr(import_module(f"{__name__}.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, _, sentence) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):  # a name outside of the terminal's encoding is no traceback
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except DstlError as error:
            _say_error(f"{error} [{error.kind}]")
            sys.exit(1)
        except BrokenPipeError:
            raise  # of a pager that was closed: click ends quietly
        except OSError as error:
            # A folder or port that the user named; what storage refuses is one of ours.
            _say_error(f"the system refused: {error}; name another, or grant the rights")
            sys.exit(1)


def _say_error(text: str) -> None:
    from dstl_dagster.cli.output import say

    say(f"dstl: {text}", err=True)


# Every command of every group: a test compares. Written down, so that `dstl --help` loads none of them.
_MAP = """
\b
Look     checkpoints list, show, timeline, diff, history, schema
         changelog show
         jobs list, show
Check    checkpoints audit, verify
         storage check
Decide   checkpoints savepoint, release, restore, correct, resolve, abort, operator, source
         jobs clone, swap
Tidy     checkpoints gc, materialize, export
         jobs drop
         storage forget-taken
Try      demo
         gcs-server

\b
`dstl COMMAND --help` says more; DSTL_STORE and DSTL_JOB stand for --store and --job.
Completion: eval "$(_DSTL_COMPLETE=bash_source dstl)", or zsh_source, fish_source.

\b
Exit status
  0  done; of a check: nothing is wrong
  1  refused, or something is wrong: the last line says what, and the error's kind
  2  the command line is not understood
"""


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_MAP,
)
@click.version_option(package_name="dstl-dagster")
def main() -> None:
    """Durable state and exactly-once files for PySpark jobs."""
