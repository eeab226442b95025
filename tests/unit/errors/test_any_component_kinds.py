"""The kinds of the classes themselves, and two that any component may raise: each from a call that does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from dstl_dagster.checkpoint import Timeline
from dstl_dagster.errors import DstlError, ErrorKind
from dstl_dagster.format.names import JobNames
from dstl_dagster.futures import TaskMailbox
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import MemoryObjectStore, open_store
from dstl_dagster.testing.fault_schedules import AtRequests, Fault
from dstl_dagster.testing.fault_store import FaultStore
from dstl_dagster.testing.upstream_commit import UpstreamCommitter
from dstl_dagster.upload.throttle import UploadThrottle

if TYPE_CHECKING:
    from tests.unit.errors.conftest import Case, Scenario


class _QuotaError(DstlError):
    """An error of a third-party store."""


class _OwnStore(MemoryObjectStore):
    def put(self, *args: object, **kwargs: object) -> object:
        raise _QuotaError("no room is left")


def _own_class(case: Case) -> None:
    """An error of a user's own store reaches the caller as it is."""
    case.store = _OwnStore()
    case.coordinator().trigger()


def _conflict(case: Case) -> None:
    """Upstream's commit, shipped as the broken variant, refuses any object under the final name."""
    stream = GSRecoverableWriter(case.store).open("gs://b/out")
    stream.write(b"x")
    recoverable = stream.close_for_commit().recoverable
    case.replace("out", b"foreign")
    UpstreamCommitter(case.store, GSFileSystemOptions(), recoverable).commit()


def _fenced(case: Case) -> None:
    attempt = case.coordinator().trigger()
    case.coordinator("other").trigger(take_over=True)
    case.coordinator().record(attempt)


def _closed(case: Case) -> None:
    stream = GSRecoverableWriter(case.store).open("gs://b/out")
    stream.close()
    stream.write(b"x")


def _format(case: Case) -> None:
    case.replace(JobNames("orders").slot(1), b"not a record")
    Timeline("orders", case.store).tail()


def _other_thread(_: Case) -> None:
    mailbox = TaskMailbox()
    with ThreadPoolExecutor(1) as other:
        other.submit(mailbox.run_pending).result()


def _no_google(case: Case) -> None:
    for name in [each for each in sys.modules if each.startswith("dstl_dagster.storage.gcs.")]:
        case.patch.delitem(sys.modules, name)
    case.patch.setitem(sys.modules, "google.cloud", None)
    case.patch.setitem(sys.modules, "google.cloud.storage", None)
    open_store("gs://b")


SCENARIOS: list[tuple[str, Scenario]] = [
    (ErrorKind.ERROR, _own_class),
    (ErrorKind.INVALID_INPUT, lambda _: open_store("ftp://somewhere")),
    (ErrorKind.NOT_FOUND, lambda case: case.store.get("nothing here")),
    (ErrorKind.CONFLICT, _conflict),
    (ErrorKind.FENCED, _fenced),
    (ErrorKind.CLOSED, _closed),
    (
        ErrorKind.UNAVAILABLE,
        lambda case: FaultStore(case.store, AtRequests({0: Fault.ERROR_BEFORE})).get("x"),
    ),
    (ErrorKind.FORMAT, _format),
    (ErrorKind.INTERNAL, lambda _: UploadThrottle(10).release(1)),
    (ErrorKind.INVALID_INPUT, _other_thread),
    (ErrorKind.NOT_INSTALLED, _no_google),
]


@pytest.mark.parametrize(("kind", "scenario"), SCENARIOS)
def test_a_kind_is_raised(kind: str, scenario: Scenario, check_kind: Callable[[str, Scenario], None]) -> None:
    """What the docstring of the kind says happens: this kind, and one of its classes."""
    check_kind(kind, scenario)


def test_no_kind_is_left_out(documented: dict[str, dict[str, set[str]]]) -> None:
    """Every kind of the section has a scenario."""
    assert {kind for kind, _ in SCENARIOS} >= set(documented["Any component"])
