"""The first batch of a job: whether an asset under a new name makes it, whose state is that of another job.

A store cannot distinguish a renamed asset from a new one, nor from one of another code location. Dagster's
events can, where the same code location wrote an asset that it no longer defines.

Owns that question. Does not own names within a job (`checkpoint.claims`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator, Claim
from dstl_dagster.errors import ConflictError, ErrorKind
from dstl_dagster.orchestration.code_location import asset_source, code_location
from dstl_dagster.orchestration.keys import TAG_IGNORE_UNCLAIMED
from dstl_dagster.orchestration.timeline_check import shown_in


def refuse_new_name(
    context: Any, coordinator: CheckpointCoordinator, claim: Claim, keys: Sequence[str]
) -> None:
    """Refuse the first batch of a job, where the run's code location wrote another job of this store by an
    asset that it no longer has, whose state has the same keys. Other such jobs are named in the log.

    `context`: of the run's step. `keys`: the key columns of what the batch writes, where they are known.

    Raises: ConflictError (kind `unclaimed`).
    """
    definitions = code_location(context)
    if definitions is None or claim.ignore_unclaimed or claim.operators == ():
        return
    others = []
    for key, job in _given_up(context.instance, context.dagster_run, definitions):
        state = _written_by(key, coordinator, job)
        if state is None:
            continue
        others.append(f"{job} (asset {key.to_user_string()})")
        reports = [
            state.manifest.operators[each].report
            for each in state.manifest.sources[asset_source(key)].operators
        ]
        if keys and any(report.key_columns == tuple(keys) for report in reports):
            raise ConflictError(
                f"job {coordinator.job!r} is new, and job {job!r} is that of asset {key.to_user_string()}, "
                "which this code location wrote and no longer defines: nothing was read. If that has another "
                f"name now: name its job, in an IO manager's metadata dstl/job: {job}; if it goes: "
                f"dstl jobs drop {job}; if both are meant, say so once: the run's tag "
                f"{TAG_IGNORE_UNCLAIMED}: true",
                kind=ErrorKind.UNCLAIMED,
            )
    if others:
        context.log.warning(
            f"job {coordinator.job!r} begins. This code location also wrote, and no longer defines: "
            + ", ".join(sorted(others))
        )


def _given_up(
    instance: dg.DagsterInstance, run: dg.DagsterRun, definitions: dg.RepositoryDefinition
) -> Iterator[tuple[dg.AssetKey, str]]:
    """The assets that this code location was the last to write and no longer defines, each with its job."""
    defined = definitions.asset_graph.executable_asset_keys
    gone = [key for key in instance.get_asset_keys() if key not in defined]
    for record in instance.get_asset_records(gone) if gone else ():
        event = record.asset_entry.last_materialization_record
        if event is None:
            continue
        jobs = {each.job for each in shown_in(event.asset_materialization) if each.job is not None}
        writer = instance.get_run_by_id(event.run_id) if jobs else None
        if writer is not None and _are_of_one_location(writer, run):
            yield from ((record.asset_entry.asset_key, job) for job in sorted(jobs))


def _are_of_one_location(one: dg.DagsterRun, other: dg.DagsterRun) -> bool:
    """By its name in the workspace; of a run without one, as of `dg launch`, by where its code lies."""
    remote, code = zip(
        *((each.remote_job_origin, each.job_code_origin) for each in (one, other)), strict=True
    )
    if None not in remote:
        names = {each.repository_origin.code_location_origin.location_name for each in remote}
        return len(names) == 1
    return (
        None not in code and code[0].repository_origin.code_pointer == code[1].repository_origin.code_pointer
    )


def _written_by(key: dg.AssetKey, like: CheckpointCoordinator, job: str) -> Checkpoint | None:
    """The last checkpoint of that job in the same store, where this asset feeds it."""
    found = CheckpointCoordinator(job, like.store, like.job_options).latest()
    return found if found is not None and asset_source(key) in found.manifest.sources else None
