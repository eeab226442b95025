"""The work of a task of a write through `format("dstl")` on its partition.

Owns the work inside a task, and the outcome that it returns. Does not own the plan (`plan`) nor turning
outcomes into a checkpoint (`commit`).

A task ends only when what it wrote is durable, and always reads its input to the end: stateful operators
upstream of it must finish the micro-batch.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dstl_dagster.errors import DstlError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.keyed import open_attempt_changelog, write_range
from dstl_dagster.spark.errors import refusal
from dstl_dagster.spark.sink.plan import FileSink, SinkPlan, StateSink
from dstl_dagster.spark.stores import COST, counted_store
from dstl_dagster.spark.streaming.micro_batches import MicroBatch
from dstl_dagster.state import (
    ChangeEncoder,
    EncodedChanges,
    NewestTime,
    group_of_hashes,
    key_hashes,
)
from dstl_dagster.storage import TRIGGER, CostMeter

Flags = npt.NDArray[np.bool_]


def write_partition(
    plan: SinkPlan | None,
    micro_batch: MicroBatch | None,
    partition: int,
    batches: Iterator[pa.RecordBatch],
) -> dict[str, Any]:
    """Write one partition durably and invisibly; returns the outcome as a plain JSON object.

    It holds the partition's number, the attempt (always of the first partition, and of others with rows),
    its `cost` (of the first partition also `trigger`, what the planner did) and, if there
    are rows, `state` or `files`. Or `done`: the batch is already in a checkpoint. Or a `refusal`.
    """
    if plan is None:
        _drain(batches)
        return {"done": True}
    outcome: dict[str, Any] = {
        "partition": partition,
        "query": None if micro_batch is None else micro_batch.position,
    }
    if micro_batch is not None and micro_batch.is_in(plan.last):
        _drain(batches)
        return {**outcome, "done": True}
    meter = CostMeter()
    try:
        if micro_batch is not None:
            micro_batch.require_after(plan.last, plan.options.adopt_after)
        first = next((each for each in batches if each.num_rows), None)
        # The first partition exists in every write, so the commit finds an attempt even if there are no rows.
        if partition == 0 or first is not None:
            attempt = plan.attempt if micro_batch is None else plan.begin(micro_batch, meter)
            outcome["attempt"] = attempt.to_json()
        if partition == 0:
            outcome[TRIGGER] = plan.trigger.to_json()
        if first is not None:
            outcome |= _written(plan, micro_batch, partition, chain([first], batches), meter)
        return {**outcome, COST: meter.cost.to_json()}
    except DstlError as error:
        return {**outcome, **refusal(error)}


def groups_of(state: dict[str, Any], max_parallelism: int) -> Flags:
    """For each key group, whether rows of a `state` outcome are in it."""
    packed = np.frombuffer(base64.b64decode(state["groups"]), np.uint8)
    return np.unpackbits(packed, count=max_parallelism).astype(np.bool_)


def _written(
    plan: SinkPlan,
    micro_batch: MicroBatch | None,
    partition: int,
    batches: Iterator[pa.RecordBatch],
    meter: CostMeter,
) -> dict[str, Any]:
    match plan.sink:
        case FileSink() as sink:
            ordered = (each.select(sink.order) for each in batches)
            files = sink.job_for(micro_batch).write(partition, ordered, meter)
            return {"files": [each.to_json() for each in files]}
        case StateSink() as sink:
            return {"state": _write_state(plan, sink, batches, meter)}


def _write_state(
    plan: SinkPlan, sink: StateSink, batches: Iterator[pa.RecordBatch], meter: CostMeter
) -> dict[str, Any]:
    schema = sink.state.schema
    encoder, newest = ChangeEncoder(schema), NewestTime(sink.state.time_column)
    present = np.zeros(schema.max_parallelism, np.bool_)

    def changes() -> Iterator[EncodedChanges | None]:
        for each in batches:
            rows, deleted = _split(each, sink)
            hashes = key_hashes(rows, schema)
            key_groups = group_of_hashes(hashes, rows, schema)
            present[key_groups] = True
            newest.add(rows, deleted)
            yield encoder.add(rows, key_groups, deleted, hashes=hashes)
        yield encoder.finish()

    every_group = KeyGroupRange.of(0, schema.max_parallelism - 1)
    with (
        counted_store(plan.attempt.store_uri, meter, plan.options.job_options.files) as store,
        open_attempt_changelog(store, plan.attempt, plan.options.job_options) as storage,
    ):
        handle = write_range(storage, plan.attempt, sink.state.operator, schema, every_group, changes())
    # Which key groups occurred is known only now: a reader skips files that have none of its own.
    (found,) = np.nonzero(present)
    own = KeyGroupRange.of(int(found[0]), int(found[-1]))
    handle = replace(handle, key_group_range=own, slices=encoder.slices or 1)
    return {
        "handle": handle.to_json(),
        "upserts": encoder.upserts,
        "deletes": encoder.deletes,
        "null_keys": encoder.null_keys,
        "newest_us": newest.us,
        "groups": base64.b64encode(np.packbits(present).tobytes()).decode("ascii"),
    }


def _split(batch: pa.RecordBatch, sink: StateSink) -> tuple[pa.RecordBatch, pa.Array | None]:
    """The state's columns, in its spelling, and the delete flags."""
    deleted, columns = None, list(batch.columns)
    if sink.deleted is not None:
        deleted = columns.pop(batch.schema.names.index(sink.deleted))
    return pa.record_batch(columns, list(sink.state.columns)), deleted


def _drain(batches: Iterator[pa.RecordBatch]) -> None:
    for _ in batches:
        pass
