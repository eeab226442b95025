"""The roles of docs/storage/gcs.md suffice: a job's life without rights to update objects or to see the
bucket, and reading without rights to write.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from click.testing import CliRunner

import dstl_dagster as dstl
from dstl_dagster.cli import main
from dstl_dagster.errors import DstlError
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.storage import open_store
from dstl_dagster.testing.gcs_server import FaultKind, GCSServer, ServerFault

NOT_OF_A_USER = ("objects.patch", "buckets.*")
NOT_OF_A_VIEWER = (
    *NOT_OF_A_USER, "objects.insert", "objects.compose", "objects.rewrite", "objects.delete", "upload.*",
)  # fmt: skip


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GCSServer]:
    with GCSServer() as server:
        server.create_bucket("shop")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


def refuse(server: GCSServer, methods: tuple[str, ...]) -> None:
    for method in methods:
        server.faults.add(ServerFault(FaultKind.STATUS, method, status=403, times=None))


def live(day: str) -> None:
    store = open_store("gs://shop/state")
    with dstl.open_batch(store, "orders", idempotency_key=day) as batch:
        rows = pa.table({"customer": ["ada", day], "total": [1, 2]})
        batch.write_state(rows, operator="totals", keys=["customer"])
        writer = GSRecoverableWriter(store, attempt=batch.attempt.attempt)
        stream = writer.open(store.uri_of(f"reports/{day}.txt"))
        for part in (b"one", b"two"):  # components, for a compose
            stream.write(part)
            stream.persist()
        batch.add(stream.close_for_commit())


def command(line: str) -> str:
    result = CliRunner().invoke(main, [*line.split(), "--store", "gs://shop/state", "--job", "orders"])
    assert result.exit_code == 0, (line, result.output)
    return result.output


def test_an_object_user_does_daily_work(server: GCSServer) -> None:
    """Batches, a change of columns, a savepoint, a restore, a clean-up that deletes."""
    refuse(server, NOT_OF_A_USER)
    for day in ("2024-01-01", "2024-01-02", "2024-01-03"):
        live(day)
    command("checkpoints schema --rename total=sum --yes")
    command("checkpoints savepoint 1 first")
    command("checkpoints restore 1 --yes")
    live("2024-01-02")
    command("checkpoints gc --keep 1 -o dstl.checkpoint.reader-grace=0")
    command("checkpoints verify")
    assert "in order" in command("checkpoints audit")


def test_an_object_viewer_reads(server: GCSServer) -> None:
    """Rows, checkpoints and their check, of a job that others write."""
    live("2024-01-01")
    refuse(server, NOT_OF_A_VIEWER)
    found = dstl.read_state("gs://shop/state", "orders", "totals").to_arrow()
    assert found.num_rows == 2
    for line in ("list", "show 1", "history customer=ada", "verify", "audit"):
        command(f"checkpoints {line}")


def test_a_viewer_writes_nothing(server: GCSServer) -> None:
    """The refusals bite."""
    refuse(server, NOT_OF_A_VIEWER)
    with pytest.raises(DstlError) as refused:
        live("2024-01-01")
    assert refused.value.kind == "no_permission"
