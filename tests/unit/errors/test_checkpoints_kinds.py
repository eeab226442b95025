"""The kinds of steps 2 to 6: each from an object that is missing or foreign."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from dstl_dagster.checkpoint import Batch, Claim, Opening
from dstl_dagster.errors import ErrorKind
from dstl_dagster.keyed import AttemptReport, Measure, load_report, store_report
from dstl_dagster.recoverable import GSCommitRecoverableSerializer, GSRecoverableWriter
from dstl_dagster.recoverable.committer import GSRecoverableWriterCommitter
from dstl_dagster.registry import TaskChangelogRegistry
from dstl_dagster.settings import JobOptions
from dstl_dagster.storage import MemoryObjectStore, RetryPolicy
from dstl_dagster.upload import UploadTask
from dstl_dagster.upload.racing import RetryingExecutor
from dstl_dagster.upload.scheduler import BatchingStateChangeUploadScheduler
from tests.doubles.uploads import CallerExecutor, ManualTimer, RecordingUploader

if TYPE_CHECKING:
    from tests.unit.errors.conftest import Case, Scenario


def _other_report(case: Case) -> None:
    attempt = case.coordinator().trigger()
    store_report(case.store, attempt, AttemptReport((case.rows(attempt),), (), {}))
    store_report(case.store, attempt, AttemptReport((), (), {}))


def _no_manifest(case: Case) -> None:
    case.checkpoint()
    case.delete(*case.names("manifest"))
    case.coordinator().latest()


def _other_manifest(case: Case) -> None:
    attempt = case.coordinator().trigger()
    case.coordinator().record(attempt, positions={"source": 1})
    case.coordinator().record(attempt, positions={"source": 2})


def _changelog_missing(case: Case) -> None:
    attempt = case.coordinator().trigger()
    report = case.rows(attempt)
    case.delete(*case.names("/changelog/"))
    case.confirmed(attempt, [report])


def _component_missing(case: Case) -> None:
    attempt = case.coordinator().trigger()
    report = case.file(attempt)
    case.delete(*case.names(".inprogress/"))
    case.confirmed(attempt, files=[report])


def _foreign_changelog(case: Case) -> None:
    coordinator = case.coordinator()
    first = coordinator.trigger()
    report = case.rows(first)
    second = coordinator.trigger()
    coordinator.record(second, [report])


def _reserved_name(case: Case) -> None:
    attempt = case.coordinator().trigger()
    case.coordinator().record(attempt, [], [case.file(attempt, "dstl/other-job/timeline/1")])


def _not_as_reported(case: Case) -> None:
    attempt = case.coordinator().trigger()
    report = case.rows(attempt)
    for name in case.names("/changelog/"):
        case.replace(name, b"another's")
    case.confirmed(attempt, [report])


def _target_exists(case: Case) -> None:
    attempt = case.coordinator().trigger()
    case.replace("out", b"foreign")
    case.confirmed(attempt, files=[case.file(attempt)])


def _written(case: Case) -> GSRecoverableWriterCommitter:
    stream = GSRecoverableWriter(case.store).open("gs://b/out")
    stream.write(b"line")
    return GSRecoverableWriter(case.store).recover_for_commit(stream.close_for_commit().recoverable)


def _already_exists(case: Case) -> None:
    committer = _written(case)
    case.replace("out", b"foreign")
    committer.commit()


def _foreign_object(case: Case) -> None:
    committer = _written(case)
    case.replace("out", b"foreign")
    committer.commit_after_recovery()


def _sources_missing(case: Case) -> None:
    committer = _written(case)
    case.delete(*case.names(".inprogress/"))
    committer.commit()


class _TakesLess(MemoryObjectStore):
    """An upload that takes one byte less than it is given."""

    def open_write(self, *args: Any, **kwargs: Any) -> Any:
        upload = super().open_write(*args, **kwargs)
        upload.write = lambda payload: len(payload) - 1  # type: ignore[method-assign]
        return upload

    def in_bucket(self, bucket_name: str) -> Any:
        return self


class _FullDisk(MemoryObjectStore):
    """Reads work, but writes below `attempts` fail."""

    def put(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if "/changelog/" in name:
            raise OSError("no space left on device")
        return super().put(name, *args, **kwargs)

    def open_write(self, *args: Any, **kwargs: Any) -> Any:
        raise OSError("no space left on device")


def _upload_failed(case: Case) -> None:
    case.store = _FullDisk("b")
    case.rows(
        case.coordinator().trigger(),
        options=JobOptions.of({"dstl.dfs.upload.retry-policy": "none"}),
    )


@dataclass
class _Slow:
    """An action whose one attempt ends after its time-out."""

    timer: ManualTimer
    failed: list[BaseException] = field(default_factory=list)

    def attempt(self) -> None:
        self.timer.advance(5)

    def complete(self, result: None) -> None:
        raise AssertionError("it timed out")

    def discard(self, result: None) -> None:
        """Nothing was made."""

    def fail(self, error: BaseException) -> None:
        self.failed.append(error)


def _timeout(_: Case) -> None:
    action = _Slow(ManualTimer())
    RetryingExecutor(CallerExecutor(), action.timer).execute(RetryPolicy.fixed(1, 3, 0), action)
    raise action.failed[0]


class _NoThreads(ManualTimer):
    """The machine has no thread left for it."""

    def schedule(self, delay_seconds: float, command: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("can't start new thread")


def _interrupted(_: Case) -> None:
    failed: list[BaseException] = []
    uploader = RecordingUploader(TaskChangelogRegistry(lambda _: None, CallerExecutor()))
    scheduler = BatchingStateChangeUploadScheduler(
        1, 10, RetryPolicy.none(), uploader, 1, 100, timer=_NoThreads(), executor=CallerExecutor()
    )
    with pytest.raises(RuntimeError, match="thread"):
        scheduler.upload(UploadTask((), lambda _: None, lambda _, error: failed.append(error)))
    scheduler.close()
    raise failed[0]


def _damaged(case: Case) -> None:
    case.checkpoint()
    for name in case.names("/changelog/"):
        case.replace(name, case.store.get(name)[:-1] + b"\x00")
    case.coordinator().restore(1)


def _claimed(case: Case, claim: Claim) -> None:
    """A batch of this claim behind one of the asset `orders`, which writes `totals` day by day."""
    coordinator = case.coordinator()
    first = Claim("asset:orders", "asset:orders", Measure("days"), ("totals",))
    batch = Batch.open(coordinator, Opening(claim=first))
    batch.complete()
    Batch.open(coordinator, Opening(claim=claim))


SCENARIOS: list[tuple[str, Scenario]] = [
    (ErrorKind.UNCLAIMED, lambda case: _claimed(case, Claim("asset:sales", "asset:sales"))),
    (
        ErrorKind.UNCLAIMED,
        lambda case: _claimed(case, Claim("asset:orders", "asset:orders", Measure("days"), ("counts",))),
    ),
    (
        ErrorKind.OTHER_SOURCE,
        lambda case: _claimed(case, Claim("asset:orders", "asset:orders", Measure("runs"), ("totals",))),
    ),
    (
        ErrorKind.OTHER_SOURCE,
        lambda case: _claimed(
            case, Claim("asset:orders", "asset:sales", Measure("days"), ("totals",), is_defined=bool)
        ),
    ),
    (ErrorKind.NOT_WRITTEN, lambda case: load_report(case.store, case.coordinator().trigger())),
    (ErrorKind.OTHER_REPORT, _other_report),
    (ErrorKind.STATE_MISSING, _no_manifest),
    (ErrorKind.OTHER_REPORT, _other_manifest),
    (ErrorKind.NOT_WRITTEN, _changelog_missing),
    (ErrorKind.NOT_WRITTEN, _component_missing),
    (ErrorKind.INVALID_INPUT, _foreign_changelog),
    (ErrorKind.INVALID_INPUT, _reserved_name),
    (ErrorKind.NOT_WRITTEN, _not_as_reported),
    (ErrorKind.FOREIGN_OBJECT, _target_exists),
    (ErrorKind.FOREIGN_OBJECT, _already_exists),
    (ErrorKind.FOREIGN_OBJECT, _foreign_object),
    (ErrorKind.NOT_WRITTEN, _sources_missing),
    (
        ErrorKind.UPLOAD_FAILED,
        lambda _: GSRecoverableWriter(_TakesLess("b")).open("gs://b/out").write(b"line"),
    ),
    (ErrorKind.NEWER_VERSION, lambda _: GSCommitRecoverableSerializer().deserialize(99, b"")),
    (ErrorKind.UPLOAD_FAILED, _upload_failed),
    (ErrorKind.TIMEOUT, _timeout),
    (ErrorKind.UNAVAILABLE, _interrupted),
    (ErrorKind.DAMAGED, _damaged),
]


@pytest.mark.parametrize(("kind", "scenario"), SCENARIOS)
def test_a_kind_is_raised(kind: str, scenario: Scenario, check_kind: Callable[[str, Scenario], None]) -> None:
    """What the docstring of the kind says happens: this kind, and one of its classes."""
    check_kind(kind, scenario)


def test_no_kind_is_left_out(documented: dict[str, dict[str, set[str]]]) -> None:
    """Every kind of the section has a scenario."""
    assert {kind for kind, _ in SCENARIOS} >= set(documented["Checkpoints"])
