"""What `benchmarks/cloud.py` counts, exactly, at small sizes: its operations, on the strict server, at 0 ms.

Of step 7: `tests/unit/checkpoint/test_clean_up_histories.py` and `test_clean_up_scope.py`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from dstl_dagster.testing.gcs_server import GCSServer

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COUNTS = {
    "restore, 20 sets in 4 files": {"download": 6, "list": 2},
    "restore, 20 sets in 2 files": {"download": 4, "list": 2},
    "restore, one task of two, 2 files of 1 MiB": {"download": 4, "list": 2},
    "restore, all, 2 files of 1 MiB": {"download": 4, "list": 2},
    "verify, 20 files": {"download": 22, "list": 2},
    "step 4, 20 sets in 2 files": {"download": 2, "get": 2, "insert": 1},
    "step 4, a file of 40 components": {"download": 2, "get": 1, "insert": 1, "list": 1},
    "step 6, a file of 40 components": {"compose": 2, "download": 3, "insert": 1},
    "step 1, cold": {"download": 1, "insert": 1, "list": 2},
    "step 4, cold": {"download": 1, "get": 4, "insert": 1, "list": 1},
    "step 5, cold": {"download": 2, "insert": 1, "list": 1},
    "step 6, cold": {"compose": 1, "download": 3, "insert": 1, "list": 2},
    "step 1, warm": {"download": 1, "insert": 1},
    "step 4, warm": {"download": 2, "get": 4, "insert": 1},
    "step 5, warm": {"download": 1, "insert": 1},
    "step 6, warm": {"compose": 1, "download": 3, "insert": 1},
}


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark's modules, which are no package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("cloud")


def test_requests_are_as_they_were(cloud: Any) -> None:
    """One more of any is a round trip more for somebody; one less belongs here, and into the docs."""
    operations = importlib.import_module("cloud_operations")
    sizes = operations.Sizes((5,), 20, (4, 2), 2, 1, 40, 20)
    counts = {}
    with GCSServer() as server, cloud.jobs_on(server) as jobs:
        measured = (
            *operations.reading(jobs, sizes),
            *operations.writing(jobs, sizes),
            *operations.steps(jobs),
        )
        for operation in measured:
            if not operation.name.startswith("step 7"):
                methods = cloud.measured(server, operation.prepare(), 0)["methods"]
                counts[operation.name] = {
                    method.removeprefix("objects."): count
                    for method, count in methods.items()
                    if method != "buckets.get"  # Google's client, for a cache of its own, now and then
                }
    assert counts == COUNTS
