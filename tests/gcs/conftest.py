"""A bucket for each test, 50 ms away, on the server that Spark's tasks know."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault

_numbers = itertools.count(1)


@pytest.fixture
def bucket(strict_gcs: GCSServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of an empty bucket."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", strict_gcs.url)
    name = f"bucket-{next(_numbers)}"
    strict_gcs.create_bucket(name)
    strict_gcs.faults.add(ServerFault(FaultKind.LATENCY, seconds=0.05, times=None))
    yield name
    strict_gcs.faults.clear()
