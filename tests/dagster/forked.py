"""A job whose step knows from which process it was forked, for the test of the executor.

`python -m tests.dagster.forked` runs it: a process has one server to fork from, with the
imports of its first use.
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

import os
import sys

import dagster as dg

from dstl_dagster import build_step_executor


@dg.op(config_schema={"worker": int})
def look_around(context: dg.OpExecutionContext) -> None:
    """Fails unless it was forked from a third process, which had imported what it needs."""
    assert os.getppid() != context.op_config["worker"], "the run's worker started it"
    assert "dstl_dagster.orchestration.define.assets" in sys.modules
    context.log.info("forked")


@dg.job(executor_def=build_step_executor(preload=["tests.dagster.forked"], max_concurrent=1))
def forked() -> None:
    """One step."""
    look_around()


def is_green() -> bool:
    """A run of it in `DAGSTER_HOME`."""
    config = {"ops": {"look_around": {"config": {"worker": os.getpid()}}}}
    with (
        dg.DagsterInstance.get() as instance,
        dg.execute_job(dg.reconstructable(forked), instance, run_config=config) as result,
    ):
        return result.success


if __name__ == "__main__":
    from tests.dagster import forked as module  # a step finds the job by this name

    sys.exit(not module.is_green())
