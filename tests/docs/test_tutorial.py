"""docs/tutorial.md, from its first block to its last: Spark, Dagster, a folder, then the strict server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from dstl_dagster.cli import main
from tests.docs.pages import ROOT, run_page

if TYPE_CHECKING:
    from dstl_dagster.testing.gcs_server import GCSServer


@pytest.mark.spark
@pytest.mark.usefixtures("spark")  # the program's session: one that runs already is used
def test_the_tutorial_runs(
    strict_gcs: GCSServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Blocks in order; the day of the last one goes to a bucket."""
    strict_gcs.create_bucket("shop")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", strict_gcs.url)
    run_page(ROOT / "docs" / "tutorial.md", {"__name__": "orders"}, dict)
    audit = ["checkpoints", "audit", "--store", "gs://shop/orders", "--job", "orders"]
    on_bucket = CliRunner().invoke(main, audit)
    assert "restorable: 1\n" in on_bucket.output
    assert "the power is gone" in capsys.readouterr().out
