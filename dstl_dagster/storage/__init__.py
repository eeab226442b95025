"""The one door to object storage. Owns the public names, each loaded on first use.

Does not own any behaviour: `base` is the contract, and each kind of store has its module.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dstl_dagster.storage.base import (
    ABSENT,
    ANY,
    MAX_COMPOSE_SOURCES,
    Absent,
    AnyGeneration,
    Generation,
    ObjectReader,
    ObjectStat,
    ObjectStore,
    ObjectWriter,
    Precondition,
    Source,
)

if TYPE_CHECKING:
    from dstl_dagster.storage.gcs import GCSObjectStore
    from dstl_dagster.storage.local import LocalObjectStore
    from dstl_dagster.storage.memory import MemoryObjectStore
    from dstl_dagster.storage.open import open_store

__all__ = [
    "ABSENT",
    "ANY",
    "MAX_COMPOSE_SOURCES",
    "Absent",
    "AnyGeneration",
    "GCSObjectStore",
    "Generation",
    "LocalObjectStore",
    "MemoryObjectStore",
    "ObjectReader",
    "ObjectStat",
    "ObjectStore",
    "ObjectWriter",
    "Precondition",
    "Source",
    "open_store",
]

_HOME = {
    "GCSObjectStore": "dstl_dagster.storage.gcs",
    "LocalObjectStore": "dstl_dagster.storage.local",
    "MemoryObjectStore": "dstl_dagster.storage.memory",
    "open_store": "dstl_dagster.storage.open",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
