"""The one door to object storage. Owns the public names; those with a cost are loaded on first use.

Does not own any behaviour: `base` is the contract, and each kind of store has its module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstl_dagster._lazy import lazy_face
from dstl_dagster.storage.base import (
    ABSENT,
    ANY,
    MAX_BATCH_DELETES,
    MAX_COMPOSE_SOURCES,
    Absent,
    AnyGeneration,
    BatchDeletingStore,
    Buffer,
    CountingStore,
    Generation,
    InspectableStore,
    ObjectReader,
    ObjectStat,
    ObjectStore,
    ObjectWriter,
    OpeningStore,
    Precondition,
    RangeReader,
    ShortListingStore,
    Source,
    StoreCapabilities,
    SummedWriter,
    TimedStore,
    open_ranges,
    server_time,
    summed_write,
)

if TYPE_CHECKING:
    from dstl_dagster.storage.accounting.cost import NO_COST, Cost, CostMeter, Operation, RequestClass
    from dstl_dagster.storage.accounting.metered import metered
    from dstl_dagster.storage.accounting.steps import (
        COMPOSE_COMMIT,
        CONFIRM,
        OWN_WRITE,
        PERSIST,
        RECORD,
        TRIGGER,
        CheckpointCost,
        RunningCost,
        cost_from_note,
        cost_note,
    )
    from dstl_dagster.storage.batching import Check, component_lookups, delete_each
    from dstl_dagster.storage.copies import Origin, generation_of_copy
    from dstl_dagster.storage.gcs.store import GCSObjectStore
    from dstl_dagster.storage.local.file_ranges import FileRanges
    from dstl_dagster.storage.local.store import LocalObjectStore
    from dstl_dagster.storage.memory import MemoryObjectStore
    from dstl_dagster.storage.open import open_store, require_store_uri, require_within
    from dstl_dagster.storage.policy.retry import Retries, RetryAttempt, RetryPolicy
    from dstl_dagster.storage.policy.update_limit import let_settle
    from dstl_dagster.storage.preflight import Finding, Severity, check_store
    from dstl_dagster.storage.readback import WRITER_ID_KEY, Expected, put_own, write_own
    from dstl_dagster.storage.rules import (
        check_crc32c,
        check_delete_all,
        each_deleted,
        split_bucket_uri,
        split_object_uri,
    )
    from dstl_dagster.storage.whole_object import read_parts
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
    "COMPOSE_COMMIT",
    "CONFIRM",
    "MAX_BATCH_DELETES",
    "MAX_COMPOSE_SOURCES",
    "NO_COST",
    "OWN_WRITE",
    "PERSIST",
    "RECORD",
    "TRIGGER",
    "WRITER_ID_KEY",
    "Absent",
    "AnyGeneration",
    "BatchDeletingStore",
    "Buffer",
    "Check",
    "CheckpointCost",
    "Cost",
    "CostMeter",
    "CountingStore",
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
    "Operation",
    "Origin",
    "Precondition",
    "RangeReader",
    "RequestClass",
    "Retries",
    "RetryAttempt",
    "RetryPolicy",
    "RunningCost",
    "Severity",
    "ShortListingStore",
    "Source",
    "StoreCapabilities",
    "SummedWriter",
    "TimedStore",
    "WrapperRanges",
    "WrapperReader",
    "WrapperStore",
    "WrapperWriter",
    "check_crc32c",
    "check_delete_all",
    "check_store",
    "component_lookups",
    "cost_from_note",
    "cost_note",
    "delete_each",
    "each_deleted",
    "generation_of_copy",
    "let_settle",
    "metered",
    "open_ranges",
    "open_store",
    "put_own",
    "read_parts",
    "require_store_uri",
    "require_within",
    "server_time",
    "split_bucket_uri",
    "split_object_uri",
    "summed_write",
    "unwrapped",
    "write_own",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "accounting.cost": ["NO_COST", "Cost", "CostMeter", "Operation", "RequestClass"],
        "accounting.metered": ["metered"],
        "accounting.steps": [
            "COMPOSE_COMMIT",
            "CONFIRM",
            "OWN_WRITE",
            "PERSIST",
            "RECORD",
            "TRIGGER",
            "CheckpointCost",
            "RunningCost",
            "cost_from_note",
            "cost_note",
        ],
        "copies": ["Origin", "generation_of_copy"],
        "local.file_ranges": ["FileRanges"],
        "gcs": ["GCSObjectStore"],
        "local": ["LocalObjectStore"],
        "batching": ["Check", "component_lookups", "delete_each"],
        "memory": ["MemoryObjectStore"],
        "open": ["open_store", "require_store_uri", "require_within"],
        "whole_object": ["read_parts"],
        "preflight": ["Finding", "Severity", "check_store"],
        "readback": ["Expected", "WRITER_ID_KEY", "put_own", "write_own"],
        "policy.retry": ["RetryPolicy", "Retries", "RetryAttempt"],
        "rules": [
            "check_crc32c",
            "check_delete_all",
            "each_deleted",
            "split_bucket_uri",
            "split_object_uri",
        ],
        "policy.update_limit": ["let_settle"],
        "wrapper": ["WrapperRanges", "WrapperReader", "WrapperStore", "WrapperWriter", "unwrapped"],
    },
)
