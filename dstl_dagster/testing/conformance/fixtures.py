"""A subclass of the suite provides: a store, a way around it, and the names the store does not accept.

Owns the fixtures and these declarations. Does not own any test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import google_crc32c
import pytest

from dstl_dagster.storage import ObjectStore

__all__ = ["ConformanceFixtures", "RawRead", "crc32c_of"]

RawRead = Callable[[str], bytes | None]


def crc32c_of(payload: bytes) -> int:
    """Not the package's own function: the oracle shares nothing with the code under test."""
    return int.from_bytes(google_crc32c.Checksum(payload).digest(), "big")  # type: ignore[no-untyped-call] # no types


class ConformanceFixtures:
    """The base of every part of the suite."""

    file_beside_folder: ClassVar[bool] = True
    """Whether `a` and `a/b` can both be objects."""
    empty_levels: ClassVar[bool] = True
    """Whether names such as `a//b` are accepted."""
    long_levels: ClassVar[bool] = True
    """Whether one level of a name may have 1,000 bytes."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        """An empty store."""
        raise NotImplementedError("a subclass provides the store")

    @pytest.fixture
    def raw_read(self) -> RawRead:
        """Reads an object's bytes around the store; None if there is no object."""
        raise NotImplementedError("a subclass provides raw reads")
