"""The cost of a sensor tick depends on what is new, not on the age of the job."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import dagster as dg
import pytest

from dstl_dagster import ChangelogStorageResource, build_checkpoint_sensor
from dstl_dagster.orchestration.inject import resources
from dstl_dagster.orchestration.watch import timeline_follower
from dstl_dagster.testing.fault_store import FaultStore
from tests.dagster.long_timeline import LongTimeline

pytestmark = pytest.mark.dagster

NEW = 10


def _said(pattern: str) -> int:
    """A figure of docs/dagster/outside.md."""
    page = (Path(__file__).parents[2] / "docs" / "dagster" / "outside.md").read_text(encoding="utf-8")
    found = re.search(pattern, page)
    assert found is not None, f"docs/dagster/outside.md says nothing like {pattern!r}"
    return int(found[1])


def _tick(
    store: LongTimeline, cursor: str | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[dg.SensorResult, Counter[str]]:
    """One tick over the store, and its requests by method."""
    watched = FaultStore(store)
    monkeypatch.setattr(resources, "open_store", lambda *_: watched)
    changelog = ChangelogStorageResource(uri=store.uri)
    sensor = build_checkpoint_sensor("days", changelog=changelog)
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_sensor_context(instance=instance, cursor=cursor) as context,
    ):
        result = sensor(context)
    assert isinstance(result, dg.SensorResult)
    return result, Counter(request.method for request in watched.requests)


def test_a_tick_costs_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten new checkpoints after a hundred or a hundred thousand: the same few requests."""
    costs = []
    for count in (100, 100_000):
        store = LongTimeline(count)
        cursor = f'{{"slot": {store.snapshot_slot}}}'
        store.complete_more(NEW)
        result, requests = _tick(store, cursor, monkeypatch)
        told = [each for each in result.asset_events if isinstance(each, dg.AssetMaterialization)]
        assert [event.partition for event in told] == [
            f"chk-{number:08}" for number in range(count + 1, count + NEW + 1)
        ]
        costs.append(requests)
    assert costs[0] == costs[1]
    assert sum(costs[1].values()) == _said(r"(\d+) requests for ten\s+new checkpoints"), costs


def test_an_idle_tick_costs_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing new after a hundred thousand checkpoints: a handful of requests, as the page says."""
    store = LongTimeline(100_000)
    result, requests = _tick(store, f'{{"slot": {store.snapshot_slot}}}', monkeypatch)
    assert not result.asset_events
    assert sum(requests.values()) == _said(r"and (\d+) when nothing is new"), requests


def test_a_first_tick_over_a_long_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sensor that starts late reads a hundred thousand checkpoints in order, not in one tick."""
    monkeypatch.setattr(timeline_follower, "MOST_CHECKPOINTS", 50)
    store = LongTimeline(100_000)
    result, requests = _tick(store, None, monkeypatch)
    assert [event.partition for event in result.asset_events] == [
        f"chk-{number:08}" for number in range(1, 51)
    ]
    assert sum(requests.values()) < 400, requests
