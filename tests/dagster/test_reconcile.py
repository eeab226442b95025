"""What is reported is what should be shown, less what is: values in, events out, without an instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

import dagster as dg
import pytest

from dstl_dagster.orchestration.report.events import Event
from dstl_dagster.orchestration.report.reconcile import Reconcile, Report
from dstl_dagster.orchestration.report.shown import Page

if TYPE_CHECKING:
    from tests.dagster.conftest import Days

pytestmark = pytest.mark.dagster

FIRST, SECOND = "2024-01-01", "2024-01-02"


@dataclass(frozen=True)
class Written(Page):
    """A page by the events that it has, in the order in which they were written."""

    events: list[Event] = field(default_factory=list)

    @classmethod
    def of(cls, days: Days, events: Sequence[Event] = ()) -> Written:
        assets, definition = days.code.JOB, days.code.DAYS
        return cls(assets, days.instance, definition, {assets.state_key: definition}, events=[*events])

    def has(self, key: dg.AssetKey, version: str) -> bool:
        wanted = (key, version)
        return wanted in [(each.asset_key, (each.tags or {})["dagster/data_version"]) for each in self.events]

    def newest(self, key: dg.AssetKey, partition: str | None = None) -> dg.AssetMaterialization | None:
        made = [each for each in self._made(key) if partition in (None, each.partition)]
        return made[-1] if made else None

    def shows(self, key: dg.AssetKey, partition: str | None, attempt: UUID) -> bool:
        tags = [each.tags or {} for each in self._made(key) if each.partition == partition]
        return str(attempt) in [each["dstl/attempt"] for each in tags]

    def attempts(self, key: dg.AssetKey, timeline_id: str) -> dict[str, set[str]]:
        del timeline_id
        made = [each for each in self._made(key) if each.partition is not None]
        return {str(each.partition): {(each.tags or {})["dstl/attempt"]} for each in made}

    def materialized(self, key: dg.AssetKey) -> set[str]:
        return {each.partition for each in self._made(key) if each.partition is not None}

    def _made(self, key: dg.AssetKey) -> list[dg.AssetMaterialization]:
        made = [each for each in self.events if isinstance(each, dg.AssetMaterialization)]
        return [each for each in made if each.asset_key == key]


def reconciled(days: Days, written: Written) -> Report:
    """All records once, each on what the ones before it have left."""
    coordinator = days.coordinator()
    reconcile = Reconcile(written, coordinator, coordinator.timeline.tail(), "sensor")
    total = Report()
    for record in coordinator.timeline.records():
        found = reconcile.record(record)
        written.events.extend(found.events)
        total += found
    again = reconcile.newest(Report())
    written.events.extend(again.events)
    return total + again


def test_all_that_a_timeline_says_is_lacking_once(days: Days) -> None:
    """Of an empty page all of it; of the page after that nothing."""
    days.code.make_outside(days.uri, FIRST)
    days.code.make_outside(days.uri, SECOND)
    written, assets = Written.of(days), days.code.JOB
    made = reconciled(days, written)
    for key, partitions in (
        (assets.checkpoints_key, ["chk-00000001", "chk-00000002"]),
        (assets.files_key, [FIRST, SECOND]),
        (assets.state_key, [FIRST, SECOND]),
    ):
        assert [event.partition for event in made.materialized(key)] == partitions
    assert not made.marks
    assert not reconciled(days, written)


def test_what_was_written_before_a_crash_is_not_lacking(days: Days) -> None:
    """Wherever the writer died: what it wrote and what is lacking are all of it, nothing twice."""
    days.code.make_outside(days.uri, FIRST)
    whole = Written.of(days)
    reconciled(days, whole)
    for count in range(len(whole.events)):
        written = Written.of(days, whole.events[:count])
        reconciled(days, written)
        assert [each.tags for each in written.events] == [each.tags for each in whole.events]


def test_a_restore_takes_back_what_is_shown_alone(days: Days) -> None:
    """The day that shows what it undid is marked; one that was never shown, or ran again, is not."""
    days.code.make_outside(days.uri, FIRST)
    days.code.make_outside(days.uri, SECOND)
    shown, late = Written.of(days), Written.of(days)
    reconciled(days, shown)
    days.coordinator().restore(1)
    (mark,) = reconciled(days, shown).marks
    assert set(mark.partitions) == {days.code.JOB.files_key, days.code.JOB.state_key}
    assert set(mark.partitions.values()) == {(SECOND,)}
    newest = shown.newest(days.code.JOB.checkpoints_key)
    assert newest is not None
    assert newest.partition == "chk-00000001"
    assert not reconciled(days, late).marks
    assert late.materialized(days.code.JOB.files_key) == {FIRST}
    days.code.make_outside(days.uri, SECOND)
    reconciled(days, shown)
    assert not reconciled(days, shown), "it ran again, and shows that"
