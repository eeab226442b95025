"""What `except OSError`, `ValueError` and `TimeoutError` catch of ours; and ours keep their class inside.

An error of the operating system is translated in many places. Ours are OSErrors too, and pass unchanged.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path

import pytest

from dstl_dagster.errors import (
    ClosedError,
    ConflictError,
    DstlError,
    FencedError,
    FormatError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
    UploadTimeoutError,
)
from dstl_dagster.format.changelog_file.compression import Compression, decompressed
from dstl_dagster.recoverable import GSCommitRecoverableSerializer, GSRecoverableWriter
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import ANY, LocalObjectStore, MemoryObjectStore
from dstl_dagster.storage.local.errors import translate_os_errors
from dstl_dagster.upload import RetryPolicy
from dstl_dagster.upload.racing import retry_delay_seconds

OF_STORAGE = [
    NotFoundError,
    ConflictError,
    FencedError,
    ClosedError,
    UnavailableError,
    UploadTimeoutError,
    FormatError,
]


@pytest.mark.parametrize("error_class", OF_STORAGE)
def test_errors_of_storage_are_os_errors(error_class: type[DstlError]) -> None:
    """`except OSError` catches them; message and kind are ours, and there is no errno to compare."""
    with pytest.raises(OSError, match="what happened") as caught:
        raise error_class("what happened")
    assert (caught.value.errno, caught.value.strerror, caught.value.filename) == (None, None, None)
    assert copy.copy(caught.value).args == caught.value.args == ("what happened", error_class.default_kind)


@pytest.mark.parametrize("error_class", [InvalidInputError, InternalError])
def test_a_wrong_call_is_no_os_error(error_class: type[DstlError]) -> None:
    """A handler that tries again after an OSError must not repeat these."""
    assert not issubclass(error_class, OSError)


def test_a_closed_component_is_a_value_error() -> None:
    """As a closed file of Python's is; and an OSError, as the seeds have it for a closed stream."""
    stream = GSRecoverableWriter(MemoryObjectStore("b")).open("gs://b/out")
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        stream.write(b"x")
    with pytest.raises(OSError, match="closed"):
        stream.write(b"x")


def test_a_time_out_is_told_apart_by_its_class() -> None:
    """Seed 002 tells a time-out from an I/O error by class; both are OSErrors, one is a TimeoutError."""
    assert issubclass(UploadTimeoutError, TimeoutError)
    assert not issubclass(UnavailableError, TimeoutError)


def test_damaged_bytes_are_an_os_error() -> None:
    """A serializer of the seeds throws an IOException for bytes that are not its own."""
    with pytest.raises(OSError, match="version"):
        GSCommitRecoverableSerializer.INSTANCE.deserialize(99, b"")


@pytest.mark.parametrize(
    "error", [NotFoundError("x"), ConflictError("x"), FormatError("x"), ClosedError("x")]
)
def test_only_what_may_pass_is_repeated(error: DstlError) -> None:
    """An OSError is repeated, an OSError of ours only where its class says that it may pass."""
    policy = RetryPolicy.fixed(3, 0, 0.5)
    assert retry_delay_seconds(policy, 1, error) is None
    assert retry_delay_seconds(policy, 1, UnavailableError("x")) == 0.5
    assert retry_delay_seconds(policy, 1, OSError("x")) == 0.5
    assert retry_delay_seconds(policy, 1, TimeoutError("x")) == 0


@pytest.mark.parametrize("error_class", OF_STORAGE)
def test_the_local_store_translates_the_systems_errors_alone(error_class: type[DstlError]) -> None:
    """Ours pass a step of the local store as they are; the system's become an UnavailableError."""

    @translate_os_errors
    def step(error: Exception) -> None:
        raise error

    with pytest.raises(error_class) as caught:
        step(ours := error_class("ours"))
    assert caught.value is ours
    with pytest.raises(UnavailableError, match="full: free space"):
        step(OSError(28, "full"))


def test_a_damaged_record_stays_a_format_error(tmp_path: Path) -> None:
    """Looking at an object and listing say what is damaged, not that the file system refused."""
    store = LocalObjectStore(tmp_path)
    store.put("name", b"content", precondition=ANY)
    record = next(path for path in tmp_path.rglob("*.json") if "records" in path.parts)
    record.write_text("{}")
    for look in (lambda: store.stat("name"), lambda: list(store.list("")), lambda: store.get("name")):
        with pytest.raises(FormatError, match="damaged"):
            look()


def test_a_writer_of_another_process_stays_lost(tmp_path: Path) -> None:
    """A forked child's write is refused as lost, again and again, and its error can be pickled."""
    writer = LocalObjectStore(tmp_path).open_write("name", precondition=ANY)
    writer.write(b"x")
    patch = pytest.MonkeyPatch()
    try:
        patch.setattr(os, "getpid", lambda: -1)
        for _ in range(2):
            with pytest.raises(NotFoundError) as caught:
                writer.write(b"y")
            assert len(caught.value.__reduce__()[1]) == 2
    finally:
        patch.undo()
    writer.abort()


def test_an_error_of_the_source_passes_decompression() -> None:
    """What reading raises is not taken for damaged bytes."""

    def away(_: int) -> bytes:
        raise UnavailableError("the service is away")

    with pytest.raises(UnavailableError, match="away"):
        next(decompressed(Compression.ZSTD, away))


def test_an_error_of_a_schema_is_not_wrapped_twice() -> None:
    """The reason of a refused schema is said once."""
    with pytest.raises(FormatError) as caught:
        StateSchema.from_parts(b"nothing", ["id"], 16)
    assert str(caught.value).count("not a schema") == 1
