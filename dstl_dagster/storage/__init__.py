"""The one door to object storage. Owns the public names; those with a cost are loaded on first use.

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
    Buffer,
    Generation,
    InspectableStore,
    ObjectReader,
    ObjectStat,
    ObjectStore,
    ObjectWriter,
    OpeningStore,
    Precondition,
    RangeReader,
    RequestCost,
    Source,
    StoreCapabilities,
    SummedWriter,
    open_ranges,
    summed_write,
)

if TYPE_CHECKING:
    from dstl_dagster.storage.file_ranges import FileRanges
    from dstl_dagster.storage.gcs import GCSObjectStore
    from dstl_dagster.storage.local import LocalObjectStore
    from dstl_dagster.storage.memory import MemoryObjectStore
    from dstl_dagster.storage.open import open_store
    from dstl_dagster.storage.preflight import Finding, Severity, check_store
    from dstl_dagster.storage.readback import WRITER_ID_KEY, Expected, put_own, write_own
    from dstl_dagster.storage.retrying import BackoffPolicy, Retries, Try
    from dstl_dagster.storage.rules import check_crc32c, split_bucket_uri, split_object_uri
    from dstl_dagster.storage.wrapper import (
        WrapperRanges,
        WrapperReader,
        WrapperStore,
        WrapperWriter,
        unwrapped,
    )

__all__ = [
    "ABSENT",
    "ANY",
    "MAX_COMPOSE_SOURCES",
    "WRITER_ID_KEY",
    "Absent",
    "AnyGeneration",
    "BackoffPolicy",
    "Buffer",
    "Expected",
    "FileRanges",
    "Finding",
    "GCSObjectStore",
    "Generation",
    "InspectableStore",
    "LocalObjectStore",
    "MemoryObjectStore",
    "ObjectReader",
    "ObjectStat",
    "ObjectStore",
    "ObjectWriter",
    "OpeningStore",
    "Precondition",
    "RangeReader",
    "RequestCost",
    "Retries",
    "Severity",
    "Source",
    "StoreCapabilities",
    "SummedWriter",
    "Try",
    "WrapperRanges",
    "WrapperReader",
    "WrapperStore",
    "WrapperWriter",
    "check_crc32c",
    "check_store",
    "open_ranges",
    "open_store",
    "put_own",
    "split_bucket_uri",
    "split_object_uri",
    "summed_write",
    "unwrapped",
    "write_own",
]

_HOME = {
    "FileRanges": "file_ranges",
    "GCSObjectStore": "gcs",
    "LocalObjectStore": "local",
    "MemoryObjectStore": "memory",
    "open_store": "open",
    "Finding": "preflight",
    "Severity": "preflight",
    "check_store": "preflight",
    "WRITER_ID_KEY": "readback",
    "Expected": "readback",
    "put_own": "readback",
    "write_own": "readback",
    "BackoffPolicy": "retrying",
    "Retries": "retrying",
    "Try": "retrying",
    "check_crc32c": "rules",
    "split_bucket_uri": "rules",
    "split_object_uri": "rules",
    "WrapperRanges": "wrapper",
    "WrapperReader": "wrapper",
    "WrapperStore": "wrapper",
    "WrapperWriter": "wrapper",
    "unwrapped": "wrapper",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
