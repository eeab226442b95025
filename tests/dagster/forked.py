"""A job whose step tells from which process it was forked, for the test of the executor."""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

import os
import sys

import dagster as dg

from dstl_dagster import build_step_executor

MARKER = "FORKED_WORKER"
"""The variable with the id of the run's worker."""


@dg.op
def look_around(context: dg.OpExecutionContext) -> None:
    """Fails unless it was forked from a third process, which had imported what it needs."""
    assert os.getppid() != int(os.environ[MARKER]), "the run's worker started it"
    assert "dstl_dagster.orchestration.define.assets" in sys.modules
    context.log.info("forked")


@dg.job(executor_def=build_step_executor(preload=["tests.dagster.forked"], max_concurrent=1))
def forked() -> None:
    """One step."""
    look_around()
