"""When the checkpoint sensor requests a run for step 6, and what it says while it waits for one.

Owns the decision, and the run request. Does not own what the run does (`commit`).

Why this is safe. Step 6 may run any number of times, by any number of processes: a run too many costs a
process, and a run too few leaves files unpublished. So what seems alive is waited for only for a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.clock import Clock
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.operate.commit import commit_run_config
from dstl_dagster.orchestration.owners import OwnerRuns
from dstl_dagster.orchestration.tags import TAG_ATTEMPT, TAG_CHECKPOINT, TAG_COMMIT
from dstl_dagster.orchestration.watch.timeline_follower import Tick
from dstl_dagster.timeline import Completed

_MAX_COMMIT_RUNS = 3
"""Runs requested to commit one checkpoint before a person has to look."""


@dataclass
class Committing:
    """Requests of one tick for step 6.

    Attributes:
        patience: how long what seems alive is waited for.
        waiting: what the checkpoint that is not committed waits for, in words; `None` if for nothing.
    """

    instance: dg.DagsterInstance
    assets: JobAssets
    coordinator: CheckpointCoordinator
    clock: Clock
    patience: timedelta
    waiting: str | None = None

    def requests(self, tick: Tick) -> list[dg.RunRequest]:
        """A run for the checkpoint that waits for step 6, unless one seems alive or has succeeded."""
        waiting = self.coordinator.timeline.tail().uncommitted if tick.at_end else []
        if not waiting:
            return []
        pending = waiting[0].completed
        step = f"step 6 of checkpoint {pending.checkpoint_id}"
        is_alive = OwnerRuns(self.instance).are_alive(pending.owner)
        if is_alive and self._has_time(f"{step}: {pending.owner}", pending.recorded_at):
            return []
        commit = f"{self.assets.job}/{pending.checkpoint_id}/{pending.attempt}"
        # The runs decide, not the run key alone: Dagster scopes a run key to the sensor's name, and never
        # launches the key of a failed run again.
        records = list(self.instance.get_run_records(dg.RunsFilter(tags={TAG_COMMIT: commit})))
        if any(record.dagster_run.is_success for record in records):
            return []
        for record in records:
            run = record.dagster_run
            since = record.create_timestamp
            since = since if since.tzinfo else since.replace(tzinfo=UTC)
            if not run.is_finished and self._has_time(
                f"{step}: run {run.run_id} ({run.status.value})", since
            ):
                return []
        if len(records) >= _MAX_COMMIT_RUNS:
            self.waiting = (
                f"{step}: {len(records)} runs failed, or said nothing for long; find out why in the last, "
                f"{records[0].dagster_run.run_id}, then re-execute it"
            )
            return []
        return [self._request(pending, commit, len(records) + 1)]

    def _has_time(self, who: str, since: datetime) -> bool:
        """Whether that run may still do it; says so."""
        until = since + self.patience
        if self.clock.now() > until:
            return False
        self.waiting = (
            f"waiting for {who}, since {since:%Y-%m-%d %H:%M:%S} UTC; a run is requested if it has not "
            f"committed by {until:%Y-%m-%d %H:%M:%S}"
        )
        return True

    def _request(self, pending: Completed, commit: str, number: int) -> dg.RunRequest:
        return dg.RunRequest(
            run_key=f"{commit}/{number}",
            run_config=commit_run_config(self.assets.job, pending.checkpoint_id),
            tags={
                TAG_COMMIT: commit,
                TAG_CHECKPOINT: str(pending.checkpoint_id),
                TAG_ATTEMPT: str(pending.attempt),
            },
        )
