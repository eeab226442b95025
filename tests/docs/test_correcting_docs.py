"""docs/correcting.md: its plan is the command's, its job is one that Dagster takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner

import dstl_dagster as dstl
from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.cli import main
from dstl_dagster.orchestration.keys import TAG_ALREADY_IN, TAG_CORRECTION, TAG_FAIL_IF_APPLIED
from dstl_dagster.storage import open_store

pytestmark = pytest.mark.dagster
PAGE = (Path(__file__).parents[2] / "docs" / "correcting.md").read_text(encoding="utf-8")


def test_the_plan_is_shown_as_printed(tmp_path: Path) -> None:
    """Of a job that holds a week."""
    uri = (tmp_path / "store").as_uri()
    coordinator = CheckpointCoordinator("orders", open_store(uri))
    for day in range(1, 8):
        attempt = coordinator.trigger(idempotency_key=f"2001-01-{day:02d}")
        coordinator.record(attempt, [])
        coordinator.confirm(attempt)
        coordinator.compose_commit()
    (block,) = re.findall(r"```console\n\$ dstl (.*?)\n(.*?)```", PAGE, re.DOTALL)
    where = {"DSTL_STORE": uri, "DSTL_JOB": "orders"}
    result = CliRunner().invoke(main, block[0].split(), env=where)
    assert (result.exit_code, result.stdout) == (0, block[1])


def test_the_job_is_defined_as_printed(tmp_path: Path) -> None:
    """And the tags are those that the page names."""

    @dg.op(out=dg.Out(dict))
    def update() -> dict[str, Any]:
        return {}

    days = dg.DailyPartitionsDefinition("2001-01-01")
    names: dict[str, Any] = {
        "DAYS": days,
        "state": dstl.build_state_asset("orders", update, partitions_def=days),
        "changelog": dstl.ChangelogStorageResource(uri=tmp_path.as_uri()),
    }
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(block, "docs/correcting.md", "exec", dont_inherit=True), names)
    defs = names["defs"]
    assert defs.resolve_job_def("orders_correct").partitions_def == days
    assert [tag for tag in (TAG_CORRECTION, TAG_ALREADY_IN, TAG_FAIL_IF_APPLIED) if tag not in PAGE] == []
