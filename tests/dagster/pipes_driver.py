"""A driver elsewhere, without Spark: the program that a Pipes client launches, and the Dagster run around it.

    python pipes_driver.py FOLDER              the driver, as Pipes launches it
    python pipes_driver.py FOLDER run [RUN]    one run of Dagster, or the re-execution of a failed one

Owns the two programs. Killing them and comparing is `test_pipes_processes`. A driver whose FOLDER holds the
file `hold` writes its process id to `held` once its file is durable, and goes on when `hold` is gone.
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

import os
import sys
import time
from pathlib import Path

import dagster as dg
from dagster_pipes import open_dagster_pipes

from dstl_dagster import ChangelogStorageResource, build_checkpoint_job
from dstl_dagster.pipes import open_batch
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.spark import CheckpointBatch
from dstl_dagster.storage import open_store

JOB, TOKEN = "elsewhere", "dstl/pipes-test"
FOLDER, STORE = "DSTL_PIPES_FOLDER", "DSTL_PIPES_STORE"
NAME, CONTENT = "out/report.txt", b"written elsewhere\n"
_PATIENCE_SECONDS = 120.0


def write_file(batch: CheckpointBatch, name: str = NAME, content: bytes = CONTENT) -> None:
    """What a task of Spark does: components under the attempt, invisible until step 6."""
    store = open_store(batch.attempt.store_uri)
    writer = GSRecoverableWriter(store, attempt=batch.attempt.attempt)
    with writer.open(store.uri_of(name)) as stream:
        stream.write(content)
        batch.add(stream.close_for_commit())


def drive(folder: Path) -> None:
    """The launched program."""
    hold = folder / "hold"
    with open_dagster_pipes() as pipes, open_batch(pipes) as batch:
        write_file(batch)
        if hold.exists():
            (folder / "held.new").write_text(str(os.getpid()))
            (folder / "held.new").rename(folder / "held")
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while hold.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
    (folder / f"over-{batch.attempt.attempt}").touch()


@dg.op(out=dg.Out(dict), retry_policy=dg.RetryPolicy(max_retries=1))
def update(
    context: dg.OpExecutionContext, changelog: ChangelogStorageResource, pipes: dg.PipesSubprocessClient
) -> dg.Output[dict]:
    """The user's op."""
    with changelog.pipes_checkpoint(context, JOB) as batch:
        if batch.already_in is None:
            command = [sys.executable, __file__, os.environ[FOLDER]]
            pipes.run(context=context, command=command, extras=batch.extras)
    return batch.reference


def job() -> dg.JobDefinition:
    """The five steps in one process."""
    return build_checkpoint_job(
        "day",
        update,
        resource_defs={
            # Not the folder of now: Dagster keeps what this returned for the whole process.
            "changelog": ChangelogStorageResource(uri=dg.EnvVar(STORE)),
            "pipes": dg.PipesSubprocessClient(),
        },
        executor_def=dg.in_process_executor,
    )


def run(failed_run: str | None = None) -> bool:
    """Whether it succeeded."""
    with dg.DagsterInstance.get() as instance:
        options = None if failed_run is None else dg.ReexecutionOptions.from_failure(failed_run, instance)
        with dg.execute_job(
            dg.reconstructable(job),
            instance=instance,
            tags={TOKEN: "1"},
            reexecution_options=options,
            raise_on_error=False,
        ) as result:
            return result.success


def main() -> int:
    if len(sys.argv) == 2:
        drive(Path(sys.argv[1]))
        return 0
    return 0 if run(*sys.argv[3:]) else 3


if __name__ == "__main__":
    sys.exit(main())
