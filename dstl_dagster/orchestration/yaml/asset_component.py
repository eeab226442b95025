"""The state of a job as an asset from a YAML file: a function of the user's, and what its rows become.

Owns the fields that the asset adds to those of the job's checkpoints (`component`). Does not own what the
asset is (`checkpointed_asset`).
"""

# No postponed annotations here: Dagster derives the YAML schema from them.

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import dagster as dg
from dagster.components.resolved.core_models import OpSpec  # no public name; since Dagster 1.11
from pydantic import Field

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.define.asset_arguments import state_key
from dstl_dagster.orchestration.define.checkpointed_asset import checkpointed_asset
from dstl_dagster.orchestration.inject.resources import ChangelogStorageResource
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.yaml.component import (
    CheckpointLineageComponent,
    ScaffoldParams,
    scaffold_with_fields,
)
from dstl_dagster.orchestration.yaml.field_values import (
    Option,
    TtlFields,
    as_text,
    condition_at,
    given,
    object_at,
)
from dstl_dagster.settings import parse_int

EXAMPLE = '''"""The data of a run. Its rows replace those of their keys in the state."""

import dagster as dg
import pyarrow as pa


def rows(context: dg.AssetExecutionContext) -> pa.Table:
    """Replace this by what a run reads: a row for each key that changes.

    With a parameter `spark: dstl_dagster.SparkSessionResource`, which is a resource of the project, it may
    return a DataFrame of Spark.
    """
    return pa.table({{"{key}": ["ada"], "amount": [1.0]}})
'''


class AssetScaffoldParams(ScaffoldParams):
    """What `dg scaffold defs` asks for."""

    key: str
    """The key column of the state; for more of them edit the file."""


class CheckpointedAssetScaffolder(dg.Scaffolder[AssetScaffoldParams]):
    """Writes the `defs.yaml` of one job, and beside it a function that runs, to be replaced."""

    @classmethod
    def get_scaffold_params(cls) -> type[AssetScaffoldParams]:
        return AssetScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[AssetScaffoldParams]) -> None:
        params, folder = request.params, request.target_path
        function = {"function": ".rows:rows", "keys": [params.key]}
        scaffold_with_fields(request, {"job": params.job, "store": params.store, **function})
        rows = folder / "rows.py"
        if not rows.exists():  # of a component before this one
            rows.write_text(EXAMPLE.format(key=params.key), encoding="utf-8")


@dg.scaffold_with(CheckpointedAssetScaffolder)
class CheckpointedAssetComponent(CheckpointLineageComponent):
    """A job whose state is an asset: `@checkpointed_asset` of a function, with all that belongs to the job.

    The function is Python; resources that it takes, such as `spark`, are the project's. `deps` are the
    assets that it reads by itself.
    """

    function: Annotated[str | Callable[..., Any], given] = Field(
        description="`module:name` of the function, as `@checkpointed_asset` takes it. A module that begins "
        "with a dot is looked for in the folder of this file.",
        examples=["shop.orders:totals", ".rows:rows"],
    )
    keys: Sequence[str] = Field(default=(), examples=[["customer"]])
    """The key columns of the state."""
    state_schema: str | None = Field(default=None, examples=["customer STRING, total DOUBLE"])
    """The state's columns; required with `update`."""
    update: dict[str, Option] | None = Field(
        default=None, examples=[{"total": "coalesce(old.total, 0) + new.amount"}]
    )
    """How a returned row changes the state's row of its key; without it, it replaces that."""
    delete: str | None = None
    """Which keys to delete: with `update` an expression, otherwise a boolean column."""
    operator: str | None = None
    """The operator with the rows; by default the function's name."""
    max_parallelism: Option | None = None
    """The number of key groups."""
    ttl: TtlFields | None = Field(default=None, examples=[{"column": "seen", "ttl": "30 d"}])
    """How long rows live."""
    source: str | None = None
    """Under which name checkpoints hold how far the asset is; by default its key."""
    description: str | None = None
    """Of the asset; by default the function's."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Of the asset."""
    code_version: Option | None = None
    """Of the asset."""
    op: OpSpec | None = Field(default=None, examples=[{"tags": {"dagster-k8s/config": {}}, "pool": "orders"}])
    """Of the asset's op: `tags`, such as the resources of its container, and a `pool`."""
    automation_condition: Annotated[str | dg.AutomationCondition[Any] | None, given] = Field(
        default=None, examples=["eager", "0 6 * * *"]
    )
    """`eager`, `on_missing`, a cron schedule, the `module:name` of a condition, or one by a template."""

    def _assets(
        self,
        context: dg.ComponentLoadContext,
        assets: JobAssets,
        changelog: ChangelogStorageResource,
        partitions: dg.PartitionsDefinition[str] | None,
    ) -> list[dg.AssetSpec | dg.AssetsDefinition]:
        """The state as an asset of ops, and the specs beside it."""
        function = object_at("function", self.function, context)
        if not callable(function):
            raise InvalidInputError(f"function: {self.function} is {function!r}: name a function")
        op, groups = self.op or OpSpec(), self.max_parallelism
        if op.name is not None or op.backfill_policy is not None:
            raise InvalidInputError(
                "op: has `tags` and a `pool`; its name is that of the asset, and a run is for one partition"
            )
        state = checkpointed_asset(
            assets,
            keys=self.keys,
            schema=self.state_schema,
            update=None if self.update is None else as_text(self.update),
            delete=self.delete,
            operator=self.operator,
            max_parallelism=None if groups is None else parse_int("max_parallelism", groups, minimum=1),
            ttl=None if self.ttl is None else self.ttl.config(),
            partitions_def=partitions,
            source=self.source,
            retry_policy=self._retry_policy(),
            deps=self._deps(),
            kinds=self.kinds or None,
            owners=self.owners,
            group_name=self.group_name,
            tags=as_text(self.tags),
            metadata=self.metadata,
            code_version=None if self.code_version is None else str(self.code_version),
            op_tags=op.tags,
            pool=op.pool,
            automation_condition=condition_at(
                self.automation_condition, state_key(assets, function.__name__, {}), context
            ),
            changelog=changelog,
            description=self.description,
        )(function)
        state = state.map_asset_specs(self._shown_as)
        return [state, *self._specs(assets.of_state(state.key), partitions, None)]
