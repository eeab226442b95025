"""docs/options.md: its code runs as printed, its tables are true and complete."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.cli import main
from dstl_dagster.settings import JobOptions
from dstl_dagster.settings.job_options import _PREFIXES, _TABLES
from dstl_dagster.spark.sink.options import _KNOWN as SINK_OPTIONS
from dstl_dagster.spark.sink.options import SinkOptions
from dstl_dagster.spark.source.options import _OF_TABLE as TABLE_OPTIONS
from dstl_dagster.spark.source.options import SourceOptions
from dstl_dagster.storage import LocalObjectStore

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "options.md").read_text(encoding="utf-8")
_NO_JOBS = {"dstl.dfs.base-path"}
_OF_LOCAL_COPIES = {
    "execution.checkpointing.local-backup.enabled": False,
    "execution.checkpointing.local-backup.dirs": None,
}


def test_python_of_the_page_runs() -> None:
    """What it configures is what a reader and a writer of Spark have."""
    session: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/options.md", "exec"), session)
    job: dict[str, str] = session["job"]  # type: ignore[assignment] # the page's
    read = SourceOptions.of({**job, "operator": "totals"})
    written = SinkOptions.of({**job, "operator": "t", "keys": "k", "idempotency_key": "x"}, streaming=False)
    assert (
        read.job_options
        == written.job_options
        == JobOptions.of({key: value for key, value in job.items() if "." in key})
    )
    assert read.job_options.changelog.upload_timeout == timedelta(minutes=5)


def test_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a job of one checkpoint: the options are accepted."""
    monkeypatch.chdir(tmp_path)
    Path("orders.options").write_text("dstl.state.materialize.log-ratio: 2\n")
    store = LocalObjectStore(tmp_path / "store", durable=False)
    coordinator = CheckpointCoordinator("orders", store)
    attempt = coordinator.trigger()
    coordinator.record(attempt)
    coordinator.confirm(attempt)
    commands = re.findall(r"^\$ dstl (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        where = {"DSTL_STORE": store.uri, "DSTL_JOB": "orders"}
        result = CliRunner().invoke(main, command.split(), env=where)
        assert result.exit_code == 0, (command, result.output)


def test_every_key_is_listed_with_its_default() -> None:
    """Once, and the default means what a job has that is not configured."""
    rows = dict(re.findall(r"^\| `([a-z.-]+)` \| ([^|]*?) ?\|", PAGE, re.MULTILINE)[::-1])
    job = JobOptions()
    parts = (job.checkpoint, job.checkpoint.prices, job.changelog, job.files)
    for option in (each for table in _TABLES for each in table.options if each.key not in _NO_JOBS):
        assert option.key.startswith(_PREFIXES)
        known = [vars(part)[option.attribute] for part in parts if option.attribute in vars(part)]
        default = known[0] if known else _OF_LOCAL_COPIES[option.key]
        shown = rows.pop(option.key)
        assert (option.parse(option.key, shown) if shown else None) == default, option.key
    assert rows == {}


def test_every_option_of_the_data_source_is_on_its_page() -> None:
    """In the table for writing or for reading; of Spark's own none."""
    page = (DOCS / "spark" / "data-source.md").read_text(encoding="utf-8")
    writing, reading = (each.partition("\n\n")[0].lower() for each in page.split("| option for ")[1:])
    written = {*SINK_OPTIONS} - {"checkpointlocation", "queryname"}
    read = {"table", "path", *(name for names in TABLE_OPTIONS.values() for name in names)} - {"operator"}
    assert {name for name in written if name not in writing} == set()
    assert {name for name in read if name not in reading} == set()
