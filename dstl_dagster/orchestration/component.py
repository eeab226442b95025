"""A job's checkpoints in Dagster from a YAML file, for a job that runs anywhere.

Owns the component's fields and how they map to the functions that Python users call, which build everything.
"""

# No postponed annotations here: Dagster derives the YAML schema from them.

from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any

import dagster as dg
from pydantic import BaseModel, Field

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.assets import checkpoint_asset_specs
from dstl_dagster.orchestration.checks import (
    DEFAULT_MAX_AGE,
    build_checkpoint_checks,
    build_checks_job,
    build_checks_schedule,
)
from dstl_dagster.orchestration.commit import build_commit_job
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.maintenance import (
    build_cleanup_job,
    build_cleanup_schedule,
    build_materialize_job,
    build_materialize_schedule,
    build_verify_job,
    build_verify_schedule,
)
from dstl_dagster.orchestration.resources import ChangelogStorageResource
from dstl_dagster.orchestration.restore_job import build_restore_job
from dstl_dagster.orchestration.sensors import build_checkpoint_sensor
from dstl_dagster.settings import CostBudget

__all__ = ["CheckpointLineageComponent"]

_HOUR = timedelta(hours=1)
Option = str | int | float | bool
"""Dagster turns `"30"` in YAML into a number, quoted or not, so a number is accepted like its text."""


class ScaffoldParams(BaseModel):
    """What `dg scaffold defs` asks for."""

    job: str = Field(description="The job's name, as in its Spark program.")
    store: str = Field(description="Where the job lives, for example gs://bucket/prefix.")


class CheckpointLineageScaffolder(dg.Scaffolder[ScaffoldParams]):
    """Writes the `defs.yaml` of one job."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParams]:
        return ScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        dg.scaffold_component(request, request.params.model_dump())


@dg.scaffold_with(CheckpointLineageScaffolder)
class CheckpointLineageComponent(dg.Component, dg.Model, dg.Resolvable):
    """The checkpoints of one job: assets, sensor, checks, and the jobs that maintain them.

    The job itself runs anywhere (spark-submit, Dataproc, a streaming query). The sensor and the schedules
    ship stopped: turn them on in Dagster's page.
    """

    job: str = Field(description="The job's name, as in its Spark program.", examples=["orders"])
    store: str = Field(
        description="Where the job lives. No secrets: Google's libraries find the credentials.",
        examples=["gs://bucket/prefix", "file:///folder"],
    )
    operators: Sequence[str] = Field(
        default=(),
        description="Operators whose state is an asset of its own.",
        examples=[["totals"]],
    )
    sources: Sequence[str] = Field(
        default=(),
        description="Keys of the assets that the job reads, with slashes.",
        examples=[["raw/orders"]],
    )
    options: dict[str, Option] = Field(
        default_factory=dict,
        description="Options of the job, the same as in its program.",
        examples=[{"execution.checkpointing.num-retained": "30"}],
    )
    file_options: dict[str, Option] = Field(
        default_factory=dict, description="More of `options`, for definitions that keep them apart."
    )
    gcs: str | None = Field(
        default=None,
        description=(
            "`module:name` of dagster-gcp's `GCSResource`, or of any object with `get_client()`, for "
            "credentials that Google's libraries do not find by default."
        ),
        examples=["shop.resources:gcs"],
    )
    owners: Sequence[str] = Field(default=(), description="Owners of the assets.", examples=[["team:data"]])
    kinds: Sequence[str] = Field(default=(), description="Kinds shown on the assets.", examples=[["gcs"]])
    freshness_hours: float | None = Field(
        default=None, description="Hours after which the last checkpoint is no longer fresh."
    )
    budget: dict[str, Option] = Field(
        default_factory=dict,
        description=(
            "What a checkpoint may cost, for the check `cost_budget`: `requests`, `bytes` (a size), `usd` "
            "(at the options' prices)."
        ),
        examples=[{"requests": 500, "bytes": "10 gb", "usd": 0.01}],
    )
    max_checkpoints_per_tick: int = Field(
        default=500, ge=1, description="Where a tick of the sensor stops; its 30 seconds may end it earlier."
    )
    commit: bool = Field(
        default=False, description="Dagster does step 6 (compose-commit), which the job leaves to it."
    )

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

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002 - Dagster's signature
        """Neither reads the store nor starts anything."""
        assets = JobAssets(self.job, operators=tuple(self.operators))
        # Bound to each definition, so that several components can use different stores.
        changelog = ChangelogStorageResource(
            uri=self.store,
            options=_as_text(self.options),
            files=_as_text(self.file_options),
            gcs=None if self.gcs is None else _imported(self.gcs),
        )
        changelog.require_valid()
        freshness = None if self.freshness_hours is None else self.freshness_hours * _HOUR
        commit_job = build_commit_job(assets, changelog=changelog)
        cleanup_job = build_cleanup_job(assets, changelog=changelog)
        materialize_job = build_materialize_job(assets, changelog=changelog)
        verify_job = build_verify_job(assets, changelog=changelog)
        checks = build_checkpoint_checks(
            assets,
            changelog=changelog,
            max_age=freshness or DEFAULT_MAX_AGE,
            budget=CostBudget.from_mapping(_as_text(self.budget)),
        )
        checks_job = build_checks_job(checks)
        specs = checkpoint_asset_specs(
            assets,
            owners=self.owners,
            kinds=self.kinds,
            freshness=freshness,
            sources=[dg.AssetKey(source.split("/")) for source in self.sources],
        )
        return dg.Definitions(
            assets=[self._shown_as(spec) for spec in specs],
            asset_checks=[checks],
            sensors=[
                build_checkpoint_sensor(
                    assets,
                    changelog=changelog,
                    commit_job=commit_job if self.commit else None,
                    max_checkpoints_per_tick=self.max_checkpoints_per_tick,
                )
            ],
            jobs=[
                commit_job,
                cleanup_job,
                materialize_job,
                verify_job,
                checks_job,
                build_restore_job(assets, changelog=changelog),
            ],
            schedules=[
                build_cleanup_schedule(cleanup_job),
                build_materialize_schedule(materialize_job),
                build_verify_schedule(verify_job),
                build_checks_schedule(checks_job),
            ],
        )


def _imported(path: str) -> Any:
    """What `module:name` names. Raises: InvalidInputError."""
    module, _, name = path.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInputError(f"gcs: {path!r} cannot be imported ({error}): write module:name") from error
    if isinstance(found, type) or not hasattr(found, "get_client"):
        raise InvalidInputError(
            f"gcs: {path} is {found!r}: name an object with get_client(), such as a GCSResource(project=...)"
        )
    return found


def _as_text(options: Mapping[str, Option]) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()
    }
