"""The jobs of a store: what the timeline and the newest manifest of each say. Reads only.

Does not own finding them (`timeline.missing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from dstl_dagster.checkpoint import CheckpointReader
from dstl_dagster.concurrency import gather
from dstl_dagster.errors import DstlError, UnavailableError
from dstl_dagster.settings import JobOptions, Options
from dstl_dagster.storage import ObjectStore, open_store
from dstl_dagster.timeline import AtLike, job_names

if TYPE_CHECKING:
    from dstl_dagster.keyed import Filters, KeyGroups, StateScan


@dataclass(frozen=True)
class JobSummary:
    """One job, as of now.

    Attributes:
        checkpoint_id: the last completed checkpoint; `None` before the first.
        completed_at: when it completed, by the clock of its run.
        batch: its idempotency key, such as a partition.
        retained: how many checkpoints can be restored to.
        open_owner: of the checkpoint in progress; `None` if there is none.
        state_bytes: what reading all its state takes; `None` if its manifest does not say.
        problem: why the job cannot be read; the rest is unknown then.
    """

    job: str
    checkpoint_id: int | None = None
    completed_at: datetime | None = None
    batch: str | None = None
    retained: int = 0
    open_owner: str | None = None
    state_bytes: int | None = None
    problem: str | None = None


def list_jobs(store: ObjectStore, options: Options | None = None) -> list[JobSummary]:
    """Every job of the store, ascending, each read by itself: one that is damaged says so.

    Raises: UnavailableError.
    """
    job_options = JobOptions.of(options)
    threads = store.capabilities.lookup_threads(job_options.checkpoint.commit_threads)
    looks = [partial(_summary, store, job, job_options) for job in job_names(store)]
    return gather(looks, threads, "dstl-jobs")


def _summary(store: ObjectStore, job: str, options: JobOptions) -> JobSummary:
    reader = CheckpointReader(job, store, options)
    try:
        view = reader.timeline.tail()
        last = None if view.last_completed is None else reader.at(view.last_completed.checkpoint_id)
    except UnavailableError:
        raise
    except DstlError as error:
        return JobSummary(job, problem=error.message)
    open_owner = None if view.open_attempt is None else view.open_attempt.owner
    if last is None:
        problem = None if view.slot else "it has objects, but no timeline: a drop was interrupted"
        return JobSummary(job, open_owner=open_owner, problem=problem)
    return JobSummary(
        job,
        checkpoint_id=last.checkpoint_id,
        completed_at=last.entry.completed.recorded_at,
        batch=last.idempotency_key,
        retained=len(view.retained),
        open_owner=open_owner,
        state_bytes=sum(entry.state_bytes for entry in last.manifest.operators.values()),
    )


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
