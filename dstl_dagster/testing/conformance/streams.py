"""Streaming writes: when they become visible, and when they never do.

Owns the tests of this part of the contract; inherit the whole suite, `ObjectStoreConformance`.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from dstl_dagster.errors import ClosedError, ConflictError, FormatError, InvalidInputError
from dstl_dagster.storage import ABSENT, Generation, ObjectStore
from dstl_dagster.testing.conformance.fixtures import ConformanceFixtures, RawRead, crc32c_of

__all__ = ["StreamsConformance"]


class StreamsConformance(ConformanceFixtures):
    """Part of `ObjectStoreConformance`."""

    def test_stream_is_visible_only_when_closed(self, store: ObjectStore, raw_read: RawRead) -> None:
        """Before close there is no object; after it, the whole object, as close returned it."""
        payload = bytes(range(256)) * 4096
        upload = store.open_write("s/a", precondition=ABSENT, metadata={"k": "v"}, chunk_size=256 * 1024)
        for start in range(0, len(payload), 300_000):
            piece = payload[start : start + 300_000]
            assert upload.write(piece) == len(piece)
            upload.flush()
            assert raw_read("s/a") is None
            assert store.stat("s/a") is None
        made = upload.close()
        assert raw_read("s/a") == payload
        assert store.stat("s/a") == made
        assert (made.size, made.crc32c) == (len(payload), crc32c_of(payload))
        assert dict(made.metadata) == {"k": "v"}

    def test_stream_of_nothing_is_an_empty_object(self, store: ObjectStore, raw_read: RawRead) -> None:
        """A stream closed without a write creates an empty object."""
        store.open_write("a", precondition=ABSENT).close()
        assert raw_read("a") == b""

    def test_a_given_checksum_is_taken(self, store: ObjectStore, raw_read: RawRead) -> None:
        """Writes that carry the checksum so far, all of them or some, produce the same object."""
        pieces = [b"a" * 300_000, b"b" * 300_000, b"c"]
        whole = b"".join(pieces)
        for name, checksums in (("all", (True, True, True)), ("some", (False, True, False))):
            upload = store.open_write(name, precondition=ABSENT, chunk_size=256 * 1024)
            written = b""
            for piece, with_checksum in zip(pieces, checksums, strict=True):
                written += piece
                if with_checksum:
                    assert upload.write(piece, crc32c_of(written)) == len(piece)
                else:
                    upload.write(piece)
            assert upload.close().crc32c == crc32c_of(whole)
            assert store.get(name) == raw_read(name) == whole

    def test_a_wrong_given_checksum_is_found(self, store: ObjectStore) -> None:
        """Bytes that do not match the checksum passed are refused on close, or on read: or it is not used."""
        piece = b"a" * 600_000
        upload = store.open_write("a", precondition=ABSENT, chunk_size=256 * 1024)
        upload.write(piece, crc32c_of(piece) ^ 1)
        with suppress(FormatError, InvalidInputError):
            upload.close()
            assert store.get("a") == piece

    def test_closing_again_returns_the_same(self, store: ObjectStore) -> None:
        """A second close returns the same stat and writes nothing."""
        upload = store.open_write("a", precondition=ABSENT)
        upload.write(b"abc")
        made = upload.close()
        assert upload.close() == made
        assert store.stat("a") == made

    def test_aborted_stream_leaves_nothing(self, store: ObjectStore, raw_read: RawRead) -> None:
        """After abort there is no object, and the stream accepts no more bytes."""
        upload = store.open_write("a", precondition=ABSENT)
        upload.write(b"x" * 600_000)
        upload.abort()
        upload.abort()
        assert raw_read("a") is None
        assert [stat.name for stat in store.list()] == []
        with pytest.raises(ClosedError):
            upload.write(b"more")
        with pytest.raises(ClosedError):
            upload.close()

    def test_dropped_stream_commits_nothing(self, store: ObjectStore, raw_read: RawRead) -> None:
        """A stream collected without close creates no object, not even a truncated one."""
        import gc

        upload = store.open_write("a", precondition=ABSENT, chunk_size=256 * 1024)
        upload.write(b"x" * 600_000)
        del upload
        gc.collect()
        assert raw_read("a") is None
        assert store.stat("a") is None

    def test_abort_after_close_changes_nothing(self, store: ObjectStore, raw_read: RawRead) -> None:
        """A closed stream cannot be undone."""
        upload = store.open_write("a", precondition=ABSENT)
        upload.write(b"abc")
        upload.close()
        upload.abort()
        assert raw_read("a") == b"abc"

    def test_stream_checks_its_precondition(self, store: ObjectStore, raw_read: RawRead) -> None:
        """An object created while the stream was being written is not replaced."""
        upload = store.open_write("a", precondition=ABSENT)
        upload.write(b"late")
        store.put("a", b"early", precondition=ABSENT)
        with pytest.raises(ConflictError):
            upload.close()
        upload.abort()
        assert raw_read("a") == b"early"

    @pytest.mark.parametrize("replaces", [False, True])
    def test_long_stream_checks_its_precondition(
        self, store: ObjectStore, raw_read: RawRead, replaces: bool
    ) -> None:
        """A stream of several requests keeps its precondition until it is closed, as a single one does."""
        seen = store.put("a", b"seen", precondition=ABSENT) if replaces else None
        wanted = ABSENT if seen is None else Generation(seen.generation)
        upload = store.open_write("a", precondition=wanted, chunk_size=256 * 1024)
        upload.write(b"x" * 300_000)
        upload.flush()
        store.put("a", b"meanwhile", precondition=wanted)
        with pytest.raises(ConflictError):
            upload.close()
        upload.abort()
        assert raw_read("a") == b"meanwhile"

    @pytest.mark.parametrize("chunk_size", [0, -1, 1000, 256 * 1024 + 1])
    def test_bad_chunk_size_is_refused(self, store: ObjectStore, chunk_size: int) -> None:
        """A chunk is a positive multiple of 256 KiB."""
        with pytest.raises(InvalidInputError):
            store.open_write("a", precondition=ABSENT, chunk_size=chunk_size)
