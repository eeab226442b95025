"""What a commit and a stream cost, against upstream's algorithm and Google's own client in the same run.

    python benchmarks/recoverable.py [--quick] [--json FILE]

Commit: requests, waves and seconds for n components on the strict server, each response 50 ms late.
Stream: throughput, CPU time of the process and peak memory of one large object through the recoverable
writer, through google-cloud-storage's own upload of the same bytes, and through gcsfs if it is installed. The
server runs in a separate process. Each round measures every way once, in alternating order, and ratios are
taken within a round, so that other work on the machine slows all of them; the median round is reported. A
missed target is printed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from dstl_dagster.recoverable import GSCommitRecoverable, GSRecoverableWriter
from dstl_dagster.recoverable.compose_plan import plan_compose, waves
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import GCSObjectStore
from dstl_dagster.storage.base import ObjectStore
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault
from dstl_dagster.testing.upstream_commit import UpstreamCommitter

BUCKET = "bench"
ANSWER_SECONDS = 0.05
CHUNK_BYTES = 8 << 20


def client_of(url: str) -> storage.Client:
    client = storage.Client(
        project="bench", credentials=AnonymousCredentials(), client_options={"api_endpoint": url}
    )
    from requests.adapters import HTTPAdapter

    client._http.mount("http://", HTTPAdapter(pool_connections=64, pool_maxsize=64))
    return client


# -- commits


def components(store: ObjectStore, name: str, count: int) -> GSCommitRecoverable:
    stream = GSRecoverableWriter(store).open(f"gs://{BUCKET}/{name}")
    for number in range(count):
        stream.write(b"%d;" % number)
        stream.sync()
    return stream.close_for_commit().recoverable


def timed_commit(server: GCSServer, act: Callable[[], object]) -> dict[str, Any]:
    server.reset_counts()
    server.faults.add(ServerFault(FaultKind.LATENCY, seconds=ANSWER_SECONDS, times=None))
    began = time.perf_counter()
    act()
    seconds = time.perf_counter() - began
    server.faults.clear()
    requests = {method: count for method, count in server.counts.items() if method != "buckets.get"}
    return {"seconds": round(seconds, 3), "requests": requests}


def measure_commits(counts: list[int]) -> list[dict[str, Any]]:
    rows = []
    with GCSServer() as server:
        server.create_bucket(BUCKET)
        store = GCSObjectStore(client_of(server.url), BUCKET)
        for count in counts:
            name = f"out-{uuid.uuid4()}"
            stream = GSRecoverableWriter(store).open(f"gs://{BUCKET}/{name}")
            for number in range(count):
                stream.write(b"%d;" % number)
                stream.sync()
            committer = stream.close_for_commit()
            ours = timed_commit(server, committer.commit_after_recovery)
            recoverable = components(store, f"{name}-upstream", count)
            upstream = UpstreamCommitter(store, GSFileSystemOptions(), recoverable)
            theirs = timed_commit(server, upstream.commit)
            root = plan_compose(recoverable)
            rows.append(
                {
                    "components": count,
                    "waves": 1 + len(waves(root)) if root else 0,
                    "ours": ours,
                    "upstream": theirs,
                    "times_faster": round(theirs["seconds"] / ours["seconds"], 1),
                }
            )
    return rows


# -- streams


@contextmanager
def server_process() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, BUCKET],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip().partition("=")[2]
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


_SERVE = """
import sys
from dstl_dagster.cli.gcs_server import gcs_server_command
gcs_server_command(["--port", "0", "--bucket", sys.argv[1]])
"""


class PeakMemory:
    """The highest resident size in bytes above that at the start, sampled each millisecond."""

    def __enter__(self) -> PeakMemory:
        self._start = self._resident()
        self.peak_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(0.001):
            self.peak_bytes = max(self.peak_bytes, self._resident() - self._start)

    @staticmethod
    def _resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def stream_ours(store: ObjectStore, piece: bytes, pieces: int) -> None:
    options = GSFileSystemOptions(writer_chunk_size=CHUNK_BYTES)
    with GSRecoverableWriter(store, options).open(f"gs://{BUCKET}/{uuid.uuid4()}") as stream:
        for _ in range(pieces):
            stream.write(piece)


def stream_client(client: storage.Client, piece: bytes, pieces: int) -> None:
    blob = client.bucket(BUCKET).blob(str(uuid.uuid4()))
    with blob.open("wb", chunk_size=CHUNK_BYTES, if_generation_match=0, ignore_flush=True) as stream:
        for _ in range(pieces):
            stream.write(piece)


def stream_gcsfs(url: str, piece: bytes, pieces: int) -> None:
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    import gcsfs

    files = gcsfs.GCSFileSystem(token="anon", endpoint_url=url, project="bench")
    with files.open(f"{BUCKET}/{uuid.uuid4()}", "wb", block_size=CHUNK_BYTES) as stream:
        for _ in range(pieces):
            stream.write(piece)


@dataclass(frozen=True)
class Round:
    """One object written one way."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def stream_once(act: Callable[[], None]) -> Round:
    with PeakMemory() as memory:
        cpu_began, began = time.process_time(), time.perf_counter()
        act()
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    return Round(seconds, cpu_seconds, memory.peak_bytes)


def measure_streams(total_bytes: int, rounds: int) -> dict[str, Any]:
    piece = os.urandom(1 << 20)
    pieces = total_bytes // len(piece)
    with server_process() as url:
        client = client_of(url)
        store = GCSObjectStore(client, BUCKET)
        ways: dict[str, Callable[[int], None]] = {
            "ours": lambda count: stream_ours(store, piece, count),
            "client": lambda count: stream_client(client, piece, count),
        }
        if importlib.util.find_spec("gcsfs") is not None:
            ways["gcsfs"] = lambda count: stream_gcsfs(url, piece, count)
        for act in ways.values():
            act(16)  # connections and imports are not part of a stream
        taken: dict[str, list[Round]] = {way: [] for way in ways}
        for number in range(rounds):
            order = list(ways) if number % 2 == 0 else list(reversed(ways))
            for way in order:
                taken[way].append(stream_once(partial(ways[way], pieces)))
                for blob in client.list_blobs(BUCKET):
                    blob.delete()  # the server keeps objects in memory
    return summed_up(taken, total_bytes)


def summed_up(taken: dict[str, list[Round]], total_bytes: int) -> dict[str, Any]:
    ours = taken["ours"]
    ratios = {
        way: [theirs.seconds / own.seconds for own, theirs in zip(ours, others, strict=True)]
        for way, others in taken.items()
        if way != "ours"
    }
    return {
        "total_bytes": total_bytes,
        "chunk_bytes": CHUNK_BYTES,
        "rounds": len(ours),
        "megabytes_per_second": {
            way: round(total_bytes / median(each.seconds for each in found) / 1e6, 1)
            for way, found in taken.items()
        },
        "cpu_seconds": {
            way: round(median(each.cpu_seconds for each in found), 2) for way, found in taken.items()
        },
        "ours_to": {way: round(median(found), 2) for way, found in ratios.items()},
        "ours_to_by_round": {way: [round(ratio, 2) for ratio in found] for way, found in ratios.items()},
        "peak_chunks": {
            way: round(max(each.peak_bytes for each in found) / CHUNK_BYTES, 2)
            for way, found in taken.items()
        },
    }


def missed_targets(commits: list[dict[str, Any]], stream: dict[str, Any]) -> Iterator[str]:
    for row in commits:
        count = row["components"]
        wanted = {"objects.get": 1, "objects.compose": max(1, -(-(count - 1) // 31))}
        if row["ours"]["requests"] != wanted:
            yield f"{count} components: {row['ours']['requests']} where {wanted} was the target"
        if count >= 1000 and row["times_faster"] < 10:
            yield f"{count} components: {row['times_faster']} times faster; the target is 10"
    if stream["peak_chunks"]["ours"] >= 3:
        yield f"peak memory {stream['peak_chunks']['ours']} chunks; the target is below 3"
    for way, ratio in stream["ours_to"].items():
        if ratio < 0.9:
            yield f"{ratio} of the throughput of {way}; the target is 0.9"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer components and fewer bytes")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    arguments = parser.parse_args()
    commits = measure_commits([1, 32, 100] if arguments.quick else [1, 32, 33, 100, 1000])
    stream = measure_streams((64 << 20) if arguments.quick else (1 << 30), 5)
    missed = list(missed_targets(commits, stream))
    document = json.dumps({"commits": commits, "stream": stream, "missed": missed}, indent=2)
    print(document)
    if arguments.json:
        arguments.json.write_text(document)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
