"""The contract of every object store as a test suite: inherit the class, provide a store, run pytest.

Owns the tests. Does not own how a store is created or inspected: a subclass provides the fixtures `store`
(empty) and `raw_read`, which reads an object's bytes *around* the store under test, so that a shared mistake
cannot hide. Class attributes declare the names a store does not accept.
"""

from __future__ import annotations

from dstl_dagster.testing.conformance.composes import ComposesConformance
from dstl_dagster.testing.conformance.conditions import ConditionsConformance
from dstl_dagster.testing.conformance.declared import DeclaredConformance
from dstl_dagster.testing.conformance.fixtures import RawRead
from dstl_dagster.testing.conformance.lists import ListsConformance
from dstl_dagster.testing.conformance.names import NamesConformance
from dstl_dagster.testing.conformance.objects import ObjectsConformance
from dstl_dagster.testing.conformance.streams import StreamsConformance

__all__ = ["ObjectStoreConformance", "RawRead"]


class ObjectStoreConformance(
    ObjectsConformance,
    ConditionsConformance,
    StreamsConformance,
    ListsConformance,
    ComposesConformance,
    NamesConformance,
    DeclaredConformance,
):
    """Inherit, and provide the fixtures `store` and `raw_read`."""
