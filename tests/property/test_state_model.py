"""Random lives of a job against dictionaries: states, differences, bounds of cost and of runs, clean-up.

python tests/property/test_state_model.py 0 1000     so many seeds, and what went wrong with each
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from dstl_dagster.checkpoint import Manifest
from dstl_dagster.checkpoint.steps import record
from dstl_dagster.format import ChangelogStateHandle
from dstl_dagster.keyed import OperatorEntry, Run
from dstl_dagster.keyed.documents import manifest
from dstl_dagster.keyed.documents import runs as runs_module
from dstl_dagster.keyed.documents.entries import encode_list
from dstl_dagster.keyed.merge import merge
from dstl_dagster.keyed.merge.policy import MergePolicy
from dstl_dagster.keyed.read import lookup
from dstl_dagster.keyed.read.lookup import KeysToFind
from dstl_dagster.spark.dataframes.run_merges import MergeRunsTask
from dstl_dagster.timeline import decisions
from tests.property.state_world import live

LIVES = range(1, 4)
SEARCHED = range(12, 60)
"""Seeds, in which a mistake is found: each in the first few."""


@pytest.mark.parametrize("seed", LIVES)
def test_a_state_is_what_dictionaries_say(seed: int) -> None:
    """At each retained checkpoint, by every way to read it; clean-up leaves nothing and loses nothing."""
    assert live(seed) is None


def a_list_forgets_a_run(broken: pytest.MonkeyPatch) -> None:
    original = OperatorEntry.as_listed

    def encoded(*of: Any) -> bytes:
        with broken.context() as within:
            within.setattr(OperatorEntry, "as_listed", lambda self: shorter(original(self)))
            return encode_list(*of)

    def shorter(entry: OperatorEntry) -> OperatorEntry:
        return dataclasses.replace(entry, runs=entry.runs[:-1])

    broken.setattr(manifest, "encode_list", encoded)


def a_merge_lies_below(broken: pytest.MonkeyPatch) -> None:
    def merged_runs(before: Any, merges: Any) -> Any:
        found = runs_module.merged_runs(before, merges)
        own = {id(merge.run) for merge in merges}
        return tuple(sorted(found, key=lambda run: id(run) not in own))

    broken.setattr(record, "merged_runs", merged_runs)


def a_tombstone_is_dropped_early(broken: pytest.MonkeyPatch) -> None:
    original = merge.RunMerge._changes
    broken.setattr(
        merge.RunMerge, "_changes", lambda self, *of: original(dataclasses.replace(self, whole=True), *of)
    )


def the_older_of_two_keys_wins(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(
        OperatorEntry, "handles", property(lambda self: [h for r in self.runs[::-1] for h in r.handles])
    )


def a_deleted_key_is_looked_for_below(broken: pytest.MonkeyPatch) -> None:
    original = KeysToFind.without
    broken.setattr(
        KeysToFind,
        "without",
        lambda self, found: original(self, [rows.filter(pc.invert(rows.column(-1))) for rows in found]),
    )


def a_reader_places_keys_by_their_own_hash(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(
        lookup, "group_of_hashes", lambda hashes, _rows, schema: hashes % np.int32(schema.max_parallelism)
    )


def a_partition_is_spread_wider_than_it_is_read(broken: pytest.MonkeyPatch) -> None:
    original = lookup.key_groups_of_partitions
    broken.setattr(
        lookup,
        "key_groups_of_partitions",
        lambda partitions, schema: set(sorted(original(partitions, schema))[:-1]),
    )


def a_handle_lists_too_few_key_groups(broken: pytest.MonkeyPatch) -> None:
    original = ChangelogStateHandle.holding
    broken.setattr(
        ChangelogStateHandle,
        "holding",
        lambda self, key_groups: original(self, sorted({*key_groups})[:-1] or key_groups),
    )


def a_merge_takes_every_key_group(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(Run, "without", lambda self, _key_groups: dataclasses.replace(self, handles=()))


def clean_up_forgets_lists(broken: pytest.MonkeyPatch) -> None:
    original = Manifest.needs
    broken.setattr(
        Manifest, "needs", lambda self: (each for each in original(self) if not each.endswith("/runs"))
    )


def a_clone_begins_below_its_runs(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(decisions, "max", lambda next_id, _adopted: next_id, raising=False)


def clean_up_forgets_what_is_listed(broken: pytest.MonkeyPatch) -> None:
    def needs(self: Any) -> Any:
        yield from self.lists
        for entry in self.operators.values():
            yield from (s.name for run in entry.inline_runs for handle in run.handles for s in handle.streams)

    broken.setattr(Manifest, "needs", needs)


def nothing_is_due(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(MergePolicy, "due", lambda *_: None)


def the_merge_of_an_idle_operator_is_forgotten(broken: pytest.MonkeyPatch) -> None:
    """As a manifest did that repeated the operator's last report, and not what was merged since."""
    original = record._entry

    def entry(checkpoint_id: int, before: Any, report: Any) -> Any:
        found = original(checkpoint_id, before, report)
        if (
            before is not None
            and not report.handles
            and not report.merges
            and any(r.merged for r in found.runs)
        ):
            return dataclasses.replace(found, runs=tuple(r for r in found.runs if not r.merged), listed=None)
        return found

    broken.setattr(record, "_entry", entry)


def everything_is_due_always(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(merge, "_due", lambda entry, *_: merge.DueMerge.of_all(entry.report.max_parallelism))


def tasks_lose_a_range(broken: pytest.MonkeyPatch) -> None:
    original = MergeRunsTask._outcome

    def outcome(self: Any, key_groups: Any) -> Any:
        found = original(self, key_groups)
        return {**found, "handle": None} if key_groups == self.ranges[0] else found

    broken.setattr(MergeRunsTask, "_outcome", outcome)


MISTAKES: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    a_list_forgets_a_run: 13,
    a_merge_lies_below: 18,
    a_tombstone_is_dropped_early: 16,
    the_older_of_two_keys_wins: 14,
    a_deleted_key_is_looked_for_below: 14,
    a_reader_places_keys_by_their_own_hash: 20,
    a_partition_is_spread_wider_than_it_is_read: 20,
    a_handle_lists_too_few_key_groups: 12,
    a_merge_takes_every_key_group: 12,
    clean_up_forgets_lists: 12,
    clean_up_forgets_what_is_listed: 14,
    a_clone_begins_below_its_runs: 15,
    nothing_is_due: 22,
    the_merge_of_an_idle_operator_is_forgotten: 13,
    everything_is_due_always: 19,
    tasks_lose_a_range: 13,
}
"""And a seed that finds it soon, which is tried first: a life in which it is not found costs seconds."""


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__.replace("_", " "))
def test_a_mistake_is_found(mistake: Callable[[pytest.MonkeyPatch], None]) -> None:
    """The lives can fail: one of a few finds each."""
    with pytest.MonkeyPatch.context() as broken:
        mistake(broken)
        assert any(live(seed) is not None for seed in (MISTAKES[mistake], *SEARCHED))


if __name__ == "__main__":
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        if (wrong := live(number)) is not None:
            print(number, wrong, flush=True)
