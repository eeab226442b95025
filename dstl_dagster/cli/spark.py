"""`dstl spark`: what a local Spark on this machine needs once. Owns the command, not the work (`spark`)."""

from __future__ import annotations

import click

__all__ = ["spark_group"]


@click.group("spark")
def spark_group() -> None:
    """Prepare this machine for local sessions."""


@spark_group.command("archive-classes")
def archive_classes_command() -> None:
    """Archive Spark's classes, so that local sessions start in two thirds of the time.

    For this user, this Java and this Spark, in the cache folder of the user (XDG_CACHE_HOME). Takes half a
    minute and 200 MB. Call it again after an upgrade of Java or Spark; call it in the build of an image.
    """
    from dstl_dagster.spark import archive_classes

    click.echo("running a small job, and archiving the classes that its JVM takes ...")
    folder = archive_classes()
    size = sum(each.stat().st_size for each in folder.glob("*.jsa"))
    click.echo(f"{folder}: {size / 1e6:,.0f} MB. `local_session` maps it from now on; delete it at any time")
