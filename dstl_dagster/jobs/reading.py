"""State without Spark, from the store's URI and the job's name alone.

Owns what a program gives that has neither a coordinator nor a store. Does not own which checkpoint is meant
(`checkpoint`), or the forms that rows are passed in (`keyed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from dstl_dagster.checkpoint import CheckpointReader
from dstl_dagster.settings import JobOptions, Options
from dstl_dagster.storage import open_store
from dstl_dagster.timeline import AtLike

if TYPE_CHECKING:
    from dstl_dagster.keyed import Filters, KeyGroups, StateScan


def read_state(
    uri: str,
    job: str,
    operator: str,
    at: AtLike = None,
    *,
    columns: Sequence[str] | None = None,
    key_groups: KeyGroups | None = None,
    filters: Filters | None = None,
    as_bytes: Sequence[str] = (),
    options: Options | None = None,
) -> StateScan:
    """The rows of an operator at one checkpoint, without Spark: to Arrow, pandas, Polars or DuckDB.

    Args:
        uri: of the job's store.
        at: an id, a partition, a savepoint or a time: see `CheckpointReader.at`. `None`: the last one.
        columns: only these, in this order.
        key_groups: only these, also as text such as "0-15,20"; both ends inclusive.
        filters: only rows that pass. Those that give every key column its values read these keys' groups.
        as_bytes: text columns to give as bytes, for text that is not UTF-8.
        options: of the job.

    Raises: NotFoundError (kind `no_checkpoint`, `checkpoint_gone`, `no_state`), InvalidInputError.
    """
    with closing(open_store(uri, JobOptions.of(options).files)) as store:
        wanted = {"columns": columns, "key_groups": key_groups, "filters": filters, "as_bytes": as_bytes}
        return replace(CheckpointReader(job, store, options).read_state(operator, at, **wanted), store=None)
