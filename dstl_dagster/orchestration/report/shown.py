"""What a Dagster instance shows of a job. Reads only.

Owns the questions that `reconcile` asks of what was reported before. An event is known by its data version,
which Dagster's storage can search, however many events came after it.
"""

from __future__ import annotations

import dagster as dg

from dstl_dagster.orchestration.keys import TAG_VERSION

__all__ = ["Shown"]


class Shown:
    """What an instance shows, by asset and partition."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance

    def has(self, key: dg.AssetKey, version: str) -> bool:
        """Whether an event of this data version was ever written for the asset."""
        return bool(self._instance.get_event_tags_for_asset(key, {TAG_VERSION: version}))

    def newest(self, key: dg.AssetKey, partition: str | None = None) -> dg.AssetMaterialization | None:
        """The newest materialization of the asset, or of one of its partitions."""
        where = None if partition is None else [partition]
        wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=where)
        found = self._instance.fetch_materializations(wanted, limit=1).records
        return found[0].asset_materialization if found else None

    def partitions(self, key: dg.AssetKey) -> set[str]:
        """Those that were ever materialized."""
        return self._instance.get_materialized_partitions(key)
