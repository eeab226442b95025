"""The operations that `cloud.py` measures: how each begins, what it does, and the least that it could cost.

Owns these. Does not own what lies in the bucket before (`cloud_jobs`), or the clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import click.testing
from cloud_jobs import JOB, OPERATOR, Jobs, coordinator_on, record

from dstl_dagster.checkpoint import Attempt, CheckpointCoordinator
from dstl_dagster.cli import main as dstl
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed import KeyedState
from dstl_dagster.storage import ObjectStore

__all__ = ["QUICK", "Act", "Operation", "Sizes", "operations", "operations_under_the_limit"]

AT_ONCE = 8
TAIL_TRIPS = 3  # to find the tail: the hint, the snapshot that it names, the slots after it
SETTLED_SECONDS = 1.1  # clean-up leaves what is younger alone
Act = Callable[[], object]


@dataclass(frozen=True)
class Ideal:
    """The least that an operation takes: `one_by_one` round trips, and requests beside each other."""

    one_by_one: int
    at_once: int = 0  # requests of which `AT_ONCE` share a round trip
    beside: int = 0  # requests that cost no round trip of their own

    @property
    def requests(self) -> int:
        return self.one_by_one + self.at_once + self.beside

    @property
    def trips(self) -> int:
        return self.one_by_one + math.ceil(self.at_once / AT_ONCE)


@dataclass(frozen=True)
class Operation:
    """`prepare` makes a job and returns what to measure; with `again` it may be measured more than once."""

    name: str
    prepare: Callable[[], Act]
    ideal: Ideal
    again: bool = True
    exact: bool = True  # it takes the same requests each time


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    histories: tuple[int, ...] = (10, 40, 100)
    sets: int = 500
    files: tuple[int, ...] = (100, 20)
    large_files: int = 4
    large_megabytes: int = 9
    components: int = 300
    verified: int = 500
    garbage: int = 10_000
    quick_checkpoints: int = 12


QUICK = Sizes((5, 10), 50, (10, 5), 2, 1, 40, 20, 300, 3)


def read_all(store: ObjectStore, key_groups: KeyGroupRange | None = None) -> int:
    """What a restore does, from a process that begins."""
    latest = coordinator_on(store).latest()
    assert latest is not None
    state = KeyedState.of(store, latest.manifest, OPERATOR)
    assert state is not None
    rows = sum(table.num_rows for table in state.tables(key_groups and [key_groups]))
    assert rows
    return rows


def command(*arguments: str, url: str, store: ObjectStore) -> None:
    """A `dstl` command, in this process: what it imports is not measured."""
    result = click.testing.CliRunner(env={"STORAGE_EMULATOR_HOST": url}).invoke(
        dstl, ["checkpoints", *arguments, "--store", store.uri, "--job", JOB], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output


def histories(jobs: Jobs, sizes: Sizes) -> Iterator[Operation]:
    """Clean-up that finds nothing, audit, and the commands that read a job's history."""
    nothing_to_do = Ideal(TAIL_TRIPS, beside=4)

    stores: dict[int, ObjectStore] = {}

    def cleaned_up(count: int) -> ObjectStore:
        if count not in stores:
            stores[count] = jobs.batches(count, num_retained=10, clean_up_every=10)
            for _ in range(2):  # the second run leaves its mark: no object changes twice within a second
                time.sleep(2 * SETTLED_SECONDS)
                coordinator_on(stores[count]).clean_up()
        return stores[count]

    def clean_up(count: int) -> Act:
        store = cleaned_up(count)
        return lambda: coordinator_on(store).clean_up()

    for count in sizes.histories:
        yield Operation(f"step 7, nothing to do, {count} batches", partial(clean_up, count), nothing_to_do)
    most = max(sizes.histories)

    def audit() -> Act:
        store = cleaned_up(most)
        return lambda: coordinator_on(store).audit()

    yield Operation(f"audit, {most} batches", audit, Ideal(TAIL_TRIPS, most, beside=4))
    kept: list[ObjectStore] = []

    def run(*arguments: str) -> Act:
        if not kept:
            kept.append(jobs.batches(most, num_retained=10**6))
        return lambda: command(*arguments, url=jobs.url, store=kept[0])

    records = 3 * most
    for arguments, ideal in (
        (("list",), Ideal(TAIL_TRIPS, most)),
        (("timeline",), Ideal(1, records)),
        (("diff", str(most - 1), str(most)), Ideal(TAIL_TRIPS, most, beside=2)),
        (("history", "key=7"), Ideal(TAIL_TRIPS, 2 * most)),
    ):
        name = f"dstl checkpoints {' '.join(arguments)}, {most} batches"
        yield Operation(name, partial(run, *arguments), ideal)


def reading(jobs: Jobs, sizes: Sizes) -> Iterator[Operation]:
    """Restore and verify."""

    def restore(files: int) -> Act:
        store = jobs.one_checkpoint(
            lambda store, attempt: jobs.shared_files(store, attempt, files, sizes.sets)
        )
        return lambda: read_all(store)

    for files in sizes.files:
        name = f"restore, {sizes.sets} sets in {files} files"
        yield Operation(name, partial(restore, files), Ideal(TAIL_TRIPS + 1, files))

    def large(key_groups: KeyGroupRange | None) -> Act:
        store = jobs.one_checkpoint(
            lambda store, attempt: jobs.large_files(store, attempt, sizes.large_files, sizes.large_megabytes)
        )
        return lambda: read_all(store, key_groups)

    # Of each file its footer, and what is wanted.
    for who, key_groups in (("one task of two", KeyGroupRange.of(0, 63)), ("all", None)):
        yield Operation(
            f"restore, {who}, {sizes.large_files} files of {sizes.large_megabytes} MiB",
            partial(large, key_groups),
            Ideal(TAIL_TRIPS + 2, 2 * sizes.large_files - 1),
        )

    def verify() -> Act:
        store = jobs.one_checkpoint(lambda store, attempt: jobs.own_files(store, attempt, sizes.verified))
        return lambda: coordinator_on(store).verify()

    yield Operation(f"verify, {sizes.verified} files", verify, Ideal(TAIL_TRIPS + 1, sizes.verified))


def writing(jobs: Jobs, sizes: Sizes) -> Iterator[Operation]:
    """Steps 4 and 6 of large checkpoints, and clean-up with much to do."""

    def step_4(report: Callable[[ObjectStore, Attempt], Any]) -> Act:
        coordinator, attempt, made = jobs.reported(jobs.fresh(), report)
        return lambda: record(coordinator, attempt, made)

    files = min(sizes.files)
    yield Operation(
        f"step 4, {sizes.sets} sets in {files} files",
        partial(step_4, lambda store, attempt: jobs.shared_files(store, attempt, files, sizes.sets)),
        Ideal(2, files),
        again=False,
    )

    def components(store: ObjectStore, attempt: Attempt) -> Any:
        return jobs.components(store, attempt, sizes.components)

    yield Operation(
        f"step 4, a file of {sizes.components} components",
        partial(step_4, components),
        Ideal(3, beside=1),
        again=False,
    )

    def step_6() -> Act:
        coordinator, attempt, made = jobs.reported(jobs.fresh(), components)
        record(coordinator, attempt, made)
        coordinator.confirm(attempt)
        return coordinator.compose_commit

    composes = math.ceil((sizes.components - 1) / 31)
    waves = math.ceil(math.log(sizes.components, 32))
    yield Operation(
        f"step 6, a file of {sizes.components} components",
        step_6,
        Ideal(2 + waves - 1, composes - (waves - 1)),
        again=False,
    )

    def garbage() -> Act:
        store = jobs.garbage(sizes.garbage)
        time.sleep(SETTLED_SECONDS)

        def clean_up() -> None:
            assert coordinator_on(store).clean_up().objects == sizes.garbage

        return clean_up

    pages = math.ceil(sizes.garbage / 1000)
    yield Operation(
        f"step 7, {sizes.garbage} objects to delete",
        garbage,
        Ideal(TAIL_TRIPS + pages - 1, math.ceil(sizes.garbage / 100), beside=4),
        again=False,
    )


def steps(jobs: Jobs) -> Iterator[Operation]:
    """One small checkpoint, each step in a process that begins, and all in the process of the last one.

    It has one changelog file and one file of two components.
    """
    ideals = {1: Ideal(2), 4: Ideal(2, 3), 5: Ideal(2), 6: Ideal(3)}

    def until(step: int, coordinator: CheckpointCoordinator, *, cold: bool) -> Act:
        store = coordinator.store

        def on() -> CheckpointCoordinator:
            return coordinator_on(store) if cold else coordinator

        attempts: list[Attempt] = []

        def trigger() -> None:
            attempts.append(on().trigger())

        acts: dict[int, Act] = {
            1: trigger,
            4: lambda: on().record(attempts[0], [parts[0]], [parts[1]], {"source": 1}),
            5: lambda: on().confirm(attempts[0]),
            6: lambda: on().compose_commit(),
        }
        parts: list[Any] = []
        for number, act in acts.items():
            if number == step:
                return act
            act()
            if number == 1:
                attempt = attempts[0]
                parts.extend([jobs.changes(store, attempt), jobs.components(store, attempt, 2)])
        raise AssertionError(step)

    def of_next(step: int) -> Act:
        coordinator = coordinator_on(jobs.fresh())
        until(6, coordinator, cold=False)()
        return until(step, coordinator, cold=False)

    for step, ideal in ideals.items():
        yield Operation(
            f"step {step}, cold",
            partial(lambda step: until(step, coordinator_on(jobs.fresh()), cold=True), step),
            ideal,
            again=False,
        )
    for step, ideal in ideals.items():
        warm = Ideal(max(1, ideal.one_by_one - 1), ideal.at_once)
        yield Operation(f"step {step}, warm", partial(of_next, step), warm, again=False)


def operations(jobs: Jobs, sizes: Sizes) -> Iterator[Operation]:
    """All that run on an ordinary server, in the order of the table."""
    yield from histories(jobs, sizes)
    yield from reading(jobs, sizes)
    yield from writing(jobs, sizes)
    yield from steps(jobs)


def operations_under_the_limit(jobs: Jobs, sizes: Sizes) -> Iterator[Operation]:
    """Whole checkpoints with clean-up, on a server that takes one update of an object a second."""

    def run() -> Act:
        return lambda: jobs.batches(sizes.quick_checkpoints, num_retained=1, clean_up_every=1)

    # Steps 1, 2, 4, 5, 6 of a process that goes on: 1 + 1 + 2 + 1 + 1 round trips. A clean-up: `subsumed`,
    # the tail, and listings beside each other.
    count = sizes.quick_checkpoints
    name = f"{count} checkpoints with clean-up, 1 update/s"
    # Hints and marks that are younger than the limit stay, so requests depend on how quick the machine is.
    yield Operation(name, run, Ideal((6 + 3) * count, beside=(2 + 3) * count), again=False, exact=False)
