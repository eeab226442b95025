"""A process that writes a log is killed: what was reported durable is durable; the rest is under its path."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.format import ChangelogStateHandle
from dstl_dagster.storage import LocalObjectStore

WRITER = """
import json, sys
from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.storage import LocalObjectStore

options = FsStateChangelogOptions.from_mapping({"dstl.dfs.preemptive-persist-threshold": "20kb"})
storage = FsStateChangelogStorage("job", LocalObjectStore(sys.argv[1]), options, base_path="attempts/a")
writer = storage.create_writer("op", KeyGroupRange.of(0, 7))
number = 0
while True:
    for _ in range(100):
        writer.append(number % 8, b"%08d" % number * 10)
        number += 1
    handle = writer.persist(writer.initial_sequence_number(), number).result().job_manager_owned_snapshot
    print(json.dumps([number, handle.to_json()]), flush=True)
"""


@pytest.mark.kill
@pytest.mark.parametrize("lines", [1, 4, 9])
def test_what_was_reported_durable_survives_a_kill(lines: int, tmp_path: Path) -> None:
    """After a kill at any moment, every handle returned reads back whole, and no file is elsewhere."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines_seen = [process.stdout.readline() for _ in range(lines)]
    process.send_signal(signal.SIGKILL)
    lines_seen += process.stdout.readlines()
    process.stdout.close()
    process.wait(60)
    assert len(lines_seen) >= lines
    store = LocalObjectStore(tmp_path)
    with FsStateChangelogStorage("job", store, base_path="attempts/b") as storage:
        reader = storage.create_reader()
        for line in lines_seen:
            if not line.endswith("\n"):
                continue
            number, document = json.loads(line)
            changes = list(reader.read(ChangelogStateHandle.from_json(document)))
            assert sorted(change.change for change in changes) == [
                b"%08d" % each * 10 for each in range(number)
            ]
    assert all(stat.name.startswith("attempts/a/job/dstl/") for stat in store.list())
