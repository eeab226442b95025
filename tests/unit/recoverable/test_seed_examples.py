"""Seed 003, block by block, in Python's spelling: the recoverable writer, its states, its promises.

"All written data is recoverable until commit completion" is true of what `persist` or `sync` made durable:
what was written after the last of them is lost with its process. The test says so.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from dstl_dagster.errors import ConflictError, FormatError, InvalidInputError, UnavailableError
from dstl_dagster.recoverable import (
    GSBlobIdentifier,
    GSCommitRecoverableSerializer,
    GSRecoverableWriter,
    GSResumeRecoverableSerializer,
)
from dstl_dagster.settings import GSFileSystemOptions
from dstl_dagster.storage import ABSENT, LocalObjectStore, MemoryObjectStore, ObjectStore

BUCKET = "my-bucket"


@pytest.fixture(params=["gs", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """What `new Path(...).getFileSystem()` stands for: `open_store`, here without a network."""
    return MemoryObjectStore(BUCKET) if request.param == "gs" else LocalObjectStore(tmp_path)


def written(store: ObjectStore, *pieces: bytes, name: str = "output/part-1", **how: Any) -> Any:
    """A stream with these pieces, each durable."""
    stream = GSRecoverableWriter(store, **how).open(store.uri_of(name))
    for piece in pieces:
        stream.write(piece)
        stream.sync()
    return stream


def names(store: ObjectStore) -> list[str]:
    return [each.name for each in store.list()]


class TestSeed003:
    def test_usage(self, store: ObjectStore) -> None:
        """Write, flush, persist; recover and go on; close and commit."""
        writer = GSRecoverableWriter(store)
        stream = writer.open(store.uri_of("output/part-1"))
        stream.write(b"Hello World")
        stream.flush()
        resumable = stream.persist()
        recovered = writer.recover(resumable)
        recovered.write(b" More data")
        committer = recovered.close_for_commit()
        assert "output/part-1" not in names(store)
        committer.commit()
        assert store.get("output/part-1") == b"Hello World More data"
        assert names(store) == ["output/part-1"]

    def test_a_part_of_a_buffer(self, store: ObjectStore) -> None:
        """`write(b, off, len)`, of any buffer. A range outside changes nothing, and opens no component."""
        stream = GSRecoverableWriter(store).open(store.uri_of("a"))
        for offset, length in [(-1, 1), (0, -1), (3, 2), (5, None)]:
            with pytest.raises(InvalidInputError, match="the buffer has 4"):
                stream.write(b"abcd", offset, length)
        assert stream.persist().component_object_ids == ()
        assert [stream.write(bytearray(b"abcd"), 1, 2), stream.write(memoryview(b"abcd"), 3)] == [2, 1]
        assert (stream.write(b"abcd", 4), stream.tell()) == (0, 3)
        stream.close_for_commit().commit()
        assert store.get("a") == b"bcd"

    def test_the_properties_of_the_writer(self, store: ObjectStore) -> None:
        """No clean-up is required, resuming is supported, and clean-up always says true."""
        writer = GSRecoverableWriter(store)
        assert (writer.requires_cleanup_of_recoverable_state, writer.supports_resume) == (False, True)
        resumable = writer.open(store.uri_of("a")).persist()
        assert writer.cleanup_recoverable_state(resumable) is True
        assert writer.commit_recoverable_serializer is GSCommitRecoverableSerializer.INSTANCE
        assert writer.resume_recoverable_serializer is GSResumeRecoverableSerializer.INSTANCE

    def test_a_failed_commit_is_taken_up(self) -> None:
        """`catch (IOException)`, then a new writer, `recoverForCommit` and `commitAfterRecovery`."""

        class AwayOnce(MemoryObjectStore):
            away = True

            def compose(self, *arguments: Any, **options: Any) -> Any:
                if self.away:
                    self.away = False
                    raise UnavailableError("the service is away")
                return super().compose(*arguments, **options)

            def in_bucket(self, bucket_name: str) -> AwayOnce:
                assert bucket_name == BUCKET
                return self

        store = AwayOnce(BUCKET)
        committer = written(store, b"a", b"b").close_for_commit()
        commit_state = committer.recoverable
        caught: list[OSError] = []
        try:
            committer.commit()
        except OSError as error:
            caught.append(error)
            GSRecoverableWriter(store).recover_for_commit(commit_state).commit_after_recovery()
        assert len(caught) == 1
        assert store.get("output/part-1") == b"ab"
        assert names(store) == ["output/part-1"]

    def test_a_stream_that_is_closed_commits_nothing(self, store: ObjectStore) -> None:
        """`close()` without committing: no object, and no more writing; that is an IOException."""
        stream = written(store, b"a")
        resumable = stream.persist()
        stream.close()
        assert "output/part-1" not in names(store)
        with pytest.raises(OSError, match="closed"):
            stream.write(b"b")
        GSRecoverableWriter(store).recover_for_commit(resumable).commit()
        assert store.get("output/part-1") == b"a"

    def test_states_and_their_fields(self) -> None:
        """Final identifier, component ids, position, closed; the components are where the options say."""
        store = MemoryObjectStore(BUCKET)
        resumable = written(store, b"abc", b"d").persist()
        assert resumable.final_blob_identifier == GSBlobIdentifier(BUCKET, "output/part-1")
        assert (len(resumable.component_object_ids), resumable.position, resumable.closed) == (2, 4, False)
        assert all(isinstance(each, uuid.UUID) for each in resumable.component_object_ids)
        found = resumable.component_blob_ids(GSFileSystemOptions(writer_temporary_bucket_name="temp"))
        assert {each.bucket_name for each in found} == {"temp"}

    @pytest.mark.parametrize("which", ["commit", "resume"])
    def test_the_serializers(self, store: ObjectStore, which: str) -> None:
        """A version, bytes, and the same state back; other bytes are an IOException."""
        stream = written(store, b"a")
        state = stream.persist() if which == "resume" else stream.close_for_commit().recoverable
        classes: dict[str, Any] = {
            "commit": GSCommitRecoverableSerializer,
            "resume": GSResumeRecoverableSerializer,
        }
        serializer = classes[which].INSTANCE
        octets = serializer.serialize(state)
        assert serializer.version == 0
        assert serializer.deserialize(0, octets) == state
        with pytest.raises(OSError, match="version") as newer:
            serializer.deserialize(1, octets)
        assert isinstance(newer.value, FormatError)

    @pytest.mark.parametrize("entropy", [False, True])
    def test_temporary_objects(self, entropy: bool) -> None:
        """`.inprogress/<bucket>/<object>/<uuid>`, the uuid before it with entropy; gone after the commit."""
        store = MemoryObjectStore(BUCKET)
        options = GSFileSystemOptions(writer_temporary_bucket_name="temp", filesink_entropy_enabled=entropy)
        committer = written(store, b"a", options=options).close_for_commit()
        (component,) = committer.recoverable.component_object_ids
        (name,) = names(store.in_bucket("temp"))
        assert name == f"{component if entropy else ''}.inprogress/{BUCKET}/output/part-1/{component}"
        committer.commit()
        assert names(store.in_bucket("temp")) == []
        assert names(store) == ["output/part-1"]

    @pytest.mark.parametrize("count", [32, 33, 70])
    def test_more_components_than_one_compose_takes(self, store: ObjectStore, count: int) -> None:
        """The limit of 32 is handled: one object, in order, and nothing temporary left."""
        written(store, *(b"%d;" % number for number in range(count))).close_for_commit().commit()
        assert store.get("output/part-1") == b"".join(b"%d;" % number for number in range(count))
        assert names(store) == ["output/part-1"]

    # -- the guarantees

    def test_what_is_persisted_is_recoverable(self, store: ObjectStore) -> None:
        """What `persist` or `sync` made durable is; what was written after it is lost with its process."""
        stream = GSRecoverableWriter(store).open(store.uri_of("output/part-1"))
        stream.write(b"durable;")
        resumable = stream.persist()
        stream.write(b"lost;")
        stream.flush()
        del stream  # the process is gone
        recovered = GSRecoverableWriter(store).recover(resumable)
        assert recovered.tell() == len(b"durable;")
        recovered.write(b"again")
        recovered.close_for_commit().commit()
        assert store.get("output/part-1") == b"durable;again"

    def test_exactly_once(self, store: ObjectStore) -> None:
        """A commit makes one final object; another one of the same name is refused and touches nothing."""
        written(store, b"first").close_for_commit().commit()
        rival = written(store, b"second").close_for_commit()
        with pytest.raises(ConflictError):
            rival.commit()
        with pytest.raises(OSError, match="output/part-1"):
            rival.commit_after_recovery()
        assert store.get("output/part-1") == b"first"

    def test_a_recovery_may_be_repeated(self, store: ObjectStore) -> None:
        """However often, by whomever: the same object, of the same generation."""
        state = written(store, b"a", b"b").close_for_commit().recoverable
        generations = set()
        for _ in range(3):
            GSRecoverableWriter(store).recover_for_commit(state).commit_after_recovery()
            stat = store.stat("output/part-1")
            assert stat is not None
            generations.add(stat.generation)
        assert len(generations) == 1
        assert store.get("output/part-1") == b"ab"

    def test_a_foreign_object_is_never_touched(self, store: ObjectStore) -> None:
        """Atomic, or not at all: what another wrote to the name stays, and so do our components."""
        committer = written(store, b"ours").close_for_commit()
        store.put("output/part-1", b"theirs", precondition=ABSENT)
        with pytest.raises(OSError, match="exists"):
            committer.commit()
        assert store.get("output/part-1") == b"theirs"
        assert len(names(store)) == 2

    def test_the_chunk_size_has_its_unit(self) -> None:
        """`gs.writer.chunk.size` is a multiple of 256 KiB, as the service wants it."""
        options = GSFileSystemOptions.from_mapping({"gs.writer.chunk.size": "8MB"})
        assert options.writer_chunk_size == 8 << 20
        with pytest.raises(InvalidInputError, match="multiple of 256KB"):
            GSFileSystemOptions.from_mapping({"gs.writer.chunk.size": "257kb"})
