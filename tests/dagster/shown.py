"""What Dagster's page shows of an asset's partitions, from the same values that it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value

if TYPE_CHECKING:
    from tests.dagster.conftest import Days


def failed_partitions(days: Days, asset: str) -> set[str]:
    """The red ones; newest events decide."""
    definition, cached = days.code.DAYS, _cached(days, asset)
    return set(cached.deserialize_failed_partition_subsets(definition).get_partition_keys())


def materialized_partitions(days: Days, asset: str) -> set[str]:
    """The green ones."""
    definition, cached = days.code.DAYS, _cached(days, asset)
    green = cached.deserialize_materialized_partition_subsets(definition).get_partition_keys()
    return set(green) - failed_partitions(days, asset)


def _cached(days: Days, asset: str):
    key = dg.AssetKey([days.code.JOB.job, asset])
    cached = get_and_update_asset_status_cache_value(days.instance, key, days.code.DAYS)
    assert cached is not None
    return cached
