"""Declared capabilities: a caller can use each one that a store claims.

Owns the tests of this part of the contract. Does not own what a capability means (`storage.base`).
"""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

import pytest

from dstl_dagster.errors import ConflictError, InvalidInputError, NotFoundError
from dstl_dagster.storage import (
    ABSENT,
    ANY,
    Cost,
    CostMeter,
    Generation,
    ObjectStore,
    StoreCapabilities,
    metered,
)
from dstl_dagster.testing.conformance.fixtures import ConformanceFixtures


class DeclaredConformance(ConformanceFixtures):
    """Part of `ObjectStoreConformance`."""

    def test_capabilities_stay_the_same(self, store: ObjectStore) -> None:
        """A store declares one frozen value, and its view of a bucket declares the same."""
        declared = store.capabilities
        assert isinstance(declared, StoreCapabilities)
        store.put("a", b"abc", precondition=ABSENT)
        assert store.capabilities == declared
        assert store.in_bucket(store.bucket_name).capabilities == declared

    def test_open_ranges_stay_on_their_generation(self, store: ObjectStore) -> None:
        """An object that a store holds open is read as it was opened, until closed."""
        payload = bytes(range(256)) * 16
        made = store.put("a", payload, precondition=ABSENT)
        opened = store.open_ranges("a", generation=made.generation)
        if opened is None:
            return
        with closing(opened):
            assert opened.size_bytes() == len(payload)
            assert opened.place
            store.put("a", b"later", precondition=ANY)
            assert opened.read_range(250, 12) == payload[250:262]
            assert opened.read_range(len(payload) - 2, 9) == payload[-2:]
        with pytest.raises(NotFoundError):
            store.open_ranges("a", generation=made.generation)
        with pytest.raises(NotFoundError):
            store.open_ranges("missing")

    def test_declared_nesting_holds(self, store: ObjectStore) -> None:
        """Only where names are paths does an object keep others from having its name for a folder."""
        assert store.capabilities.nested_names == (not self.file_beside_folder)
        store.put("a", b"file", precondition=ABSENT)
        if store.capabilities.nested_names:
            with pytest.raises(InvalidInputError):
                store.put("a/b", b"below", precondition=ABSENT)
        else:
            store.put("a/b", b"below", precondition=ABSENT)

    def test_a_bucket_can_be_seen(self, store: ObjectStore) -> None:
        """A store returns the settings of its own bucket, if any, and which permissions are missing."""
        resource = store.bucket_resource()
        assert resource is None or resource["name"] == store.bucket_name
        assert set(store.missing_permissions(["storage.objects.get"])) <= {"storage.objects.get"}

    def test_a_clock_is_never_ahead(self, store: ObjectStore) -> None:
        """The clock of a store is that of its stamps: not ahead of the next, and not stuck."""
        before = store.put("a", b"", precondition=ABSENT)
        time_of_server = store.server_time()
        after = store.put("b", b"", precondition=ABSENT)
        if time_of_server is not None:
            assert before.updated - timedelta(seconds=2) <= time_of_server <= after.updated

    def test_batches_delete_each_by_itself(self, store: ObjectStore) -> None:
        """One answer for each object, in order; a conflict is an answer, and concerns its object alone."""
        made = {name: store.put(name, b"x", precondition=ABSENT) for name in ("a", "b/c", "d")}
        objects = [(name, Generation(stat.generation)) for name, stat in made.items()]
        store.put("a", b"later", precondition=ANY)
        conflict, *answers = store.delete_all([*objects, ("e", ANY)])
        assert isinstance(conflict, ConflictError)
        assert answers == [True, True, False]
        assert [stat.name for stat in store.list()] == ["a"]

    def test_requests_are_counted(self, store: ObjectStore) -> None:
        """Whichever store it is: by class, with the bytes, in each view of it, and not beside it."""
        meter = CostMeter()
        counted = metered(store, meter)
        assert counted.uri == store.uri
        counted.put("a", b"abc", precondition=ABSENT)
        counted.in_bucket(store.bucket_name).stat(store.prefix + "a")
        counted.get("a")
        with pytest.raises(ConflictError):
            counted.put("a", b"abcd", precondition=ABSENT)
        counted.delete("a", precondition=ANY)
        store.put("b", b"beside", precondition=ABSENT)
        assert meter.cost == Cost(class_a=1, class_b=2, free=2, bytes_up=7, bytes_down=3, uploads=2)

    def test_a_short_list_is_the_beginning(self, store: ObjectStore) -> None:
        """The beginning of a whole listing, metadata included; fewer objects only if there are no more."""
        for number in range(5):
            store.put(f"a/{number}", b"x", precondition=ABSENT, metadata={"number": str(number)})
        store.put("b", b"x", precondition=ABSENT)
        whole = list(store.list("a/", start_offset="a/1"))
        assert list(store.list_first("a/", 3, start_offset="a/1")) == whole[:3]
        assert list(store.list_first("a/", 9, start_offset="a/1")) == whole
        assert [stat.metadata["number"] for stat in store.list_first("a/", 1)] == ["0"]
        assert list(store.list_first("c", 9)) == []
