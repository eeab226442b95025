"""The components that `dg list components` finds, under the names that YAML uses."""

from dstl_dagster.orchestration.yaml.asset_component import CheckpointedAssetComponent
from dstl_dagster.orchestration.yaml.component import CheckpointLineageComponent

__all__ = ["CheckpointLineageComponent", "CheckpointedAssetComponent"]
