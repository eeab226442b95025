"""The page of a checkpoint and that of an operator tell how many rows the whole state has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from tests.dagster.days import make_outside

if TYPE_CHECKING:
    from tests.dagster.conftest import Daemon, Days

pytestmark = pytest.mark.dagster


def said(days: Days, *path: str) -> dict[str, Any]:
    """The metadata of the asset's newest event."""
    event = days.instance.get_latest_materialization_event(dg.AssetKey(["days", *path]))
    assert event is not None
    assert event.asset_materialization is not None
    return {name: value.value for name, value in event.asset_materialization.metadata.items()}


def test_rows_are_told_exactly_or_with_bounds(days: Days, daemon: Daemon) -> None:
    """After the first changes the number; after others, whose keys may be new or not, its bounds."""
    make_outside(days.uri, "2024-01-01")
    daemon.tick()
    assert said(days, "checkpoints")["rows"] == "1 changed, 1 in all"
    page = said(days, "state", "totals")
    assert page["dagster/row_count"] == 1
    assert not {"rows", "rows at most"} & page.keys(), "once"
    make_outside(days.uri, "2024-01-02")
    daemon.tick()
    assert said(days, "checkpoints")["rows"] == "1 changed, 1 to 2 in all"
    assert "| totals | key | 1 to 2 |" in said(days, "checkpoints")["details"]
    for path in (("checkpoints",), ("state", "totals")):
        assert said(days, *path)["rows at most"] == 2
        assert "dagster/row_count" not in said(days, *path)
    assert "rows" not in said(days, "state", "totals"), "once"
