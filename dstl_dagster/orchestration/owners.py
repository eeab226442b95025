"""The Dagster run behind an attempt: a root run, which shares its identity with all its re-executions.

Owns the name under which a run owns attempts, and whether such an owner is still alive. Does not own what
follows from that: taking over (`resources`), aborting (`sensors`) or waiting (`timeline_follower`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dagster as dg
from dagster._core.execution.stats import RunStepKeyStatsSnapshot  # no public name

_OWNER_PREFIX = "dagster-run:"


def root_run_id(run: dg.DagsterRun) -> str:
    """The id of the run, or of the first one of the chain of re-executions that it continues."""
    return run.root_run_id or run.run_id


def owner_of(run: dg.DagsterRun, step_key: str | None = None) -> str:
    """The owner of the attempts that this run opens, and of those that its re-executions continue; with
    `step_key` of those of one of its steps, as another step may write the same job.
    """
    return "/".join(filter(None, [_OWNER_PREFIX + root_run_id(run), step_key]))


def owner_of_step(step: Any) -> str | None:
    """The same of the step of a run, by its context; `None` without one."""
    return None if step is None else owner_of(step.dagster_run, step.step.key)


def run_of_owner(owner: str) -> str | None:
    """The id of the (first) run that owns attempts under this name; `None` for an owner that is no run."""
    return owner.removeprefix(_OWNER_PREFIX).partition("/")[0] if owner.startswith(_OWNER_PREFIX) else None


def run_of_batch(key: str) -> str | None:
    """The id of the run that a batch without partitions is named after; `None` for any other batch."""
    return run_of_owner(f"dagster-{key}")


def step_of_owner(owner: str) -> str | None:
    """The key of the step that owns attempts under this name; `None` for an owner that is no step."""
    return (owner.partition("/")[2] or None) if owner.startswith(_OWNER_PREFIX) else None


@dataclass(frozen=True)
class OwnerRuns:
    """The runs of an instance by the owner name under which they open attempts."""

    instance: dg.DagsterInstance

    def have_ended(self, owner: str) -> bool:
        """The owner is a run of this instance, and it and all its re-executions have ended."""
        runs = self.runs_of(owner)
        return bool(runs) and all(run.is_finished for run in runs)

    def are_alive(self, owner: str) -> bool:
        """The owner is a run of this instance, and it or one of its re-executions has not ended."""
        return any(not run.is_finished for run in self.runs_of(owner))

    def are_trying(self, owner: str) -> bool:
        """The owner is a step, and a try of it runs now: none that waits to be tried again."""
        return any(each.partial_attempt_start is not None for each in self._steps_of(owner))

    def have_done(self, owner: str) -> bool:
        """The owner is a step of a run that has not ended, and succeeded there."""
        return any(
            each.status is not None and each.status.value == "SUCCESS" for each in self._steps_of(owner)
        )

    def are_tagged(self, owner: str, tag: str) -> bool:
        """The owner is a run of this instance, and it or one of its re-executions has this tag as `true`."""
        return any(run.tags.get(tag) == "true" for run in self.runs_of(owner))

    def _steps_of(self, owner: str) -> list[RunStepKeyStatsSnapshot]:
        step = step_of_owner(owner)
        if step is None:
            return []
        alive = [run for run in self.runs_of(owner) if not run.is_finished]
        return [each for run in alive for each in self.instance.get_run_step_stats(run.run_id, [step])]

    def runs_of(self, owner: str) -> list[dg.DagsterRun]:
        """Its run and all re-executions, oldest first; none of another instance's, and of no run."""
        root = run_of_owner(owner)
        if root is None:
            return []
        runs = list(self.instance.get_runs(dg.RunsFilter(tags={"dagster/root_run_id": root})))
        root_run = self.instance.get_run_by_id(root)
        # Unknown here may still be alive in another instance, hence neither alive nor ended.
        return [*([] if root_run is None else [root_run]), *reversed(runs)]
