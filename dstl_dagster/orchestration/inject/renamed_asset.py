"""The first batch of a job: whether an asset, or an op's output, makes it under a new name, whose state is
that of another job.

A store cannot distinguish a renamed asset from a new one, nor from one of another code location. Dagster's
events and runs can, where the same code location wrote what it no longer defines.

Owns that question. Does not own names within a job (`checkpoint.claims`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import ne
from typing import Any

import dagster as dg

from dstl_dagster.checkpoint import Checkpoint, CheckpointCoordinator, Claim
from dstl_dagster.errors import ConflictError, ErrorKind
from dstl_dagster.keyed import Source
from dstl_dagster.orchestration.code_location import asset_source, code_location
from dstl_dagster.orchestration.keys import OF_ASSET, TAG_IGNORE_UNCLAIMED
from dstl_dagster.orchestration.owners import run_of_owner
from dstl_dagster.orchestration.run_claims import is_in_job
from dstl_dagster.orchestration.timeline_check import shown_in
from dstl_dagster.timeline import job_names


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
    given_up = _given_up_outputs if claim.by.startswith("op:") else _given_up_assets
    others = []
    for what, job, state, source in given_up(context, coordinator, definitions):
        others.append(f"{job} ({what})")
        reports = [state.manifest.operators[each].report for each in source.operators]
        if keys and any(report.key_columns == tuple(keys) for report in reports):
            raise ConflictError(
                f"job {coordinator.job!r} is new, and job {job!r} is that of {what}, "
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


_GivenUp = Iterator[tuple[str, str, Checkpoint, Source]]
"""In words what the code location no longer defines; its job, the last checkpoint there, the source it is."""


def _given_up_assets(
    context: Any, coordinator: CheckpointCoordinator, definitions: dg.RepositoryDefinition
) -> _GivenUp:
    """Those that this code location was the last to write."""
    instance: dg.DagsterInstance = context.instance
    defined = definitions.asset_graph.executable_asset_keys
    gone = [key for key in instance.get_asset_keys() if key not in defined]
    for record in instance.get_asset_records(gone) if gone else ():
        event, key = record.asset_entry.last_materialization_record, record.asset_entry.asset_key
        if event is None:
            continue
        jobs = {each.job for each in shown_in(event.asset_materialization) if each.job is not None}
        writer = instance.get_run_by_id(event.run_id) if jobs else None
        if writer is None or not _are_of_one_location(writer, context.dagster_run):
            continue
        for job in sorted(jobs):
            state = _last_of(job, coordinator)
            source = None if state is None else state.manifest.sources.get(asset_source(key))
            if state is not None and source is not None:
                yield f"asset {key.to_user_string()}", job, state, source


def _given_up_outputs(
    context: Any, coordinator: CheckpointCoordinator, definitions: dg.RepositoryDefinition
) -> _GivenUp:
    """Those of which the name of the Dagster job, or of the op, differs; a run of this code location wrote
    them last.
    """
    *own, output = coordinator.job.split(".")
    for job in job_names(coordinator.store):
        *parts, last = job.split(".")
        if last != output or len(parts) != len(own) or sum(map(ne, parts, own)) != 1:
            continue
        state = _last_of(job, coordinator)
        writer_id = None if state is None else run_of_owner(state.entry.completed.owner)
        writer = None if writer_id is None else context.instance.get_run_by_id(writer_id)
        if state is None or writer is None or not _are_of_one_location(writer, context.dagster_run):
            continue
        name = writer.job_name
        # The ops of an asset are in each job that selects it.
        is_any = own[0] == OF_ASSET
        jobs = [each for each in definitions.get_all_jobs() if is_any or each.name == name]
        for each in state.manifest.sources.values():
            if not any(is_in_job(each.by, among) for among in jobs):
                yield f"an output of {each.by.replace(':', ' ', 1)} in Dagster's job {name}", job, state, each


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


def _last_of(job: str, like: CheckpointCoordinator) -> Checkpoint | None:
    """The last checkpoint of another job in the same store."""
    return CheckpointCoordinator(job, like.store, like.job_options).latest()
