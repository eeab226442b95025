"""The progress of a write, reported while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark import TaskContext

from dstl_dagster.spark import write_files

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark


def test_a_long_write_tells_how_far_it_is(job: Job, tmp_path: Path) -> None:
    """One of two tasks continues only after the end of the other was reported; finally both are reported."""
    flag = tmp_path / "reported"
    path = str(flag)

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        end = time.monotonic() + 120
        while context.partitionId() == 1 and not Path(path).exists():
            assert time.monotonic() < end, "the end of the other task was not reported"
            time.sleep(0.05)
        yield from batches

    reported: list[tuple[int, int]] = []

    def progress(ended: int, known: int) -> None:
        reported.append((ended, known))
        if (ended, known) == (1, 2):
            flag.touch()

    df = job.spark.range(0, 10, 1, 2).mapInArrow(wait, "id BIGINT")
    job.checkpoint(lambda attempt: ([], write_files(df, attempt, "x.jsonl", progress=progress)))
    assert (1, 2) in reported
    assert reported[-1] == (2, 2)


def test_a_display_that_fails_fails_no_write(job: Job) -> None:
    """It is not called again, and the file is there."""
    calls: list[int] = []

    def progress(ended: int, known: int) -> None:
        calls.append(ended)
        raise RuntimeError("no terminal")

    job.checkpoint(
        lambda attempt: ([], write_files(job.spark.range(3), attempt, "x.jsonl", progress=progress))
    )
    assert (job.folder / "x.jsonl").exists()
    assert len(calls) == 1
