"""A job's checkpoints in Dagster from a YAML file, for a job that runs anywhere.

Owns the component's fields and how they map to the functions that Python users call, which build everything.
"""

# No postponed annotations here: Dagster derives the YAML schema from them.

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import dagster as dg
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from dstl_dagster.errors import ErrorKind, InvalidInputError
from dstl_dagster.orchestration.define.asset_arguments import argument
from dstl_dagster.orchestration.define.assets import checkpoint_asset_specs
from dstl_dagster.orchestration.failures import DEFAULT_RETRY_POLICY
from dstl_dagster.orchestration.inject.resources import ChangelogStorageResource
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.operate.maintenance import build_maintenance
from dstl_dagster.orchestration.watch.checks import DEFAULT_MAX_AGE, build_checkpoint_checks, parse_limits
from dstl_dagster.orchestration.watch.sensors import build_abort_sensors, build_checkpoint_sensor
from dstl_dagster.orchestration.yaml.field_values import (
    DownstreamFields,
    Fields,
    Option,
    PartitionsFields,
    RetryFields,
    as_text,
    client_at,
    given,
    partitions_of,
)
from dstl_dagster.orchestration.yaml.refusals import checked_model, place_of, repeated_key, sentences
from dstl_dagster.settings import CostBudget, parse_duration, parse_float, parse_int, parse_memory_size

_HOUR = timedelta(hours=1)


def _partitions_given(context: dg.ResolutionContext, value: Any) -> Any:
    """Fields, a path, or what a template gave."""
    return PartitionsFields.resolve_from_model(context, value) if isinstance(value, BaseModel) else value


_Work = Literal["cleanup", "materialize", "verify", "checks"]
_CRONS: dict[_Work, str] = {
    "cleanup": "23 * * * *",
    "materialize": "37 3 * * *",
    "verify": "47 4 * * 0",
    "checks": "53 * * * *",
}


class ScaffoldParams(BaseModel):
    """What `dg scaffold defs` asks for."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    job: str
    """The job's name, as in its Spark program."""
    store: str
    """Where the job lives, for example gs://bucket/prefix."""


class CheckpointLineageScaffolder(dg.Scaffolder[ScaffoldParams]):
    """Writes the `defs.yaml` of one job."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParams]:
        return ScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        scaffold_with_fields(request, request.params.model_dump())


_PYTHON = """\
import dagster as dg
from {module} import {name}


@dg.component_instance
def load(context: dg.ComponentLoadContext) -> {name}:
    return {name}(
{fields}
    )
"""


def scaffold_with_fields(request: dg.ScaffoldRequest[Any], fields: Mapping[str, Any]) -> None:
    """Write a component with these fields. In Python, Dagster's own way leaves them out."""
    if request.scaffold_format == "yaml":
        dg.scaffold_component(request, fields)
        return
    module, _, name = request.type_name.rpartition(".")
    arguments = "\n".join(f"        {field}={json.dumps(value)}," for field, value in fields.items())
    text = _PYTHON.format(module=module, name=name, fields=arguments)
    (request.target_path / "component.py").write_text(text, encoding="utf-8")


@dg.scaffold_with(CheckpointLineageScaffolder)
class CheckpointLineageComponent(dg.Component, Fields):
    """The checkpoints of one job: assets, sensor, checks, and the jobs that maintain them.

    The job itself runs anywhere (spark-submit, Dataproc, a streaming query). The sensor and the schedules
    ship stopped: turn them on in Dagster's page.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)  # objects that templates give

    job: str = Field(examples=["orders"])
    """The job's name, as in its Spark program."""
    store: str = Field(examples=["gs://bucket/prefix", "file:///folder"])
    """Where the job lives. No secrets: Google's libraries find the credentials."""
    operators: Sequence[str] = Field(default=(), examples=[["totals"]])
    """Operators whose state is an asset of its own."""
    sample: Option = 0
    """How many of the rows that a checkpoint changed the page of each operator shows."""
    deps: Sequence[str] = Field(default=(), examples=[["raw/orders"]])
    """Keys of the assets that the job reads, with slashes."""
    options: dict[str, Option] = Field(
        default_factory=dict, examples=[{"execution.checkpointing.num-retained": "30"}]
    )
    """Options of the job, the same as in its program."""
    gcs: Annotated[Any, given] = Field(default=None, examples=["shop.resources:gcs"])
    """`module:name` of dagster-gcp's `GCSResource`, or of any object with `get_client()`, for credentials
    that Google's libraries do not find by default.
    """
    owners: Sequence[str] = Field(default=(), examples=[["team:data"]])
    """Owners of the assets."""
    kinds: Sequence[str] = Field(default=(), examples=[["gcs"]])
    """Kinds shown on the assets."""
    freshness_hours: Option | None = None
    """Hours after which the last checkpoint is no longer fresh."""
    budget: dict[str, Option] = Field(
        default_factory=dict, examples=[{"requests": 500, "bytes": "10 gb", "usd": 0.01}]
    )
    """What a checkpoint may cost, for the check `cost_budget`: `requests`, `bytes` (a size), `usd` (at the
    options' prices).
    """
    data: dict[str, Option] = Field(default_factory=dict, examples=[{"row_drop": 0.5, "unchanged_days": 3}])
    """Limits of data checks: `row_drop`, `delete_share`, `null_keys`, `unchanged_days`."""
    orphan_budget: Option = "1 gb"
    """Unreferenced objects, a size, above which the check `orphan_bytes` warns."""
    partitions_def: Annotated[
        PartitionsFields | dg.PartitionsDefinition | str | None,
        dg.Resolver(_partitions_given, model_field_type=PartitionsFields.model() | str),
    ] = Field(default=None, examples=[{"type": "daily", "start_date": "2024-01-01"}, "shop.partitions:DAYS"])
    """Partitions of the job's state and files, or the `module:name` of them."""
    file_columns: dict[str, str] = Field(
        default_factory=dict, examples=[{"customer": "string", "total": "double"}]
    )
    """Columns of the output files, with their types."""
    group_name: str | None = None
    """Of the assets; by default the job's."""
    tags: dict[str, Option] = Field(default_factory=dict)
    """Of the assets."""
    state: str | None = None
    """Last part of the key of the job's state: by default `state`, or the function's name."""
    files: str = "files"
    """Last part of the key of its files."""
    checkpoints: str = "checkpoints"
    """Last part of the key of its checkpoints."""
    patience: Option = "1 h"
    """How long the sensor waits for a run that seems alive to report, or to commit."""
    minimum_interval_seconds: Option = 30
    """Between the ticks of a sensor, in seconds."""
    default_status: Literal["STOPPED", "RUNNING"] = "STOPPED"
    """Of the sensors, before somebody turns them on or off in the page."""
    commit: bool = False
    """Dagster does step 6 (compose-commit), which the job leaves to it."""
    abort: bool = False
    """Two sensors abort the attempt that a canceled or failed run left open."""
    downstream: Sequence[DownstreamFields] = Field(
        default=(), examples=[[{"job": "mail", "partitions": "checkpoint"}]]
    )
    """Jobs of yours that are asked for, once for each checkpoint."""
    schedules: dict[_Work, str] = Field(default_factory=dict, examples=[{"cleanup": "5 * * * *"}])
    """Cron schedules of the maintenance jobs, where the default is not right."""
    retry_policy: RetryFields | None = Field(default=None, examples=[{"max_retries": 5, "delay": 10}])
    """Of the jobs' steps; by default 3 retries, after about 1, 2 and 4 seconds."""

    _tree: Any = PrivateAttr(default=None)
    """Where each field stands, of a component that a file describes."""

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Dagster's, whose refusals say in one sentence what serves."""
        return checked_model(cls.model(), cls.model_fields)

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Raises: InvalidInputError naming the file, the line and the field."""
        tree = context.resolution_context.source_position_tree
        if tree is not None:
            twice = repeated_key(Path(tree.position.filename))
            if twice is not None:
                raise InvalidInputError(
                    f"{tree.position.filename}:{twice[0]}: {twice[1]} stands twice, and YAML takes the last: "
                    "leave one out"
                )
        try:
            component = super().load(attributes, context)
        except ValidationError as error:  # of what templates gave
            name, said = next(sentences(error, cls.model_fields))
            raise InvalidInputError(f"{place_of(tree, name) or context.path}: {said}") from error
        component._tree = tree
        return component

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Each asset as it is shown; override it to change its group, owners, tags, metadata or description.

        The key stays: the events of checkpoints are reported under it.
        """
        return spec

    def _shown_as(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        shown = self.get_asset_spec(spec)
        if shown.key != spec.key:
            raise InvalidInputError(
                f"get_asset_spec made {shown.key.to_user_string()} of key {spec.key.to_user_string()}: "
                "checkpoints are reported under the first. Change anything but the key"
            )
        return shown

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Neither reads the store nor starts anything.

        Raises: InvalidInputError naming the file and the field.
        """
        try:
            return self._defs(context)
        except (InvalidInputError, dg.DagsterInvalidDefinitionError) as error:
            if context is None:
                raise
            said = str(error)
            place = place_of(self._tree, said.partition(":")[0]) or context.path
            kind = error.kind if isinstance(error, InvalidInputError) else ErrorKind.INVALID_INPUT
            raise InvalidInputError(f"{place}: {said}", kind=ErrorKind(kind)) from error

    def _defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        with argument("job"):
            names = (self.job, self.state, self.files, self.checkpoints, tuple(self.operators))
            assets = JobAssets(*names, sample=parse_int("sample", self.sample, minimum=0))
        # Bound to each definition, so that several components can use different stores.
        changelog = ChangelogStorageResource(
            uri=self.store,
            options=as_text(self.options),
            gcs=None if self.gcs is None else client_at(self.gcs, context),
        )
        with argument("store"):
            changelog.model_copy(update={"options": {}}).require_valid()
        with argument("options"):
            changelog.require_valid()
        with argument("budget"):
            budget = CostBudget.from_mapping(as_text(self.budget))
        with argument("data"):
            data = parse_limits(as_text(self.data))
        partitions = partitions_of(self.partitions_def, context)
        checks = build_checkpoint_checks(
            assets,
            changelog=changelog,
            orphan_budget_bytes=parse_memory_size("orphan_budget", str(self.orphan_budget)),
            max_age=self._freshness() or DEFAULT_MAX_AGE,
            budget=budget,
            data=data,
            partitions_def=partitions,
        )
        maintenance: dict[str, Any] = {"changelog": changelog, "retry_policy": self._retry_policy()}
        commit_job = build_maintenance(assets, "commit", **maintenance)
        restore = build_maintenance(assets, "restore", partitions_def=partitions, **maintenance)
        crons = {**_CRONS, **self.schedules}
        with argument("schedules"):
            schedules = [
                build_maintenance(assets, work, when=cron, **maintenance) for work, cron in crons.items()
            ]
        interval = parse_int("minimum_interval_seconds", self.minimum_interval_seconds, minimum=0)
        of_sensors: dict[str, Any] = {
            "changelog": changelog,
            "minimum_interval_seconds": interval,
            "default_status": dg.DefaultSensorStatus(self.default_status),
        }
        checkpoint_sensor = build_checkpoint_sensor(
            assets,
            commit_job=commit_job if self.commit else None,
            partitions_def=partitions,
            patience=parse_duration("patience", str(self.patience)),
            **of_sensors,
        )
        return dg.Definitions(
            assets=self._assets(context, assets, changelog, partitions),
            asset_checks=[checks],
            sensors=[
                checkpoint_sensor,
                *(build_abort_sensors(assets, **of_sensors) if self.abort else ()),
                *(each.sensor(assets, partitions, context, **of_sensors) for each in self.downstream),
            ],
            jobs=[commit_job, restore],
            schedules=schedules,
        )

    def _assets(
        self,
        context: dg.ComponentLoadContext,  # noqa: ARG002 - for those that import the user's code
        assets: JobAssets,
        changelog: ChangelogStorageResource,  # noqa: ARG002
        partitions: dg.PartitionsDefinition[str] | None,
    ) -> list[dg.AssetSpec | dg.AssetsDefinition]:
        return list(self._specs(assets, partitions, self._deps()))

    def _deps(self) -> list[dg.AssetKey]:
        return [dg.AssetKey(key.split("/")) for key in self.deps]

    def _specs(
        self,
        assets: JobAssets,
        partitions: dg.PartitionsDefinition[str] | None,
        deps: list[dg.AssetKey] | None,
    ) -> list[dg.AssetSpec]:
        columns = [dg.TableColumn(name, kind) for name, kind in self.file_columns.items()]
        specs = checkpoint_asset_specs(
            assets,
            partitions_def=partitions,
            owners=self.owners,
            kinds=self.kinds,
            freshness=self._freshness(),
            deps=deps,
            file_columns=dg.TableSchema(columns) if columns else None,
            group_name=self.group_name,
            tags=as_text(self.tags),
        )
        return [self._shown_as(spec) for spec in specs]

    def _freshness(self) -> timedelta | None:
        hours = self.freshness_hours
        return None if hours is None else _HOUR * parse_float("freshness_hours", hours, minimum=0)

    def _retry_policy(self) -> dg.RetryPolicy:
        return DEFAULT_RETRY_POLICY if self.retry_policy is None else self.retry_policy.policy()
