"""Names, metadata, and locations.

Owns the tests of this part of the contract; inherit the whole suite, `ObjectStoreConformance`.
"""

from __future__ import annotations

import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.storage import ABSENT, ANY, Generation, ObjectStore
from dstl_dagster.testing.conformance.fixtures import ConformanceFixtures, RawRead

__all__ = ["NamesConformance"]


class NamesConformance(ConformanceFixtures):
    """Part of `ObjectStoreConformance`."""

    @pytest.mark.parametrize(
        "name",
        [
            "plain",
            "with space",
            "a/b/c/d/e/f",
            "ümläut/日本/😀",
            "%41?#[]*&=+",
            "a\\b",
            "-",
            "a.b..c",
            "x" * 200,
        ],
    )
    def test_names_come_back_as_given(self, store: ObjectStore, raw_read: RawRead, name: str) -> None:
        """Any legal name can be written, listed, read, located by its URI, and deleted."""
        made = store.put(name, b"x", precondition=ABSENT)
        assert made.name == name
        assert raw_read(name) == b"x"
        assert [stat.name for stat in store.list()] == [name]
        assert store.locate(store.uri_of(name)) == (store.bucket_name, store.prefix + name)
        assert store.delete(name, precondition=Generation(made.generation))

    @pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "a\rb", "x" * 1025, "é" * 513, "\ud800", ".", ".."])
    def test_impossible_names_are_refused(self, store: ObjectStore, name: str) -> None:
        """A name that no store accepts is InvalidInputError from every method, before any request."""
        with pytest.raises(InvalidInputError):
            store.put(name, b"x", precondition=ABSENT)
        with pytest.raises(InvalidInputError):
            store.open_write(name, precondition=ABSENT)
        with pytest.raises(InvalidInputError):
            store.stat(name)
        with pytest.raises(InvalidInputError):
            store.get(name)
        with pytest.raises(InvalidInputError):
            store.delete(name, precondition=ANY)

    @pytest.mark.parametrize("name", ["../escape", "a/../../escape", "/absolute", "a//b", "a/./b", "a/"])
    def test_path_like_names_are_names(self, store: ObjectStore, raw_read: RawRead, name: str) -> None:
        """Such a name is an ordinary object, or refused as declared: never another object."""
        store.put("a-neighbour", b"safe", precondition=ABSENT)
        if self.empty_levels:
            store.put(name, b"x", precondition=ABSENT)
            assert raw_read(name) == b"x"
        else:
            with pytest.raises(InvalidInputError):
                store.put(name, b"x", precondition=ABSENT)
        assert raw_read("a-neighbour") == b"safe"

    def test_object_beside_objects_below_it(self, store: ObjectStore, raw_read: RawRead) -> None:
        """`a` beside `a/b` works, or is refused as declared without harm to existing objects."""
        store.put("a/b", b"below", precondition=ABSENT)
        store.put("c", b"file", precondition=ABSENT)
        if self.file_beside_folder:
            store.put("a", b"beside", precondition=ABSENT)
            store.put("c/d", b"below", precondition=ABSENT)
            assert [stat.name for stat in store.list()] == ["a", "a/b", "c", "c/d"]
        else:
            for name in ("a", "c/d"):
                with pytest.raises(InvalidInputError):
                    store.put(name, b"beside", precondition=ABSENT)
            assert [stat.name for stat in store.list()] == ["a/b", "c"]
        assert raw_read("a/b") == b"below"
        assert raw_read("c") == b"file"

    def test_folder_name_is_free_once_empty(self, store: ObjectStore, raw_read: RawRead) -> None:
        """When all objects below a name are deleted, the name itself can be written."""
        made = store.put("a/b/c", b"x", precondition=ABSENT)
        store.delete("a/b/c", precondition=Generation(made.generation))
        store.put("a", b"now", precondition=ABSENT)
        assert raw_read("a") == b"now"

    def test_long_levels(self, store: ObjectStore, raw_read: RawRead) -> None:
        """A level of 1,000 bytes works, or is refused as declared."""
        name = "f/" + "x" * 1000
        if self.long_levels:
            store.put(name, b"x", precondition=ABSENT)
            assert raw_read(name) == b"x"
        else:
            with pytest.raises(InvalidInputError):
                store.put(name, b"x", precondition=ABSENT)

    @pytest.mark.parametrize(
        "metadata", [{"k": 1}, {"": "v"}, {"sp ace": "v"}, {"ü": "v"}, {"k": "x" * 9000}]
    )
    def test_bad_metadata_is_refused(self, store: ObjectStore, metadata: dict[str, str]) -> None:
        """Metadata is strings under plain ASCII keys, 8 KiB in total."""
        with pytest.raises(InvalidInputError):
            store.put("a", b"", precondition=ABSENT, metadata=metadata)
        assert store.stat("a") is None

    @pytest.mark.parametrize(
        "uri", ["", "a", "http://b/o", "gs://", "gs:///o", "gs://b", "gs://b/", "memory://b", "file://x/y"]
    )
    def test_uris_of_no_object_are_refused(self, store: ObjectStore, uri: str) -> None:
        """A URI without scheme, bucket or object is InvalidInputError."""
        with pytest.raises(InvalidInputError):
            store.locate(uri)

    def test_own_bucket_is_the_same_place(self, store: ObjectStore) -> None:
        """in_bucket with the store's own bucket sees the same objects, under their full names."""
        store.put("a", b"x", precondition=ABSENT)
        whole = store.in_bucket(store.bucket_name)
        assert whole.prefix == ""
        assert whole.get(store.prefix + "a") == b"x"

    def test_repr_and_uri_are_text(self, store: ObjectStore) -> None:
        """A store names itself by its URI."""
        assert "://" in store.uri
        assert type(store).__name__ in repr(store)
        assert isinstance(store, ObjectStore)

    def test_close_may_be_repeated(self, store: ObjectStore) -> None:
        """A second close does nothing."""
        store.close()
        store.close()
