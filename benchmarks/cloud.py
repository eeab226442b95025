"""What operations cost on a bucket that is 0 to 100 ms away, against what they would have to cost at least.

    python benchmarks/cloud.py [--quick] [--json FILE] [--only OPERATION] [--latency MS] [--repetitions N]

On the strict server, which runs in this process and answers each request so much later. For every operation:
requests (exact), bytes of bodies up and down, seconds (median of the repetitions), and the computed ideal:
the requests that it cannot do without, and as seconds the round trips that must follow one another, with
eight requests at once. The ideal has no time for this machine's own work, so at 0 ms it is nothing.

Exit status 1 if the requests of an operation differ between repetitions.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import requests.adapters
from cloud_jobs import BUCKET, Jobs
from cloud_operations import QUICK, Act, Operation, Sizes, operations, operations_under_the_limit
from conditions import conditions
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from dstl_dagster.storage import GCSObjectStore
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault


@contextmanager
def jobs_on(server: GCSServer) -> Iterator[Jobs]:
    server.create_bucket(BUCKET)
    client = storage.Client(
        project="bench", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.url}
    )
    client._http.mount("http://", requests.adapters.HTTPAdapter(pool_connections=64, pool_maxsize=64))
    yield Jobs(server, lambda prefix: GCSObjectStore(client, BUCKET, prefix))
    client.close()


def measured(server: GCSServer, act: Act, latency_seconds: float) -> dict[str, Any]:
    """One repetition."""
    if latency_seconds:
        server.faults.add(ServerFault(FaultKind.LATENCY, seconds=latency_seconds, times=None))
    server.reset_counts()
    began = time.perf_counter()
    act()
    seconds = time.perf_counter() - began
    server.faults.clear()
    up, down = server.body_bytes
    counts = dict(sorted(server.counts.items()))
    return {
        "requests": sum(counts.values()),
        "methods": counts,
        "bytes_up": up,
        "bytes_down": down,
        "seconds": seconds,
        "refused": server.statuses.get(429, 0),
    }


def row_of(
    server: GCSServer, operation: Operation, latencies_ms: list[int], repetitions: int
) -> list[dict[str, Any]]:
    """The operation at each latency."""
    act = operation.prepare() if operation.again else None
    rows = []
    for latency_ms in latencies_ms:
        taken = [measured(server, act or operation.prepare(), latency_ms / 1000) for _ in range(repetitions)]
        rows.append(
            {
                "operation": operation.name,
                "latency_ms": latency_ms,
                **taken[0],
                "exact": operation.exact,
                "requests_of_all": [each["requests"] for each in taken],
                "seconds": round(median(each["seconds"] for each in taken), 3),
                "ideal_requests": operation.ideal.requests,
                "ideal_seconds": round(operation.ideal.trips * latency_ms / 1000, 3),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, 0 and 10 ms, one repetition")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--only", action="append", default=[], help="operations whose names contain this")
    parser.add_argument("--latency", action="append", type=int, help="milliseconds")
    parser.add_argument("--repetitions", type=int)
    arguments = parser.parse_args()
    sizes = QUICK if arguments.quick else Sizes()
    latencies = arguments.latency or ([0, 10] if arguments.quick else [0, 10, 50, 100])
    repetitions = arguments.repetitions or (1 if arguments.quick else 3)
    print(conditions("google-cloud-storage", "pyarrow", "requests"))
    print(f"{sizes}; {repetitions} repetitions, latencies {latencies} ms", flush=True)
    print(f"{'operation':52} {'ms':>4} {'requests':>9} {'ideal':>6} {'KB up':>8} {'KB down':>9}", end="")
    print(f" {'seconds':>8} {'ideal':>7} {'429':>4}", flush=True)
    found: list[dict[str, Any]] = []
    for limited, wanted in ((False, operations), (True, operations_under_the_limit)):
        with GCSServer(one_update_a_second=limited) as server, jobs_on(server) as jobs:
            for operation in wanted(jobs, sizes):
                if arguments.only and not any(part in operation.name for part in arguments.only):
                    continue
                for row in row_of(server, operation, latencies, repetitions):
                    found.append(row)
                    print(
                        f"{row['operation']:52} {row['latency_ms']:4} {row['requests']:9,} "
                        f"{row['ideal_requests']:6,} {row['bytes_up'] / 1000:8,.0f} "
                        f"{row['bytes_down'] / 1000:9,.0f} {row['seconds']:8.2f} {row['ideal_seconds']:7.2f} "
                        f"{row['refused']:4}",
                        flush=True,
                    )
    varying = sorted(
        {row["operation"] for row in found if row["exact"] and len(set(row["requests_of_all"])) > 1}
    )
    print(json.dumps({"requests_vary": varying}))
    if arguments.json:
        arguments.json.write_text(json.dumps({"conditions": conditions(), "rows": found}, indent=1))
    sys.exit(1 if varying else 0)


if __name__ == "__main__":
    main()
