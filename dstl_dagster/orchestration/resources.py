"""What a user injects into their PySpark op: where state lives, where files go, and Spark.

Owns the translation of Dagster's configuration and run into arguments of the layers below. Holds no
connection and no "current checkpoint": Dagster sets a resource up in every step, sometimes twice in one
process. Loading a resource neither touches the network nor starts a JVM; setting one up checks the settings
of a `gs://` bucket.
"""

# No postponed annotations here: Dagster recognizes a nested resource by the object of its annotation.

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field, PrivateAttr

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.failures import without_useless_retries
from dstl_dagster.orchestration.keys import TAG_TAKE_OVER
from dstl_dagster.orchestration.owners import OwnerRuns, owner_of, root_run_id
from dstl_dagster.orchestration.partitions import partition_of, require_next_partition
from dstl_dagster.orchestration.preflight import log_bucket_findings
from dstl_dagster.settings import CheckpointOptions, GSFileSystemOptions
from dstl_dagster.storage import ObjectStore, open_store, split_bucket_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dstl_dagster.spark import CheckpointBatch

__all__ = ["ChangelogStorageResource", "RecoverableWriterResource", "SparkSessionResource"]


class ChangelogStorageResource(dg.ConfigurableResource[Any]):
    """Where the state and the checkpoints of jobs live.

    `with changelog.checkpoint(context, job="orders") as batch:` does step 1 (trigger) on entry and step 3
    (everything durable and reported) on exit.
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
            "Temporary objects of files, time-outs and retries, under upstream's keys, for example "
            "{'gs.writer.temporary.bucket.name': 'scratch'}. Set here because clean-up needs them too."
        ),
    )
    gcs: dg.ResourceDependency[Any] = None  # type: ignore[assignment] # Dagster's way to make it optional
    """dagster-gcp's `GCSResource`, or any object with `get_client()`, for credentials of the control plane
    that Google's libraries do not find by default. Spark's executors always use the default ones."""

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Log a warning for bucket settings that would break guarantees or cost money."""
        scratch = self.files.get("gs.writer.temporary.bucket.name")
        log_bucket_findings(
            context.log, self.uri, *([f"gs://{scratch}"] if scratch else []), open_bucket=self._open
        )

    def store(self) -> ObjectStore:
        """The store that `uri` names. Raises: InvalidInputError."""
        return self._open(self.uri, self._file_options() if self.files else None)

    def _file_options(self) -> GSFileSystemOptions:
        return GSFileSystemOptions.from_mapping(dict(self.files), alone=True)

    def _open(self, uri: str, options: GSFileSystemOptions | None = None) -> ObjectStore:
        if self.gcs is None or not uri.startswith("gs://"):
            return open_store(uri, options) if options is not None else open_store(uri)
        from dstl_dagster.storage import GCSObjectStore  # half a second: only for a bucket

        bucket_name, prefix = split_bucket_uri(uri, "gs")
        return GCSObjectStore(self.gcs.get_client(), bucket_name, prefix, options=options)

    def coordinator(self, job: str, *, owner: str | None = None) -> CheckpointCoordinator:
        """The control plane of one job, for any step in any process."""
        return CheckpointCoordinator(
            job,
            self.store(),
            CheckpointOptions.from_mapping(dict(self.checkpoints), alone=True),
            owner=owner,
            file_options=self._file_options(),
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
        """One batch of `job`, as a context manager.

        Args:
            source: the partition becomes the position of this source, and partitions must follow each other
                without a gap.
            idempotency_key: names the batch, which is applied once. Default: the partition of the run; in a
                run without partitions this op in the run and in all its re-executions.
            check: gets the last completed checkpoint, or `None`, before the attempt is opened, and raises
                to refuse the batch.

        The run owns the attempt: its retries and re-executions fence an attempt that it left open, and so
        does any run once the owner's run has ended. A run tagged `dstl/take_over: true` fences any attempt.
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
        from dstl_dagster.spark import CheckpointBatch  # PySpark: not while definitions load

        run = context.run
        coordinator = self.coordinator(job, owner=owner_of(run))
        partition = partition_of(context)
        if source is not None and partition is None:
            raise InvalidInputError(
                f"job {job!r}: source {source!r} advances by partition, but this run has none: launch it for "
                "a partition, or leave `source` out and call `batch.move_position`"
            )
        if idempotency_key is None:
            # By the op too: two updates of one job in one run are two batches.
            by_run = f"run:{root_run_id(run)}/{context.op_handle}"
            idempotency_key = by_run if partition is None else partition

        def check_all(parent: Checkpoint | None) -> None:
            if source is not None and partition is not None:
                position = None if parent is None else parent.positions.get(source)
                target = context.assets_def if context.has_assets_def else context.job_def
                require_next_partition(target.partitions_def, partition, position, job=job)
            if check is not None:
                check(parent)

        batch = CheckpointBatch(
            coordinator,
            idempotency_key=idempotency_key,
            take_over=_take_over(context, coordinator),
            check=check_all,
        )
        if source is not None and partition is not None:
            batch.move_position(source, partition)
        return batch


class RecoverableWriterResource(dg.ConfigurableResource[Any]):
    """The folder in which a job publishes its files exactly once."""

    uri: str = Field(
        description="The folder of the output: `gs://bucket/prefix` or `file:///folder`. No secrets."
    )

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Log a warning for bucket settings that would break guarantees or cost money."""
        log_bucket_findings(context.log, self.uri)

    def uri_of(self, name: str) -> str:
        """The URI of a file in the folder."""
        return f"{self.uri.rstrip('/')}/{name.lstrip('/')}"


class SparkSessionResource(dg.ConfigurableResource[Any]):
    """A local Spark session, started on first use, with the driver's own interpreter.

    A session that already runs in this process is used and left running: whoever starts a session stops it.
    Any resource with a `spark_session` attribute works as well, such as dagster-pyspark's `PySparkResource`.
    """

    app_name: str = "dstl-dagster"
    cores: int = Field(default=2, description="Threads of the local master.")
    conf: dict[str, str] = Field(default_factory=dict, description="Spark configuration, on top of our own.")

    _started: "SparkSession | None" = PrivateAttr(default=None)

    @property
    def spark_session(self) -> "SparkSession":
        # PySpark: not while definitions load
        from dstl_dagster.spark import local_session, running_session

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


def _take_over(context: dg.OpExecutionContext, coordinator: CheckpointCoordinator) -> bool | uuid.UUID:
    """Whether the run may fence another owner's attempt: any, if its tag says so, or one of a run that ended.

    A run has ended when all its re-executions have. Only the attempt that was looked at may be fenced then:
    another one that opens meanwhile has an owner of its own.
    """
    if context.run.tags.get(TAG_TAKE_OVER) == "true":
        return True
    opened = coordinator.timeline.tail().open_attempt
    if opened is None or not OwnerRuns(context.instance).have_ended(opened.owner):
        return False
    return opened.attempt
