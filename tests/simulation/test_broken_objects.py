"""The simulation can fail: protocols that lack one rule for writing or deleting objects are caught.

Each variant replaces one piece of the protocol by a wrong one, for one test; the product has no switches for
this. Its replay is a scripted history, one of its points or duels, or `rivals <seed>`. The replay ends well
with the protocol as it is, and wrong with the variant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator, Manifest
from dstl_dagster.checkpoint.steps import clean_up as cleaning
from dstl_dagster.checkpoint.steps import compose_commit
from dstl_dagster.checkpoint.steps import record as step_4
from dstl_dagster.checkpoint.steps.garbage import Garbage
from dstl_dagster.errors import NotFoundError
from dstl_dagster.keyed import OperatorEntry, Run
from dstl_dagster.keyed.documents import manifest
from dstl_dagster.keyed.documents import runs as runs_module
from dstl_dagster.keyed.documents.entries import encode_list
from dstl_dagster.recoverable import commit
from dstl_dagster.timeline import (
    Completed,
    Ending,
    Fate,
    Subsumed,
    Timeline,
    TimelineView,
    decisions,
)
from tests.simulated import bystanders
from tests.simulated.campaign import replayed

Variant = Callable[[pytest.MonkeyPatch], None]
VARIANTS: dict[str, tuple[Variant, str, str]] = {}


def caught_by(replay: str, why: str) -> Callable[[Variant], Variant]:
    """Register a variant, the replay that catches it, and a part of what the replay then reports."""

    def add(variant: Variant) -> Variant:
        VARIANTS[variant.__name__.replace("_", " ")] = (variant, replay, why)
        return variant

    return add


# -- commit


@caught_by("blocked-keep", "is not a blocked file")
def commit_trusts_an_existing_object(monkeypatch):
    monkeypatch.setattr(commit, "is_own", lambda *_arguments: True)


@caught_by("compose-commit and late twins:7:4:18:1", "was taken by a consumer, and is back")
def compose_does_not_pin_generations(monkeypatch):
    original = commit.Source
    monkeypatch.setattr(commit, "Source", lambda name, generation=None: original(name))


@caught_by("compose-commit and append after a restore:7:4:22:1", "of an abandoned checkpoint is still there")
def intermediates_go_before_components(monkeypatch):
    def delete_sources(self: Any) -> int:
        order: list[Any] = []
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(self, "_delete", lambda pins: order.append(list(pins)) or 0, raising=False)
            original(self)
        return sum(self._delete(pins) for pins in reversed(order))

    original = commit.FileCommit.discard
    monkeypatch.setattr(commit.FileCommit, "discard", delete_sources)


@caught_by("bucket", "is published, and its source")
def committed_before_sources_are_gone(monkeypatch):
    monkeypatch.setattr(compose_commit, "delete_copied", lambda *_arguments, **_threads: None)


@caught_by("compose-commit and consumer:7:1:0:1", "compose-commit raised")
def taken_away_is_an_error(monkeypatch):
    def without(self: Any, gone: Any, count: int) -> Any:
        raise NotFoundError("components are gone")

    monkeypatch.setattr(commit.FileCommit, "_without", without)


@caught_by("compose-commit and consumer:7:7:12:1", "was deleted, and nothing of")
def consumer_takes_what_is_not_committed(monkeypatch):
    def published(coordinator: CheckpointCoordinator, checkpoint_id: int) -> Any:
        for record in coordinator.timeline.records():
            if isinstance(record, Completed) and record.checkpoint_id == checkpoint_id:
                return str(record.attempt).encode(), tuple(file.name for file in record.files)
        return b"", ()

    monkeypatch.setattr(bystanders, "_published", published)


# -- clean-up


@caught_by("driver", "was deleted while checkpoint 2 needs")
def deletion_before_subsumed(monkeypatch):
    original = CheckpointCoordinator.clean_up

    def clean_up(self: CheckpointCoordinator, *arguments: Any, **options: Any) -> Any:
        timeline = self.timeline
        record = decisions.to_subsume(timeline.tail(), self.options.num_retained)
        if record is not None:
            self._job.timeline = _AsIf(timeline, record)  # type: ignore[assignment] # what collecting needs
            cleaning.collect_garbage(self._job, dry_run=False)
            self._job.timeline = timeline
        return original(self, *arguments, **options)

    monkeypatch.setattr(CheckpointCoordinator, "clean_up", clean_up)


class _AsIf:
    """A timeline that includes a record that was not written."""

    def __init__(self, timeline: Timeline, record: Any) -> None:
        self._timeline = timeline
        self._record = record
        self.names = timeline.names

    def tail(self) -> TimelineView:
        return self._with_record(self._timeline.tail())

    def seen(self) -> TimelineView:
        return self._with_record(self._timeline.seen())

    def _with_record(self, view: TimelineView) -> TimelineView:
        subsumed = {
            each: dataclasses.replace(view.checkpoints[each], subsumed=self._record)
            for each in self._record.checkpoint_ids
        }
        ended = {
            entry.completed.attempt: Fate(entry.completed.attempt, each, Ending.SUBSUMED, view.slot)
            for each, entry in subsumed.items()
        }
        return dataclasses.replace(
            view, checkpoints={**view.checkpoints, **subsumed}, ended={**view.ended, **ended}
        )


@caught_by("append and clean up", "was deleted while its attempt is open")
def garbage_by_age_only(monkeypatch):
    """Whatever no manifest names goes as soon as it is old; with no grace time, that is at once."""

    def plan(names: Any, listed: Any, fates: Any, **_how: Any) -> Iterator[Garbage]:
        needed = [entry.completed.manifest for entry in fates.view.kept]
        return (Garbage(stat, "old") for stat in listed if stat.name not in needed)

    monkeypatch.setattr(cleaning, "plan_garbage", plan)


@caught_by("ops", "was deleted while checkpoint 2 needs")
def older_runs_are_not_references(monkeypatch):
    def needs(self: Any) -> Iterator[str]:
        for entry in self.operators.values():
            yield from (stream.name for handle in entry.report.handles for stream in handle.streams)

    monkeypatch.setattr(Manifest, "needs", needs)


# -- merges


@caught_by("slices", "read {} of rare at checkpoint")
def a_merge_takes_key_groups_that_it_does_not_have(monkeypatch):
    monkeypatch.setattr(Run, "without", lambda self, _key_groups: dataclasses.replace(self, handles=()))


@caught_by("compacted", "of totals at checkpoint")
def a_merge_lies_below_what_it_stands_for(monkeypatch):
    def merged_runs(before: Any, merges: Any) -> Any:
        runs = runs_module.merged_runs(before, merges)
        own = {id(merge.run) for merge in merges}
        return tuple(sorted(runs, key=lambda run: id(run) not in own))

    monkeypatch.setattr(step_4, "merged_runs", merged_runs)


# -- lists of runs


@caught_by("slices", "read {} of rare at checkpoint 5")
def a_list_forgets_a_run(monkeypatch):
    original = OperatorEntry.as_listed

    def encoded(*of):
        with monkeypatch.context() as within:
            within.setattr(OperatorEntry, "as_listed", lambda self: shorter(original(self)))
            return encode_list(*of)

    def shorter(entry):
        return dataclasses.replace(entry, runs=entry.runs[:-1])

    monkeypatch.setattr(manifest, "encode_list", encoded)


@caught_by("slices", "/runs is gone")
def clean_up_forgets_lists(monkeypatch):
    def needs(self: Any) -> Iterator[str]:
        for entry in self.operators.values():
            yield from (stream.name for stream in entry.files())

    monkeypatch.setattr(Manifest, "needs", needs)


@caught_by("compacted-branches", "was deleted while checkpoint 4 needs")
def clean_up_forgets_what_is_listed(monkeypatch):
    def needs(self: Any) -> Iterator[str]:
        yield from self.lists
        for entry in self.operators.values():
            for run in entry.inline_runs:
                yield from (stream.name for handle in run.handles for stream in handle.streams)

    monkeypatch.setattr(Manifest, "needs", needs)


@caught_by("rivals 43", "(subsumed): 1 is not committed")
def last_checkpoint_is_subsumed(monkeypatch):
    original = decisions.to_subsume

    def to_subsume(view: TimelineView, keep: int, _: Any = None) -> Any:
        ids = [entry.checkpoint_id for entry in view.retained if entry.committed is None]
        record = original(view, keep)
        more = tuple(sorted({*ids, *(() if record is None else record.checkpoint_ids)}))
        return Subsumed(checkpoint_ids=more) if more else None

    monkeypatch.setattr(decisions, "to_subsume", to_subsume)


@caught_by("savepoint", "checkpoint 1 of job 'sim' was cleaned up")
def savepoint_is_subsumed(monkeypatch):
    original = decisions.to_subsume
    monkeypatch.setattr(
        decisions,
        "to_subsume",
        lambda view, keep, _=None: original(dataclasses.replace(view, savepoints={}), keep),
    )


@caught_by("grace", "was deleted while checkpoint 4 needs")
def readers_have_no_grace(monkeypatch):
    monkeypatch.setattr(cleaning.GraceClock, "is_over", lambda self, slot: True)


@pytest.mark.parametrize("replay", sorted({replay for _variant, replay, _why in VARIANTS.values()}))
def test_the_protocol_as_it_is_ends_well(replay):
    assert replayed(replay) == []


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_a_variant_is_caught(monkeypatch, name):
    variant, replay, why = VARIANTS[name]
    variant(monkeypatch)
    assert any(why in line for line in replayed(replay))
