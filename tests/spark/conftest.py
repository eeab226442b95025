"""For each test a job in its own folder. The Spark of all tests is `tests/sessions.py`'s."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from dstl_dagster.checkpoint import Attempt, Checkpoint, CheckpointCoordinator, FileReport, OperatorReport
from dstl_dagster.spark import read_state, write_files, write_state
from dstl_dagster.storage import open_store


@pytest.fixture(autouse=True)
def functions_of_tests_travel_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Python workers cannot import the tests' modules."""
    module = sys.modules[request.module.__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


@dataclass
class Job:
    """A job on a local store, and the shortest way to make its checkpoints."""

    spark: SparkSession
    folder: Path
    coordinator: CheckpointCoordinator

    @classmethod
    def in_folder(cls, spark: SparkSession, folder: Path) -> Job:
        return cls(spark, folder, CheckpointCoordinator("job", open_store(folder.as_uri())))

    def checkpoint(
        self,
        make: Callable[[Attempt], tuple[Iterable[OperatorReport], Iterable[FileReport]]],
    ) -> Checkpoint:
        attempt = self.coordinator.trigger()
        operators, files = make(attempt)
        self.coordinator.record(attempt, list(operators), list(files))
        self.coordinator.confirm(attempt)
        (done,) = self.coordinator.compose_commit()
        assert not done.blocked
        return done

    def write_state(self, df: DataFrame, operator: str = "op", **how: object) -> Checkpoint:
        """One checkpoint with changes of one operator."""
        return self.checkpoint(lambda attempt: ([write_state(df, attempt, operator=operator, **how)], []))  # type: ignore[arg-type]

    def write_files(self, df: DataFrame, uri: str, **how: object) -> Checkpoint:
        """One checkpoint with files."""
        return self.checkpoint(lambda attempt: ([], write_files(df, attempt, uri, **how)))  # type: ignore[arg-type]

    def read_state(self, operator: str = "op", at: int | None = None, **how: object) -> DataFrame:
        checkpoint = self.coordinator.latest() if at is None else self.coordinator.get(at)
        return read_state(self.spark, checkpoint, operator, store=self.coordinator.store, **how)  # type: ignore[arg-type]


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job.in_folder(spark, tmp_path / "store with spaces")
