"""Lists: order, prefix, offset, and concurrent changes.

Owns the tests of this part of the contract; inherit the whole suite, `ObjectStoreConformance`.
"""

from __future__ import annotations

import pytest

from dstl_dagster.storage import ABSENT, ANY, ObjectStore
from dstl_dagster.testing.conformance.fixtures import ConformanceFixtures

__all__ = ["ListsConformance"]


class ListsConformance(ConformanceFixtures):
    """Part of `ObjectStoreConformance`."""

    def test_list_is_in_the_order_of_utf8(self, store: ObjectStore) -> None:
        """Names come in the order of their UTF-8 bytes, which differs from that of UTF-16."""
        wanted = ["a-b", "a.txt", "a/b", "a/c/d", "a0", "b", "z", "é", "\uffee", "\U0001f600"]
        for name in reversed(wanted):
            store.put(name, name.encode(), precondition=ABSENT)
        assert sorted(wanted, key=str.encode) == wanted
        assert [stat.name for stat in store.list()] == wanted

    def test_list_yields_what_stat_returns(self, store: ObjectStore) -> None:
        """Each listed object equals its stat."""
        for name in ("x/1", "x/2"):
            store.put(name, name.encode(), precondition=ABSENT, metadata={"n": name[-1]})
        assert list(store.list("x/")) == [store.stat("x/1"), store.stat("x/2")]

    @pytest.mark.parametrize(
        ("prefix", "expected"),
        [
            ("", ["a/1", "a/2", "ab/1", "b"]),
            ("a", ["a/1", "a/2", "ab/1"]),
            ("a/", ["a/1", "a/2"]),
            ("a/2", ["a/2"]),
            ("b/", []),
            ("c", []),
            ("a/1/x", []),
        ],
    )
    def test_list_by_prefix(self, store: ObjectStore, prefix: str, expected: list[str]) -> None:
        """A prefix matches text, not folders."""
        for name in ("a/1", "a/2", "ab/1", "b"):
            store.put(name, b"", precondition=ABSENT)
        assert [stat.name for stat in store.list(prefix)] == expected

    @pytest.mark.parametrize(
        ("prefix", "offset", "expected"),
        [
            ("", "a/2", ["a/2", "ab/1", "b"]),
            ("", "a/15", ["a/2", "ab/1", "b"]),
            ("a/", "a/2", ["a/2"]),
            ("a/", "", ["a/1", "a/2"]),
            ("a", "aa", ["ab/1"]),
            ("", "a0", ["ab/1", "b"]),
            ("", "zzz", []),
        ],
    )
    def test_list_from_an_offset(
        self, store: ObjectStore, prefix: str, offset: str, expected: list[str]
    ) -> None:
        """The offset is inclusive, and need not be an existing name."""
        for name in ("a/1", "a/2", "ab/1", "b"):
            store.put(name, b"", precondition=ABSENT)
        assert [stat.name for stat in store.list(prefix, start_offset=offset)] == expected

    def test_list_survives_changes(self, store: ObjectStore) -> None:
        """Objects that exist throughout the walk are listed once, while others come and go."""
        lasting = [f"l/{number:03d}" for number in range(0, 60, 2)]
        passing = [f"l/{number:03d}" for number in range(1, 60, 2)]
        for name in lasting + passing:
            store.put(name, b"", precondition=ABSENT)
        seen = []
        for stat in store.list("l/"):
            seen.append(stat.name)
            if passing:
                gone = passing.pop()
                store.delete(gone, precondition=ANY)
                store.put(f"{gone}-new", b"", precondition=ABSENT)
        assert [name for name in seen if name in lasting] == lasting
