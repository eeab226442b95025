"""Whose an upload was: measurements carry the job, and the operators whose changes are in the file."""

from __future__ import annotations

from datetime import timedelta

from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.metrics import InMemoryMetrics
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.storage import MemoryObjectStore
from dstl_dagster.upload.metrics import PREFIX

GROUP = KeyGroupRange.of(0, 0)
ALL = (
    *("numberOfUploadRequests", "uploadSizes", "uploadLatenciesNanos", "uploadBatchSizes"),
    *("attemptsPerUpload", "totalAttemptsPerUpload"),
)


def measured(metrics: InMemoryMetrics, name: str, **whose: str) -> float:
    """How many events of a name: a counter's sum, or a histogram's length."""
    return metrics.counter(PREFIX + name, **whose) or len(metrics.histogram(PREFIX + name, **whose))


def test_each_measurement_of_an_upload_says_whose_it_is() -> None:
    """Of a file of one operator."""
    metrics = InMemoryMetrics()
    options = FsStateChangelogOptions(upload_timeout=timedelta(minutes=1))
    with FsStateChangelogStorage("orders", MemoryObjectStore(), options, metrics=metrics) as storage:
        for operator in ("totals", "late"):
            with storage.create_writer(operator, GROUP) as writer:
                writer.append(0, b"change")
                writer.persist(writer.initial_sequence_number(), 1).result()
    for name in ALL:
        assert measured(metrics, name) == 2
        for operator in ("totals", "late"):
            assert measured(metrics, name, job="orders", operator=operator) == 1, name


def test_a_shared_file_names_all_its_operators() -> None:
    """Two writers in one batch: one upload, of both; it begins with the first."""
    metrics = InMemoryMetrics()
    options = FsStateChangelogOptions(
        batch_persist_delay=timedelta(seconds=1), upload_timeout=timedelta(minutes=1)
    )
    with FsStateChangelogStorage("orders", MemoryObjectStore(), options, metrics=metrics) as storage:
        writers = [storage.create_writer(operator, GROUP) for operator in ("totals", "late")]
        persisted = []
        for writer in writers:
            writer.append(0, b"change")
            persisted.append(writer.persist(writer.initial_sequence_number(), 1))
        for writer, future in zip(writers, persisted, strict=True):
            future.result()
            writer.close()
    for name in ALL:
        both = "totals" if name == "numberOfUploadRequests" else "late,totals"
        assert measured(metrics, name) == measured(metrics, name, job="orders", operator=both) == 1, name
