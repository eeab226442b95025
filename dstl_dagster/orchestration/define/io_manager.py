"""An IO manager: what an ordinary asset returns is written to keyed state, and loaded from there downstream.

Owns how an output becomes one whole checkpoint, which rows of which checkpoint an input is, and the check of
its assets' declarations while definitions load. Does not own
what the metadata means (`targets`), the batch's life (`checkpoint.Batch`), merging and replacing (`jobs`,
`spark`), or the forms that state is read in (`keyed`).
"""

# No postponed annotations: Dagster reads the types of a resource's fields as objects.

import contextlib
import json
import logging
import sys
import types
import typing
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
from dagster._utils.cached_method import cached_method  # no public name
from pydantic import Field, PrivateAttr

from dstl_dagster.checkpoint import Attempt, Batch, Checkpoint, CheckpointCoordinator, OperatorReport
from dstl_dagster.errors import ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.keyed import source_id
from dstl_dagster.orchestration.code_location import (
    asset_source,
    code_location,
    step_of,
    unselected,
)
from dstl_dagster.orchestration.define.partition_columns import in_words
from dstl_dagster.orchestration.define.rerun import execution_of, is_repeat, require_replaceable
from dstl_dagster.orchestration.define.targets import Target
from dstl_dagster.orchestration.failures import without_useless_retries
from dstl_dagster.orchestration.inject.opening import BatchRequest, refusing
from dstl_dagster.orchestration.inject.resources import ChangelogStorageResource
from dstl_dagster.orchestration.keys import TAG_TIMELINE, JobAssets
from dstl_dagster.orchestration.owners import owner_of_step
from dstl_dagster.orchestration.partition_order import require_next_partition
from dstl_dagster.orchestration.partitions import interval, window_key, window_of
from dstl_dagster.orchestration.report.events import state_metadata, state_version
from dstl_dagster.orchestration.report.failed_partitions import mark_partitions
from dstl_dagster.orchestration.report.reconcile import Reconcile
from dstl_dagster.orchestration.report.shown import Page
from dstl_dagster.orchestration.run_claims import TABLE, claim_of_output
from dstl_dagster.orchestration.timeline_check import require_shown_timeline, shown_metadata
from dstl_dagster.timeline import RUN_WINDOW, BatchKey

if TYPE_CHECKING:
    from dstl_dagster.keyed import Scope, StateScan

_OTHERS = frozenset({"dstl/job", "dstl/operator"})
"""Metadata that an asset has as well which writes its state itself, and hands no rows to an IO manager."""


class OutputChecks:
    """Of one IO manager: what its assets have said so far, checked while definitions load.

    An IO manager learns of its assets only in a run. But Dagster asks a resource for its requirements on
    behalf of each asset that has it, and then the asset is the caller. Where a release of Dagster asks
    otherwise, nothing is checked here, and a run is refused with the same sentence.
    """

    def __init__(self) -> None:
        self._targets: dict[str, dict[dg.AssetKey, Target]] = {}

    def attached(self, definition: dg.IOManagerDefinition) -> dg.IOManagerDefinition:
        """The same definition, which from now on checks the assets that it is asked for."""
        requirements: Callable[..., Iterator[Any]] = definition.get_resource_requirements

        def checked(source_key: str) -> Iterator[Any]:
            asker = sys._getframe(1).f_locals.get("self")
            if isinstance(asker, dg.AssetsDefinition):
                self._check(asker, source_key)
            return requirements(source_key)

        definition.get_resource_requirements = checked  # type: ignore[method-assign, assignment]
        return definition

    def _check(self, assets: dg.AssetsDefinition, source_key: str) -> None:
        for spec in assets.specs if assets.is_executable else ():
            if spec.key not in assets.keys:
                continue  # in a run of a part of what the op makes
            names_columns = any(each not in _OTHERS for each in Target.named(spec.metadata))
            if names_columns and assets.get_io_manager_key_for_asset_key(spec.key) == source_key:
                target = Target.of_asset(spec.key, spec.metadata, spec.partitions_def)
                output = assets.node_def.output_def_named(assets.get_output_name_for_asset_key(spec.key))
                if output.dagster_type.is_nothing or _is_result_alone(assets.node_def):
                    raise InvalidInputError(
                        f"{target.where}: it has dstl/keys, and by its type no rows, so nothing would be "
                        "written: hint the rows that it returns, as MaterializeResult[pandas.DataFrame] "
                        "does; in a multi_asset by outs"
                    )
                self._require_own(spec.key, target)

    def _require_own(self, key: dg.AssetKey, target: Target) -> None:
        known = self._targets.setdefault(target.job, {})
        for other_key, other in known.items():
            if other_key == key:
                continue
            if not (target.names_job and other.names_job):
                raise InvalidInputError(
                    f"{target.where} and {other.where} would share the job {target.job!r}: name by dstl/job "
                    "a job of its own for one of them; or this one for both, if it is meant"
                )
            is_meant = target.names_operator and other.names_operator
            is_meant = is_meant and not (target.replaces or other.replaces)
            if other.rule.operator == target.rule.operator and not is_meant:
                raise InvalidInputError(
                    f"{target.where} and {other.where} would both write {target.rule.operator!r} of job "
                    f"{target.job!r}: give one of them another dstl/operator"
                )
        known[key] = target


def _is_result_alone(node: Any) -> bool:
    """Whether a function returns a result of which its hint does not say that it has rows: where it has none,
    Dagster calls no IO manager.
    """
    function = getattr(getattr(node, "compute_fn", None), "decorated_fn", None)
    with contextlib.suppress(NameError, AttributeError, TypeError):
        return typing.get_type_hints(function).get("return") is dg.MaterializeResult
    return False


_HANDED_ON: Final = "dstl/handed on"


class KeyedStateIOManager(dg.ConfigurableIOManager):
    """Writes what an asset returns to keyed state; a run of it is one whole checkpoint, steps 1 to 7.

    An asset's metadata says how: `dstl/keys` (required) names the key columns. The rows may be a DataFrame of
    Spark, pandas or Polars, a table or reader of PyArrow, a relation of DuckDB, or anything else with the
    Arrow C stream interface. Each asset is a job of its own, named after its key (or `dstl/job`), and so is
    each output of an op that names keys: `job.op.output`, in a graph asset `asset.op.output`. Any other
    output that is no asset, such as the reference between the ops of a job, is plain JSON and goes with the
    run's events.

    With `partition_expr`, the column of the asset's partitions (a mapping from dimension to column where
    there are several dimensions; all among the keys), the state is a **table**: a run replaces the rows of
    its partitions, in any order and as often as one likes, and an input has the rows of its partitions.

    Without it the state is **cumulative**: a run merges its rows by key into what is there, and an input is
    the whole state at the checkpoint that holds its partition. Time partitions are applied in order: let the
    asset depend on its own previous partition. The newest one may run again (`dstl/rerun`: `replace`, or
    `refuse`); an older one may not, as later ones build on it. `dstl/update` with `dstl/schema`, and
    `dstl/delete`, are as in `batch.merge_state`; without `dstl/update` rows replace those of their keys.

    Without partitions a run merges its rows too; with `mode: overwrite` it replaces all of them. In each
    case `dstl/ttl` and `dstl/ttl_column` end rows by event time.

    An input has the form of its type hint: a DataFrame of Spark, pandas or Polars, a Polars LazyFrame, a
    table or reader of PyArrow, a relation of DuckDB; without a hint a `StateScan`. Its columns may be named
    by `AssetIn(metadata={"columns": [...]})`. An input of no partition is empty; it is `None` where there is
    no state yet, as on the first day of an asset that loads its own previous one.
    """

    changelog: ChangelogStorageResource
    spark: dg.ResourceDependency[Any] = None  # type: ignore[assignment] # a resource, or none
    """Anything with `spark_session`, for inputs that are Spark DataFrames."""
    clean_up_every: int = Field(default=10, description="Step 7 after so many checkpoints; 0: never.")

    _checks: OutputChecks = PrivateAttr(default_factory=OutputChecks)

    @cached_method  # as Dagster's own: one definition
    def get_resource_definition(self) -> Any:
        """For Dagster, while definitions load: InvalidInputError then for an asset that cannot work."""
        return self._checks.attached(super().get_resource_definition())

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Complete a checkpoint with the rows."""
        if not context.has_asset_key and not Target.named(context.definition_metadata):
            value = dg.MetadataValue.json({"value": _plain(context, obj)})
            context.add_output_metadata({_handed_on_as(context): value})
            return
        with without_useless_retries():
            target = Target.of_output(context)
        with without_useless_retries(f"state of {target.where}"):
            coordinator = self.changelog.coordinator(target.job, owner=owner_of_step(step_of(context)))
            checkpoint = self._complete(context, coordinator, target, obj)
        said = {
            "checkpoint": JobAssets.partition_key(checkpoint.checkpoint_id),
            **state_metadata(checkpoint, coordinator.prices),
            **shown_metadata(coordinator, checkpoint.entry.completed, context.output_metadata),
        }
        context.add_output_metadata(said)
        step = step_of(context)
        has_block = TAG_TIMELINE in context.output_metadata  # whose checkpoint the event names
        if context.has_asset_key and step is not None and not has_block:
            # By this a restore finds what it undid; no public name, since Dagster 1.3.
            step.log.addFilter(_is_no_comparison_of_versions)
            step.set_data_version(context.asset_key, dg.DataVersion(state_version(checkpoint.attempt)))

    def _complete(
        self, context: dg.OutputContext, coordinator: CheckpointCoordinator, target: Target, rows: Any
    ) -> Checkpoint:
        """The checkpoint that holds the rows: a new one, or that of an earlier try of this step."""
        with refusing(context, coordinator.job):
            batch = self._opened(context, coordinator, target)
        if isinstance(batch, Checkpoint):
            return batch
        scope: Scope | None = None
        if target.table is not None and target.partitions is not None:
            scope = target.table.rows_of(target.partitions)
        with batch.aborted_on_error():
            batch.add(_written(batch, target, rows, scope))
        batch.merge_due_runs()
        return batch.complete(clean_up_every=self.clean_up_every)

    def _opened(
        self, context: dg.OutputContext, coordinator: CheckpointCoordinator, target: Target
    ) -> Batch | Checkpoint:
        """A new batch, or the checkpoint that holds it. Raises: where it is refused, before step 1."""
        step, partitions = step_of(context), target.partitions
        if step is None:  # a test has built the context: each call is an execution of its own
            run, execution = dg.DagsterRun("none"), str(uuid.uuid4())
        else:
            run = step.dagster_run
            execution = execution_of(run, step.step.key, step.instance)
        if context.has_asset_key and step is not None:
            _require_shown(step, coordinator, context.asset_key)
        claim = claim_of_output(
            context,
            target.rule.operator,
            None if target.table is None else target.table.columns,
            is_alone=target.replaces or not target.names_operator,
        )
        window = None
        if partitions is None:
            key = claim.key(_batch_of(execution, "" if step is None else step.step.key))
        elif target.table is not None:
            name = partitions[0] if len(partitions) == 1 else in_words(partitions)
            several = () if len(partitions) == 1 else tuple(partitions)
            key = replace(claim.key(name, f"{RUN_WINDOW}{execution}"), parts=several)
        else:
            (partition,) = partitions
            window = window_of(target.definition, partition)
            key = BatchKey(partition, claim.source, interval(window), execution)
            if window is not None:
                claim = claim.at(window_key(window.end))
        applied = coordinator.applied_batch(key, claim)
        if applied is not None:
            if applied.batch is not None and applied.batch.run != key.run:
                require_replaceable(coordinator, applied, target.rerun, run)
            elif is_repeat(coordinator, applied, run, partial(_is_shown, context, coordinator, applied)):
                context.log.info(f"already in checkpoint {applied.checkpoint_id} of job {coordinator.job!r}")
                coordinator.compose_commit()
                return coordinator.get(applied.checkpoint_id)
        follows = None if window is None else (target.definition, key.key)
        request = BatchRequest(step, coordinator, key, claim, target.rule.keys, follows)
        return request.taken(partial(Batch.open, coordinator), anew=applied is not None)

    def load_input(self, context: dg.InputContext) -> Any:
        """The rows of the upstream asset's partitions, or its state, in the form of the input's type."""
        upstream = context.upstream_output
        is_op = upstream is not None and not context.has_asset_key
        if upstream is not None and is_op and not Target.named(upstream.definition_metadata):
            return _handed_on(upstream, context.instance)
        with without_useless_retries():
            target = Target.of_input(context)
        with without_useless_retries(f"input from {target.where}"):
            return self._load(context, target)

    def _load(self, context: dg.InputContext, target: Target) -> Any:
        form = _FORMS[_form_of(context.dagster_type.typing_type)]
        coordinator = self.changelog.coordinator(target.job)
        operator = target.rule.operator
        own = _own_partition(context, target)
        if own is None:
            checkpoint = _checkpoint_of(context, coordinator, target)
        else:
            checkpoint = _before(context, coordinator, target, own)
            target = replace(target, partitions=None)
        if checkpoint is None or operator not in checkpoint.manifest.operators:
            if target.partitions == [] or _is_own_output(context):
                return None
            raise NotFoundError(
                f"nothing was written to {operator!r} of job {target.job!r} yet: materialize it first",
                kind=ErrorKind.NO_STATE,
            )
        scan = coordinator.read_state(
            operator,
            f"checkpoint:{checkpoint.checkpoint_id}",
            columns=target.columns,
            key_groups=[] if target.partitions == [] else None,
        )
        scope = target.table.rows_of(target.partitions) if target.table and target.partitions else None
        if form is None:
            from dstl_dagster.spark import read_state, running_session  # PySpark: only on request

            session = running_session() if self.spark is None else self.spark.spark_session
            if session is None:
                raise InvalidInputError(
                    "an input is a Spark DataFrame, and no session runs: give the IO manager a `spark` "
                    "resource"
                )
            store, options = coordinator.store, coordinator.job_options
            rows = read_state(session, checkpoint, operator, store=store, scope=scope, job_options=options)
            rows = rows.where("false") if target.partitions == [] else rows
            return rows.select(*[f"`{name.replace('`', '``')}`" for name in scan.schema.names])
        return form(scan.within(scope))


def _require_shown(step: Any, coordinator: CheckpointCoordinator, key: dg.AssetKey) -> None:
    """As `require_shown_timeline`; where the job starts over, days that the store does not have are shown as
    failed. What it has is shown by the sensor.
    """
    assets = JobAssets(coordinator.job).found_in(unselected(step.job_def).asset_layer.asset_graph.asset_nodes)
    compared = require_shown_timeline(step.dagster_run, step.instance, coordinator, key, *assets.showing_keys)
    if compared.difference is not None:
        view = coordinator.timeline.tail()
        page = Page(assets, step.instance, definitions=code_location(step)).with_states()
        mark_partitions(page, Reconcile(page, coordinator, view, "run").of_another_store())


def _is_shown(context: dg.OutputContext, coordinator: CheckpointCoordinator, attempt: Attempt) -> bool:
    """Whether an event of the output's asset names the checkpoint of this attempt."""
    step = step_of(context)
    if step is None or not context.has_asset_key:
        return False
    page = Page(JobAssets(coordinator.job), step.instance)
    return page.has(context.asset_key, state_version(attempt.attempt))


def _plain(context: dg.OutputContext, obj: Any) -> Any:
    with contextlib.suppress(TypeError, ValueError):
        plain = json.loads(json.dumps(obj, allow_nan=False))
        if plain == obj:
            return plain
    raise InvalidInputError(
        f"output {context.name!r} of step {context.step_key} is no asset, and plain JSON does not hold this "
        f"{type(obj).__name__} as it is: name the key columns of its rows, as "
        'Out(metadata={"dstl/keys": [...]}), or give that output an IO manager of its own (io_manager_key)'
    )


def _is_no_comparison_of_versions(line: logging.LogRecord) -> bool:
    """Of an asset that depends on itself Dagster warns if its version is not the one before: it never is."""
    return not line.getMessage().startswith("Data version mismatch for asset")


def _handed_on_as(output: dg.OutputContext) -> str:
    """The metadata of the event; of a dynamic output one of each mapping key."""
    return "/".join(filter(None, [_HANDED_ON, output.mapping_key]))


def _handed_on(upstream: dg.OutputContext, instance: dg.DagsterInstance) -> Any:
    """What an op returned, in the run that it was last executed in."""
    events = instance.all_logs(upstream.run_id, of_type=dg.DagsterEventType.HANDLED_OUTPUT)
    for event in reversed(events):
        handled = event.get_dagster_event()
        about: Any = handled.event_specific_data
        value = about.metadata.get(_handed_on_as(upstream))
        if (handled.step_key, about.output_name) == (upstream.step_key, upstream.name) and value is not None:
            return value.value["value"]
    raise NotFoundError(f"output {upstream.name!r} of step {upstream.step_key} is not in the run's events")


def _checkpoint_of(
    context: dg.InputContext, coordinator: CheckpointCoordinator, target: Target
) -> Checkpoint | None:
    """The last one; of a cumulative state the newest one that holds a partition that is asked for.

    Raises: NotFoundError (kind `no_checkpoint`) naming partitions that no checkpoint holds.
    """
    if not context.has_asset_key:
        return _handed_on_at(context, coordinator)
    partitions, latest = target.partitions, coordinator.latest()
    if latest is None and coordinator.timeline.seen().shown_id and not _is_own_output(context):
        return coordinator.at()  # until the job that begins anew has a checkpoint
    if latest is None or not partitions or _is_everything(context, target):
        return latest
    _require_as_written(context, latest, target)
    if target.table is not None:
        return latest
    _, source = _source_of(context.asset_key, latest)
    view = coordinator.timeline.tail()
    keys = [BatchKey(each, source, interval(window_of(target.definition, each))) for each in partitions]
    held = [view.applied_in(key) for key in keys]
    found = [checkpoint_id for checkpoint_id in held if checkpoint_id is not None]
    missing = [key.key for key, checkpoint_id in zip(keys, held, strict=True) if checkpoint_id is None]
    if missing:
        raise NotFoundError(
            f"no checkpoint of job {coordinator.job!r} holds {in_words(missing)}: materialize them first",
            kind=ErrorKind.NO_CHECKPOINT,
        )
    return coordinator.get(max(found))


def _handed_on_at(context: dg.InputContext, coordinator: CheckpointCoordinator) -> Checkpoint | None:
    """The checkpoint that an op's output is: of this run, or of the one that it resumes. Others may have gone
    on since. The last one where a test has built the context.
    """
    upstream, instance = context.upstream_output, context.instance
    run = None if upstream is None else instance.get_run_by_id(upstream.run_id)
    if upstream is None or run is None:
        return coordinator.latest()
    execution = execution_of(run, upstream.step_key, instance)
    held = coordinator.timeline.tail().applied_in(_batch_of(execution, upstream.step_key))
    return coordinator.latest() if held is None else coordinator.get(held)


def _batch_of(execution: str, step_key: str) -> str:
    """The name of a batch without partitions."""
    return f"run:{execution}/{step_key}"


def _own_partition(context: dg.InputContext, target: Target) -> str | None:
    """The partition of the run, where a cumulative asset loads its own state as of just before it."""
    step = step_of(context)
    is_of_time = isinstance(target.definition, dg.TimeWindowPartitionsDefinition)
    if target.table is not None or not is_of_time or not _is_own_output(context):
        return None
    mapping = step.job_def.asset_layer.get(context.asset_key).assets_def.get_partition_mapping(
        context.asset_key
    )
    covered = step.partition_key_range
    is_previous = isinstance(mapping, dg.TimeWindowPartitionMapping) and mapping.end_offset == -1
    return str(covered.start) if is_previous and covered.start == covered.end else None


def _before(
    context: dg.InputContext, coordinator: CheckpointCoordinator, target: Target, partition: str
) -> Checkpoint | None:
    """The checkpoint that a partition of the asset builds on. The partition before it may be of no batch: the
    definition may have begun here, or have had longer partitions up to here.

    Raises: ConflictError (kind `out_of_order`).
    """
    latest = coordinator.latest()
    if latest is None:
        return None
    (source, source_key), known = _source_of(context.asset_key, latest), latest.manifest.sources
    key = BatchKey(partition, source_key, interval(window_of(target.definition, partition)))
    held = coordinator.timeline.tail().applied_in(key)
    if held is None:
        at = known[source].position if source in known else None
        require_next_partition(target.definition, partition, at, job=coordinator.job, source=source)
        return latest
    on = coordinator.timeline.completed(held).builds_on
    return coordinator.get(on) if on else None


def _source_of(key: dg.AssetKey, latest: Checkpoint) -> tuple[str, str]:
    """The source that an asset is, by the name that it may have given it, and its id."""
    by, known = asset_source(key), latest.manifest.sources
    name = next((each for each, source in known.items() if source.by == by), by)
    return name, source_id(known, name, latest.checkpoint_id)


def _require_as_written(context: dg.InputContext, latest: Checkpoint, target: Target) -> None:
    """Pass if the asset is a table here if it is one where it is written, perhaps in another code location.

    Raises: InvalidInputError.
    """
    written = latest.manifest.sources.get(asset_source(context.asset_key))
    if written is None or (written.measure.kind == TABLE) == (target.table is not None):
        return
    raise InvalidInputError(
        f"{target.where} is written as the state of all its partitions, of which none has rows of its own: "
        "take partition_expr out of its metadata here"
        if target.table is not None
        else f"{target.where} is written as a table, where column {written.measure.free['columns']} says "
        "which partition a row is of: add this partition_expr to its metadata here"
    )


def _is_everything(context: dg.InputContext, target: Target) -> bool:
    """Whether all partitions that there are are asked for: then it is the state as it is. The only one there
    is counts as all for an asset without partitions.
    """
    step = step_of(context)
    if step is None or target.definition is None or target.partitions is None:
        return False
    if len(target.partitions) < 2 and (step.has_partition_key or step.has_partition_key_range):
        return False
    with dg.partition_loading_context(dynamic_partitions_store=step.instance):
        return set(target.definition.get_partition_keys()) <= {*target.partitions}


def _is_own_output(context: dg.InputContext) -> bool:
    """Whether an asset loads what it is about to write."""
    step = step_of(context)
    if step is None:
        return False
    definition = step.job_def.asset_layer.get_assets_def_for_node(step.node_handle)
    return definition is not None and context.has_asset_key and context.asset_key in definition.keys


def _written(batch: Batch, target: Target, rows: Any, scope: "Scope | None") -> OperatorReport:
    """Steps 2 and 3 of the rows, by Spark if they are its."""
    from dstl_dagster.jobs import is_spark_rows, merge_frame, write_frame  # Arrow: not for loading

    rule = target.rule
    write: Callable[..., OperatorReport]
    merge: Callable[..., OperatorReport]
    if is_spark_rows(rows):
        from dstl_dagster.spark import merge_state, write_state  # PySpark: only for its rows

        write, merge = partial(write_state, attempt=batch), partial(merge_state, attempt=batch)
    else:
        write, merge = partial(write_frame, batch=batch), partial(merge_frame, batch=batch)
    if target.replaces:
        replace = True if scope is None else scope
        return write(rows, operator=rule.operator, keys=rule.keys, replace=replace, ttl=rule.ttl)
    return rule.write(rows, write, merge)


def _form_of(hint: Any) -> str:
    """By the hint's name: none of the libraries is imported for it. `X | None` is as X."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [each for each in typing.get_args(hint) if each is not type(None)]
        hint = rest[0] if len(rest) == 1 else hint
    path, name = str(getattr(hint, "__module__", "")), getattr(hint, "__name__", "")
    if not path.startswith("pyspark.pandas"):  # a library of its own
        path = path.partition(".")[0].removeprefix("_")  # DuckDB 1.4 names its extension module
    form = f"{path}.{name}"
    if form not in _FORMS:
        raise InvalidInputError(
            f"an input of keyed state cannot be a {form}: use a DataFrame of Spark, pandas or "
            "Polars, a Table or RecordBatchReader of PyArrow, a relation of DuckDB, or a StateScan"
        )
    return form


_FORMS: Final[dict[str, Callable[["StateScan"], Any] | None]] = {
    "pyspark.DataFrame": None,
    "pandas.DataFrame": lambda scan: scan.to_pandas(),
    "polars.DataFrame": lambda scan: scan.to_polars().collect(),
    "polars.LazyFrame": lambda scan: scan.to_polars(),
    "pyarrow.Table": lambda scan: scan.to_arrow(),
    "pyarrow.RecordBatchReader": lambda scan: scan.to_arrow_batch_reader(),
    "duckdb.DuckDBPyRelation": lambda scan: scan.to_duckdb(),
    "dstl_dagster.StateScan": lambda scan: scan,
    "typing.Any": lambda scan: scan,
}
"""How a scan gets the form of a hint; as a DataFrame of Spark it is read by Spark."""
