"""A run of the five steps, or of a fan-out behind them, that stops at a chosen request until it is killed.

`run` is for a process that has been forked with this module imported. It runs a job as the run's worker and
stops where it is asked to (`stop_at`). With a failed run's id that run is re-executed from its failure.

Owns the jobs. Killing and comparing is `test_dagster_kills`.
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import dagster as dg

from dstl_dagster import ChangelogStorageResource, build_checkpoint_job
from dstl_dagster.orchestration.define.ops import StepOps
from dstl_dagster.orchestration.inject import resources
from tests.dagster import days
from tests.process.stop_at import stop_where_asked

FILES, PARTS = 4, 6
TOKEN = "dstl/kills"
_resources = {"changelog": ChangelogStorageResource(uri=dg.EnvVar(days.URI))}


def five_steps() -> dg.JobDefinition:
    """update -> persist -> confirm -> compose_commit -> cleanup."""
    return build_checkpoint_job(
        "five_steps",
        days.build_update(source=None, files=FILES),
        resource_defs=_resources,
        separate_steps=True,
    )


@dg.op(out=dg.DynamicOut(dict))
def fan_out(reference: dict) -> Any:
    """A user's own fan-out over the parts of a checkpoint."""
    for number in range(PARTS):
        yield dg.DynamicOutput(reference, mapping_key=f"part_{number}")


@dg.op
def look_at_part(
    context: dg.OpExecutionContext, reference: dict, changelog: ChangelogStorageResource
) -> dict:
    """One part; what a part does is the user's business. It asks the store for something."""
    changelog.store().stat(f"part-{context.get_mapping_key()}")
    return reference


@dg.op
def fan_in(context: dg.OpExecutionContext, references: list) -> dict:
    """As Dagster hands it over, which need not be everything."""
    context.log.info(f"fan-in saw {len(references)} parts")
    return references[0]


def with_fan_out() -> dg.JobDefinition:
    """The five steps, with a fan-out between the commit point and the files."""
    update = days.build_update(source=None, files=FILES)
    ops = StepOps(prefix="fan_").separate()
    persist, confirm, compose_commit, cleanup = (op.alias(op.name.removeprefix("fan_")) for op in ops)

    @dg.graph
    def steps() -> None:
        parts = fan_out(confirm(persist(update())))
        cleanup(compose_commit(fan_in(parts.map(look_at_part).collect())))

    return steps.to_job(name="with_fan_out", resource_defs=_resources)


def run(job: str, token: str, failed: str | None, environment: Mapping[str, str], log: str) -> None:
    """Run or re-execute a job with this environment."""
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(output, stream)
    stop_where_asked(resources)
    with dg.DagsterInstance.get() as instance:
        options = dg.ReexecutionOptions.from_failure(failed, instance) if failed else None
        with dg.execute_job(
            dg.reconstructable({"five_steps": five_steps, "with_fan_out": with_fan_out}[job]),
            instance=instance,
            tags={TOKEN: token},
            run_config={"execution": {"config": {"in_process": {}}}},
            reexecution_options=options,
            raise_on_error=False,
        ) as result:
            sys.exit(0 if result.success else 3)
