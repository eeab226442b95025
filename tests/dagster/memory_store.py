"""A job's store in memory, and an instance that runs assets over it."""

from __future__ import annotations

from typing import Any

import dagster as dg

import dstl_dagster as dstl


class MemoryStore:
    """`resources` stand beside `changelog` in every run."""

    def __init__(self, uri: str, instance: dg.DagsterInstance, **resources: Any) -> None:
        self.uri = uri
        self.instance = instance
        self.changelog = dstl.ChangelogStorageResource(uri=uri)
        self._resources = resources

    def run(self, *assets: Any, partition: str | None = None, **more: Any) -> dg.ExecuteInProcessResult:
        resources = {"changelog": self.changelog, **self._resources, **more.pop("resources", {})}
        return dg.materialize(
            list(assets), partition_key=partition, instance=self.instance, resources=resources, **more
        )

    def rows(self, operator: str, at: Any = None, job: str = "orders") -> list[dict[str, Any]]:
        return dstl.read_state(self.uri, job, operator, at=at).to_arrow().to_pylist()

    def event(self, key: dg.AssetKey) -> dg.AssetMaterialization:
        """The newest materialization."""
        newest = self.instance.get_latest_materialization_event(key)
        assert newest is not None
        assert newest.asset_materialization is not None
        return newest.asset_materialization
