"""What is in the way of a write is seen before a task runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dstl_dagster.errors import ConflictError
from dstl_dagster.spark.dataframes.file_formats import FileLayout
from dstl_dagster.spark.dataframes.file_tasks import FileNames
from dstl_dagster.spark.dataframes.files import check_free
from dstl_dagster.storage import MemoryObjectStore

ONE = FileLayout("csv", "none", one_file=True)


def test_a_file_of_one_name_in_two_buckets(job_of):
    """Records name a file without its bucket."""
    job = job_of(MemoryObjectStore())
    earlier = [job.file(job.coordinator().trigger(), "out/x.csv", b"part")]
    for bucket in (job.store.bucket_name, "other"):
        with pytest.raises(ConflictError, match=r"out/x.csv exists already: write to another name"):
            check_free(FileNames(bucket, "out/x.csv", ONE), job.store, earlier)
    check_free(FileNames("other", "out/y.csv", ONE), job.store, earlier)
    check_free(FileNames("other", "out", replace(ONE, one_file=False)), job.store, earlier)
