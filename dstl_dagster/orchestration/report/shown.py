"""Where some definitions show a job, and what an instance shows there by now. Reads only.

An event is known by its data version, which Dagster's storage can search, however many events came after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

import dagster as dg

from dstl_dagster.orchestration.keys import TAG_VERSION, JobAssets
from dstl_dagster.orchestration.partitions import partition_in
from dstl_dagster.orchestration.timeline_check import NEWEST_EVENTS, Shown, shown_in
from dstl_dagster.timeline import Completed, is_attempt_of

_EVENTS_AT_ONCE = 500
_UUID_LENGTH = 36


@dataclass(frozen=True)
class Page:
    """The assets of a job in some definitions, on an instance.

    Attributes:
        files: the partitions of its files.
        states: each asset that shows its state by events of ours, and the partitions of it.
        chosen: the partition of an attempt whose run knows it; of others it is the batch's name.
        definitions: those; `None` where they are not known.
    """

    assets: JobAssets
    instance: dg.DagsterInstance
    files: dg.PartitionsDefinition[str] | None = None
    states: Mapping[dg.AssetKey, dg.PartitionsDefinition[str] | None] = field(default_factory=dict)
    chosen: Mapping[UUID, str | None] = field(default_factory=dict)
    definitions: dg.RepositoryDefinition | None = None

    def partition(self, definition: dg.PartitionsDefinition[str] | None, completed: Completed) -> str | None:
        """Of a checkpoint's batch."""
        if completed.attempt in self.chosen:
            return self.chosen[completed.attempt]
        return partition_in(definition, completed, self.instance)

    def has(self, key: dg.AssetKey, version: str) -> bool:
        """Whether an event of this data version was ever written for the asset."""
        return bool(self.instance.get_event_tags_for_asset(key, {TAG_VERSION: version}))

    def shows(self, key: dg.AssetKey, partition: str | None, attempt: UUID) -> bool:
        """Whether one of the newest events is of an attempt's checkpoint, whatever its data version."""
        events = self._newest(key, partition, NEWEST_EVENTS)
        return any(each.attempt == str(attempt) for event in events for each in shown_in(event))

    def newest(self, key: dg.AssetKey, partition: str | None = None) -> dg.AssetMaterialization | None:
        """The newest materialization of the asset, or of one of its partitions."""
        return next(iter(self._newest(key, partition, 1)), None)

    def _newest(
        self, key: dg.AssetKey, partition: str | None, limit: int
    ) -> list[dg.AssetMaterialization | None]:
        where = None if partition is None else [partition]
        wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=where)
        found = self.instance.fetch_materializations(wanted, limit=limit).records
        return [each.asset_materialization for each in found]

    def attempts(self, key: dg.AssetKey, timeline_id: str) -> Mapping[str, set[str]]:
        """Those whose checkpoints the newest materialization of each partition shows.

        By its data version where that is one of this timeline, by one query; else by the event.
        """
        storage, made = self.instance.event_log_storage, dg.DagsterEventType.ASSET_MATERIALIZATION
        tags = storage.get_latest_tags_by_partition(key, made, [TAG_VERSION])
        found = {
            partition: {attempt_in(each[TAG_VERSION])}
            for partition, each in tags.items()
            if _is_attempt_of(each[TAG_VERSION], timeline_id)
        }
        others = self.checkpoints(key, lambda partition: partition not in found)
        return found | {partition: {each.attempt for each in shown} for partition, shown in others.items()}

    def checkpoints(self, key: dg.AssetKey, wanted: Callable[[str], bool]) -> Mapping[str, list[Shown]]:
        """Those that the newest materialization of each of these partitions shows."""
        newest = self.instance.get_latest_storage_id_by_partition(
            key, dg.DagsterEventType.ASSET_MATERIALIZATION
        )
        ids = [each for partition, each in newest.items() if wanted(partition)]
        found = {}
        for first in range(0, len(ids), _EVENTS_AT_ONCE):
            some = ids[first : first + _EVENTS_AT_ONCE]
            records = self.instance.fetch_materializations(
                dg.AssetRecordsFilter(asset_key=key, storage_ids=some), limit=len(some)
            ).records
            found.update({str(each.partition_key): shown_in(each.asset_materialization) for each in records})
        return found

    @property
    def partitions(self) -> dg.PartitionsDefinition[str] | None:
        """Those of its state, or of its files alone."""
        return next(iter(self.states.values()), None) or self.files

    def with_states(self) -> Page:
        """With each asset of the job's state that these definitions have."""
        if self.definitions is None:
            return self
        graph = self.definitions.asset_graph
        found = filter(graph.has, self.assets.state_keys)
        return replace(self, states={key: graph.get(key).partitions_def for key in found})

    def with_plain(self) -> Page:
        """With the assets that these definitions do not show as the job's, and whose body writes its batches:
        by their newest events. Without definitions, of the whole instance.
        """
        graph = None if self.definitions is None else self.definitions.asset_graph
        keys = self.instance.get_asset_keys() if graph is None else graph.executable_asset_keys
        known = {*self.assets.state_keys, self.assets.files_key, self.assets.checkpoints_key}
        known |= {self.assets.operator_key(each) for each in self.assets.operators}
        others = [key for key in keys if key not in known]
        records = self.instance.get_asset_records(others) if others else ()
        newest = (
            (each.asset_entry.asset_key, each.asset_entry.last_materialization_record) for each in records
        )
        plain = [
            key
            for key, record in newest
            for each in shown_in(None if record is None else record.asset_materialization)
            if each.job == self.assets.job
        ]
        return replace(self, assets=self.assets.with_states(plain)) if plain else self

    def materialized(self, key: dg.AssetKey) -> set[str]:
        """The partitions that ever were."""
        return self.instance.get_materialized_partitions(key)


def attempt_in(version: str) -> str:
    """The attempt that a data version begins with; another text where it is of something else."""
    return version[:_UUID_LENGTH]


def _is_attempt_of(version: str, timeline_id: str) -> bool:
    try:
        return is_attempt_of(UUID(attempt_in(version)), timeline_id)
    except ValueError:
        return False
