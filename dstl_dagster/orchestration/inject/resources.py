"""The resources for a user's PySpark op: where state lives, where files go, and Spark.

Owns the translation of Dagster's configuration and run into arguments of the layers below. Holds no
connection and no "current checkpoint": Dagster sets a resource up in every step, sometimes twice in one
process. Loading a resource neither touches the network nor starts a JVM; setting one up checks the settings
of a `gs://` bucket, and stops nothing: a bucket that cannot be inspected may still work.
"""

# No postponed annotations here: Dagster recognizes a nested resource by the object of its annotation.

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import dagster as dg
from pydantic import Field, PrivateAttr

from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator, ParentCheck
from dstl_dagster.errors import ConflictError, ErrorKind, InvalidInputError
from dstl_dagster.keyed import load_report, open_attempt_changelog
from dstl_dagster.orchestration.code_location import is_called_directly, step_of, steps_behind
from dstl_dagster.orchestration.failures import without_useless_retries
from dstl_dagster.orchestration.inject.batch_log import log_application, log_opened, log_persisted, spark_log
from dstl_dagster.orchestration.inject.opening import (
    BatchRequest,
    only_batch,
    op_context_of,
    refusing,
    request_batch,
)
from dstl_dagster.orchestration.inject.pipes_batch import PipesBatch, open_pipes_batch
from dstl_dagster.orchestration.inject.plain_asset import failing_outputs, show_in_outputs
from dstl_dagster.orchestration.inject.repeated_run import log_repeated
from dstl_dagster.orchestration.keys import TAG_STEP, JobAssets
from dstl_dagster.orchestration.owners import owner_of_step
from dstl_dagster.orchestration.steps import Step, clean_up, compose_commit, confirm, is_complete, persist
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.settings import GSFileSystemOptions, JobOptions
from dstl_dagster.storage import (
    ObjectStore,
    Severity,
    check_store,
    open_store,
    require_store_uri,
    require_within,
)
from dstl_dagster.timeline import AtLike

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dstl_dagster.keyed import StateScan
    from dstl_dagster.spark import CheckpointBatch

_COMPLETING = ("5", "4-7")
# A service that does not answer must not hold up the run: the first step retries for longer.
_IMPATIENT = GSFileSystemOptions(retry_max_attempt=1, http_connect_timeout=5_000, http_read_timeout=10_000)
_checked: set[str] = set()
_lock = threading.Lock()
_Context = dg.OpExecutionContext | dg.AssetExecutionContext


class _StoreResource(dg.ConfigurableResource[Any]):
    """A store by its URI, with the job's options and the credentials."""

    uri: str
    options: dict[str, str] = Field(default_factory=dict)
    gcs: dg.ResourceDependency[Any] = Field(
        default=None,  # type: ignore[arg-type] # Dagster's way to make it optional
        description="dagster-gcp's `GCSResource`, or any object with `get_client()`, for credentials of the "
        "control plane: the same one for all resources of a job. Without it, and in Spark's executors, "
        "those that Google's libraries find.",
    )

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Log the settings of each bucket that would break guarantees or cost money, once a process.

        Two requests a bucket (its permissions, its settings); none for other stores. Nothing is written, and
        nothing is raised.
        """
        try:
            scratch = self.job_options().files.writer_temporary_bucket_name
        except InvalidInputError:
            return  # the op that uses the options names the wrong one, and fails permanently
        for uri in (self.uri, *([f"gs://{scratch}"] if scratch else [])):
            if context.log is None or not uri.startswith("gs://"):
                continue
            bucket_uri = "gs://" + uri.removeprefix("gs://").partition("/")[0]
            # Dagster sets a resource up in every step, sometimes twice in one process; one report is enough.
            with _lock:
                is_first = bucket_uri not in _checked
                _checked.add(bucket_uri)
            if is_first:
                self._check(context.log, bucket_uri)

    def _check(self, log: dg.DagsterLogManager, bucket_uri: str) -> None:
        try:
            findings = check_store(self._open(bucket_uri, _IMPATIENT), write_probe=False)
        except Exception as error:  # noqa: BLE001 (the work may succeed although the check failed)
            log.info(f"{bucket_uri} was not checked: {error}")
            return
        for finding in findings:
            write = log.info if finding.severity is Severity.NOTE else log.warning
            write(f"{bucket_uri}: {finding.code}: {finding.message}. (dstl storage check {bucket_uri})")

    def get_resource_definition(self) -> Any:
        """Dagster asks for it while definitions load, so that a slip there fails no run."""
        self.require_valid()
        return super().get_resource_definition()

    def require_valid(self) -> None:
        """Check the URI and the options, as far as no environment variable gives them. Opens nothing.

        Raises: InvalidInputError.
        """
        if not isinstance(self.uri, dg.EnvVar):
            require_store_uri(self.uri)
        given = {key: text for key, text in self.options.items() if not isinstance(text, dg.EnvVar)}
        JobOptions.of(given)
        if len(given) == len(self.options):
            self.job_options()

    def job_options(self, call: Mapping[str, str] | None = None) -> JobOptions:
        """The options of the jobs, with those of one call on top (the precedence: `JobOptions`).

        Raises: InvalidInputError naming the option.
        """
        return JobOptions.resolve(None, self.options).with_call(call)

    def _open(self, uri: str, options: GSFileSystemOptions | None = None) -> ObjectStore:
        # Those passed are for a request that must not wait; the host, for example, is the job's.
        return _open_with(self.gcs, uri, JobOptions.of(options, self.job_options()))


class ChangelogStorageResource(_StoreResource):
    """Where the state and the checkpoints of jobs live.

    `with changelog.checkpoint(context, job="orders") as batch:` does step 1 (trigger) on entry and step 3
    (everything durable and reported) on exit.
    """

    uri: str = Field(
        description="A store: `gs://bucket/prefix`, or `file:///folder` with nothing to set up. No secrets."
    )
    options: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "Options of the jobs, for the control plane and for tasks: execution.checkpointing.*, "
            "dstl.checkpoint.*, dstl.state.*, dstl.dfs.*, gs.*; for example "
            "{'execution.checkpointing.num-retained': '30', 'dstl.dfs.upload.timeout': '5 min'}."
        ),
    )

    def store(self) -> ObjectStore:
        """The store that `uri` names. Raises: InvalidInputError."""
        return self._open(self.uri)

    def coordinator(
        self, job: str, *, owner: str | None = None, options: Mapping[str, str] | None = None
    ) -> CheckpointCoordinator:
        """The control plane of one job, for any step in any process. `options`: of this call, on top."""
        job_options = self.job_options(options)
        return CheckpointCoordinator(
            job, _open_with(self.gcs, self.uri, job_options), job_options, owner=owner
        )

    def read_state(self, job: str, operator: str, at: AtLike = None, **wanted: Any) -> "StateScan":
        """The rows of an operator, without Spark: to Arrow, pandas, Polars or DuckDB.

        `at`: a checkpoint's id, a partition, a savepoint or a time; by default the last checkpoint. Other
        arguments and errors: as `dstl_dagster.read_state`.
        """
        return self.coordinator(job).read_state(operator, at, **wanted)

    @contextmanager
    def storage(
        self, context: "_Context", work: "CheckpointBatch | Attempt | Mapping[str, Any]"
    ) -> Iterator[FsStateChangelogStorage]:
        """The changelog of an attempt, for an op that appends by itself: closed when the block ends.

        Its writers' files carry the attempt, so what an op wrote that failed is in no checkpoint, and
        clean-up deletes it. Add what a writer persisted to the batch, as an `OperatorReport`. Its reader
        reads the handles of any checkpoint of the job, such as `batch.handles(operator)`.

        Args:
            work: the open batch; or its attempt, or the reference of it that another op was handed.

        Raises: InvalidInputError for an attempt of another store; ConflictError (kind `already_applied`) for
        a batch that a completed checkpoint holds.
        """
        with without_useless_retries():
            attempt, of_batch = _attempt_of(work)
            options = of_batch or self.job_options()
            with closing(_open_with(self.gcs, self.uri, options)) as store:
                if attempt.store_uri != store.uri:
                    raise InvalidInputError(
                        f"the attempt is of the store at {attempt.store_uri}, and this resource of "
                        f"{store.uri}: use the resource that opened it"
                    )
                with open_attempt_changelog(store, attempt, options) as storage:
                    context.log.debug(f"writing the changelog of attempt {attempt.attempt}")
                    yield storage

    @contextmanager
    def checkpoint(
        self,
        context: "_Context",
        job: str,
        *,
        source: str | None = None,
        idempotency_key: str | None = None,
        check: ParentCheck | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Iterator["CheckpointBatch"]:
        """One batch of `job`, as a context manager.

        Args:
            source: the end of the partition becomes the position of this source, and partitions must follow
                each other without a gap. Without it the asset or op is the source, in any order.
            idempotency_key: names the batch of its source, which is applied once. Default: the partition of
                the run; in a run without partitions this op in the run and in all its re-executions.
            check: gets the last completed checkpoint, or `None`, before the attempt is opened, and raises
                to refuse the batch.
            options: of this batch and its tasks, on top of the resource's.

        The run owns the attempt: its retries and re-executions fence an attempt that it left open, and so
        does any run once the owner's run has ended. A run tagged `dstl/take_over: true` fences any attempt.
        A batch that a checkpoint holds already changes nothing (`batch.already_in`): the run is tagged
        `dstl/already_in`, and fails if it is tagged `dstl/fail_if_applied: true`.

        Steps 4 to 7 are those of the run's later ops; where it has none, the block does them at its end.

        Raises: ConflictError (as `Claim.check`) if the op does not fit the job: another one is its source,
        or its partitions count by something else. A run tagged `dstl/ignore_unclaimed_state: true` leaves
        state as it is that nothing in its code location writes.
        """
        work: dict[str, Any] = {"source": source, "idempotency_key": idempotency_key, "check": check}
        with self.opened_batch(context, job, options=options, **work) as batch:
            yield batch

    @contextmanager
    def opened_batch(
        self,
        context: "_Context",
        job: str,
        *,
        options: Mapping[str, str] | None = None,
        completes: JobAssets | None = None,
        **work: Any,
    ) -> Iterator["CheckpointBatch"]:
        """`checkpoint` for a definition that says more of its batch: `work` as of `request_batch`.

        `completes`: the block does steps 4 to 7, and reports under these keys.
        """
        from dstl_dagster.spark import CheckpointBatch  # PySpark: not while definitions load

        with without_useless_retries(), ExitStack() as whole:
            context = op_context_of(context)
            with refusing(context, job), ExitStack() as entering:
                request = self._request(context, job, options, **work)
                whole.enter_context(only_batch(request))
                progress, application = spark_log(context), partial(log_application, context)
                begun = partial(
                    CheckpointBatch, request.coordinator, progress=progress, application=application
                )
                batch = request.taken(lambda opening: entering.enter_context(begun(opening)))
                if batch.already_in is not None:
                    log_repeated(context, job, batch.attempt, request.key)
                opened = entering.pop_all()
            with failing_outputs(context, job):
                with opened:
                    log_opened(context, batch)
                    yield batch
                log_persisted(context, batch)
                _complete(context, request.coordinator, batch.attempt, completes)

    @contextmanager
    def pipes_checkpoint(
        self,
        context: "_Context",
        job: str,
        *,
        source: str | None = None,
        idempotency_key: str | None = None,
        check: ParentCheck | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Iterator[PipesBatch]:
        """One batch of `job` that another process writes, which the block launches and waits for.

        Give `batch.extras` to a Pipes client; the launched program takes the batch up by
        `dstl_dagster.pipes.open_batch`. Needs no Spark here. Launch nothing if `batch.already_in` is set.
        Arguments and ownership are those of `checkpoint`; credentials of `gcs` are not handed on.

        A process that fails, or ends without a hand-over, leaves nothing: the attempt is aborted. A retry
        opens another one.
        """
        with without_useless_retries(), ExitStack() as whole:
            context = op_context_of(context)
            with refusing(context, job):
                work = {"source": source, "idempotency_key": idempotency_key, "check": check}
                request = self._request(context, job, options, **work)
                whole.enter_context(only_batch(request))
            with failing_outputs(context, job):
                with open_pipes_batch(context, request) as batch:
                    yield batch
                _complete(context, request.coordinator, batch.attempt)

    def _request(
        self, context: dg.OpExecutionContext, job: str, options: Mapping[str, str] | None, **work: Any
    ) -> BatchRequest:
        coordinator = self.coordinator(job, owner=owner_of_step(step_of(context)), options=options)
        asked = context.op_def.required_resource_keys
        # Before any work is done.
        found = {key: getattr(context.resources, key, None) for key in asked}
        require_files_inside(coordinator.store.uri, found)
        return request_batch(context, coordinator, **work)


class RecoverableWriterResource(_StoreResource):
    """The folder in which a job publishes its files exactly once."""

    uri: str = Field(
        description="The folder of the output: `gs://bucket/prefix` or `file:///folder`. No secrets."
    )
    options: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "The same keys as `ChangelogStorageResource` takes; those of gs.* act on the writers made here, "
            "for example {'gs.writer.chunk.size': '1 mb'}. What `batch.write_files` writes follows the "
            "job's, and takes these as `job_options=files.options`."
        ),
    )

    def uri_of(self, name: str) -> str:
        """The URI of a file in the folder, whose name is taken as it is."""
        within = name.lstrip("/")
        # Of these URIs alone, what is percent-encoded is decoded.
        return f"{self.uri.rstrip('/')}/{quote(within) if self.uri.startswith('file:') else within}"

    @contextmanager
    def writer(
        self, work: "CheckpointBatch | Attempt | Mapping[str, Any] | None" = None
    ) -> Iterator[GSRecoverableWriter]:
        """The recoverable writer of an op that writes files by itself; its store is closed with the block.

        With `work` (the open batch, its attempt, or the reference of it) the components carry the attempt.
        Add the committer of each file to the batch, and do not commit it: step 6 publishes it, exactly once.
        Without, the writer is its own attempt: commit it yourself, or hand another op the
        recoverable; `uri` is the store then, and `recoverable.sweep` deletes what is never committed.

        Raises: InvalidInputError for a wrong option, or a temporary bucket or entropy other than the batch's;
        ConflictError (kind `already_applied`) for a batch that a completed checkpoint holds.
        """
        with without_useless_retries():
            attempt, of_batch = (None, None) if work is None else _attempt_of(work)
            options = of_batch.with_call(self.options) if of_batch else self.job_options()
            uri = self.uri if attempt is None else attempt.store_uri
            with closing(_open_with(self.gcs, uri, options)) as store:
                yield GSRecoverableWriter(
                    store, options.files, attempt=None if attempt is None else attempt.attempt
                )


class SparkSessionResource(dg.ConfigurableResource[Any]):
    """A local Spark session, started on first use, with the driver's own interpreter.

    A session that already runs in this process is used and left running: it is stopped where it was started.
    Any resource with a `spark_session` attribute works as well, such as dagster-pyspark's `PySparkResource`.
    """

    app_name: str = Field(default="dstl-dagster", description="The name of the Spark application.")
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


def _open_with(gcs: Any, uri: str, options: JobOptions) -> ObjectStore:
    """The store at `uri`; a bucket by the client of `gcs` (with `get_client()`), unless that is None."""
    if gcs is None or not uri.startswith("gs://"):
        return open_store(uri, options.files)
    return open_store(uri, options.files, client=gcs.get_client())


def _attempt_of(work: "CheckpointBatch | Attempt | Mapping[str, Any]") -> tuple[Attempt, JobOptions | None]:
    """The open attempt that an op writes for, and the options of its batch, which an attempt alone has not.

    Raises: InvalidInputError, FormatError (a reference that is none); ConflictError (kind `already_applied`)
    for a batch that a completed checkpoint holds.
    """
    if isinstance(work, Attempt):
        return work, None
    if isinstance(work, Mapping):
        return Attempt.from_json(work), None
    if work.already_in is not None:
        raise ConflictError(
            f"this batch is already in checkpoint {work.already_in}: write nothing for it",
            kind=ErrorKind.ALREADY_APPLIED,
        )
    return work.attempt, work.job_options


def _complete(
    context: dg.OpExecutionContext,
    coordinator: CheckpointCoordinator,
    attempt: Attempt,
    assets: JobAssets | None = None,
) -> None:
    """Steps 4 to 7, where no later step of the run does them. `assets`: none does.

    Raises: as the steps. A retry of the op finds the batch applied, or opens another attempt.
    """
    if assets is None and _is_completed_later(context):
        return
    if is_called_directly(context):  # by a test: no run reports anything
        if not is_complete(coordinator, attempt):
            coordinator.record_report(attempt, load_report(coordinator.store, attempt))
            coordinator.confirm(attempt)
        coordinator.compose_commit(attempt.checkpoint_id, attempt=attempt)
        return
    step = Step(context, assets or JobAssets.of(coordinator.job), coordinator)
    persist(step, attempt)
    checkpoint = confirm(step, attempt)
    compose_commit(step, attempt.checkpoint_id, attempt=attempt)
    clean_up(step)
    if assets is None:
        show_in_outputs(context, coordinator, checkpoint)


def _is_completed_later(context: dg.OpExecutionContext) -> bool:
    """Whether a step of the run that is handed what this one returns is step 5 of the same batch.

    Else the batch would be in no checkpoint, ever: also where a selection has step 4 alone.
    """
    if is_called_directly(context):
        return False
    own = context.get_step_execution_context().step.node_handle.path[:-1]
    # Another asset's step 5, of a graph that this op is not in, is that of another batch.
    return any(
        (each.tags or {}).get(TAG_STEP) in _COMPLETING and own[: len(path)] == path
        for each in steps_behind(context, by_value=True)
        for path in [each.node_handle.path[:-1]]
    )


def require_files_inside(store_uri: str, resources: Mapping[str, Any]) -> None:
    """Raises: InvalidInputError naming a resource that has its files where the store cannot publish them."""
    for key, files in sorted(resources.items()):
        # What the environment gives is known in a run.
        if not isinstance(files, RecoverableWriterResource) or isinstance(files.uri, dg.EnvVar):
            continue
        try:
            require_within(store_uri, files.uri_of("file"))
        except InvalidInputError as error:
            raise InvalidInputError(
                f"resource {key!r} publishes files in {files.uri}, where store {store_uri} cannot: {error}"
            ) from error


@dataclass(frozen=True)
class FilesInside:
    """The same of what an op takes, as far as it is known while definitions load.

    A requirement, as Dagster asks a definition for it once resources are bound: when definitions, a job or an
    asset are loaded or validated. It raises InvalidInputError that names the op and the resource.
    """

    op: dg.OpDefinition
    expected_type = dg.ResourceDefinition
    is_io_manager_requirement = False

    def is_satisfied(self, resource_defs: Mapping[str, dg.ResourceDefinition]) -> bool:  # noqa: ARG002 - Dagster's
        # Where one is missing Dagster binds others. None is: what does not fit is refused below.
        return True

    def ensure_satisfied(self, resource_defs: Mapping[str, dg.ResourceDefinition]) -> None:
        keys = [key for key in self.op.required_resource_keys if key in resource_defs]
        # The resource behind a definition that Dagster made of it; `None` for one that is passed at launch.
        bound = {key: getattr(resource_defs[key].resource_fn, "__self__", None) for key in keys}
        stores = [each.uri for each in bound.values() if isinstance(each, ChangelogStorageResource)]
        # Which of two the op means is known in its run, and so is what the environment gives.
        if len(stores) != 1 or isinstance(stores[0], dg.EnvVar):
            return
        try:
            require_files_inside(stores[0], bound)
        except InvalidInputError as error:
            raise InvalidInputError(f"op {self.op.name!r}: {error}") from error


def with_changelog(given: ChangelogStorageResource | None, body: Callable[..., Any]) -> Callable[..., Any]:
    """The function of an op, a sensor or a check, whose last parameter is the resource `changelog`: Dagster
    passes it where none is given to the definition.
    """
    if given is None:
        return body

    @wraps(body)
    def with_given(*inputs: Any, **by_name: Any) -> Any:
        with given.process_config_and_initialize_cm() as changelog:
            found = body(*inputs, **by_name, changelog=changelog)
            if not isinstance(found, Iterator):
                return found
            results = list(found)  # while there is the resource
        # No other iterator: Dagster would take it for a value.
        return (result for result in results)

    asked = [each for each in inspect.signature(body).parameters.values() if each.name != "changelog"]
    # Dagster reads both.
    with_given.__signature__ = inspect.Signature(asked)  # type: ignore[attr-defined]
    with_given.__annotations__ = {each.name: each.annotation for each in asked}
    return with_given
