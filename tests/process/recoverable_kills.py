"""A writer of one 100-component file under kill -9 at every storage request, and gone on with elsewhere.

    python tests/process/recoverable_kills.py [--step N] [--kind KIND]

`gcs`: over HTTP on the strict server, killed before each request, with half of its body sent, and after its
effect. `moved`: the same with a temporary bucket, so that the commit ends with a copy. `folder`: on plain
files, killed before each operation on the file system, those of its own notes among them.

A process that does nothing but fork makes the writers, so that each costs milliseconds. Whoever goes on is
another process, and knows only the notes that the writer kept as a checkpoint would. Exit status 1: an object
was wrong, or something was left.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests.adapters
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from dstl_dagster.recoverable import GSRecoverableWriter, plan_sweep, sweep
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage.base import ANY, ObjectStore
from dstl_dagster.storage.gcs import GCSObjectStore
from dstl_dagster.storage.local import LocalObjectStore
from dstl_dagster.testing.gcs_server import GCSServer

COUNT = 100
PERSIST_EVERY = 10
CHUNK_BYTES = 256 * 1024
BUCKET, SCRATCH = "final", "scratch"
NAME = "out/part"
WAYS = {"gcs": ("before", "half", "after"), "moved": ("before", "half", "after"), "folder": ("before",)}
_OPERATIONS = {
    "open",
    "os.link",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.listdir",
    "fcntl.flock",
}


@dataclass(frozen=True)
class Place:
    """Where the file is written: `url` of a server, or `root` of plain files. Crosses processes as JSON."""

    kind: str
    url: str | None
    root: str

    @property
    def options(self) -> GSFileSystemOptions:
        bucket = SCRATCH if self.kind == "moved" else None
        return GSFileSystemOptions(writer_temporary_bucket_name=bucket, writer_chunk_size=CHUNK_BYTES)

    @property
    def notes(self) -> Path:
        return Path(self.root) / "notes.json"

    def store(self, adapter: requests.adapters.HTTPAdapter | None = None) -> ObjectStore:
        if self.url is None:
            # A kill loses nothing that was written, so fsync would only make the thousands of lives slow.
            return LocalObjectStore(Path(self.root) / "objects", durable=False)
        client = storage.Client(
            project="kills", credentials=AnonymousCredentials(), client_options={"api_endpoint": self.url}
        )
        client._http.mount("http://", adapter or requests.adapters.HTTPAdapter())
        return GCSObjectStore(client, BUCKET)


# -- the writer


def piece(number: int) -> bytes:
    """Most components go in one request; each tenth is longer than a chunk, and goes in a session."""
    return b"%05d;" % number * (50_000 if number % 10 == 5 else 3)


WHOLE = b"".join(piece(number) for number in range(COUNT))


def keep(notes: Path, **kept: str) -> None:
    """Durable and whole, as a checkpoint's record is."""
    beside = notes.with_suffix(".new")
    beside.write_text(json.dumps(kept))
    beside.replace(notes)


def write_and_commit(place: Place, store: ObjectStore) -> None:
    """From the notes, whatever they say, to the published object."""
    writer = GSRecoverableWriter(store, place.options)
    kept = json.loads(place.notes.read_text()) if place.notes.exists() else {}
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
                keep(place.notes, resume=state, next=str(number + 1))
        recoverable = stream.close_for_commit().recoverable
        kept["commit"] = writer.commit_recoverable_serializer.serialize(recoverable).hex()
        keep(place.notes, commit=kept["commit"])
    recoverable = writer.commit_recoverable_serializer.deserialize(0, bytes.fromhex(kept["commit"]))
    writer.recover_for_commit(recoverable).commit_after_recovery()


# -- its death


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DeadlyAdapter(requests.adapters.HTTPAdapter):
    """Kills its process at request `index`. Without an index it counts."""

    def __init__(self, index: int | None, moment: str) -> None:
        super().__init__()
        self.seen = 0
        self._index, self._moment = index, moment

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> requests.Response:
        if self.seen != self._index:
            self.seen += 1
            return super().send(request, *args, **options)
        if self._moment == "after":
            super().send(request, *args, **options)
        elif self._moment == "half":
            send_half(request)
        die()
        raise AssertionError("unreachable")


def send_half(request: requests.PreparedRequest) -> None:
    """The head and half of the body; of a request without a body, half of its first line."""
    split = urlsplit(str(request.url))
    body = request.body or b""
    octets = body.encode() if isinstance(body, str) else bytes(body)
    first = f"{request.method} {split.path}?{split.query} HTTP/1.1\r\n"
    head = first + "".join(f"{key}: {value}\r\n" for key, value in request.headers.items()) + "\r\n"
    sent = head.encode() + octets[: len(octets) // 2] if octets else first[: len(first) // 2].encode()
    with socket.create_connection((str(split.hostname), int(split.port or 80))) as connection:
        connection.sendall(sent)


def die_at_operation(index: int | None) -> Callable[[], int]:
    """Kill this process before its operation `index` on files. Gives how many there were so far."""
    seen = 0

    def watch(event: str, _: object) -> None:
        nonlocal seen
        if event in _OPERATIONS:
            if seen == index:
                die()
            seen += 1

    sys.addaudithook(watch)
    return lambda: seen


def live_and_die(place: Place, index: int | None, moment: str) -> int:
    """What a writer does in its process; how many points it passed, if it outlives them."""
    if place.url is None:
        store = place.store()
        seen = die_at_operation(index)
        write_and_commit(place, store)
        return seen()
    adapter = DeadlyAdapter(index, moment)
    write_and_commit(place, place.store(adapter))
    return adapter.seen


def fork_writers() -> None:
    """Reads `[place, index, moment]` lines, forks a writer for each, answers `[status, points]`."""
    for line in sys.stdin:
        fields, index, moment = json.loads(line)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.write(writing, str(live_and_die(Place(**fields), index, moment)).encode())
                status = 0
            finally:
                os._exit(status)
        os.close(writing)
        with os.fdopen(reading) as told:
            points = told.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps([status, int(points or 0)]), flush=True)


# -- killing, and going on


@dataclass(frozen=True)
class Result:
    """One life. Not `killed`: it had done all before the point came. Without a `fault` all is right."""

    index: int
    moment: str
    killed: bool
    fault: str | None


class Kills:
    """Writers of one kind, killed one after another. Made by `kills_of`."""

    def __init__(self, place: Place, server: GCSServer, forge: subprocess.Popen[str]) -> None:
        self._place, self._server, self._forge = place, server, forge

    def points(self) -> int:
        """How many points one undisturbed life has."""
        status, points = self._live(None, "before")
        if status != 0:
            raise RuntimeError(f"an undisturbed writer ended with status {status}")
        fault = self._look()
        if fault is not None:
            raise RuntimeError(f"an undisturbed writer: {fault}")
        return points

    def kill(self, index: int, moment: str) -> Result:
        """One life that ends at a point, what another process makes of it, and what is wrong then."""
        status, _ = self._live(index, moment)
        if status not in (0, -signal.SIGKILL):
            return Result(index, moment, False, f"the writer ended with status {status}")
        write_and_commit(self._place, self._place.store())
        return Result(index, moment, status != 0, self._look())

    def _live(self, index: int | None, moment: str) -> tuple[int, int]:
        assert self._forge.stdin is not None
        assert self._forge.stdout is not None
        fields = {"kind": self._place.kind, "url": self._place.url, "root": self._place.root}
        self._forge.stdin.write(json.dumps([fields, index, moment]) + "\n")
        self._forge.stdin.flush()
        status, points = json.loads(self._forge.stdout.readline())
        return int(status), int(points)

    def _look(self) -> str | None:
        """What is wrong after one sweep, seen without the store; then everything is removed."""
        store = self._place.store()
        sweep(store, plan_sweep(store, store.bucket_name, options=self._place.options))
        try:
            if self._place.url is not None:
                return self._look_at_server()
            store.put("next-write", b"", precondition=ANY)  # the store clears its own temporary files then
            return self._look_at_folder()
        finally:
            self._place.notes.unlink()
            self._remove(store)

    def _look_at_server(self) -> str | None:
        if self._server.raw_read(BUCKET, NAME) != WHOLE:
            return "the object is wrong"
        left = [name for bucket in (BUCKET, SCRATCH) for name in self._listed(bucket) if name != NAME]
        return f"left behind: {left}" if left else None

    def _look_at_folder(self) -> str | None:
        root = Path(self._place.root) / "objects"
        if (root / NAME).read_bytes() != WHOLE:
            return "the object is wrong"
        plain = [path for path in root.rglob("*") if path.is_file() and ".dstl-store" not in path.parts]
        left = [path for path in plain if path not in (root / NAME, root / "next-write")]
        left += (root / ".dstl-store" / "temporary").iterdir()
        return f"left behind: {left}" if left else None

    def _listed(self, bucket: str) -> list[str]:
        with urllib.request.urlopen(f"{self._place.url}/storage/v1/b/{bucket}/o", timeout=60) as answer:
            return [item["name"] for item in json.load(answer).get("items", [])]

    def _remove(self, store: ObjectStore) -> None:
        if self._place.url is None:
            shutil.rmtree(Path(self._place.root) / "objects")
        else:
            store.delete(NAME, precondition=ANY)


@contextmanager
def kills_of(kind: str, root: Path) -> Iterator[Kills]:
    """A server, and the process that forks writers."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    forge = subprocess.Popen(
        [sys.executable, __file__, "--fork-writers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with forge, GCSServer() as server:
        server.create_bucket(BUCKET)
        server.create_bucket(SCRATCH)
        try:
            yield Kills(Place(kind, None if kind == "folder" else server.url, str(root)), server, forge)
        finally:
            assert forge.stdin is not None
            forge.stdin.close()
            forge.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--step", type=int, default=1, help="only each N-th point")
    parser.add_argument("--kind", choices=sorted(WAYS), action="append", help="only this; may be repeated")
    parser.add_argument("--fork-writers", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fork_writers:
        fork_writers()
        return
    wrong = 0
    for kind in arguments.kind or WAYS:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as root, kills_of(kind, Path(root)) as kills:
            points = kills.points()
            results = [
                kills.kill(index, moment)
                for moment in WAYS[kind]
                for index in range(0, points, arguments.step)
            ]
        faults = [result for result in results if result.fault is not None]
        wrong += len(faults)
        killed = sum(result.killed for result in results)
        seconds = time.monotonic() - began
        print(f"{kind}: {points} points, {killed} kills, {len(faults)} wrong, {seconds:.0f} s", flush=True)
        for result in faults:
            print(f"  {result}", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
