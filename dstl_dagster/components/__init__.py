"""What `dg list components` finds: components for YAML users, by the names that they write."""

from dstl_dagster.orchestration.component import CheckpointLineageComponent

__all__ = ["CheckpointLineageComponent"]
