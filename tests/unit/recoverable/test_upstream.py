"""Upstream's own tests of its recoverable writer, by their names, on our public API.

Not here, with the reason:
* ConfigUtilsHadoopTest, ConfigUtilsStorageTest: there is no Hadoop configuration here; credentials are
  found as Google's libraries do.
* GSFileSystemFactoryTest.testOverrideStorageRootUrl: over the wire, in
  tests/contract/test_gcs_client_behaviour.py.
* GSBlobStorageImplTest (write options depend on the existing object): no such lookup here; each write has its
  precondition. The conformance suite holds the preconditions, zero ("absent") included.
* commitWithRecoveryOverwriteShouldSucceedTest: a foreign object is ConflictError, by design; our own
  succeeds.
* HadoopGSFileSystem*ITCase: tests of a file system, which this is not. TestCodeArchitectureTest: style.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator

import pytest

from dstl_dagster.errors import ClosedError, ConflictError, DstlError, FormatError, InvalidInputError
from dstl_dagster.format.crc32c import crc32c, from_base64, to_base64
from dstl_dagster.recoverable import (
    GSBlobIdentifier,
    GSCommitRecoverable,
    GSCommitRecoverableSerializer,
    GSRecoverableFsDataOutputStream,
    GSRecoverableWriter,
    GSResumeRecoverable,
    GSResumeRecoverableSerializer,
    recoverables,
)
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage.base import ABSENT
from dstl_dagster.storage.memory import MemoryObjectStore
from dstl_dagster.storage.rules import split_object_uri
from dstl_dagster.testing.fault_store import FaultStore

FINAL = GSBlobIdentifier("foo", "bar")
UUID = uuid.UUID("f09c43e5-ea49-4537-a406-0586f8f09d47")
OPTIONS = [
    GSFileSystemOptions(),
    GSFileSystemOptions(writer_temporary_bucket_name="temp"),
    GSFileSystemOptions(filesink_entropy_enabled=True),
    GSFileSystemOptions(writer_temporary_bucket_name="temp", filesink_entropy_enabled=True),
]


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore("foo")


@pytest.fixture(params=OPTIONS, ids=["plain", "temp", "entropy", "temp-entropy"])
def options(request: pytest.FixtureRequest) -> GSFileSystemOptions:
    return request.param


def objects(store: MemoryObjectStore) -> Iterator[str]:
    for bucket in ("foo", "temp"):
        yield from (f"{bucket}/{stat.name}" for stat in store.in_bucket(bucket).list())


class TestBlobUtils:
    def test_should_parse_valid_uri(self) -> None:
        """Bucket and object of gs://bucket/foo/bar."""
        parsed = GSBlobIdentifier(*split_object_uri("gs://bucket/foo/bar", "gs"))
        assert parsed == GSBlobIdentifier("bucket", "foo/bar")

    @pytest.mark.parametrize(
        "uri", ["s3://b/o", "gs:///o", "gs://b", "gs://b/", "b/o", "gs:// /o", "gs://b/ ", None]
    )
    def test_should_fail_to_parse_uri(self, uri: str) -> None:
        """A bad scheme, a missing bucket and a missing object are refused."""
        with pytest.raises(InvalidInputError):
            split_object_uri(uri, "gs")

    def test_temporary_bucket(self) -> None:
        """The option's bucket, or the final object's."""
        assert recoverables.temporary_bucket_name(FINAL, OPTIONS[1]) == "temp"
        assert recoverables.temporary_bucket_name(FINAL, OPTIONS[0]) == "foo"

    def test_temporary_names(self) -> None:
        """The three patterns, to the letter."""
        assert recoverables.temporary_object_partial_name(FINAL) == ".inprogress/foo/bar/"
        assert recoverables.temporary_object_name(FINAL, UUID) == f".inprogress/foo/bar/{UUID}"
        assert (
            recoverables.temporary_object_name_with_entropy(FINAL, UUID)
            == f"{UUID}.inprogress/foo/bar/{UUID}"
        )

    def test_temporary_blob_identifier(self) -> None:
        """Bucket and name by the options."""
        name = f".inprogress/foo/bar/{UUID}"
        assert recoverables.temporary_blob_identifier(FINAL, UUID, OPTIONS[0]) == GSBlobIdentifier(
            "foo", name
        )
        assert recoverables.temporary_blob_identifier(FINAL, UUID, OPTIONS[3]) == GSBlobIdentifier(
            "temp", f"{UUID}{name}"
        )


class TestChecksumUtils:
    @pytest.mark.parametrize(
        ("checksum", "text"),
        [
            (12345, "AAAwOQ=="),
            (54321, "AADUMQ=="),
            (crc32c(b""), "AAAAAA=="),
            (crc32c(b"123456789"), "4waSgw=="),
            (crc32c(b"Hello World"), "aR2qLw=="),
        ],
    )
    def test_should_convert_to_string_checksum(self, checksum: int, text: str) -> None:
        """Base64 of four big-endian bytes, and back."""
        assert to_base64(checksum) == text
        assert from_base64(text) == checksum


class TestRecoverables:
    def test_should_construct_properly(self) -> None:
        """The values are as given, and two equal ones are equal."""
        commit = GSCommitRecoverable(FINAL, [UUID])
        resume = GSResumeRecoverable(FINAL, [UUID], 5, True)
        assert (commit.final_blob_identifier, list(commit.component_object_ids)) == (FINAL, [UUID])
        assert (resume.position, resume.closed) == (5, True)
        assert commit == GSCommitRecoverable(FINAL, (UUID,))
        assert isinstance(resume, GSCommitRecoverable)

    def test_should_not_change_components(self) -> None:
        """The list of components cannot be changed, neither in it nor by the list it was made of."""
        ids = [UUID]
        commit = GSCommitRecoverable(FINAL, ids)
        ids.append(uuid.uuid4())
        assert list(commit.component_object_ids) == [UUID]
        with pytest.raises((TypeError, AttributeError)):
            commit.component_object_ids[0] = uuid.uuid4()
        with pytest.raises(dataclasses.FrozenInstanceError):
            commit.component_object_ids = ()

    def test_should_get_component_blob_ids(self, options: GSFileSystemOptions) -> None:
        """Names and bucket as the options say."""
        ids = [uuid.uuid4() for _ in range(3)]
        expected = [recoverables.temporary_blob_identifier(FINAL, each, options) for each in ids]
        assert GSCommitRecoverable(FINAL, ids).component_blob_ids(options) == expected

    @pytest.mark.parametrize("position", [-1, 2**63, "1"])
    def test_bad_position(self, position: int) -> None:
        """A position is a 64-bit number of 0 or more."""
        with pytest.raises(InvalidInputError):
            GSResumeRecoverable(FINAL, [], position, False)

    @pytest.mark.parametrize("count", [0, 4, 8])
    def test_should_serde_state(self, count: int) -> None:
        """Both serializers give back what they took."""
        ids = [uuid.uuid4() for _ in range(count)]
        commit = GSCommitRecoverable(FINAL, ids)
        resume = GSResumeRecoverable(FINAL, ids, 2**40, count == 4)
        first, second = GSCommitRecoverableSerializer.INSTANCE, GSResumeRecoverableSerializer.INSTANCE
        assert first.deserialize(first.version, first.serialize(commit)) == commit
        assert second.deserialize(second.version, second.serialize(resume)) == resume
        assert (first.version, second.version) == (0, 0)


class TestStream:
    def test_empty_stream(self, store: MemoryObjectStore) -> None:
        """A new stream is at 0 and has no component."""
        stream = GSRecoverableWriter(store).open("gs://foo/bar")
        assert stream.tell() == 0
        assert list(stream.persist().component_object_ids) == []

    def test_should_return_position(self, store: MemoryObjectStore) -> None:
        """A recovered stream is at its state's position."""
        stream = GSRecoverableWriter(store).recover(GSResumeRecoverable(FINAL, [UUID], 15, False))
        assert stream.tell() == 15

    @pytest.mark.parametrize("payload", [b"\x2a", bytes(range(64)), memoryview(bytes(range(64)))[3:30]])
    def test_should_write(
        self, store: MemoryObjectStore, options: GSFileSystemOptions, payload: bytes
    ) -> None:
        """Nothing is there before close_for_commit, one component after it, with the bytes."""
        stream = GSRecoverableWriter(store, options).open("gs://foo/bar")
        assert stream.write(payload) == len(payload)
        assert stream.tell() == len(payload)
        assert list(objects(store)) == []
        recoverable = stream.close_for_commit().recoverable
        (blob,) = recoverable.component_blob_ids(options)
        assert list(objects(store)) == [f"{blob.bucket_name}/{blob.object_name}"]
        assert store.in_bucket(blob.bucket_name).get(blob.object_name) == bytes(payload)

    def test_write_to_a_closed_stream(self, store: MemoryObjectStore) -> None:
        """A closed stream takes nothing, also when recovered from a closed state."""
        stream = GSRecoverableWriter(store).open("gs://foo/bar")
        stream.close()
        stream.close()
        recovered = GSRecoverableWriter(store).recover(stream.persist())
        for closed in (stream, recovered):
            with pytest.raises(ClosedError):
                closed.write(b"x")

    def test_should_sync_and_persist(self, store: MemoryObjectStore) -> None:
        """sync and persist end a component; without new bytes none is added; the state is the stream's."""
        stream = GSRecoverableWriter(store).open("gs://foo/bar")
        stream.write(b"abc")
        stream.sync()
        assert len(list(objects(store))) == 1
        stream.sync()
        state = stream.persist()
        assert stream.persist() == state
        assert (state.position, state.closed, len(state.component_object_ids)) == (3, False, 1)
        assert not stream.closed

    def test_flush_ends_no_component(self, store: MemoryObjectStore) -> None:
        """flush only sends; ours differs from upstream here."""
        stream = GSRecoverableWriter(store).open("gs://foo/bar")
        for _ in range(5):
            stream.write(b"abc")
            stream.flush()
        assert len(stream.persist().component_object_ids) == 1

    def test_should_fail_on_partial_write(self, store: MemoryObjectStore) -> None:
        """An upload that takes fewer bytes fails the write, and the position does not move."""

        class Short(FaultStore):
            def open_write(self, *args: object, **kwargs: object) -> object:
                upload = super().open_write(*args, **kwargs)
                upload.write = lambda payload: len(payload) - 1
                return upload

            def in_bucket(self, bucket_name: str) -> Short:
                return self

        stream = GSRecoverableWriter(Short(store)).open("gs://foo/bar")
        with pytest.raises(DstlError):
            stream.write(b"abc")
        assert stream.tell() == 0

    def test_should_throw_on_checksum_mismatch(self, store: MemoryObjectStore) -> None:
        """A component whose stored checksum is another one fails the end of it."""

        class Wrong(FaultStore):
            def open_write(self, *args: object, **kwargs: object) -> object:
                upload = super().open_write(*args, **kwargs)
                close = upload.close
                upload.close = lambda: dataclasses.replace(close(), crc32c=1)
                return upload

            def in_bucket(self, bucket_name: str) -> Wrong:
                return self

        stream = GSRecoverableWriter(Wrong(store)).open("gs://foo/bar")
        stream.write(b"abc")
        for _ in range(2):
            with pytest.raises(FormatError):
                stream.sync()


class TestWriter:
    def test_properties(self, store: MemoryObjectStore, options: GSFileSystemOptions) -> None:
        """No clean-up is required, resume is supported, clean-up says true."""
        writer = GSRecoverableWriter(store, options)
        assert writer.requires_cleanup_of_recoverable_state is False
        assert writer.supports_resume is True
        assert writer.cleanup_recoverable_state(GSResumeRecoverable(FINAL, [], 0, False)) is True
        assert writer.commit_recoverable_serializer is GSCommitRecoverableSerializer.INSTANCE
        assert writer.resume_recoverable_serializer is GSResumeRecoverableSerializer.INSTANCE

    def test_open(self, store: MemoryObjectStore, options: GSFileSystemOptions) -> None:
        """Opening makes no request."""
        view = FaultStore(store)
        assert isinstance(
            GSRecoverableWriter(view, options).open("gs://foo/bar"), GSRecoverableFsDataOutputStream
        )
        assert view.requests == ()

    @pytest.mark.parametrize("uri", ["gs:///bar", "gs://foo/", "gs://foo", "http://foo/bar", None])
    def test_open_with_missing_parts(self, store: MemoryObjectStore, uri: str) -> None:
        """Empty bucket, empty object, missing object: refused."""
        with pytest.raises(InvalidInputError):
            GSRecoverableWriter(store).open(uri)

    def test_recover(self, store: MemoryObjectStore) -> None:
        """Another type than a resume state is refused; recovering makes no request."""
        view = FaultStore(store)
        writer = GSRecoverableWriter(view)
        with pytest.raises(InvalidInputError):
            writer.recover(GSCommitRecoverable(FINAL, []))
        writer.recover(GSResumeRecoverable(FINAL, [UUID], 1, False))
        committer = writer.recover_for_commit(GSCommitRecoverable(FINAL, [UUID]))
        assert committer.recoverable == GSCommitRecoverable(FINAL, [UUID])
        assert committer.options == writer.options
        assert view.requests == ()


class TestCommitter:
    @pytest.mark.parametrize("count", [0, 1, 3, 6, 40])
    def test_commit(self, store: MemoryObjectStore, options: GSFileSystemOptions, count: int) -> None:
        """Afterwards there is exactly one object, the final one, with the bytes in order."""
        stream = GSRecoverableWriter(store, options).open("gs://foo/bar")
        for number in range(count):
            stream.write(b"%d;" % number)
            stream.sync()
        stream.close_for_commit().commit()
        assert list(objects(store)) == ["foo/bar"]
        assert store.get("bar") == b"".join(b"%d;" % number for number in range(count))

    def test_commit_overwrite_should_fail(
        self, store: MemoryObjectStore, options: GSFileSystemOptions
    ) -> None:
        """An object at the final name fails both commits, and stays."""
        store.put("bar", b"there", precondition=ABSENT)
        stream = GSRecoverableWriter(store, options).open("gs://foo/bar")
        stream.write(b"abc")
        committer = stream.close_for_commit()
        with pytest.raises(ConflictError):
            committer.commit()
        with pytest.raises(ConflictError):
            committer.commit_after_recovery()
        assert store.get("bar") == b"there"

    def test_commit_with_recovery_of_own(
        self, store: MemoryObjectStore, options: GSFileSystemOptions
    ) -> None:
        """Our own object at the final name is the result; a plain commit raises ConflictError."""
        stream = GSRecoverableWriter(store, options).open("gs://foo/bar")
        stream.write(b"abc")
        committer = stream.close_for_commit()
        committer.commit()
        GSRecoverableWriter(store, options).recover_for_commit(committer.recoverable).commit_after_recovery()
        with pytest.raises(ConflictError):
            committer.commit()
        assert store.get("bar") == b"abc"


class TestScenario:
    def test_compound_write_with_restore(
        self, store: MemoryObjectStore, options: GSFileSystemOptions
    ) -> None:
        """Of ten writes, those before the persisted state are in the object; orphans go by their own way."""
        writer = GSRecoverableWriter(store, options)
        stream = writer.open("gs://foo/bar")
        for number in range(5):
            stream.write(b"%d" % number)
        state = stream.persist()
        for number in range(5, 10):
            stream.write(b"%d" % number)
        stream.close()
        serializer = writer.resume_recoverable_serializer
        state = serializer.deserialize(serializer.version, serializer.serialize(state))
        GSRecoverableWriter(store, options).recover(state).close_for_commit().commit()
        assert store.get("bar") == b"01234"

    @pytest.mark.parametrize("size", ["257kb", "0", "1"])
    def test_invalid_chunk_size(self, size: str) -> None:
        """A chunk is a positive multiple of 256 KiB."""
        with pytest.raises(InvalidInputError):
            GSFileSystemOptions.from_mapping({"gs.writer.chunk.size": size})

    def test_close_with_no_data(self, store: MemoryObjectStore) -> None:
        """A stream without a byte commits an empty object."""
        GSRecoverableWriter(store).open("gs://foo/bar").close_for_commit().commit()
        assert store.get("bar") == b""

    def test_commit_after_recovery_through_the_serializer(self, store: MemoryObjectStore) -> None:
        """After two persists, the commit state of a resumed stream commits in another process."""
        stream = GSRecoverableWriter(store).open("gs://foo/bar")
        stream.write(b"a")
        stream.persist()
        stream.write(b"b")
        stream.persist()
        recoverable = stream.close_for_commit().recoverable
        serializer = GSCommitRecoverableSerializer.INSTANCE
        again = serializer.deserialize(0, serializer.serialize(recoverable))
        GSRecoverableWriter(store).recover_for_commit(again).commit_after_recovery()
        assert store.get("bar") == b"ab"

    def test_resume_after_commit(self, store: MemoryObjectStore) -> None:
        """A stream resumed from an old state after the commit cannot be committed."""
        stream = GSRecoverableWriter(store).open("gs://foo/bar")
        stream.write(b"a")
        old = stream.persist()
        stream.write(b"b")
        stream.close_for_commit().commit()
        resumed = GSRecoverableWriter(store).recover(old)
        resumed.write(b"c")
        with pytest.raises(ConflictError):
            resumed.close_for_commit().commit()
        assert store.get("bar") == b"ab"

    def test_resume_with_wrong_offset(self, store: MemoryObjectStore) -> None:
        """Of two commits of one target from two states, the second is refused."""
        stream = GSRecoverableWriter(store).open("gs://foo/bar")
        stream.write(b"a")
        first = stream.persist()
        stream.write(b"b")
        second = stream.persist()
        GSRecoverableWriter(store).recover(second).close_for_commit().commit()
        with pytest.raises(DstlError):
            GSRecoverableWriter(store).recover(first).close_for_commit().commit()
        assert store.get("bar") == b"ab"

    def test_multi_part_recovery(self, store: MemoryObjectStore) -> None:
        """Pieces of 3 MiB, persisted and resumed in between, come out as written."""
        pieces = [bytes([number]) * (3 << 20) for number in range(4)]
        writer = GSRecoverableWriter(store, GSFileSystemOptions(writer_chunk_size=256 * 1024))
        stream = writer.open("gs://foo/bar")
        for piece in pieces:
            stream.write(piece)
            stream = writer.recover(stream.persist())
        stream.close_for_commit().commit()
        assert store.get("bar") == b"".join(pieces)
