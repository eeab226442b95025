"""A job on a real file system of 3 MiB that it fills, and that is then mounted read-only.

    unshare -rm python tests/process/small_disk.py FOLDER

Prints one JSON document: the error of each refusal, and what existed after it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from dstl_dagster.checkpoint import CheckpointCoordinator, FileReport
from dstl_dagster.errors import DstlError
from dstl_dagster.keyed import KeyedState, write_rows
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import LocalObjectStore

SCHEMA = StateSchema.of(pa.schema({"key": pa.int64(), "total": pa.int64()}), ["key"], 8)
SMALL, LARGE = 1000, 4 << 20


def checkpoint(coordinator: CheckpointCoordinator, number: int, file_bytes: int) -> None:
    attempt = coordinator.trigger(idempotency_key=f"batch {number}")
    rows = pa.table({"key": [number, 0], "total": [number, number]}, SCHEMA.columns)
    report = write_rows(rows, attempt, coordinator.store, operator="totals", schema=SCHEMA, partitions=1)
    stream = GSRecoverableWriter(coordinator.store, attempt=attempt.attempt).open(
        coordinator.store.uri_of(f"out/{number}")
    )
    stream.write(b"x" * file_bytes)
    committer = stream.close_for_commit()
    file = FileReport(committer.recoverable, tuple(committer.components), format="text")
    coordinator.record(attempt, [report], [file], {"source": number})
    coordinator.confirm(attempt)
    coordinator.compose_commit()
    coordinator.clean_up()


def refused(act: Callable[[], object]) -> str:
    try:
        act()
    except DstlError as error:
        return f"{type(error).__name__}: {error}"
    return "it was not refused"


def standing(folder: Path) -> dict[str, Any]:
    """What a new process finds."""
    store = LocalObjectStore(folder)
    coordinator = CheckpointCoordinator("job", store, owner="job")
    latest = coordinator.latest()
    assert latest is not None
    state = KeyedState.of(store, latest.manifest, "totals")
    assert state is not None
    rows = {row["key"]: row["total"] for table in state.tables() for row in table.to_pylist()}
    return {
        "latest": latest.checkpoint_id,
        "rows": {str(key): rows[key] for key in sorted(rows)},
        "whole": coordinator.verify().ok,
        "files": sorted(path.name for path in (folder / "out").iterdir()),
        "listed": [each.checkpoint_id for each in coordinator.list()],
    }


def main(folder: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    coordinator = CheckpointCoordinator("job", LocalObjectStore(folder), owner="job")
    got: dict[str, Any] = {}
    checkpoint(coordinator, 1, SMALL)
    # A file too large for the space left: the batch fails, and the completed one stays valid.
    got["too large"] = refused(lambda: checkpoint(coordinator, 2, LARGE))
    got["after it"] = standing(folder)
    # Not one byte left: not even a decision can be written, but reading still works.
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 512):
                pass
        except OSError:
            pass
    got["full"] = refused(lambda: checkpoint(coordinator, 2, SMALL))
    got["while full"] = standing(folder)
    ballast.unlink()
    checkpoint(coordinator, 2, SMALL)
    got["with room"] = standing(folder)
    got["garbage"] = coordinator.audit().garbage.objects  # type: ignore[union-attr]
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    got["read-only"] = refused(lambda: checkpoint(coordinator, 3, SMALL))
    got["while read-only"] = standing(folder)
    print(json.dumps(got))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
