"""What people see: tables, times, names with odd characters, on terminals and in pipes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.cli import main
from dstl_dagster.cli.output import Table, local_time, printable
from dstl_dagster.keyed import write_rows
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import LocalObjectStore

JOB = "orders"
COLUMNS = {"id": pa.int64(), **{f"column_{number}": pa.string() for number in range(11)}}
SCHEMA = StateSchema.of(pa.schema(COLUMNS), ["id"], 4)


@pytest.fixture
def coordinator(tmp_path: Path) -> CheckpointCoordinator:
    """Two checkpoints of a row with twelve columns, of which one has what a terminal obeys."""
    store = LocalObjectStore(tmp_path / "store", durable=False)
    coordinator = CheckpointCoordinator(JOB, store, owner="test")
    for number in range(2):
        attempt = coordinator.trigger(idempotency_key=f"day-{number}")
        row = {"id": 1} | {name: f"{name} of day {number}" for name in COLUMNS if name != "id"}
        row["column_3"] = f"red \x1b[31m\n\u009b bell \a {number}"
        rows = pa.Table.from_pylist([row], schema=SCHEMA.columns)
        coordinator.record(attempt, [write_rows(rows, attempt, store, operator="op", schema=SCHEMA)])
        coordinator.confirm(attempt)
        coordinator.compose_commit()
    return coordinator


def run(coordinator: CheckpointCoordinator, *words: str, code: int = 0) -> Result:
    where = {"DSTL_STORE": coordinator.store.uri, "DSTL_JOB": JOB}
    result = CliRunner(env=where).invoke(main, ["checkpoints", *words])
    assert result.exit_code == code, (result.output, result.exception)
    return result


# -- tables


def test_a_table_in_a_pipe_is_whole():
    """However wide."""
    table = Table("name", "count", right=["count"])
    table.add_row("x" * 300, "5")
    assert list(table.lines()) == ["name" + " " * 296 + "  count", "x" * 300 + "      5"]


def test_a_table_on_a_terminal_fits():
    """The column that gives way is cut, with an ellipsis; numbers stay at the right."""
    table = Table("name", "count", right=["count"], cut=["name"])
    table.add_row("x" * 300, "5")
    table.add_row("y", "1,000")
    lines = list(table.lines(40))
    assert lines[1] == "x" * 32 + "…" + "      5"
    assert max(map(len, lines)) == 40


def test_wide_characters_count_twice():
    """Columns stay in line under names of Chinese characters."""
    table = Table("name", "n")
    table.add_row("\u4e2d\u6587", "1")
    table.add_row("ab", "2")
    assert list(table.lines(80)) == ["name  n", "\u4e2d\u6587  1", "ab    2"]


def test_a_row_that_cannot_fit_is_told_column_by_column():
    """As many columns have: no cell is cut to nothing."""
    table = Table(*(f"column_{number}" for number in range(12)), cut=())
    table.add_row(*("value" for _ in range(12)))
    table.add_row(*("other" for _ in range(12)))
    lines = list(table.lines(60))
    assert lines[0] == "column_0   value"
    assert lines[11:14] == ["column_11  value", "", "column_0   other"]


@pytest.mark.parametrize("width", [60, 200])
def test_history_of_many_columns_on_a_terminal(coordinator, width):
    """No line is longer than the terminal, and each column is named."""
    shown = on_a_terminal(coordinator, width, "checkpoints", "history", "id=1")
    assert max(map(len, shown.splitlines())) <= max(width, 80)
    assert [name for name in COLUMNS if name not in shown] == []


def test_history_in_a_pipe_has_a_line_a_change(coordinator):
    """With whole values, below the names of all columns."""
    header, *lines = run(coordinator, "history", "id=1").stdout.splitlines()
    assert header.split() == ["checkpoint", "change", *COLUMNS]
    assert [line.split()[0] for line in lines] == ["1", "2"]
    assert "column_10 of day 1" in lines[1]


def on_a_terminal(coordinator: CheckpointCoordinator, width: int, *words: str) -> str:
    controller, terminal = pty.openpty()
    environment = {
        **os.environ,
        "DSTL_STORE": coordinator.store.uri,
        "DSTL_JOB": JOB,
        "COLUMNS": str(width),
        "TERM": "xterm",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", "from dstl_dagster.cli import main; main()", *words],
        stdout=terminal,
        env=environment,
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            part = os.read(controller, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    assert process.wait() == 0
    os.close(controller)
    return shown.decode()


# -- characters


def test_control_characters_of_rows_do_not_reach_the_terminal(coordinator):
    """Of a history, a difference, a batch's key, a reason, an error."""
    coordinator.trigger(idempotency_key="batch \x1b]0;title\a")
    shown = [
        run(coordinator, "history", "id=1").output,
        run(coordinator, "diff", "1", "2").output,
        run(coordinator, "abort", "--yes", "--reason", "\x1b[2J").output,
        run(coordinator, "timeline").output,
        run(coordinator, "list").output,
        run(coordinator, "show", "\x1b[31m", code=1).output,
    ]
    assert "red \\x1b[31m\\n\\x9b bell \\x07 0" in shown[0]
    assert "\\x1b[2J" in shown[3]
    for each in shown:
        assert [letter for letter in each if not letter.isprintable() and letter != "\n"] == []


def test_what_is_printable_stays():
    """Letters of any script, and spaces of any width."""
    text = "Zürich \u4e2d\u6587 \U0001f600 a\u00a0b\u3000c"
    assert printable(text) == text
    assert printable("a\tb\u2028c\udc80") == "a\\tb\\u2028c\\udc80"


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_a_terminal_without_utf_8(coordinator, encoding):
    """A savepoint's and a batch's names are shown as far as it goes: no traceback."""
    coordinator.trigger(idempotency_key="日")
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "DSTL_JOB": JOB}
    words = ["checkpoints", "diff", "1", "2", "--store", coordinator.store.uri]
    for command in (words, ["checkpoints", "show", "日", "--store", coordinator.store.uri]):
        done = subprocess.run(
            [sys.executable, "-c", "from dstl_dagster.cli import main; main()", *command],
            env=environment,
            capture_output=True,
            check=False,
        )
        assert b"Traceback" not in done.stderr
    assert b"\\u65e5" in done.stderr


# -- times


def test_times_are_of_this_zone_with_its_offset(coordinator, monkeypatch):
    """In tables; in JSON they are ISO, in UTC."""
    moment = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert local_time(moment) == "2026-01-02 08:34:05+05:30"
        assert "+05:30" in run(coordinator, "list").stdout
        assert "+05:30" in run(coordinator, "timeline").stdout
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_list_says_when_and_what_is_kept(coordinator):
    """In its first columns, and in JSON."""
    coordinator.savepoint(1, "before-migration")
    coordinator.savepoint(1, "audited")
    _, header, first, second = run(coordinator, "list").stdout.splitlines()
    assert header.split()[:3] == ["id", "completed", "savepoints"]
    completed = coordinator.get(1).entry.completed.recorded_at
    assert first.split()[:5] == ["1", *local_time(completed).split(), "audited,", "before-migration"]
    assert "before-migration" not in second
    document = json.loads(run(coordinator, "list", "--json").stdout.splitlines()[0])
    assert document["completed_at"] == completed.isoformat()
    assert document["savepoints"] == ["audited", "before-migration"]


# -- commands


def test_an_open_attempt_is_aborted(coordinator):
    """After a question; then the next batch may begin, and the owner is refused."""
    attempt = coordinator.trigger()
    assert "dstl checkpoints abort" in run(coordinator, "audit").stdout
    asked = run(coordinator, "abort", code=1)
    assert "of 'test' on checkpoint 3, open since" in asked.stderr
    assert coordinator.timeline.tail().open_attempt is not None
    document = json.loads(run(coordinator, "abort", "--yes", "--json").stdout)
    assert document == {"attempt": str(attempt.attempt), "checkpoint_id": 3}
    assert coordinator.timeline.tail().open_attempt is None
    assert "has no open attempt" in run(coordinator, "abort", "--yes", code=1).stderr
    CheckpointCoordinator(JOB, coordinator.store, owner="other").trigger()


def test_the_refusal_of_a_second_attempt_names_the_command(coordinator):
    """As a person at a shell ends it."""
    coordinator.trigger()
    refused = run(coordinator, "materialize", "--force", code=1)
    assert "dstl checkpoints abort" in refused.stderr


def test_the_last_checkpoint_has_a_word(coordinator):
    """For every command, and no savepoint is called so."""
    document = json.loads(run(coordinator, "savepoint", "latest", "mark", "--json").stdout)
    assert (document["checkpoint_id"], document["savepoints"]) == (2, ["mark"])
    assert json.loads(run(coordinator, "show", "latest", "--json").stdout)["checkpoint_id"] == 2
    assert "the last checkpoint" in run(coordinator, "savepoint", "1", "latest", code=1).stderr
    document = json.loads(run(coordinator, "release", "mark", "--json").stdout)
    assert document == {"savepoint": "mark", "checkpoint_id": 2, "released": True}


def test_a_fold_is_planned_without_folding(coordinator):
    """What it would fold, for people and for programs."""
    assert run(coordinator, "materialize", "--force", "--dry-run").stdout == "would be merged: op\n"
    assert run(coordinator, "materialize", "--dry-run").stdout == "would be merged: none\n"
    document = json.loads(run(coordinator, "materialize", "--force", "--dry-run", "--json").stdout)
    assert document == {"operators": ["op"]}
    assert coordinator.timeline.tail().highest_id == 2


def test_short_work_has_no_progress(coordinator):
    assert run(coordinator, "verify").stderr == ""


def test_verbose_logs_what_is_decided(coordinator):
    """On stderr, so that a pipe gets the same."""
    environment = {**os.environ, "DSTL_STORE": coordinator.store.uri, "DSTL_JOB": JOB}
    command = [sys.executable, "-c", "from dstl_dagster.cli import main; main()", "checkpoints", "savepoint"]
    done = subprocess.run(
        [*command, "1", "mark", "-v"], env=environment, capture_output=True, check=True, text=True
    )
    assert "INFO dstl_dagster.timeline.timeline: timeline orders: slot" in done.stderr
    assert done.stdout == "checkpoint 1 is retained as 'mark'\n"


def test_a_savepoint_that_ends_says_when(coordinator):
    """Where it is made, and in the list."""
    assert ", until 2" in run(coordinator, "savepoint", "1", "mark", "--for", "365 d").stdout
    assert "mark (to 2" in run(coordinator, "list").stdout
    assert "mark (to 2" in run(coordinator, "show", "1").stdout
    document = json.loads(run(coordinator, "show", "1", "--json").stdout)
    end = datetime.fromisoformat(document["savepoint_ends"]["mark"])
    assert abs((end - datetime.now(UTC)).days - 364) <= 1
    assert "--for" in run(coordinator, "savepoint", "1", "other", "--for", "soon", code=1).stderr
