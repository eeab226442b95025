"""An IO manager: what an ordinary asset returns is merged into keyed state, and loaded from there downstream.

Owns how an output becomes one whole checkpoint, and which checkpoint an input is of. Does not own the batch's
life (`checkpoint.Batch`), merging (`spark`), or the forms that state is read in (`keyed`).
"""

# No postponed annotations: Dagster reads the types of a resource's fields as objects.

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
from pydantic import Field

from dstl_dagster.checkpoint import Batch, Checkpoint, CheckpointCoordinator, OperatorReport
from dstl_dagster.errors import InvalidInputError, NotFoundError
from dstl_dagster.orchestration.failures import without_useless_retries
from dstl_dagster.orchestration.lineage import state_metadata
from dstl_dagster.orchestration.merge_rule import MergeRule, is_spark_rows
from dstl_dagster.orchestration.opening import may_take_over
from dstl_dagster.orchestration.owners import owner_of, root_run_id
from dstl_dagster.orchestration.partitions import (
    interval,
    require_next_partition,
    window_key,
    window_of,
)
from dstl_dagster.orchestration.program import claim_of_asset
from dstl_dagster.orchestration.resources import ChangelogStorageResource
from dstl_dagster.orchestration.timeline_check import require_shown_timeline, shown_metadata
from dstl_dagster.settings import StateTtlConfig, parse_names

if TYPE_CHECKING:
    from dstl_dagster.keyed import StateScan

__all__ = ["KeyedStateIOManager"]

_PREFIX: Final = "dstl/"
_HANDED_ON: Final = "dstl/handed on"
_KNOWN: Final = ("keys", "update", "schema", "delete", "job", "operator", "ttl", "ttl_column")


@dataclass(frozen=True)
class _Target:
    """Where an asset's rows are kept, and by which rule: from its key and its `dstl/` metadata."""

    job: str
    rule: MergeRule

    @classmethod
    def of(cls, key: dg.AssetKey, metadata: Mapping[str, Any]) -> "_Target":
        given = {
            name.removeprefix(_PREFIX): getattr(value, "value", value)
            for name, value in metadata.items()
            if name.startswith(_PREFIX)
        }
        where = f"asset {key.to_user_string()}"
        for name in given:
            if name not in _KNOWN:
                known = ", ".join(_PREFIX + each for each in _KNOWN)
                raise InvalidInputError(f"{where}: metadata {_PREFIX}{name} means nothing; known are {known}")
        if ("update" in given) != ("schema" in given):
            raise InvalidInputError(f"{where}: {_PREFIX}update and {_PREFIX}schema belong together")
        return cls(
            given.get("job") or ".".join(key.path),
            MergeRule(
                operator=given.get("operator") or key.path[-1],
                keys=parse_names(f"{where}: {_PREFIX}keys", given.get("keys", ())),
                update=given.get("update"),
                schema=given.get("schema"),
                delete=given.get("delete"),
                ttl=StateTtlConfig.from_texts(given.get("ttl"), given.get("ttl_column")),
            ),
        )


class KeyedStateIOManager(dg.ConfigurableIOManager):
    """Keeps what an asset returns as keyed state; a run of it is one whole checkpoint, steps 1 to 7.

    An asset's metadata says how: `dstl/keys` (required, the key columns), `dstl/update` with `dstl/schema`,
    and `dstl/delete`, as in `batch.merge_state`; `dstl/ttl` and `dstl/ttl_column` end rows by event time.
    Without `dstl/update` the rows replace those of their keys. They may be a DataFrame of Spark, pandas or
    Polars, a table or reader of PyArrow, a relation of DuckDB, or anything else with the Arrow C stream
    interface; what is not Spark's needs the extra `duckdb` for `dstl/update`. Each asset is a job of its own,
    named after its key (or `dstl/job`).

    Time partitions are applied in order, each once: let the asset depend on its own previous partition. A
    partition that a checkpoint holds is not applied again.

    An output that is no asset, such as the reference between the ops of a job, is plain JSON and goes with
    the run's events.

    An input is the state at the checkpoint that holds its partition (without partitions: at the last one), in
    the form of its type hint: a DataFrame of Spark, pandas or Polars, a Polars LazyFrame, a `pyarrow.Table`;
    without a hint a `StateScan`.
    """

    changelog: ChangelogStorageResource
    spark: dg.ResourceDependency[Any] = None  # type: ignore[assignment] # a resource, or none
    """Anything with `spark_session`, for inputs that are Spark DataFrames."""
    clean_up_every: int = Field(default=10, description="Step 7 after so many checkpoints; 0: never.")

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Complete a checkpoint with the rows."""
        if not context.has_asset_key:
            context.add_output_metadata({_HANDED_ON: dg.MetadataValue.json(_plain(context, obj))})
            return
        target = _Target.of(context.asset_key, context.definition_metadata)
        if not target.rule.keys:
            raise InvalidInputError(
                f"asset {context.asset_key.to_user_string()}: name the key columns of its state, as "
                'metadata={"dstl/keys": ["customer"]}'
            )
        with without_useless_retries(f"state of asset {context.asset_key.to_user_string()}"):
            owner = owner_of(context.step_context.dagster_run)
            coordinator = self.changelog.coordinator(target.job, owner=owner)
            step = context.step_context
            require_shown_timeline(step.dagster_run, step.instance, coordinator, context.asset_key)
            checkpoint = self._complete(context, coordinator, target.rule, obj)
        said = {**state_metadata(checkpoint, coordinator.prices), **shown_metadata(coordinator, checkpoint)}
        context.add_output_metadata(said)

    def _complete(
        self, context: dg.OutputContext, coordinator: CheckpointCoordinator, rule: MergeRule, rows: Any
    ) -> Checkpoint:
        step, job = context.step_context, coordinator.job
        run = step.dagster_run
        partition = context.asset_partition_key if context.has_asset_partitions else None
        definition = context.asset_partitions_def if partition is not None else None
        window = window_of(definition, partition)
        claim = claim_of_asset(context, rule.operator)
        key = claim.key(partition or f"run:{root_run_id(run)}/{step.step.key}", interval(window))
        if window is not None:
            claim = claim.at(window_key(window.end))
        applied = coordinator.applied_batch(key, claim)
        if applied is not None:
            held = applied.checkpoint_id
            context.log.warning(f"already in checkpoint {held} of job {job!r}: nothing was changed")
            coordinator.compose_commit()
            return coordinator.get(held)

        def check(parent: Checkpoint | None) -> None:
            if window is not None and partition is not None:
                known = None if parent is None else parent.manifest.sources.get(claim.source)
                position = None if known is None else known.position
                require_next_partition(definition, partition, position, job=job, source=claim.source)

        batch = Batch.open(
            coordinator,
            idempotency_key=key,
            take_over=may_take_over(run, step.instance, coordinator),
            check=check,
            claim=claim,
        )
        try:
            batch.add(_written(batch, rule, rows))
        except Exception as error:
            batch.abort(f"{type(error).__name__}: {error}")
            raise
        batch.fold_due_logs()
        return batch.complete(clean_up_every=self.clean_up_every)

    def load_input(self, context: dg.InputContext) -> Any:
        """The state of the upstream asset, in the form that the input's type asks for."""
        upstream = context.upstream_output
        if upstream is not None and not context.has_asset_key:
            return _handed_on(upstream, context.instance)
        metadata = {} if upstream is None else upstream.definition_metadata
        target = _Target.of(context.asset_key, metadata)
        coordinator = self.changelog.coordinator(target.job)
        at = None
        if context.has_asset_partitions and context.asset_partition_keys:
            at = f"partition:{context.asset_partition_keys[-1]}"
        wanted = _form_of(context.dagster_type.typing_type)
        if wanted == "spark":
            return self._read_by_spark(coordinator, target.rule.operator, at)
        scan = coordinator.read_state(target.rule.operator, at)
        return _FORMS[wanted](scan)

    def _read_by_spark(self, coordinator: CheckpointCoordinator, operator: str, at: str | None) -> Any:
        from dstl_dagster.spark import read_state, running_session  # PySpark: only for who asks for it

        session = running_session() if self.spark is None else self.spark.spark_session
        if session is None:
            raise InvalidInputError(
                "an input is a Spark DataFrame, and no session runs: give the IO manager a `spark` resource"
            )
        checkpoint = coordinator.at(at)
        if operator not in checkpoint.manifest.operators:
            raise NotFoundError(
                f"checkpoint {checkpoint.checkpoint_id} of {coordinator.job!r} has no {operator!r}"
            )
        return read_state(
            session, checkpoint, operator, store=coordinator.store, job_options=coordinator.job_options
        )


def _plain(context: dg.OutputContext, obj: Any) -> Any:
    try:
        return json.loads(json.dumps(obj))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"output {context.name!r} of step {context.step_key} is no asset, and {type(obj).__name__} is no "
            "plain JSON: give that output an IO manager of its own (io_manager_key)"
        ) from error


def _handed_on(upstream: dg.OutputContext, instance: dg.DagsterInstance) -> Any:
    """What an op returned, in the run that it was last executed in."""
    events = instance.all_logs(upstream.run_id, of_type=dg.DagsterEventType.HANDLED_OUTPUT)
    for event in reversed(events):
        handled = event.get_dagster_event()
        about = handled.event_specific_data
        if handled.step_key == upstream.step_key and about.output_name == upstream.name:  # type: ignore[union-attr]
            return about.metadata[_HANDED_ON].value  # type: ignore[union-attr]
    raise NotFoundError(f"output {upstream.name!r} of step {upstream.step_key} is not in the run's events")


def _written(batch: Batch, rule: MergeRule, rows: Any) -> OperatorReport:
    """Steps 2 and 3 of the rows, by Spark if they are its."""
    if is_spark_rows(rows):
        from dstl_dagster.spark import merge_state, write_state  # PySpark: only where rows are its

        return rule.write(rows, partial(write_state, attempt=batch), partial(merge_state, attempt=batch))
    from dstl_dagster.jobs import merge_frame, write_frame  # Arrow: not while definitions load

    return rule.write(rows, partial(write_frame, batch=batch), partial(merge_frame, batch=batch))


def _form_of(hint: Any) -> str:
    """By the hint's name: none of the libraries is imported for it."""
    module, name = str(getattr(hint, "__module__", "")).partition(".")[0], getattr(hint, "__name__", "")
    module = module.removeprefix("_")  # DuckDB 1.4 names its extension module
    known = {
        ("pyspark", "DataFrame"): "spark",
        ("pandas", "DataFrame"): "pandas",
        ("polars", "DataFrame"): "polars",
        ("polars", "LazyFrame"): "lazy",
        ("pyarrow", "Table"): "arrow",
        ("pyarrow", "RecordBatchReader"): "reader",
        ("duckdb", "DuckDBPyRelation"): "duckdb",
        ("dstl_dagster", "StateScan"): "scan",
        ("typing", "Any"): "scan",
    }
    form = known.get((module, name))
    if form is None:
        raise InvalidInputError(
            f"an input of keyed state cannot be a {module}.{name}: use a DataFrame of Spark, pandas or "
            "Polars, a Table or RecordBatchReader of PyArrow, a relation of DuckDB, or a StateScan"
        )
    return form


_FORMS: Final[dict[str, Callable[["StateScan"], Any]]] = {
    "pandas": lambda scan: scan.to_pandas(),
    "polars": lambda scan: scan.to_polars().collect(),
    "lazy": lambda scan: scan.to_polars(),
    "arrow": lambda scan: scan.to_arrow(),
    "reader": lambda scan: scan.to_arrow_batch_reader(),
    "duckdb": lambda scan: scan.to_duckdb(),
    "scan": lambda scan: scan,
}
