"""A job that follows another one, under kill -9 of its driver and JVM, while the first one is restored.

The short form, in one session and without a kill, is `tests/spark/test_following.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from dstl_dagster.checkpoint import Batch, CheckpointCoordinator
from dstl_dagster.keyed import write_rows
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import open_store

WORKER = Path(__file__).with_name("following_worker.py")
ROOT = Path(__file__).parents[2]
SCHEMA = StateSchema.of(pa.schema({"name": pa.string(), "value": pa.int32()}), ["name"])
PATIENCE_SECONDS = 280.0


@pytest.mark.timeout(900)  # each of three lives is a start of Spark, and on a busy machine
@pytest.mark.kill
@pytest.mark.spark
@pytest.mark.soak
def test_a_killed_follower_tells_each_change_once(tmp_path: Path) -> None:
    """Dead with its first micro-batch complete, which Spark repeats; dead with its second one written, and
    while it is dead the first job is restored behind that. The copy and the files are as if it had lived.
    """
    first = CheckpointCoordinator("first", open_store(tmp_path.as_uri()), owner="test")
    for rows in ({"a": 1}, {"a": 2, "b": 2}, {"b": None, "c": 3}, {"a": 4}):
        write(first, rows)
    live(tmp_path, until="1 complete")
    live(tmp_path, until="2 written")
    first.restore(2)
    write(first, {"d": 5})
    live(tmp_path)

    second = CheckpointCoordinator("second", first.store, owner="test")
    copied = second.read_state("copy").to_arrow().to_pylist()
    assert {row["name"]: row["value"] for row in copied} == {"a": 2, "b": 2, "d": 5}
    told = [
        sorted((row["name"], row["_change_type"], row["_checkpoint_id"]) for row in map(json.loads, text))
        for text in (path.read_text().splitlines() for path in sorted((tmp_path / "told").glob("*.jsonl")))
    ]
    assert told == [
        [("a", "update_after", 2), ("a", "update_before", 2), ("b", "insert", 2)],
        [("b", "delete", 3), ("c", "insert", 3)],  # abandoned since: as Spark had logged it
        [("b", "insert", 5), ("c", "delete", 5), ("d", "insert", 5)],
    ]
    whole = ["opened", "completed", "committed"]
    kinds = [record.kind for record in second.timeline.records()]
    assert kinds == [*whole, "opened", "fenced", *whole, *whole]


def write(first: CheckpointCoordinator, rows: dict[str, int | None]) -> None:
    """One checkpoint: a value for each name; None: deleted."""
    batch = Batch.open(first)
    values = list(rows.values())
    table = pa.table({"name": list(rows), "value": pa.array(values, pa.int32())})
    deleted = pa.array([value is None for value in values])
    batch.add(write_rows(table, batch.attempt, first.store, operator="op", schema=SCHEMA, deleted=deleted))
    batch.complete()


def live(folder: Path, until: str | None = None) -> None:
    """A driver with its JVM, in a process group of their own: to its end, or killed at this place."""
    hold, reached, log = folder / "hold", folder / "reached", folder / "log"
    hold.write_text(until or "")
    reached.unlink(missing_ok=True)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with log.open("wb") as output:
        life = subprocess.Popen(
            [sys.executable, str(WORKER), str(folder)],
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not reached.exists() and life.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    ended = life.poll()
    if ended is None:
        os.killpg(life.pid, signal.SIGKILL)
        life.wait()
    assert ended == (0 if until is None else None), log.read_text()[-4000:]
    assert reached.exists() == (until is not None), log.read_text()[-4000:]
