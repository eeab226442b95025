"""A job's control plane under kill -9 at every storage request, resumed by another process.

    python tests/process/checkpoint_kills.py [--step N] [--first N] [--kind KIND]

One life makes three checkpoints of keyed state and files, folds the state, restores, makes the third one
again with different rows, and cleans up with no grace: every step of the protocol, from persist to restore.
`gcs`, `moved` and `folder`, and the ways of dying, are those of `deaths`.

The process that resumes knows no more than a scheduler does: which task of the plan was running. Exit status
1: state or a file was wrong, or something was missing or left over.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from datetime import timedelta

import deaths
import pyarrow as pa
from deaths import Objects, Place

from dstl_dagster.checkpoint import CheckpointCoordinator, FileReport, materialize
from dstl_dagster.errors import ConflictError
from dstl_dagster.keyed import KeyedState, write_rows
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.settings import CheckpointOptions, JobOptions
from dstl_dagster.state import StateSchema
from dstl_dagster.storage.base import ANY, ObjectStore

JOB = "orders"
OPERATOR = "totals"
SCHEMA = StateSchema.of(pa.schema({"key": pa.int64(), "total": pa.int64()}), ["key"], 8)
KEYS = 24

TASKS = ("one", "two", "fold", "three", "keep", "back", "other three", "clean")
"""What a life does, in order. A batch is named by its key; it makes a checkpoint, and publishes its file."""


def totals(batch: str) -> dict[int, int]:
    """Rows of a batch: each key that it touches, and the key's total from then on."""
    number = TASKS.index(batch)
    return {key: 100 * number + key for key in range(KEYS) if key % (number % 3 + 2) == 0}


def content(batch: str) -> list[bytes]:
    return [f"{batch} part {part}\n".encode() * 1000 for part in range(3)]


# "three" was abandoned: its rows and its file are gone.
APPLIED = ("one", "two", "other three")
STATE = {key: total for batch in APPLIED for key, total in totals(batch).items()}


def coordinator_of(store: ObjectStore, place: Place) -> CheckpointCoordinator:
    options = CheckpointOptions(num_retained=3, reader_grace=timedelta(0), commit_threads=2)
    return CheckpointCoordinator(JOB, store, JobOptions.of(options, place.options), owner="scheduler")


def live(place: Place, store: ObjectStore) -> None:
    """Run from the task that was running to the end of the plan."""
    coordinator = coordinator_of(store, place)
    kept = place.kept()
    for number, task in enumerate(TASKS):
        if number >= kept.get("next", 0):
            run(task, coordinator, place)
            place.keep(next=number + 1)


def run(task: str, coordinator: CheckpointCoordinator, place: Place) -> None:
    """Run one task, which may have been run before, wholly or partly."""
    match task:
        case "fold":
            latest = coordinator.latest()
            assert latest is not None
            if len(latest.manifest.operators[OPERATOR].runs) > 1:
                materialize(coordinator, force=True)
            coordinator.compose_commit()
        case "keep":
            coordinator.savepoint(2, "two", request_id=uuid.UUID(int=1))
        case "back":
            # Before the checkpoint with the batch that is done otherwise: two and its fold stay.
            fold = max(each.checkpoint_id for each in coordinator.list() if each.idempotency_key is None)
            coordinator.restore(fold, request_id=uuid.UUID(int=2))
        case "clean":
            coordinator.compose_commit()
            coordinator.release("two")
            coordinator.clean_up(num_retained=1)
        case batch:
            make(batch, coordinator, place)
            coordinator.compose_commit()
            coordinator.clean_up()


def make(batch: str, coordinator: CheckpointCoordinator, place: Place) -> None:
    """Steps 1 to 5."""
    try:
        attempt = coordinator.trigger(idempotency_key=batch)
    except ConflictError as error:
        if error.kind != "already_applied":
            raise
        return
    rows = totals(batch)
    table = pa.table({"key": list(rows), "total": list(rows.values())}, SCHEMA.columns)
    report = write_rows(table, attempt, coordinator.store, operator=OPERATOR, schema=SCHEMA, partitions=2)
    writer = GSRecoverableWriter(coordinator.store, place.options, attempt=attempt.attempt)
    stream = writer.open(coordinator.store.uri_of(f"out/{batch}"))
    for part in content(batch):
        stream.write(part)
        stream.sync()
    committer = stream.close_for_commit()
    file = FileReport(committer.recoverable, tuple(committer.components), format="text")
    coordinator.record(attempt, [report], [file], {"source": batch})
    coordinator.confirm(attempt)


def look(place: Place, objects: Objects) -> str | None:
    """Rows and files are those of the batches on the chain; there is nothing but what these need."""
    store = place.store()
    coordinator = coordinator_of(store, place)
    # A process that died while it deleted is finished by the next clean-up.
    coordinator.clean_up(num_retained=1)
    if place.url is None:
        store.put("next-write", b"", precondition=ANY)  # the store clears its own temporary files then
    latest = coordinator.latest()
    assert latest is not None
    state = KeyedState.of(store, latest.manifest, OPERATOR)
    rows = (
        {} if state is None else {row["key"]: row["total"] for t in state.tables() for row in t.to_pylist()}
    )
    if rows != STATE:
        return f"the state is {rows}, not {STATE}"
    if latest.positions != {"source": "other three"}:
        return f"the position is {latest.positions}"
    found = coordinator.verify()
    if not found.ok:
        return f"damaged: {found.problems}"
    return _files(objects) or _leftovers(objects)


def _files(objects: Objects) -> str | None:
    there = [name for name in objects.names() if name.startswith("out/")]
    wanted = sorted(f"out/{batch}" for batch in APPLIED)
    if there != wanted:
        return f"the files are {there}, not {wanted}"
    wrong = [batch for batch in APPLIED if objects.read(f"out/{batch}") != b"".join(content(batch))]
    return f"wrong bytes: {wrong}" if wrong else None


def _leftovers(objects: Objects) -> str | None:
    """Objects that no remaining manifest names, nor a list of runs that one names. Reads both as text."""
    names = objects.names()
    manifests = [name for name in names if "/manifests/" in name]
    said = "".join((objects.read(name) or b"").decode() for name in manifests)
    lists = {
        f"dstl/{JOB}/attempts/{attempt}/runs" for attempt in re.findall(r'"list": *\["([0-9a-f-]{36})', said)
    }
    said += "".join((objects.read(name) or b"").decode() for name in sorted(lists))
    known = ("out/", f"dstl/{JOB}/timeline/", f"dstl/{JOB}/archive/", f"dstl/{JOB}/manifests/", "next-write")
    known += (f"dstl/{JOB}/hint", f"dstl/{JOB}/server-clock", f"dstl/{JOB}/clean-up/")
    left = [
        name for name in names if not name.startswith(known) and name not in lists and _said(name) not in said
    ]
    left += objects.temporary_files()
    if len(manifests) > 2:  # the last checkpoint's, and that of the fold below it
        left += manifests
    return f"left behind: {left}" if left else None


def _said(name: str) -> str:
    """How a document has the name: of a changelog file its folder stands once, and apart."""
    return name.rpartition("/")[2] if "/changelog/" in name else json.dumps(name)[1:-1]


if __name__ == "__main__":
    deaths.main(sys.modules[__name__], __doc__)
