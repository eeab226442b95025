"""Lives that end by kill -9 at a chosen storage request, and how another process resumes from what they left.

Owns dying (before a request, with half of its body sent, after its effect; on plain files before a file
system operation), and the process that only forks, so that a life costs milliseconds. Does not own what a
life does or what must exist afterwards (`Scenario`).
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
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import requests.adapters
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import GCSObjectStore, LocalObjectStore
from dstl_dagster.storage.base import ANY, ObjectStore
from dstl_dagster.testing.gcs_server import GCSServer

CHUNK_BYTES = 256 * 1024
BUCKET, SCRATCH = "final", "scratch"
WAYS = {"gcs": ("before", "half", "after"), "moved": ("before", "half", "after"), "folder": ("before",)}
FORK = "--fork-lives"
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
    """Where a life works: `url` of a server, or `root` of plain files. Crosses processes as JSON."""

    kind: str
    url: str | None
    root: str

    @property
    def options(self) -> GSFileSystemOptions:
        bucket = SCRATCH if self.kind == "moved" else None
        return GSFileSystemOptions(writer_temporary_bucket_name=bucket, writer_chunk_size=CHUNK_BYTES)

    @property
    def notes(self) -> Path:
        """What a life knows of the lives before it, beside the store."""
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

    def kept(self) -> dict[str, Any]:
        return json.loads(self.notes.read_text()) if self.notes.exists() else {}

    def keep(self, **kept: Any) -> None:
        """Durable and whole, as a checkpoint's record is."""
        beside = self.notes.with_suffix(".new")
        beside.write_text(json.dumps(kept))
        beside.replace(self.notes)


class Objects:
    """The objects at a place, read around the stores under test."""

    def __init__(self, place: Place, server: GCSServer) -> None:
        self._place, self._server = place, server

    def names(self) -> list[str]:
        """Names of all objects, including the scratch bucket's, without the local store's hidden files."""
        if self._place.url is None:
            root = Path(self._place.root) / "objects"
            plain = (path for path in root.rglob("*") if path.is_file())
            relative = (path.relative_to(root) for path in plain)
            return sorted(str(path) for path in relative if ".dstl-store" not in path.parts)
        return sorted(name for bucket in (BUCKET, SCRATCH) for name in self._listed(bucket))

    def temporary_files(self) -> list[str]:
        """Files on which a dead process of a local store worked."""
        folder = Path(self._place.root) / "objects" / ".dstl-store" / "temporary"
        return [path.name for path in folder.iterdir()] if folder.is_dir() else []

    def read(self, name: str) -> bytes | None:
        if self._place.url is not None:
            return self._server.raw_read(BUCKET, name)
        path = Path(self._place.root) / "objects" / name
        return path.read_bytes() if path.is_file() else None

    def _listed(self, bucket: str) -> Iterator[str]:
        page = ""
        while True:
            url = f"{self._place.url}/storage/v1/b/{bucket}/o?pageToken={quote(page)}"
            with urllib.request.urlopen(url, timeout=60) as answer:
                listed = json.load(answer)
            yield from (item["name"] for item in listed.get("items", []))
            page = listed.get("nextPageToken", "")
            if not page:
                return


class Scenario(Protocol):
    """What lives do, and what must be true when one of them has completed."""

    __file__: str

    def live(self, place: Place, store: ObjectStore) -> None:
        """One life, from whatever earlier ones left, until everything is done."""

    def look(self, place: Place, objects: Objects) -> str | None:
        """What is wrong after a life that has completed."""


# -- dying


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
    """Kill this process before its file operation `index`. Returns how many there were so far."""
    seen = 0

    def watch(event: str, _: object) -> None:
        nonlocal seen
        if event in _OPERATIONS:
            if seen == index:
                die()
            seen += 1

    sys.addaudithook(watch)
    return lambda: seen


def live_and_die(scenario: Scenario, place: Place, index: int | None, moment: str) -> int:
    """What a life does in its process; how many points it passed, if it outlives them."""
    if place.url is None:
        store = place.store()
        seen = die_at_operation(index)
        scenario.live(place, store)
        return seen()
    adapter = DeadlyAdapter(index, moment)
    scenario.live(place, place.store(adapter))
    return adapter.seen


def fork_lives(scenario: Scenario) -> None:
    """Reads `[place, index, moment]` lines, forks a life for each, answers `[status, points]`."""
    for line in sys.stdin:
        fields, index, moment = json.loads(line)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.write(writing, str(live_and_die(scenario, Place(**fields), index, moment)).encode())
                status = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(writing)
        with os.fdopen(reading) as answers:
            points = answers.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps([status, int(points or 0)]), flush=True)


# -- killing and resuming


@dataclass(frozen=True)
class Result:
    """One life. Not `killed`: it completed before the point. Without a `fault` everything is right."""

    index: int
    moment: str
    killed: bool
    fault: str | None


class Kills:
    """Lives of one kind, killed one after another. Made by `kills_of`."""

    def __init__(
        self, scenario: Scenario, place: Place, server: GCSServer, forge: subprocess.Popen[str]
    ) -> None:
        self._scenario, self._place, self._forge = scenario, place, forge
        self._objects = Objects(place, server)

    def points(self) -> int:
        """How many points one undisturbed life has."""
        status, points = self._live(None, "before")
        if status != 0:
            raise RuntimeError(f"an undisturbed life ended with status {status}")
        fault = self._look()
        if fault is not None:
            raise RuntimeError(f"an undisturbed life: {fault}")
        return points

    def kill(self, index: int, moment: str) -> Result:
        """Kill one life at a point, let another process resume; returns what is wrong then."""
        status, _ = self._live(index, moment)
        if status not in (0, -signal.SIGKILL):
            return Result(index, moment, False, f"the life ended with status {status}")
        self._scenario.live(self._place, self._place.store())
        return Result(index, moment, status != 0, self._look())

    def spread(self, step: int) -> list[Result]:
        """Kills from the end of a life, where it commits, each `step` points; each way of dying elsewhere."""
        ways, last = WAYS[self._place.kind], self.points() - 1
        return [
            self._kill_near(index, moment)
            for offset, moment in enumerate(ways)
            for index in range(last - offset * step // len(ways), -1, -step)
        ]

    def _kill_near(self, index: int, moment: str) -> Result:
        """At a point, or a few before it: threads make some more or fewer from life to life. A life that
        came to its end first is looked at too.
        """
        result = self.kill(index, moment)
        for earlier in range(index - 1, max(index - 30, -1), -1):
            if result.killed or result.fault is not None:
                break
            result = self.kill(earlier, moment)
        return result

    def _live(self, index: int | None, moment: str) -> tuple[int, int]:
        assert self._forge.stdin is not None
        assert self._forge.stdout is not None
        fields = {"kind": self._place.kind, "url": self._place.url, "root": self._place.root}
        self._forge.stdin.write(json.dumps([fields, index, moment]) + "\n")
        self._forge.stdin.flush()
        status, points = json.loads(self._forge.stdout.readline())
        return int(status), int(points)

    def _look(self) -> str | None:
        """Returns what is wrong, and removes everything."""
        try:
            return self._scenario.look(self._place, self._objects)
        finally:
            self._place.notes.unlink(missing_ok=True)
            if self._place.url is None:
                shutil.rmtree(Path(self._place.root) / "objects")
            else:
                store = self._place.store()
                for bucket in (BUCKET, SCRATCH):
                    home = store.in_bucket(bucket)
                    for stat in list(home.list("")):
                        home.delete(stat.name, precondition=ANY)


@contextmanager
def kills_of(scenario: Scenario, kind: str, root: Path) -> Iterator[Kills]:
    """A server, and the process that forks lives."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    forge = subprocess.Popen(
        [sys.executable, scenario.__file__, FORK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with forge, GCSServer() as server:
        server.create_bucket(BUCKET)
        server.create_bucket(SCRATCH)
        try:
            place = Place(kind, None if kind == "folder" else server.url, str(root))
            yield Kills(scenario, place, server, forge)
        finally:
            assert forge.stdin is not None
            forge.stdin.close()
            forge.wait(60)


def main(scenario: Scenario, description: str | None) -> None:
    """The command of a scenario: every point, or each N-th. Exit status 1: something was wrong."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--step", type=int, default=1, help="only each N-th point")
    parser.add_argument("--first", type=int, default=0, help="begin at this point")
    parser.add_argument("--kind", choices=sorted(WAYS), action="append", help="only this; may be repeated")
    parser.add_argument(FORK, dest="fork", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fork:
        fork_lives(scenario)
        return
    wrong = 0
    for kind in arguments.kind or WAYS:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as root, kills_of(scenario, kind, Path(root)) as kills:
            points = kills.points()
            results = [
                kills.kill(index, moment)
                for moment in WAYS[kind]
                for index in range(arguments.first, points, arguments.step)
            ]
        faults = [result for result in results if result.fault is not None]
        wrong += len(faults)
        killed = sum(result.killed for result in results)
        seconds = time.monotonic() - began
        print(f"{kind}: {points} points, {killed} kills, {len(faults)} wrong, {seconds:.0f} s", flush=True)
        for result in faults:
            print(f"  {result}", flush=True)
    sys.exit(1 if wrong else 0)
