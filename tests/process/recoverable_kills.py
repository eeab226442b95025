"""A writer of one 100-component file under kill -9 at every storage request, resumed by another process.

    python tests/process/recoverable_kills.py [--step N] [--kind KIND]

`gcs`: over HTTP on the strict server, killed before each request, with half of its body sent, and after its
effect. `moved`: the same with a temporary bucket, so that the commit ends with a copy. `folder`: on plain
files, killed before each operation on the file system, those of its own notes among them.

The process that resumes knows only the notes that the writer kept, as a checkpoint would. Exit
status 1: an object was wrong, or something was left.
"""

from __future__ import annotations

import sys

import deaths
from deaths import Objects, Place

from dstl_dagster.recoverable import GSRecoverableWriter, plan_sweep, sweep
from dstl_dagster.storage.base import ANY, ObjectStore

COUNT = 100
PERSIST_EVERY = 10
NAME = "out/part"


def piece(number: int) -> bytes:
    """Most components go in one request; each tenth is longer than a chunk, and goes in a session."""
    return b"%05d;" % number * (50_000 if number % 10 == 5 else 3)


WHOLE = b"".join(piece(number) for number in range(COUNT))


def live(place: Place, store: ObjectStore) -> None:
    """Run from the notes, whatever state they hold, to the published object."""
    writer = GSRecoverableWriter(store, place.options)
    kept = place.kept()
    if "commit" not in kept:
        serializer = writer.resume_recoverable_serializer
        if "resume" in kept:
            stream = writer.recover(serializer.deserialize(0, bytes.fromhex(kept["resume"])))
        else:
            stream = writer.open(store.uri_of(NAME))
        for number in range(int(kept.get("next", 0)), COUNT):
            stream.write(piece(number))
            stream.sync()
            if number % PERSIST_EVERY == 0:
                state = serializer.serialize(stream.persist()).hex()
                place.keep(resume=state, next=number + 1)
        recoverable = stream.close_for_commit().recoverable
        kept["commit"] = writer.commit_recoverable_serializer.serialize(recoverable).hex()
        place.keep(commit=kept["commit"])
    recoverable = writer.commit_recoverable_serializer.deserialize(0, bytes.fromhex(kept["commit"]))
    writer.recover_for_commit(recoverable).commit_after_recovery()


def look(place: Place, objects: Objects) -> str | None:
    """What is wrong after one sweep."""
    store = place.store()
    sweep(store, plan_sweep(store, store.bucket_name, options=place.options))
    if place.url is None:
        store.put("next-write", b"", precondition=ANY)  # the store clears its own temporary files then
    if objects.read(NAME) != WHOLE:
        return "the object is wrong"
    left = [name for name in objects.names() if name not in (NAME, "next-write")]
    left += objects.temporary_files()
    return f"left behind: {left}" if left else None


if __name__ == "__main__":
    deaths.main(sys.modules[__name__], __doc__)
