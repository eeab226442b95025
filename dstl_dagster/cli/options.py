"""The options of commands: the store, the job, a checkpoint, `-o KEY=VALUE`, `--json`, `-v`, `-q`.

Owns the command-line form, the opening of what they name, and the sign of life of a command that takes
long. Does not own the keys or their precedence (`settings.JobOptions`).
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.cli.output import is_quiet, say, set_quiet
from dstl_dagster.concurrency import Progress
from dstl_dagster.errors import InvalidInputError, NotFoundError
from dstl_dagster.format import counted, nearest, readable_bytes
from dstl_dagster.settings import GSFileSystemOptions, JobOptions, parse_lines
from dstl_dagster.storage import (
    NO_COST,
    Cost,
    CostMeter,
    LocalObjectStore,
    ObjectStore,
    metered,
    open_store,
)
from dstl_dagster.timeline import AsOf, missing_job

_WORKING = "dstl.working"
"""Under this name a command's context has it."""


def open_working(uri: str, options: GSFileSystemOptions) -> ObjectStore:
    """The store at `uri`; its requests are counted on stderr while the current command runs.

    Raises: as `open_store`; NotFoundError if it is a folder that does not exist.
    """
    meter = CostMeter()
    store = open_store(uri, options)
    if isinstance(store, LocalObjectStore):
        require_folder(store.root)
    store = metered(store, meter)
    if is_quiet():
        return store
    working = Working(lambda: meter.cost, moments(at_terminal=sys.stderr.isatty()))
    working.start()
    context = click.get_current_context()
    context.meta[_WORKING] = working
    context.call_on_close(working.stop)
    return store


def require_folder(folder: Path) -> None:
    """No command makes a store, and a mistyped one is not an empty one."""
    if folder.is_dir():
        return
    parent = next(each for each in folder.parents if each.is_dir())
    wanted = folder.relative_to(parent).parts[0]
    near = nearest(wanted, (each.name for each in parent.iterdir() if each.is_dir()))
    advice = f"did you mean {near}?" if near else "it has no folder at all"
    raise NotFoundError(f"there is no folder {folder}: {parent} has no {wanted!r}; {advice}")


def moments(*, at_terminal: bool) -> Iterator[float]:
    """Seconds after the start at which to print: a person waits for 2 seconds, a log for 30."""
    yield from (2.0, 5.0) if at_terminal else ()
    step = 10.0 if at_terminal else 30.0
    moment = step
    while True:
        yield moment
        moment += step


class Working:
    """Prints what was requested so far, and what is done of it, at each moment by which there was more of it.

    No line is printed while nothing is requested, as when the command waits for an answer. `start` and `stop`
    are the owner's; a daemon thread prints.

    Args:
        cost: all so far.
        moments: seconds after `start`, ascending.
        wait: waits for an event for some seconds, and says whether it is set.

    Attributes:
        doing: how far the command is, to be printed as it is.
    """

    def __init__(
        self,
        cost: Callable[[], Cost],
        moments: Iterator[float],
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self.doing = ""
        self._cost, self._moments = cost, moments
        self._clock, self._wait = clock, wait
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dstl-working", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        began, shown = self._clock(), NO_COST
        for moment in self._moments:
            if self._wait(self._ended, max(0.0, began + moment - self._clock())):
                return
            now = self._cost()
            if now.requests != shown.requests:
                with contextlib.suppress(OSError):  # stderr is closed
                    say(_line(self._clock() - began, now) + self.doing, err=True)
                shown = now


def _line(seconds: float, cost: Cost) -> str:
    moved = ((cost.bytes_down, "read"), (cost.bytes_up, "written"))
    bytes_moved = "".join(f", {readable_bytes(size)} {way}" for size, way in moved if size)
    return f"... {seconds:.0f} s, {counted(cost.requests, 'request')}{bytes_moved}"


def progress_of(what: str) -> Progress:
    """A callback for the progress of long work: the command's next line of `Working` has it."""
    working = click.get_current_context().meta.get(_WORKING)

    def note(done: int, count: int) -> None:
        if working is not None:
            working.doing = f", {done} of {count} {what}"

    return note


def with_job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `-o`, `--options-file`, `-v` and `-q`, and passes on `job_options` in their place.

    Adds `--json`, too.
    """

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
    @click.option("--json", "as_json", is_flag=True, help="Print JSON, one document a line.")
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
