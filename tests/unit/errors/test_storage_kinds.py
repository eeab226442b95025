"""The kinds of the stores: each raised by the strict server, or by a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from dstl_dagster.errors import ErrorKind
from dstl_dagster.storage import ABSENT, GCSObjectStore, LocalObjectStore
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault

if TYPE_CHECKING:
    from tests.unit.errors.conftest import Case, Scenario

CHUNK = 256 * 1024


@contextmanager
def _bucket() -> Iterator[tuple[GCSServer, GCSObjectStore]]:
    with GCSServer() as server:
        server.create_bucket("b")
        client = storage.Client(
            project="test", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.url}
        )
        yield server, GCSObjectStore(client, "b")
        client.close()


def _precondition_failed(case: Case) -> None:
    case.store.put("a", b"one", precondition=ABSENT)
    case.store.put("a", b"another", precondition=ABSENT)


def _no_permission(_: Case) -> None:
    with _bucket() as (server, store):
        server.faults.add(ServerFault(FaultKind.STATUS, "objects.download", status=403))
        store.get("a")


def _upload_lost(_: Case) -> None:
    with _bucket() as (server, store):
        upload = store.open_write("a", precondition=ABSENT, chunk_size=CHUNK)
        upload.write(b"x" * (2 * CHUNK + 1))
        server.faults.add(ServerFault(FaultKind.STATUS, "upload.*", status=410, times=None))
        upload.close()


def _file_and_folder(case: Case) -> None:
    store = LocalObjectStore(case.folder, durable=False)
    store.put("a", b"", precondition=ABSENT)
    store.put("a/b", b"", precondition=ABSENT)


def _busy(case: Case) -> None:
    """Whenever the folder is created, it is removed before the file arrives."""

    def link(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("the folder was removed")

    case.patch.setattr(os, "link", link)
    LocalObjectStore(case.folder, durable=False).put("folder/a", b"", precondition=ABSENT)


def _upload_damaged(_: Case) -> None:
    with _bucket() as (server, store):
        server.faults.add(ServerFault(FaultKind.MISMATCH, "objects.insert", times=None))
        store.put("a", b"x", precondition=ABSENT)


SCENARIOS: list[tuple[str, Scenario]] = [
    (ErrorKind.CONFLICT, _precondition_failed),
    (ErrorKind.NO_PERMISSION, _no_permission),
    (ErrorKind.UPLOAD_LOST, _upload_lost),
    (ErrorKind.INVALID_INPUT, _file_and_folder),
    (ErrorKind.CONTENTION, _busy),
    (ErrorKind.UPLOAD_LOST, _upload_damaged),
]


@pytest.mark.parametrize(("kind", "scenario"), SCENARIOS)
def test_a_kind_is_raised(kind: str, scenario: Scenario, check_kind: Callable[[str, Scenario], None]) -> None:
    """What the docstring of the kind says happens: this kind, and one of its classes."""
    check_kind(kind, scenario)


def test_no_kind_is_left_out(documented: dict[str, dict[str, set[str]]]) -> None:
    """Every kind of the section has a scenario."""
    assert {kind for kind, _ in SCENARIOS} >= set(documented["Storage"])
