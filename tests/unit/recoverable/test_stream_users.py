"""The stream under libraries that write to a binary file object, and what it does when it is dropped."""

from __future__ import annotations

import contextlib
import csv
import gc
import gzip
import io
import json
import zipfile

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from dstl_dagster.errors import ClosedError, UnavailableError
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.storage.base import ABSENT, ANY
from dstl_dagster.storage.memory import MemoryObjectStore
from dstl_dagster.testing.fault_schedules import AtRequests, Fault
from dstl_dagster.testing.fault_store import FaultStore


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore("foo")


def test_text_wrapper_and_csv(store: MemoryObjectStore) -> None:
    """csv over TextIOWrapper writes its text, in one component."""
    stream = GSRecoverableWriter(store).open("gs://foo/bar")
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    rows = csv.writer(text)
    for number in range(3000):
        rows.writerow([number, "ü"])
        text.flush()
    text.detach()
    committer = stream.close_for_commit()
    assert len(committer.recoverable.component_object_ids) == 1
    committer.commit()
    assert store.get("bar").decode() == "".join(f"{number},ü\r\n" for number in range(3000))


def test_closing_a_wrapper_closes_the_stream(store: MemoryObjectStore) -> None:
    """Closing a wrapper ends the component; the stream can be committed then."""
    stream = GSRecoverableWriter(store).open("gs://foo/bar")
    with io.BufferedWriter(stream, 1 << 16) as buffered:
        buffered.write(b"abc" * 1000)
    assert stream.closed
    stream.close_for_commit().commit()
    assert store.get("bar") == b"abc" * 1000


def test_gzip_json_and_zip(store: MemoryObjectStore) -> None:
    """gzip, json and zipfile write through it."""
    writer = GSRecoverableWriter(store)
    stream = writer.open("gs://foo/gz")
    with gzip.GzipFile(fileobj=stream, mode="wb") as packed, io.TextIOWrapper(packed, "utf-8") as text:
        json.dump({"k": list(range(100))}, text)
    stream.close_for_commit().commit()
    assert json.loads(gzip.decompress(store.get("gz"))) == {"k": list(range(100))}
    stream = writer.open("gs://foo/zip")
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.txt", "hello")
    stream.close_for_commit().commit()
    assert zipfile.ZipFile(io.BytesIO(store.get("zip"))).read("a.txt") == b"hello"


def test_pyarrow(store: MemoryObjectStore) -> None:
    """Parquet, Arrow IPC and CSV of pyarrow come back as the same table."""
    table = pa.table({"n": list(range(1000)), "t": ["x"] * 1000})
    writer = GSRecoverableWriter(store)
    stream = writer.open("gs://foo/parquet")
    pyarrow.parquet.write_table(table, stream)
    stream.close_for_commit().commit()
    assert pyarrow.parquet.read_table(pa.BufferReader(store.get("parquet"))).equals(table)
    stream = writer.open("gs://foo/arrow")
    with pa.ipc.new_file(stream, table.schema) as sink:
        sink.write_table(table)
    stream.close_for_commit().commit()
    assert pa.ipc.open_file(pa.BufferReader(store.get("arrow"))).read_all().equals(table)
    stream = writer.open("gs://foo/csv")
    pyarrow.csv.write_csv(table, stream)
    stream.close_for_commit().commit()
    assert pyarrow.csv.read_csv(pa.BufferReader(store.get("csv"))).equals(table)


def test_it_is_a_writable_binary_file(store: MemoryObjectStore) -> None:
    """It reports that it can write, and nothing else."""
    stream = GSRecoverableWriter(store).open("gs://foo/bar")
    assert (stream.writable(), stream.readable(), stream.seekable(), stream.closed) == (
        True,
        False,
        False,
        False,
    )
    with pytest.raises((OSError, NotImplementedError)):
        stream.read(1)
    stream.writelines([b"a", b"b"])
    assert stream.tell() == 2
    stream.close()


def test_dropped_stream_commits_nothing(store: MemoryObjectStore) -> None:
    """A stream that is collected leaves no component."""
    stream = GSRecoverableWriter(store).open("gs://foo/bar")
    stream.write(b"abc")
    del stream
    gc.collect()
    assert list(store.list()) == []


def test_exception_in_a_with_block_discards(store: MemoryObjectStore) -> None:
    """Ended components stay; the component of the failed block is discarded."""
    stream = GSRecoverableWriter(store).open("gs://foo/bar")

    def fail_midway() -> None:
        with stream:
            stream.write(b"kept")
            stream.sync()
            stream.write(b"discarded")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_midway()
    assert stream.closed
    assert [component.size for component in stream.components] == [4]
    assert len(list(store.list())) == 1
    with pytest.raises(ClosedError, match="an exception ended the block"):
        stream.close_for_commit()
    state = stream.persist()
    assert (state.position, len(state.component_object_ids)) == (4, 1)


def test_components_are_listed(store: MemoryObjectStore) -> None:
    """A stream lists each ended component as written; a recovered stream looks up its own."""
    writer = GSRecoverableWriter(store)
    stream = writer.open("gs://foo/bar")
    stream.write(b"a")
    stream.sync()
    stream.write(b"bc")
    state = stream.persist()
    assert [component.size for component in stream.components] == [1, 2]
    view = FaultStore(store)
    recovered = GSRecoverableWriter(view).recover(state)
    assert recovered.components == stream.components
    assert len(view.requests) == 2
    assert GSRecoverableWriter(view).recover(state, stream.components).components == stream.components
    assert len(view.requests) == 2
    committer = GSRecoverableWriter(view).recover_for_commit(state)
    assert committer.components == stream.components
    assert stream.close_for_commit().components == stream.components
    for component in stream.components:
        assert type(component).from_json(component.to_json()) == component
        assert store.stat(component.object_name).generation == component.generation


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.ERROR_BEFORE, Fault.LATE_EFFECT])
def test_end_of_a_component_may_be_repeated(store: MemoryObjectStore, fault: Fault) -> None:
    """If the answer to the end of a component is lost, the next call ends it, once."""
    view = FaultStore(store, AtRequests({1: fault}))
    stream = GSRecoverableWriter(view).open("gs://foo/bar")
    stream.write(b"abc")
    with contextlib.suppress(UnavailableError):  # the first call may know it by reading back
        stream.sync()
    stream.sync()
    view.deliver_late_effects()
    stream.close_for_commit().commit()
    assert store.get("bar") == b"abc"
    assert [stat.name for stat in store.list()] == ["bar"]


def test_empty_write_is_a_component(store: MemoryObjectStore) -> None:
    """A write of nothing creates an empty component, as upstream: an empty file with a source of its own."""
    stream = GSRecoverableWriter(store).open("gs://foo/bar")
    stream.write(b"")
    committer = stream.close_for_commit()
    assert len(committer.recoverable.component_object_ids) == 1
    committer.commit()
    store.delete("bar", precondition=ANY)
    assert committer.commit_after_recovery().state == "taken_away"
    assert store.put("bar", b"", precondition=ABSENT).size == 0
