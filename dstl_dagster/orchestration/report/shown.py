"""Where some definitions show a job, and what an instance shows there by now. Reads only.

An event is known by its data version, which Dagster's storage can search, however many events came after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

import dagster as dg

from dstl_dagster.orchestration.keys import TAG_VERSION, JobAssets
from dstl_dagster.orchestration.partitions import partition_in
from dstl_dagster.timeline import Completed


@dataclass(frozen=True)
class Page:
    """The assets of a job in some definitions, on an instance.

    Attributes:
        files: the partitions of its files.
        states: each asset that shows its state by events of ours, and the partitions of it.
        chosen: the partition of an attempt whose run knows it; of others it is the batch's name.
    """

    assets: JobAssets
    instance: dg.DagsterInstance
    files: dg.PartitionsDefinition[str] | None = None
    states: Mapping[dg.AssetKey, dg.PartitionsDefinition[str] | None] = field(default_factory=dict)
    chosen: Mapping[UUID, str | None] = field(default_factory=dict)

    def partition(self, definition: dg.PartitionsDefinition[str] | None, completed: Completed) -> str | None:
        """Of a checkpoint's batch."""
        if completed.attempt in self.chosen:
            return self.chosen[completed.attempt]
        return partition_in(definition, completed, self.instance)

    def has(self, key: dg.AssetKey, version: str) -> bool:
        """Whether an event of this data version was ever written for the asset."""
        return bool(self.instance.get_event_tags_for_asset(key, {TAG_VERSION: version}))

    def newest(self, key: dg.AssetKey, partition: str | None = None) -> dg.AssetMaterialization | None:
        """The newest materialization of the asset, or of one of its partitions."""
        where = None if partition is None else [partition]
        wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=where)
        found = self.instance.fetch_materializations(wanted, limit=1).records
        return found[0].asset_materialization if found else None

    def versions(self, key: dg.AssetKey) -> Mapping[str, str]:
        """The data version of the newest materialization of each partition."""
        made = dg.DagsterEventType.ASSET_MATERIALIZATION
        tags = self.instance.event_log_storage.get_latest_tags_by_partition(key, made, [TAG_VERSION])
        return {partition: each[TAG_VERSION] for partition, each in tags.items()}

    def materialized(self, key: dg.AssetKey) -> set[str]:
        """The partitions that ever were."""
        return self.instance.get_materialized_partitions(key)
