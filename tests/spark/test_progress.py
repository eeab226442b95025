"""How far a write is, told while it runs."""

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
    """One of two tasks goes on only after the end of the other was told; at last both are told."""
    flag = tmp_path / "told"
    path = str(flag)

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        end = time.monotonic() + 120
        while context.partitionId() == 1 and not Path(path).exists():
            assert time.monotonic() < end, "nobody told that the other task has ended"
            time.sleep(0.05)
        yield from batches

    told: list[tuple[int, int]] = []

    def progress(ended: int, known: int) -> None:
        told.append((ended, known))
        if (ended, known) == (1, 2):
            flag.touch()

    df = job.spark.range(0, 10, 1, 2).mapInArrow(wait, "id BIGINT")
    job.checkpoint(lambda attempt: ([], write_files(df, "x.jsonl", attempt=attempt, progress=progress)))
    assert (1, 2) in told
    assert told[-1] == (2, 2)


def test_a_display_that_fails_fails_no_write(job: Job) -> None:
    """It is not called again, and the file is there."""
    calls: list[int] = []

    def progress(ended: int, known: int) -> None:
        calls.append(ended)
        raise RuntimeError("no terminal")

    job.checkpoint(
        lambda attempt: ([], write_files(job.spark.range(3), "x.jsonl", attempt=attempt, progress=progress))
    )
    assert (job.folder / "x.jsonl").exists()
    assert len(calls) == 1
