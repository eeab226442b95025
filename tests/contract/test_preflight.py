"""The bucket pre-flight: each harmful setting with its effect, and servers that ignore preconditions."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dstl_dagster.cli.storage import storage_group
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.storage import LocalObjectStore
from dstl_dagster.storage.base import ANY, ObjectStat
from dstl_dagster.storage.gcs.store import open_gcs
from dstl_dagster.storage.memory import MemoryObjectStore
from dstl_dagster.storage.preflight import Severity, check_store, judge_bucket, probe_store
from dstl_dagster.testing.fault_store import FaultStore
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault, handler
from dstl_dagster.testing.gcs_server.listing import rewrite


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GCSServer]:
    with GCSServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


@pytest.mark.parametrize(
    ("resource", "code", "severity"),
    [
        ({"softDeletePolicy": {"retentionDurationSeconds": "604800"}}, "soft_delete", Severity.WARNING),
        ({"versioning": {"enabled": True}}, "versioning", Severity.WARNING),
        ({"retentionPolicy": {"retentionPeriod": "86400"}}, "retention_policy", Severity.ERROR),
        ({"defaultEventBasedHold": True}, "event_based_hold", Severity.ERROR),
        ({"storageClass": "COLDLINE"}, "storage_class", Severity.WARNING),
        ({"storageClass": "RAPID"}, "storage_class", Severity.ERROR),
        ({"autoclass": {"enabled": True}}, "autoclass", Severity.NOTE),
        ({"hierarchicalNamespace": {"enabled": True}}, "hierarchical_namespace", Severity.NOTE),
        ({"billing": {"requesterPays": True}}, "requester_pays", Severity.ERROR),
    ],
)
def test_each_setting_is_reported(resource: dict[str, Any], code: str, severity: Severity) -> None:
    """Each harmful setting is one finding that states its effect."""
    (finding,) = judge_bucket(resource, None)
    assert (finding.code, finding.severity) == (code, severity)
    assert len(finding.message) > 40


def rule(kind: str, **condition: Any) -> dict[str, Any]:
    action = {"type": kind, "storageClass": "NEARLINE"}
    return {"lifecycle": {"rule": [{"action": action, "condition": condition}]}}


@pytest.mark.parametrize(
    ("resource", "retention_days", "codes"),
    [
        (rule("Delete", age=3), 30, ["lifecycle_delete"]),
        (rule("Delete", age=30), 30, ["lifecycle_delete"]),
        (rule("Delete", age=31), 30, []),
        (rule("Delete", age=400), None, ["lifecycle_delete"]),
        (rule("Delete", isLive=False, age=1), 30, []),
        (rule("Delete", daysSinceNoncurrentTime=1), 30, []),
        (rule("SetStorageClass", age=1), 30, ["lifecycle_class"]),
        (rule("AbortIncompleteMultipartUpload", age=1), 30, []),
        ({}, 30, []),
    ],
)
def test_lifecycle_against_the_retention(
    resource: dict[str, Any], retention_days: int | None, codes: list[str]
) -> None:
    """A rule that deletes live objects no later than the oldest checkpoint is an error."""
    retention = None if retention_days is None else timedelta(days=retention_days)
    assert [finding.code for finding in judge_bucket(resource, retention)] == codes


def test_good_places_have_no_finding(server: GCSServer, tmp_path: Path) -> None:
    """Memory, a folder and a plain bucket pass, and the probe leaves nothing behind."""
    server.create_bucket("good")
    for store in (
        MemoryObjectStore(),
        LocalObjectStore(tmp_path / "root"),
        open_gcs("gs://good/below", GSFileSystemOptions()),
    ):
        assert check_store(store) == []
        assert list(store.list()) == []


def test_bucket_settings_are_seen_over_the_wire(server: GCSServer) -> None:
    """Settings are read from the bucket; after an error the probe is skipped."""
    server.create_bucket("bad", retentionPolicy={"retentionPeriod": "1"}, versioning={"enabled": True})
    findings = check_store(open_gcs("gs://bad", GSFileSystemOptions()))
    assert [finding.code for finding in findings] == ["retention_policy", "versioning"]
    assert "objects.insert" not in server.counts


def test_settings_that_cannot_be_seen_are_a_note(server: GCSServer) -> None:
    """Without storage.buckets.get the check continues: it needs only the permissions of daily work."""
    server.create_bucket("unseen")
    server.faults.add(ServerFault(FaultKind.STATUS, "buckets.get", status=403, times=None))
    (finding,) = check_store(open_gcs("gs://unseen", GSFileSystemOptions()))
    assert (finding.code, finding.severity) == ("settings_unseen", Severity.NOTE)


def test_missing_bucket_is_an_error(server: GCSServer) -> None:
    """A missing bucket is an error."""
    findings = check_store(open_gcs("gs://not-there", GSFileSystemOptions()))
    assert any(finding.severity is Severity.ERROR for finding in findings)


class IgnoresPreconditions(FaultStore):
    def put(self, name: str, payload: bytes, **options: Any) -> ObjectStat:
        return super().put(name, payload, **{**options, "precondition": ANY})


class KeepsSources(FaultStore):
    def compose(self, *args: Any, **options: Any) -> ObjectStat:
        return super().compose(*args, **{**options, "delete_sources": False})


class KeepsMetadata(FaultStore):
    def copy(self, *args: Any, **options: Any) -> ObjectStat:
        return super().copy(*args, **{**options, "metadata": {"of": "the source"}})


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (IgnoresPreconditions, "preconditions_ignored"),
        (KeepsSources, "sources_kept"),
        (KeepsMetadata, "copy_metadata"),
    ],
)
def test_servers_that_do_not_keep_their_word(broken: type[FaultStore], code: str) -> None:
    """A service that ignores preconditions, keeps the sources of a compose or the metadata of a copy."""
    store = broken(MemoryObjectStore())
    assert [finding.code for finding in probe_store(store)] == [code]
    assert list(store.list()) == []


def test_a_service_without_batches_and_copies_with_metadata(
    server: GCSServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are found over the wire, neither is an error, and the probe leaves nothing behind."""
    monkeypatch.setattr(
        handler, "rewrite", lambda model, source, target, query, _: rewrite(model, source, target, query, {})
    )
    server.create_bucket("simple")
    server.faults.add(ServerFault(FaultKind.STATUS, "batch", status=501, times=None))
    store = open_gcs("gs://simple", GSFileSystemOptions())
    findings = {finding.code: finding.severity for finding in check_store(store)}
    assert findings == {"copy_metadata": Severity.WARNING, "no_batches": Severity.NOTE}
    assert list(store.list()) == []


def test_command(server: GCSServer, tmp_path: Path) -> None:
    """`dstl storage check` prints the findings and fails on an error only."""
    runner = CliRunner()
    good = runner.invoke(storage_group, ["check", f"file://{tmp_path}/root"])
    assert good.exit_code == 0
    assert "in order" in good.output
    server.create_bucket("warned", **rule("Delete", age=3))
    warned = runner.invoke(storage_group, ["check", "gs://warned"])
    assert warned.exit_code == 0
    failed = runner.invoke(
        storage_group, ["check", "gs://warned", "--checkpoint-retention", "30 d", "--json"]
    )
    assert failed.exit_code == 1
    assert json.loads(failed.output)[0]["code"] == "lifecycle_delete"


@contextmanager
def dead_endpoint() -> Iterator[str]:
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_dead_endpoint_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done is told before it is waited for; then one line says that there is no answer."""
    with dead_endpoint() as url:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        began = time.monotonic()
        command = [sys.executable, "-c", "from dstl_dagster.cli import main; main()"]
        told = subprocess.run(
            [*command, "storage", "check", "gs://dead/prefix", "--timeout", "1 s"],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert time.monotonic() - began < 30
    assert told.returncode == 1
    assert told.stdout == ""
    progress, line = told.stderr.splitlines()
    assert "gs://dead/prefix" in progress
    assert line.startswith("dstl: gs://dead/prefix does not answer")


def test_an_endpoint_that_dies_under_the_probe(server: GCSServer) -> None:
    """One request is waited for, and one delete: not every object in turn."""
    server.create_bucket("dying")
    server.faults.add(ServerFault(FaultKind.STATUS, "objects.*", times=None))
    findings = check_store(open_gcs("gs://dying", GSFileSystemOptions(retry_max_attempt=2)))
    assert [finding.code for finding in findings] == ["probe_failed", "probe_left"]
    assert server.counts["objects.delete"] == 2
