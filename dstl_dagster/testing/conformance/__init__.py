"""What every object store must do: inherit the class, give it a store, run pytest.

Owns the contract's tests. Does not own how a store is made or looked into: a subclass provides the
fixtures `store` (empty) and `raw_read`, which reads an object's bytes *around* the store under test, so
that no shared mistake can hide. What a store declares not to take stands in the class attributes.
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
