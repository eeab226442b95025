"""A stream of Spark's beside programs that run, are renamed, restored and dropped: each change comes once.

The cases of `test_green_means_in`, with a query of `readStream` for each operator, which is started again for
each look. It may be refused, in a sentence that says what to do; then that is done.
"""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from dstl_dagster.errors import DstlError, NotFoundError
from dstl_dagster.spark import register
from dstl_dagster.spark.data_source import DstlDataSource
from tests.property.broken_sources import AnyColumnsFit, AnyOffsetFits, NotPinned, WithoutTheFirst
from tests.property.program_runs import KEYS, instance_of_runs
from tests.property.programs import World, by_key
from tests.property.test_green_means_in import FIRST, play

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CASES = int(os.environ.get("DSTL_GREEN_SPARK_CASES", "12"))
LATE = "failed to connect back"
"""Spark waits ten seconds for a process of its own: on a busy machine a query ends, and starts again."""
STARTED_AGAIN = ("start the query again", "starts the query again")
BEGUN_ANEW = (
    "new checkpointLocation",
    "there is no job",
    "has no checkpoint",
    "no state of operator",
    "is of operator",
    "has no",
)

pytestmark = [
    pytest.mark.soak,
    pytest.mark.spark,
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::dagster.PreviewWarning"),
]


class SparkFollower:
    """A copy of an operator by its changes, kept as docs/how-to/follow-a-job.md says. Its query stands from
    one look to the next, as if it had run all the time, or is given the type of a column.
    """

    def __init__(self, world: World, job: str, operator: str, spark: SparkSession, folder: Path) -> None:
        self._world, self._job, self._operator = world, job, operator
        self._spark, self._folder = spark, folder / f"{job}-{operator}"
        self._begun = 0
        self._copy: dict[tuple[str, ...], str] = {}
        self._made: tuple[DataFrame, dict[tuple[str, ...], str], uuid.UUID] | None = None
        self._stands: DataFrame | None = None
        self._given = [None, "int", "bigint"][len(world.history) % 3]
        others = sorted(each for each in folder.glob("*/0") if each.parent != self._folder)
        if others:  # somebody has copied the query with its checkpointLocation
            shutil.copytree(others[-1], self._folder / "0")

    def follow(self) -> None:
        self._follow()
        self._look_at_changes()
        self._look_at_frame()

    def _look_at_changes(self) -> None:
        """All of a batch, from the beginning on, add up to the state."""
        try:
            told = self._read_batch(table="changes").collect()
        except Exception as error:  # Spark's, which quotes ours
            if "names two different columns" in str(error):
                return
            raise
        found = set()
        for row in sorted(told, key=lambda each: each["_checkpoint_id"]):
            key = tuple(row[name] for name in KEYS)
            if row["_change_type"] in ("insert", "update_after"):
                found.add(key)
            elif row["_change_type"] == "delete":
                found.discard(key)
        if found != by_key(self._world.rows(self._job, self._operator)).keys():
            self._world.wrong.append(
                f"all changes of {self._job}/{self._operator} do not add up to its state"
            )

    def _look_at_frame(self) -> None:
        """One that was made before stays on its checkpoint, or is refused as that is gone."""
        job = self._world.coordinator(self._job)
        there = {each.attempt for each in job.list()}
        if self._made is not None:
            frame, wanted, attempt = self._made
            try:
                found = by_key([row.asDict() for row in frame.collect()])
            except NotFoundError:
                found = {} if attempt in there else wanted
            if found != wanted:
                self._world.wrong.append(f"a frame of {self._job}/{self._operator} is not as it was made")
        rows = by_key(self._world.rows(self._job, self._operator))
        self._made = self._read_batch(), rows, job.list()[-1].attempt

    def _source(self) -> dict[str, str]:
        return {"store": self._world.folder.as_uri(), "job": self._job, "operator": self._operator}

    def _read_batch(self, **options: str) -> DataFrame:
        return self._spark.read.format("dstl").options(**self._source(), **options).load()

    def _follow(self) -> None:
        for left in reversed(range(8)):
            before = dict(self._copy)
            try:
                self._read()
            except Exception as error:  # Spark's, which quotes ours
                said = str(error)
                if LATE in said and left:
                    continue
                self._stands = None
                if self._given and "the schema asks for" in said:
                    self._given = None
                    continue
                if any(each in said for each in STARTED_AGAIN):
                    continue
                if not any(each in said for each in BEGUN_ANEW):
                    raise
                self._begun += 1
                self._copy = {}
                continue
            if self._copy == before:  # PySpark 4.1 ends after one micro-batch
                break
        self._stands = None if self._given else self._loaded()
        wanted = by_key(self._world.rows(self._job, self._operator))
        if self._copy != wanted:
            self._world.wrong.append(
                f"the stream of {self._job}/{self._operator} differs from the state: "
                f"{sorted(self._copy.items() ^ wanted.items())[:4]}"
            )

    def _loaded(self) -> DataFrame:
        reader = self._spark.readStream.format("dstl").options(**self._source(), table="changes")
        found = reader.load()
        if self._given is None:
            return found
        fields = ((each.name, each.dataType.simpleString()) for each in found.schema)
        given = (f"{name} {self._given if name == 'number' else kind}" for name, kind in fields)
        return reader.schema(", ".join(given)).load()

    def _read(self) -> None:
        stream = self._stands or self._loaded()
        place = str(self._folder / str(self._begun))
        writer = stream.writeStream.foreachBatch(self._take).option("checkpointLocation", place)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()

    def _take(self, rows: DataFrame, _: int) -> None:
        told = [row.asDict() for row in rows.collect()]
        for gone in (True, False):  # of one micro-batch, what goes before what comes
            for row in sorted(told, key=lambda each: each["_checkpoint_id"]):
                if row["_change_type"] in ("delete", "update_before") and gone:
                    self._take_away(row)
                if row["_change_type"] in ("insert", "update_after") and not gone:
                    self._add(row)

    def _take_away(self, row: dict[str, str]) -> None:
        key = tuple(row[name] for name in KEYS)
        if self._copy.pop(key, None) is None:
            self._world.wrong.append(f"a stream was told that {key} goes, and had none")

    def _add(self, row: dict[str, str]) -> None:
        ((key, value),) = by_key([row]).items()
        if key in self._copy:
            self._world.wrong.append(f"a stream was told of {key} twice")
        self._copy[key] = value


def played(spark: SparkSession, seed: int, folder: Path) -> World:
    """One case, with its streams."""

    def of_spark(world: World, job: str, operator: str) -> SparkFollower:
        return SparkFollower(world, job, operator, spark, folder / str(seed))

    with instance_of_runs() as instance:
        return play(seed, instance, follower=of_spark)


def test_a_stream_is_told_each_change_once(spark: SparkSession, tmp_path: Path) -> None:
    """Also where its query is refused and started again, or begins anew."""
    register(spark)
    for seed in range(FIRST, FIRST + CASES):
        world = played(spark, seed, tmp_path)
        assert not world.wrong, "\n".join([f"seed {seed}", *world.wrong, "after:", *world.history])


@pytest.mark.parametrize("broken", [AnyOffsetFits, AnyColumnsFit, WithoutTheFirst, NotPinned])
def test_a_variant_is_found(broken: type[DstlDataSource], spark: SparkSession, tmp_path: Path) -> None:
    """Within 200 cases. Some are refused in a sentence of ours, an error here. No other error counts:
    a variant may be wrong itself.
    """
    spark.dataSource.register(broken)
    try:
        found = any(played(spark, seed, tmp_path).wrong for seed in range(200))
    except DstlError:
        found = True
    except (Py4JError, PySparkException) as error:
        found = "dstl_dagster.errors" in str(error)
        if not found:
            raise
    finally:
        register(spark)
    assert found, "no case of 200 found it"
