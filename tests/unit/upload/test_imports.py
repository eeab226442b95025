"""An attempt has a time-out, so nothing is imported within one: a first import takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dstl_dagster.testing.gcs_server import GCSServer

SLOW_PANDAS = """
import threading
threading.Event().wait(2.0)
__version__ = "0.1"  # too old for Arrow, which then asks it for nothing
"""
PERSIST = """
import json, sys
from contextlib import closing
from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.storage import open_store
from dstl_dagster.upload import batches

attempts, imported = 0, set()
attempt = batches.BatchAction.attempt

def watched(action):
    global attempts
    attempts += 1
    before = set(sys.modules)
    try:
        return attempt(action)
    finally:
        imported.update(set(sys.modules) - before)

batches.BatchAction.attempt = watched
uri, compression = sys.argv[1:]
options = FsStateChangelogOptions.from_mapping({"dstl.dfs.compression": compression})
with closing(open_store(uri)) as store:
    storage = FsStateChangelogStorage("job", store, options)
    with storage.create_writer("op", KeyGroupRange.of(0, 3)) as writer:
        start = writer.initial_sequence_number()
        for group in (3, 1, 2):
            writer.append(group, b"change")
        result = writer.persist(start, 1).result(30)
        changes = len(list(storage.create_reader().read(result.job_manager_owned_snapshot)))
    storage.close()
print(json.dumps([attempts, sorted(imported), changes]))
"""


@pytest.mark.parametrize(("scheme", "compression"), [("file", "snappy"), ("gs", "zstd")])
def test_nothing_is_imported_within_an_attempt(scheme: str, compression: str, tmp_path: Path) -> None:
    """Arrow imports pandas at the first array that it makes of Python's values, if there is a pandas."""
    (tmp_path / "pandas").mkdir()
    (tmp_path / "pandas" / "__init__.py").write_text(SLOW_PANDAS, encoding="utf-8")
    with GCSServer() as server:
        server.create_bucket("bucket")
        uri = "gs://bucket/store" if scheme == "gs" else (tmp_path / "store").as_uri()
        path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
        done = subprocess.run(
            [sys.executable, "-c", PERSIST, uri, compression],
            env={**os.environ, "PYTHONPATH": path, "STORAGE_EMULATOR_HOST": server.url},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [1, [], 3]
