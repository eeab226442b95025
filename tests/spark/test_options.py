"""The options of a job act in the tasks that write and read, by whichever way they came."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from dstl_dagster.checkpoint import CheckpointCoordinator, Opening, materialize
from dstl_dagster.errors import InvalidInputError, NotFoundError, UnavailableError
from dstl_dagster.keyed import load_report
from dstl_dagster.spark import (
    CheckpointBatch,
    checkpointed_batches,
    read_state,
    register,
    write_files,
    write_state,
)
from dstl_dagster.storage import ObjectStore, open_store
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault

pytestmark = pytest.mark.spark

_numbers = itertools.count(1)
_PLAIN, _ZSTD = 0, 2
"""The first byte of a changelog file. Tasks compress unless they are told not to."""


_HOOK = """
class Hook:
    def record(self, each):
        with open({log!r}, "a") as log:
            print(each.name, each.job, each.operator, file=log)

    def register_gauge(self, name, read):
        return lambda: None

HOOK = Hook()
"""


@dataclass
class Place:
    """A job on a bucket, with options that leave traces.

    Attributes:
        scratch: the temporary bucket.
        copies: the folder of local copies.
    """

    spark: SparkSession
    server: GCSServer
    bucket: str
    scratch: str
    copies: Path
    folder: Path

    @property
    def options(self) -> dict[str, str]:
        return {
            "dstl.dfs.compression": "none",
            "dstl.dfs.metrics": f"hook_of_{self.bucket.replace('-', '_')}:HOOK",
            "execution.checkpointing.local-backup.enabled": "true",
            "execution.checkpointing.local-backup.dirs": str(self.copies),
            "gs.writer.temporary.bucket.name": self.scratch,
            "gs.filesink.entropy.enabled": "true",
            "gs.writer.chunk.size": "256 kb",
        }

    @property
    def uri(self) -> str:
        return f"gs://{self.bucket}/below"

    @property
    def store(self) -> ObjectStore:
        return open_store(self.uri)

    def coordinator(self, **more: str) -> CheckpointCoordinator:
        return CheckpointCoordinator("job", self.store, {**self.options, **more}, owner="test")

    def rows(self, count: int = 8) -> DataFrame:
        return self.spark.range(0, count, 1, 2).selectExpr("id", "id AS value")

    def sink(self, **more: str) -> dict[str, str]:
        """The options of `format("dstl")`: keys in any case."""
        shouted = {key.upper(): value for key, value in self.options.items()}
        return {"store": self.uri, "job": "job", "OPERATOR": "op", "Keys": "id", **shouted, **more}

    def complete(self, batch: CheckpointBatch) -> None:
        coordinator = self.coordinator()
        coordinator.record_report(batch.attempt, load_report(self.store, batch.attempt))
        coordinator.confirm(batch.attempt)
        coordinator.compose_commit()

    def stream(self) -> DataFrame:
        inbox = self.folder / "inbox"
        inbox.mkdir()
        (inbox / "1.json").write_text("".join(f'{{"id":{n},"value":{n}}}\n' for n in range(8)))
        return self.spark.readStream.schema("id BIGINT, value BIGINT").json(str(inbox))

    def changelog_files(self) -> list[str]:
        return [stat.name for stat in self.store.list() if "/changelog/" in stat.name]


@pytest.fixture
def place(
    spark: SparkSession, strict_gcs: GCSServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", strict_gcs.url)
    number = next(_numbers)
    bucket, scratch = f"options-{number}", f"options-{number}-scratch"
    strict_gcs.create_bucket(bucket)
    strict_gcs.create_bucket(scratch)
    register(spark)
    hook = tmp_path / f"hook_of_{bucket.replace('-', '_')}.py"
    hook.write_text(_HOOK.format(log=str(tmp_path / "measured")))
    spark.sparkContext.addPyFile(str(hook))
    yield Place(spark, strict_gcs, bucket, scratch, tmp_path / "copies", tmp_path)
    strict_gcs.faults.clear()


def _by_batch(place: Place, **more: str) -> CheckpointBatch:
    with CheckpointBatch(place.coordinator(**more)) as batch:
        batch.write_state(place.rows(), operator="op", keys=["id"])
    place.complete(batch)
    return batch


def _by_call(place: Place) -> None:
    coordinator = place.coordinator(**{"dstl.dfs.compression": "snappy"})
    with CheckpointBatch(coordinator) as batch:
        batch.write_state(
            place.rows(), operator="op", keys=["id"], job_options={"dstl.dfs.compression": "none"}
        )
    place.complete(batch)


def _by_merge(place: Place) -> None:
    for name in ("first", "second"):
        with CheckpointBatch(place.coordinator(), Opening(name)) as batch:
            batch.merge_state(
                place.rows(),
                operator="op",
                keys=["id"],
                schema="id BIGINT, value BIGINT",
                update={"value": "coalesce(old.value, 0) + new.value + 1"},
            )
        place.complete(batch)


def _by_attempt(place: Place) -> None:
    coordinator = place.coordinator()
    attempt = coordinator.trigger()
    report = write_state(
        place.rows(), attempt, operator="op", keys=["id"], job_options=coordinator.job_options
    )
    coordinator.record(attempt, [report])
    coordinator.confirm(attempt)


def _by_sink(place: Place) -> None:
    given = place.sink(idempotency_key="monday")
    place.rows().repartition(1).write.format("dstl").mode("append").options(**given).save()


def _by_streaming_sink(place: Place) -> None:
    given = place.sink(checkpointLocation=str(place.folder / "ck"))
    query = place.stream().coalesce(1).writeStream.format("dstl").options(**given)
    query.trigger(availableNow=True).start().awaitTermination()


def _by_foreach_batch(place: Place) -> None:
    def update(batch: CheckpointBatch, rows: DataFrame) -> None:
        batch.write_state(rows, operator="op", keys=["id"])

    each = checkpointed_batches(update, store=place.uri, job="job", options=place.options)
    query = (
        place.stream().writeStream.foreachBatch(each).option("checkpointLocation", str(place.folder / "ck"))
    )
    query.trigger(availableNow=True).start().awaitTermination()


def _by_fold(place: Place) -> None:
    for _ in range(2):
        _by_batch(place)
    batch = _by_batch(place, **{"dstl.state.materialize.max-runs": "2"})
    assert load_report(place.store, batch.attempt).operators[0].merges


def _by_materialize(place: Place) -> None:
    _by_batch(place)
    assert materialize(place.coordinator(), force=True) is not None


@pytest.mark.parametrize(
    "write",
    [
        *(_by_batch, _by_call, _by_merge, _by_attempt, _by_sink, _by_streaming_sink),
        *(_by_foreach_batch, _by_fold, _by_materialize),
    ],
)
def test_changelog_options_act_where_state_is_written(place: Place, write: Callable[[Place], None]) -> None:
    """Every file is as the options say, has its local copy, and is measured, however the options came."""
    write(place)
    files = place.changelog_files()
    assert files
    assert {place.store.get(name)[0] for name in files} == {_PLAIN}
    copies = [each.name for each in place.copies.glob("jid_job/taskowned/*")]
    assert sorted(copies) == sorted(name.rpartition("/")[2] for name in files)
    measured = Counter((place.folder / "measured").read_text().splitlines())
    assert measured["ChangelogStorage.numberOfUploadRequests job op"] == len(files)
    assert measured["ChangelogStorage.uploadLatenciesNanos job op"] == len(files)


def test_without_options_tasks_compress(place: Place) -> None:
    """What the test above sees is the options' doing."""
    coordinator = CheckpointCoordinator("job", place.store)
    with CheckpointBatch(coordinator) as batch:
        batch.write_state(place.rows(), operator="op", keys=["id"])
    assert {place.store.get(name)[0] for name in place.changelog_files()} == {_ZSTD}


_NO_FILES = ServerFault(
    FaultKind.STATUS, status=404, method="objects.download", name="*/changelog/*", times=None
)


def _read_function(place: Place) -> DataFrame:
    coordinator = place.coordinator()
    return read_state(
        place.spark, coordinator.latest(), "op", store=place.store, job_options=coordinator.job_options
    )


def _read_batch(place: Place) -> DataFrame:
    with CheckpointBatch(place.coordinator()) as batch:
        return batch.read_state(place.spark, "op")


def _read_source(place: Place) -> DataFrame:
    given = {key: value for key, value in place.sink().items() if key != "Keys"}
    return place.spark.read.format("dstl").options(**given).load()


@pytest.mark.parametrize("read", [_read_function, _read_batch, _read_source])
def test_tasks_that_read_use_the_copies(place: Place, read: Callable[[Place], DataFrame]) -> None:
    """They read the state without one request for a changelog file."""
    _by_batch(place)
    place.server.faults.add(_NO_FILES)
    assert {row.id: row.value for row in read(place).collect()} == {n: n for n in range(8)}


def test_without_a_copy_the_file_is_asked_for(place: Place) -> None:
    """What the test above sees is the copies' doing."""
    _by_batch(place)
    place.server.faults.add(_NO_FILES)
    for copy in place.copies.glob("jid_job/taskowned/*"):
        copy.unlink()
    with pytest.raises(NotFoundError, match=r"is damaged: .* no record permitted that"):
        _read_source(place).collect()


def test_a_merge_looks_its_keys_up_in_the_copies(place: Place) -> None:
    """The look-up reads the parent's state as the job's options say."""
    _by_batch(place)
    place.server.faults.add(_NO_FILES)
    with CheckpointBatch(place.coordinator()) as batch:
        report = batch.merge_state(
            place.rows(),
            operator="op",
            keys=["id"],
            schema="id BIGINT, value BIGINT",
            update={"value": "old.value"},
        )
    assert report.upserts == 0


@pytest.mark.parametrize("way", ["batch", "attempt", "sink"])
def test_writer_options_act_where_files_are_written(place: Place, way: str) -> None:
    """Temporary bucket, entropy and chunk size, in the tasks and in step 6."""
    text = place.spark.range(0, 2, 1, 1).selectExpr("repeat('x', 300000) AS value")
    before = place.server.counts.get("upload.chunk", 0)
    coordinator = place.coordinator()
    if way == "batch":
        with CheckpointBatch(coordinator) as batch:
            batch.write_files(text, "out/x.txt", format="text")
        found = [stat.name for stat in open_store(f"gs://{place.scratch}").list()]
        assert found
        assert not [name for name in found if name.startswith(".inprogress")], "entropy comes first"
        place.complete(batch)
    elif way == "attempt":
        attempt = coordinator.trigger()
        reports = write_files(text, attempt, "out/x.txt", format="text", job_options=coordinator.job_options)
        coordinator.record(attempt, [], reports)
        coordinator.confirm(attempt)
        coordinator.compose_commit()
    else:
        given = place.sink(path="out/x.txt", file_format="text", idempotency_key="monday")
        given = {key: value for key, value in given.items() if key not in ("OPERATOR", "Keys")}
        text.write.format("dstl").mode("append").options(**given).save()
    assert place.server.counts["upload.chunk"] - before == 2, "600,002 bytes in chunks of 256 KiB"
    assert place.store.get("out/x.txt") == (b"x" * 300_000 + b"\n") * 2
    assert list(open_store(f"gs://{place.scratch}").list()) == []


@pytest.mark.parametrize("count", [20_000, 10])
def test_retries_act_where_files_are_written(place: Place, count: int) -> None:
    """With one attempt a request, three refusals take a task's three tries; by default they take one. Few
    changes are written by the driver, which has one try.
    """
    once = {"gs.retry.max-attempt": "1", "dstl.dfs.upload.retry-policy": "none"}
    rows = place.spark.range(count).selectExpr("id", "id AS value").repartition(1)

    def write(**options: str) -> None:
        fault = ServerFault(FaultKind.STATUS, method="objects.insert", name="*/changelog/*", times=3)
        place.server.faults.add(fault)
        attempt = CheckpointCoordinator("job", place.store, owner="test").trigger()
        write_state(rows, attempt, operator="op", keys=["id"], partitions=1, job_options=options)

    with pytest.raises(UnavailableError):
        write(**once)
    place.server.faults.clear()
    write()


def test_a_call_cannot_move_temporary_objects(place: Place) -> None:
    """Clean-up would not find them."""
    with (
        pytest.raises(InvalidInputError, match=r"temporary\.bucket\.name cannot be changed for one call"),
        CheckpointBatch(place.coordinator()) as batch,
    ):
        batch.write_files(
            place.rows(), "x.jsonl", job_options={"gs.writer.temporary.bucket.name": "elsewhere"}
        )


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("dstl.dfs.upload.timeouts", "did you mean dstl.dfs.upload.timeout"),
        ("operater", "did you mean operator"),
    ],
)
def test_a_slip_is_refused_with_the_nearest_key(place: Place, wrong: str, near: str) -> None:
    """By the data source, for a key of its own and for one of the job's, read or written."""
    given = {"store": place.uri, "job": "job", "operator": "op", wrong: "1 s"}
    with pytest.raises(InvalidInputError, match=near):
        place.spark.read.format("dstl").options(**given).load()
    writer = place.rows().write.format("dstl").mode("append")
    with pytest.raises(InvalidInputError, match=near):
        writer.options(**given, keys="id", idempotency_key="x").save()


def test_a_table_of_the_catalog_is_refused_with_what_works(place: Place) -> None:
    """Spark would read it without its options; a view of a DataFrame has them."""
    _by_batch(place)
    given = {"store": place.uri, "job": "job", "operator": "op"}
    listed = ", ".join(f"'{key}' '{value}'" for key, value in given.items())
    with pytest.raises(InvalidInputError, match="createOrReplaceTempView"):
        place.spark.sql(f"CREATE TABLE of_options USING dstl OPTIONS ({listed})")
    place.spark.read.format("dstl").options(**given).load().createOrReplaceTempView("of_options")
    assert place.spark.sql("SELECT sum(value) FROM of_options").collect()[0][0] == sum(range(8))
