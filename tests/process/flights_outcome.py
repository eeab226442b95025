"""All that the flights of some days made, read without Spark and without Dagster, for comparing.

Owns what counts as equal, and what must not be left behind.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.format.names import COMPONENTS_PREFIX, JobNames
from dstl_dagster.keyed import KeyedState
from dstl_dagster.storage import open_store
from dstl_flights.assets import JOB


@dataclass(frozen=True)
class Outcome:
    """All that the days made: reports by name as SHA-256, rows by operator, and the positions."""

    reports: dict[str, str]
    state: dict[str, list[str]]
    positions: dict[str, object]
    checkpoints: list[int]

    def differences(self, other: Outcome) -> list[str]:
        """What is not the same in the other, in words; empty where everything is."""
        found = [
            f"report {name}"
            for name in sorted(self.reports.keys() | other.reports.keys())
            if self.reports.get(name) != other.reports.get(name)
        ]
        for operator in sorted(self.state.keys() | other.state.keys()):
            ours, theirs = self.state.get(operator, []), other.state.get(operator, [])
            if ours != theirs:
                found.append(f"state {operator}: {len(set(ours) ^ set(theirs))} rows")
        if self.positions != other.positions:
            found.append(f"positions {self.positions} and {other.positions}")
        if self.checkpoints != other.checkpoints:
            found.append(f"checkpoints {self.checkpoints} and {other.checkpoints}")
        return found


def outcome_of(folder: Path) -> Outcome:
    """Everything in the store below `folder`, read without Spark and without Dagster."""
    store = open_store((folder / "store").as_uri())
    coordinator = CheckpointCoordinator(JOB.job, store)
    latest = coordinator.latest()
    assert latest is not None, f"no checkpoint in {folder}"
    reports = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((folder / "store" / "reports").rglob("*"))
        if path.is_file()
    }
    state = {operator: _rows(coordinator, operator) for operator in latest.manifest.operators}
    return Outcome(
        reports, state, dict(latest.positions), [each.checkpoint_id for each in coordinator.list()]
    )


def _rows(coordinator: CheckpointCoordinator, operator: str) -> list[str]:
    latest = coordinator.latest()
    assert latest is not None
    state = KeyedState.of(coordinator.store, latest.manifest, operator)
    assert state is not None
    return sorted(repr(row) for table in state.tables() for row in table.to_pylist())


def leftovers(folder: Path) -> list[str]:
    """Objects of dead attempts that a clean-up leaves behind: none is right."""
    store = open_store((folder / "store").as_uri())
    coordinator = CheckpointCoordinator(JOB.job, store)
    coordinator.clean_up()
    names = JobNames(JOB.job)
    alive = {each.attempt for each in coordinator.list()}
    components = [stat.name for stat in store.list(COMPONENTS_PREFIX)]
    attempts = [stat.name for stat in store.list(names.attempts_prefix)]
    manifests = [stat.name for stat in store.list(names.manifests_prefix)]
    return [
        *components,
        *(name for name in attempts if names.attempt_of(name) not in alive),
        *(name for name in manifests if names.attempt_of(name) not in alive),
    ]


def scratch_left(folder: Path) -> list[str]:
    """Folders of Spark sessions that were not removed, including those of killed processes."""
    return [path.name for path in temporary_folder(folder).glob("dstl-spark-*")]


def temporary_folder(folder: Path) -> Path:
    path = folder / "tmp"
    path.mkdir(exist_ok=True)
    return path
