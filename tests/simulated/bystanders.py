"""The other actors: readers, consumers, owners of foreign objects, and time.

Owns what they do and what they may observe. Does not own the steps of the job (`actions`).
"""

from __future__ import annotations

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator
from dstl_dagster.errors import ConflictError, ErrorKind, NotFoundError
from dstl_dagster.storage import ABSENT, ANY, Generation
from dstl_dagster.timeline import Committed, Completed
from tests.simulated import batches
from tests.simulated.actions import rows_of
from tests.simulated.ledger import document
from tests.simulated.oracle import FOREIGN, JOB, read_ledger
from tests.simulated.process import Action, Notes, Process
from tests.simulated.world import BrokenPromiseError


def put_foreign(batch: int, file: str) -> Action:
    """A foreign object is put at a file's final name."""

    def act(process: Process, notes: Notes) -> Notes:
        name = batches.file_name(batch, file)
        if process.world.payload(name) is None:
            process.world.store.put(
                name, FOREIGN + name.encode(), precondition=ABSENT, metadata={"whose": FOREIGN.decode()}
            )
        return notes

    return act


def remove_foreign(batch: int, file: str) -> Action:
    """The owner of a foreign object removes it again."""

    def act(process: Process, notes: Notes) -> Notes:
        name = batches.file_name(batch, file)
        if (process.world.payload(name) or b"").startswith(FOREIGN):
            with process.world.unwatched():
                process.world.store.delete(name, precondition=ANY)
        return notes

    return act


def twins_of_components(batch: int) -> Action:
    """Component uploads that were sent twice arrive a second time, after the components were composed."""

    def act(process: Process, notes: Notes) -> Notes:
        ledger = read_ledger(process.world, process.setting.num_retained)
        held = [
            each for each in ledger.chain if ledger.completed[each]["batch"]["key"] == batches.key_of(batch)
        ]
        for each in held:
            manifest = process.world.payload(ledger.completed[each]["manifest"])
            for file in [] if manifest is None else document(manifest)["files"]:
                name = file["recoverable"]["final_blob_identifier"]["object_name"].rpartition("/")[2]
                parts = batches.file_parts(ledger.completed[each]["attempt"], batch, name)
                for component, part in zip(file["components"], parts, strict=True):
                    if process.world.payload(component["object_name"], component["bucket_name"]) is None:
                        bucket = process.world.store.in_bucket(component["bucket_name"])
                        bucket.put(component["object_name"], part, precondition=ABSENT)
        return notes

    return act


def take_files(batch: int) -> Action:
    """A consumer moves the files of a batch that a `committed` record lists as published."""

    def act(process: Process, notes: Notes) -> Notes:
        coordinator = process.coordinator()
        held = coordinator.applied(batches.key_of(batch))
        if held is None:
            return notes
        attempt, published = _published(coordinator, held)
        for name in published:
            found = process.store.stat(name)
            if found is None:
                continue
            try:
                body = process.store.get(name, generation=found.generation)
                if not body.startswith(attempt):
                    continue
                copy = f"taken/{held}/{name.rpartition('/')[2]}"
                process.store.put(copy, body, precondition=ANY)
                process.store.delete(name, precondition=Generation(found.generation))
            except (NotFoundError, ConflictError):
                continue  # another consumer, or a restore, was faster
        return notes

    return act


def _published(coordinator: CheckpointCoordinator, checkpoint_id: int) -> tuple[bytes, tuple[str, ...]]:
    """The attempt of a checkpoint, and the published files by its newest `committed` record."""
    attempt = b""
    published: tuple[str, ...] = ()
    for record in coordinator.timeline.records():
        if isinstance(record, Completed) and record.checkpoint_id == checkpoint_id:
            attempt = str(record.attempt).encode()
        if isinstance(record, Committed) and record.checkpoint_id == checkpoint_id:
            published = record.published
    return attempt, published


def read(process: Process, notes: Notes) -> Notes:
    """A reader of every checkpoint, and of all its state."""
    coordinator = process.coordinator()
    before = read_ledger(process.world, process.setting.num_retained)
    latest = coordinator.latest()
    after = read_ledger(process.world, process.setting.num_retained)
    found = None if latest is None else latest.checkpoint_id
    if before.slot == after.slot and found != after.last:
        raise BrokenPromiseError(f"the latest checkpoint is {after.last}, and a reader gets {found}")
    for checkpoint in [*([] if latest is None else [latest]), *coordinator.list()]:
        for operator in batches.OPERATORS:
            _read_one(process, checkpoint, operator)
    return notes


def wait_out_grace(process: Process, notes: Notes) -> Notes:
    """Let time pass until no reader has grace left."""
    process.world.clock.advance(2 * process.setting.reader_grace.total_seconds() + 1)
    return notes


def _read_one(process: Process, checkpoint: Checkpoint, operator: str) -> None:
    each = checkpoint.checkpoint_id
    found: dict[str, int] = {}
    try:
        state = checkpoint.manifest.operators.get(operator)
        for handle in () if state is None else state.handles:
            found.update(rows_of(process.store, handle))
    except NotFoundError as error:
        _expect_gone(process, each, error)
        return
    ledger = read_ledger(process.world, process.setting.num_retained)
    keys = [ledger.completed[one]["batch"]["key"] for one in ledger.chain_to(each)]
    wanted = batches.state_of(map(batches.number_of, keys), operator)
    if found != wanted:
        raise BrokenPromiseError(f"read {found} of {operator} at checkpoint {each}, not {wanted}")


def _expect_gone(process: Process, checkpoint_id: int, error: NotFoundError) -> None:
    """A reader may only miss objects of a checkpoint that was subsumed longer ago than the grace time."""
    ledger = read_ledger(process.world, process.setting.num_retained)
    subsumed = ledger.subsumed.get(checkpoint_id)
    if subsumed is None:
        raise BrokenPromiseError(f"checkpoint {checkpoint_id} is kept, and a reader found: {error}")
    (name,) = process.world.names(f"dstl/{JOB}/timeline/{subsumed['slot']:020d}")
    recorded = process.world.store.stat(name)
    assert recorded is not None
    if process.world.clock.now() - recorded.updated < process.setting.reader_grace:
        raise BrokenPromiseError(f"checkpoint {checkpoint_id} has grace left, and a reader found: {error}")
    if error.kind not in (ErrorKind.CHECKPOINT_GONE, ErrorKind.STATE_MISSING, ErrorKind.NOT_FOUND):
        raise BrokenPromiseError(f"a reader of a subsumed checkpoint got {error.kind!r}: {error}")
