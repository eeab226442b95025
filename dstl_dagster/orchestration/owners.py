"""The Dagster run behind an attempt: a root run, which shares its identity with all its re-executions.

Owns the name under which a run owns attempts, and whether such an owner is still alive. Does not own what
follows from that: who takes over (`resources`), aborts (`sensors`) or waits (`tick`).
"""

from __future__ import annotations

from datetime import datetime

import dagster as dg

from dstl_dagster.timeline import Completed, Opened, Timeline

__all__ = ["OwnerRuns", "in_words", "owner_in", "owner_link", "owner_of", "root_run_id", "run_of_owner"]

_OWNER_PREFIX = "dagster-run:"
_SLOTS_BEFORE = 32
"""Between `opened` and `completed` stand only what people decided meanwhile, and a snapshot."""


def root_run_id(run: dg.DagsterRun) -> str:
    """The id of the run, or of the first one of the chain of re-executions that it continues."""
    return run.root_run_id or run.run_id


def owner_of(run: dg.DagsterRun) -> str:
    """The owner of the attempts that this run opens, and of those that its re-executions continue."""
    return _OWNER_PREFIX + root_run_id(run)


def owner_in(timeline: Timeline, completed: Completed) -> str | None:
    """Who opened the attempt that completed this checkpoint, by its records; `None` if they are far apart."""
    for record in timeline.records(max(0, completed.slot - _SLOTS_BEFORE)):
        if record.slot >= completed.slot:
            break
        if isinstance(record, Opened) and record.attempt == completed.attempt:
            return record.owner
    return None


def run_of_owner(owner: str) -> str | None:
    """The id of the (first) run that owns attempts under this name; `None` for an owner that is no run."""
    return owner.removeprefix(_OWNER_PREFIX) if owner.startswith(_OWNER_PREFIX) else None


def in_words(at: datetime) -> str:
    """A time in an event's metadata: in the form of the command line, wherever its reader is."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def owner_link(owner: str) -> dg.MetadataValue:
    """Who did something, in an event's metadata: a run as a link to its page."""
    run_id = run_of_owner(owner)
    return dg.MetadataValue.text(owner) if run_id is None else dg.MetadataValue.dagster_run(run_id)


class OwnerRuns:
    """The runs of an instance by the owner name under which they open attempts."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance

    def have_ended(self, owner: str) -> bool:
        """The owner is a run of this instance, and it and all its re-executions have ended."""
        runs = self._of(owner)
        return bool(runs) and all(run.is_finished for run in runs)

    def are_alive(self, owner: str) -> bool:
        """The owner is a run of this instance, and it or one of its re-executions has not ended."""
        return any(not run.is_finished for run in self._of(owner))

    def have_succeeded(self, owner: str) -> bool:
        """The owner is a run of this instance, and it or one of its re-executions did all its steps."""
        return any(run.is_success for run in self._of(owner))

    def are_tagged(self, owner: str, tag: str) -> bool:
        """The owner is a run of this instance, and it or one of its re-executions has this tag as `true`."""
        return any(run.tags.get(tag) == "true" for run in self._of(owner))

    def _of(self, owner: str) -> list[dg.DagsterRun]:
        root = run_of_owner(owner)
        if root is None:
            return []
        runs = list(self._instance.get_runs(dg.RunsFilter(tags={"dagster/root_run_id": root})))
        root_run = self._instance.get_run_by_id(root)
        # Unknown here may still be alive in another instance, hence neither alive nor ended.
        return runs if root_run is None else [*runs, root_run]
