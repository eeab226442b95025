"""What a user injects into their PySpark op: where state lives, how files are written, and Spark.

Owns translating Dagster's configuration and run into the arguments of the layers below. Holds no
connection and no "current checkpoint": Dagster may set a resource up twice in one process, and once in
every step. Nothing here touches the network or starts a JVM before it is used; setting one up looks at the
settings of a `gs://` bucket.
"""

# No postponed annotations here: Dagster tells a nested resource by its annotation's object.

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field, PrivateAttr

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.failures import without_useless_retries
from dstl_dagster.orchestration.keys import OWNER_PREFIX, TAG_TAKE_OVER
from dstl_dagster.orchestration.partitions import partition_of, require_next_partition
from dstl_dagster.orchestration.preflight import tell_bucket_findings
from dstl_dagster.orchestration.reporting import OwnerRuns
from dstl_dagster.settings.checkpoint import CheckpointOptions
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import ObjectStore, open_store, split_bucket_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dstl_dagster.spark.batch import CheckpointBatch

__all__ = ["ChangelogStorageResource", "RecoverableWriterResource", "SparkSessionResource"]


class ChangelogStorageResource(dg.ConfigurableResource[Any]):
    """Where the state and the checkpoints of jobs live.

    `with changelog.checkpoint(context, job="orders") as batch:` is step 1 (trigger) on the way in, and
    step 3 (everything durable and reported) on the way out.
    """

    uri: str = Field(
        description="A store: `gs://bucket/prefix`, or `file:///folder` with nothing to set up. No secrets."
    )
    checkpoints: dict[str, str] = Field(
        default_factory=dict,
        description="Options of the coordinator, for example {'execution.checkpointing.num-retained': '30'}.",
    )
    files: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "Options of the files' temporary objects by upstream's keys, for example "
            "{'gs.writer.temporary.bucket.name': 'scratch'}. Here, because clean-up needs them too."
        ),
    )
    gcs: dg.ResourceDependency[Any] = None  # type: ignore[assignment] # Dagster's form of "may be absent"
    """dagster-gcp's `GCSResource`, or any object with `get_client()`, where Google's libraries alone do not
    find the credentials of the control plane. Spark's executors always find theirs by themselves."""

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Warn in Dagster's log of bucket settings that would break promises or cost money."""
        scratch = self.files.get("gs.writer.temporary.bucket.name")
        tell_bucket_findings(
            context.log, self.uri, *([f"gs://{scratch}"] if scratch else []), open_bucket=self._open
        )

    def store(self) -> ObjectStore:
        """The store that `uri` names. Raises: InvalidInputError."""
        return self._open(self.uri)

    def _open(self, uri: str, options: GSFileSystemOptions | None = None) -> ObjectStore:
        if self.gcs is None or not uri.startswith("gs://"):
            return open_store(uri, options) if options is not None else open_store(uri)
        from dstl_dagster.storage import GCSObjectStore  # half a second: for a bucket only

        bucket_name, prefix = split_bucket_uri(uri, "gs")
        return GCSObjectStore(self.gcs.get_client(), bucket_name, prefix, options=options)

    def coordinator(self, job: str, *, owner: str | None = None) -> CheckpointCoordinator:
        """The control plane of one job: any step, from any process."""
        return CheckpointCoordinator(
            job,
            self.store(),
            CheckpointOptions.from_mapping(dict(self.checkpoints)),
            owner=owner,
            file_options=GSFileSystemOptions.from_mapping(dict(self.files)),
        )

    @contextmanager
    def checkpoint(
        self,
        context: dg.OpExecutionContext,
        job: str,
        *,
        source: str | None = None,
        idempotency_key: str | None = None,
        check: Callable[[Checkpoint | None], None] | None = None,
    ) -> Iterator["CheckpointBatch"]:
        """The batch that this op makes of `job`, as a context manager.

        In a partitioned run the partition is the batch: a partition that a completed checkpoint holds is
        not made again. With `source` the partition is also that source's position, and partitions must
        follow each other without a gap. In a run without partitions the batch is the run (with all its
        re-executions). `idempotency_key` names it otherwise.

        The run owns the attempt: its retries and re-executions end an attempt it left open, and so does a
        run that finds the owner's run finished. A run tagged `dstl/take_over: true` ends any other.
        """
        with (
            without_useless_retries(),
            self._batch(context, job, source, idempotency_key, check) as batch,
        ):
            yield batch

    def _batch(
        self,
        context: dg.OpExecutionContext,
        job: str,
        source: str | None,
        idempotency_key: str | None,
        check: Callable[[Checkpoint | None], None] | None,
    ) -> "CheckpointBatch":
        from dstl_dagster.spark.batch import CheckpointBatch  # PySpark: not while definitions load

        run = context.run
        coordinator = self.coordinator(job, owner=OWNER_PREFIX + (run.root_run_id or run.run_id))
        partition = partition_of(context)
        if source is not None and partition is None:
            raise InvalidInputError(
                f"job {job!r}: source {source!r} moves by partitions, but this run has none: launch it for a "
                "partition, or leave `source` out and call `batch.move_position`"
            )
        if idempotency_key is None:
            idempotency_key = f"run:{run.root_run_id or run.run_id}" if partition is None else partition

        def check_all(parent: Checkpoint | None) -> None:
            if source is not None and partition is not None:
                position = None if parent is None else parent.positions.get(source)
                made = context.assets_def if context.has_assets_def else context.job_def
                definition = made.partitions_def
                require_next_partition(definition, partition, position, job=job)
            if check is not None:
                check(parent)

        batch = CheckpointBatch(
            coordinator,
            idempotency_key=idempotency_key,
            take_over=run.tags.get(TAG_TAKE_OVER) == "true" or _rival_is_over(context.instance, coordinator),
            check=check_all,
        )
        if source is not None and partition is not None:
            batch.move_position(source, partition)
        return batch


class RecoverableWriterResource(dg.ConfigurableResource[Any]):
    """The folder in which a job's files appear exactly once."""

    uri: str = Field(
        description="The folder of the output: `gs://bucket/prefix` or `file:///folder`. No secrets."
    )

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Warn in Dagster's log of bucket settings that would break promises or cost money."""
        tell_bucket_findings(context.log, self.uri)

    def uri_of(self, name: str) -> str:
        """The URI of a file below the folder."""
        return f"{self.uri.rstrip('/')}/{name.lstrip('/')}"


class SparkSessionResource(dg.ConfigurableResource[Any]):
    """A local Spark session that starts when it is first asked for, with the driver's own interpreter.

    Where Spark runs in this process already, that one is used, and left running: who starts it stops it.
    Any resource with a `spark_session` attribute does as well, dagster-pyspark's `PySparkResource` too.
    """

    app_name: str = "dstl-dagster"
    cores: int = Field(default=2, description="Threads of the local master.")
    conf: dict[str, str] = Field(default_factory=dict, description="Spark configuration on top of ours.")

    _started: "SparkSession | None" = PrivateAttr(default=None)

    @property
    def spark_session(self) -> "SparkSession":
        # PySpark: not while definitions load
        from dstl_dagster.spark.local.session import local_session, running_session

        running = running_session()
        if running is not None:
            return running
        self._started = local_session(self.app_name, cores=self.cores, conf=dict(self.conf))
        return self._started

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:  # noqa: ARG002 - Dagster's signature
        if self._started is not None:
            from dstl_dagster.spark import stop_session  # as above

            stop_session(self._started)
            self._started = None


def _rival_is_over(instance: dg.DagsterInstance, coordinator: CheckpointCoordinator) -> bool:
    """Whether the open attempt belongs to a Dagster run that has ended, with all its re-executions."""
    rival = coordinator.timeline.tail().open_attempt
    return rival is not None and OwnerRuns(instance).are_known_and_over(rival.owner)
