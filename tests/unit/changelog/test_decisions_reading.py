"""Where reading and local recovery do better than upstream, one test for each decision."""

from __future__ import annotations

import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dstl_dagster.changelog import FsStateChangelogStorage, FsStateChangelogWriter
from dstl_dagster.errors import FormatError, InvalidInputError, NotFoundError
from dstl_dagster.format import (
    ChangelogStateHandle,
    SequenceNumber,
    SnapshotResult,
    StreamStateHandle,
)
from dstl_dagster.metrics import InMemoryMetrics
from dstl_dagster.registry import LocalChangelogRegistry, TaskChangelogRegistry
from dstl_dagster.settings import FsStateChangelogOptions, LocalRecoveryConfig
from dstl_dagster.storage import ABSENT, Generation, LocalObjectStore, MemoryObjectStore
from tests.doubles.uploads import HeldScheduler, RecordingUploader
from tests.unit.changelog.writing import DEADLINE_SECONDS, RANGE, open_writer, persisted


class TestLocalRecovery:
    def test_the_copy_is_read_instead_of_the_durable_file(self, tmp_path: Path) -> None:
        """A restore on the same machine reads the copy: the durable file may even be away."""
        store = MemoryObjectStore()
        local = LocalRecoveryConfig.enabled(tmp_path)
        with open_writer(store, local_recovery=local) as (storage, writer):
            writer.append(0, b"x")
            handle = persisted(writer)
            writer.confirm(SequenceNumber.of(0), SequenceNumber.of(1), 1)
            name = handle.handles_and_offsets[0][0].name
            stat = store.stat(name)
            assert stat is not None
            store.delete(name, precondition=Generation(stat.generation))
            assert list(storage.create_reader().read(handle)) == [(0, b"x")]
        with pytest.raises(NotFoundError, match=name):
            list(FsStateChangelogStorage("job", store).create_reader().read(handle))

    @pytest.mark.parametrize("harm", ["flip", "cut", "empty"])
    def test_a_bad_copy_falls_back_to_the_durable_file(self, harm: str, tmp_path: Path) -> None:
        """A copy that was altered, cut or emptied is passed over: the durable file decides."""
        local = LocalRecoveryConfig.enabled(tmp_path)
        with open_writer(local_recovery=local) as (storage, writer):
            writer.append(0, b"precious")
            handle = persisted(writer)
            (copy,) = (path for path in tmp_path.rglob("*") if path.is_file())
            content = bytearray(copy.read_bytes())
            content[18] ^= 1
            copy.write_bytes({"flip": content, "cut": content[:20], "empty": b""}[harm])
            assert list(storage.create_reader().read(handle)) == [(0, b"precious")]

    def test_a_failing_copy_does_not_fail_the_upload(self, tmp_path: Path) -> None:
        """Where the copy cannot be written there is none: the upload succeeds, and it is counted."""
        (tmp_path / "file").write_text("no directory")
        metrics = InMemoryMetrics()
        local = LocalRecoveryConfig.enabled(tmp_path / "file")
        with open_writer(local_recovery=local, metrics=metrics) as (_, writer):
            writer.append(0, b"x")
            result = writer.persist(SequenceNumber.of(0), 1).result(DEADLINE_SECONDS)
        assert result.state_size == 1
        assert result.task_local_snapshot is None
        assert metrics.counter("ChangelogStorage.numberOfLocalCopyFailures") == 1

    def test_copies_of_a_pre_emptive_upload_count_for_the_checkpoint_that_waits(self, tmp_path: Path) -> None:
        """A set in flight when persist was called has its copy registered for that checkpoint."""
        deleted: list[StreamStateHandle] = []
        scheduler = HeldScheduler(RecordingUploader(local_copies=True))
        writer = FsStateChangelogWriter(
            uuid.uuid4(),
            RANGE,
            scheduler,
            1,
            None,
            TaskChangelogRegistry.no_op(),
            LocalRecoveryConfig.enabled(tmp_path),
            LocalChangelogRegistry.with_threads(deleted.append),
        )
        writer.append(0, b"x")
        future = writer.persist(SequenceNumber.of(0), 5)
        scheduler.complete_all()
        assert future.result(DEADLINE_SECONDS).task_local_snapshot is not None
        writer._files._local_registry.discard_up_to_checkpoint(6)
        writer._files._local_registry.close()
        assert [handle.name for handle in deleted] == ["copy-1"]


class TestReading:
    @pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
    def test_an_altered_byte_never_gives_other_changes(self, compression: Any) -> None:
        """One altered byte anywhere in the file is a FormatError that names file and offset.

        Only frame headers that no reader needs, around a compressed body, may be altered unnoticed.
        """
        store = MemoryObjectStore()
        options = FsStateChangelogOptions(batch_persist_delay=timedelta(0), compression=compression)
        with open_writer(store, options) as (storage, writer):
            writer.append_meta(b"schema")
            writer.append(1, b"abcabcabcabcabcabcabc")
            writer.append(2, b"")
            handle = persisted(writer)
            file = handle.handles_and_offsets[0][0]
            content = store.get(file.name)
            true = list(storage.create_reader().read(handle))
            assert len(true) == 3
            noticed = 0
            for position in range(len(content)):
                harmed = bytearray(content)
                harmed[position] ^= 0x10
                other = MemoryObjectStore()
                other.put(file.name, bytes(harmed), precondition=ABSENT)
                reader = FsStateChangelogStorage("job", other).create_reader()
                moved = ChangelogStateHandle(
                    ((StreamStateHandle(file.name, file.size, stored_bytes=file.stored_bytes), 0),),
                    RANGE,
                    0,
                    0,
                )
                try:
                    found = list(reader.read(moved))
                except FormatError as error:
                    noticed += f"{file.name}, offset 0" in error.message
                else:
                    assert found == true
            unnoticed_limit = {"none": 0, "snappy": 20, "zstd": 20}[compression]
            assert len(content) - noticed <= unnoticed_limit

    def test_a_missing_file_is_named(self) -> None:
        """A handle on a deleted file is NotFoundError with the file's name."""
        handle = ChangelogStateHandle.of_files([("gone/file", 0)], RANGE)
        with (
            FsStateChangelogStorage("job", MemoryObjectStore()) as storage,
            pytest.raises(NotFoundError, match="gone/file"),
        ):
            list(storage.create_reader().read(handle))

    def test_a_wrong_handle_is_refused(self) -> None:
        """A reader says what it takes."""
        with FsStateChangelogStorage("job", MemoryObjectStore()) as storage:
            with pytest.raises(InvalidInputError, match="job_manager_owned_snapshot"):
                storage.create_reader().read(SnapshotResult())  # type: ignore[arg-type]  # the likely slip
            foreign = ChangelogStateHandle((), RANGE, 0, 0, storage_identifier="memory")
            with pytest.raises(FormatError, match="memory"):
                storage.create_reader().read(foreign)

    def test_sets_of_many_writers_in_one_file_are_told_apart(self, tmp_path: Path) -> None:
        """Writers that share a batch share a file, and each handle reads its own sets from it."""
        # The last of the four reaches the threshold; before, they wait.
        options = FsStateChangelogOptions(
            batch_persist_delay=timedelta(hours=1), batch_persist_size_threshold_bytes=4 * 3 * len(b"0-0")
        )
        store = LocalObjectStore(tmp_path, durable=False)
        with FsStateChangelogStorage("job", store, options) as storage:
            writers = [storage.create_writer(f"op{number}", RANGE) for number in range(4)]
            futures = []
            for number, writer in enumerate(writers):
                for row in range(3):
                    writer.append(row, b"%d-%d" % (number, row))
                    writer.next_sequence_number()
                futures.append(writer.persist(SequenceNumber.of(0), 1))
            reader = storage.create_reader()
            files = set()
            for number, future in enumerate(futures):
                handle = future.result(DEADLINE_SECONDS).job_manager_owned_snapshot
                assert handle is not None
                files |= {each.name for each, _ in handle.handles_and_offsets}
                assert [each.change for each in reader.read(handle)] == [
                    b"%d-%d" % (number, row) for row in range(3)
                ]
            assert len(files) == 1
