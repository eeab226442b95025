"""When the checkpoint sensor requests a run for step 6, and what it says while it waits for one.

Owns the decision, and the run request. Does not own what the run does (`commit`).

Why this is safe. Step 6 may run any number of times, by any number of processes: a run too many costs a
process, and a run too few leaves files unpublished. So what seems alive is waited for only for a while.
"""

from __future__ import annotations

from datetime import UTC, datetime

import dagster as dg

from dstl_dagster.orchestration.operate.commit import commit_run_config
from dstl_dagster.orchestration.owners import OwnerRuns
from dstl_dagster.orchestration.tags import TAG_ATTEMPT, TAG_CHECKPOINT, TAG_COMMIT
from dstl_dagster.orchestration.watch.timeline_follower import Tick, TimelineFollower

_MAX_COMMIT_RUNS = 3
"""Runs requested to commit one checkpoint before a person has to look."""


def requests_to_commit(follower: TimelineFollower, tick: Tick) -> list[dg.RunRequest]:
    """A run for the checkpoint that waits for step 6, unless one seems alive or has succeeded; the tick says
    what is waited for.
    """
    coordinator, instance = follower.coordinator, follower.page.instance
    uncommitted = coordinator.timeline.tail().uncommitted if tick.at_end else []
    if not uncommitted:
        return []
    pending = uncommitted[0].completed
    step = f"step 6 of checkpoint {pending.checkpoint_id}"

    def may_still_do_it(who: str, since: datetime) -> bool:
        until = since + follower.patience
        if follower.clock.now() > until:
            return False
        tick.waiting = (
            f"waiting for {who}, since {since:%Y-%m-%d %H:%M:%S} UTC; a run is requested if it has not "
            f"committed by {until:%Y-%m-%d %H:%M:%S}"
        )
        return True

    is_alive = OwnerRuns(instance).are_alive(pending.owner)
    if is_alive and may_still_do_it(f"{step}: {pending.owner}", pending.recorded_at):
        return []
    commit = f"{coordinator.job}/{pending.checkpoint_id}/{pending.attempt}"
    # The runs decide, not the run key alone: Dagster scopes a run key to the sensor's name, and never
    # launches the key of a failed run again.
    records = list(instance.get_run_records(dg.RunsFilter(tags={TAG_COMMIT: commit})))
    if any(record.dagster_run.is_success for record in records):
        return []
    for record in records:
        run, since = record.dagster_run, record.create_timestamp
        since = since if since.tzinfo else since.replace(tzinfo=UTC)
        what = f"{step}: run {run.run_id} ({run.status.value})"
        if not run.is_finished and may_still_do_it(what, since):
            return []
    if len(records) >= _MAX_COMMIT_RUNS:
        tick.waiting = (
            f"{step}: {len(records)} runs failed, or said nothing for long; find out why in the last, "
            f"{records[0].dagster_run.run_id}, then re-execute it"
        )
        return []
    tags = {TAG_COMMIT: commit, TAG_CHECKPOINT: str(pending.checkpoint_id), TAG_ATTEMPT: str(pending.attempt)}
    config = commit_run_config(coordinator.job, pending.checkpoint_id)
    return [dg.RunRequest(run_key=f"{commit}/{len(records) + 1}", run_config=config, tags=tags)]
