"""`dstl checkpoints`: on a real folder, with neither Spark nor Dagster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dstl_dagster.checkpoint import CheckpointCoordinator, FileReport
from dstl_dagster.cli.checkpoints import checkpoints_group
from dstl_dagster.cli.render import checkpoint_table
from dstl_dagster.errors import ConflictError, InvalidInputError, NotFoundError
from dstl_dagster.recoverable import GSRecoverableWriter
from dstl_dagster.spark.batch import open_batch
from dstl_dagster.storage import ABSENT, LocalObjectStore

JOB = "orders"


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    """Three checkpoints with a file each."""
    store = LocalObjectStore(tmp_path / "store", durable=False)
    coordinator = CheckpointCoordinator(JOB, store, owner="test")
    for position in (1, 2, 3):
        attempt = coordinator.trigger(idempotency_key=f"batch-{position}")
        stream = GSRecoverableWriter(store, attempt=attempt.attempt).open(store.uri_of(f"out/{position}"))
        stream.write(b"bytes")
        committer = stream.close_for_commit()
        file = FileReport(committer.recoverable, tuple(committer.components), rows=5, format="text")
        coordinator.record(attempt, [], [file], {"source": position})
        coordinator.confirm(attempt)
        coordinator.compose_commit()
    return store


def run(store: LocalObjectStore, *arguments: str, code: int = 0) -> str:
    result = invoke(store, *arguments)
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def invoke(store: LocalObjectStore, *arguments: str) -> Result:
    where = {"DSTL_STORE": store.uri, "DSTL_JOB": JOB}
    return CliRunner().invoke(checkpoints_group, list(arguments), env=where)


def test_checkpoints_are_listed_for_people_and_for_programs(store):
    """A table with a title, and one JSON object a line."""
    assert "Checkpoints" in run(store, "list")
    lines = [json.loads(line) for line in run(store, "list", "--json").splitlines()]
    assert [line["checkpoint_id"] for line in lines] == [1, 2, 3]
    assert lines[0]["positions"] == {"source": 1}


def test_what_a_batch_says_of_its_checkpoint_is_shown(store):
    """Up to 4 KiB of text, in the manifest that is written anyway; empty where a batch says nothing."""
    with open_batch(store, JOB) as batch:
        batch.move_position("source", 4)
        with pytest.raises(InvalidInputError, match="at most 4096 bytes, not 4098"):
            batch.describe("\u00e9" * 2049)
        batch.describe("\u00e9" * 2047 + " 7")
    said = [json.loads(line)["user_metadata"] for line in run(store, "list", "--json").splitlines()]
    assert said == ["", "", "", "\u00e9" * 2047 + " 7"]
    assert json.loads(run(store, "show", "4", "--json"))["user_metadata"] == said[-1]
    assert f"says {said[-1]}" in run(store, "show", "4")


@pytest.mark.parametrize("columns", [120, 200])
def test_a_streams_long_positions_cut_no_other_column(store, columns):
    """Whatever the width of the terminal; in a pipe they are whole."""
    coordinator = CheckpointCoordinator(JOB, store, owner="test")
    attempt = coordinator.trigger()
    offsets = {"topic": {str(partition): 1_234_567 for partition in range(40)}}
    coordinator.record(attempt, [], [], {"source": [offsets]})
    coordinator.confirm(attempt)
    coordinator.compose_commit()
    *_, third, fourth = checkpoint_table(coordinator.list()).lines(columns)
    assert third.split()[3:9] == ["2", "0", "0", "B", "1", "5"]
    assert third.split()[-2:] == ["committed", "3"]
    assert "committed" in fourth
    assert "[{'top" in fourth
    assert fourth.endswith("…")
    assert run(store, "list").splitlines()[-1].endswith("'9': 1234567}}]")


def test_one_checkpoint_is_shown(store):
    """Its place in the chain, batch, position and files; the manifest too in JSON."""
    shown = run(store, "show", "2")
    for part in ("on 1, committed", "batch-2", "source source at 2", "out/2", "5 B"):
        assert part in shown
    assert json.loads(run(store, "show", "2", "--json"))["manifest"]["checkpoint_id"] == 2
    assert isinstance(invoke(store, "show", "9").exception, NotFoundError)


def test_the_timeline_is_shown(store):
    """Each decision on a line, from a slot on, as many as wanted."""
    assert run(store, "timeline").count("completed") == 3
    lines = [json.loads(line) for line in run(store, "timeline", "--json", "--after", "3").splitlines()]
    assert [line["kind"] for line in lines[:2]] == ["opened", "completed"]
    assert len(run(store, "timeline", "--json", "--limit", "1").splitlines()) == 1
    assert run(store, "timeline", "--after", "99") == "no record after slot 99\n"


def test_a_restore_asks_first(store):
    """Without --yes and without an answer nothing happens; with it the job goes back."""
    planned = json.loads(run(store, "restore", "1", "--dry-run", "--json"))
    assert (planned["last"], planned["checkpoint_id"]) == (3, 1)
    assert planned["left_behind"] == [2, 3]
    assert "checkpoint 3 goes" in run(store, "restore", "1", "--dry-run")
    run(store, "restore", "1", code=1)
    assert json.loads(run(store, "restore", "1", "--yes", "--json"))["checkpoint_id"] == 1
    assert [stat.name for stat in store.list("out/")] == ["out/1"]


def test_a_restore_to_0_begins_anew(store):
    """Readers see the state as it was; every batch may run again, and every file is retracted."""
    planned = json.loads(run(store, "restore", "0", "--dry-run", "--json"))
    assert (planned["last"], planned["checkpoint_id"], planned["left_behind"]) == (3, 0, [1, 2, 3])
    assert "the job begins anew" in run(store, "restore", "0", "--dry-run")
    assert "begins anew" in run(store, "restore", "0", "--yes")
    assert [stat.name for stat in store.list("out/")] == []
    assert json.loads(run(store, "show", "latest", "--json"))["checkpoint_id"] == 3
    run(store, "audit")
    run(store, "list")


def subsumed(store, *arguments):
    return json.loads(run(store, "gc", *arguments, "--json").splitlines()[-1])["subsumed"]


def test_a_savepoint_is_made_and_released(store):
    """A name that keeps another checkpoint is refused; a released one keeps nothing."""
    run(store, "savepoint", "1", "mark")
    assert "retained as mark" in run(store, "show", "1")
    assert isinstance(invoke(store, "savepoint", "2", "mark").exception, ConflictError)
    assert subsumed(store, "--keep", "1") == [2]
    assert "released" in run(store, "release", "mark")
    assert subsumed(store, "--keep", "1") == [1]


def test_clean_up_lists_what_is_gone(store):
    """Each object is a line, by which a backup returns it; so it is in a dry run, of what would go. What is
    put back goes again.
    """
    where = ("--keep", "1", "-o", "dstl.checkpoint.reader-grace=0s")
    before = {(store.uri_of(stat.name), stat.generation) for stat in store.list()}
    kept = {store.uri_of(stat.name): store.get(stat.name) for stat in store.list()}
    preview = run(store, "gc", *where, "--json", "--dry-run").splitlines()
    *gone, summary = run(store, "gc", *where, "--json").splitlines()
    left = {(store.uri_of(stat.name), stat.generation) for stat in store.list()}
    assert (gone, json.loads(summary)["objects"]) == (preview[:-1], len(gone))
    listed = [json.loads(line) for line in gone]
    assert {(each["uri"], each["generation"]) for each in listed} == before - left != set()
    for each in listed:
        store.put(each["uri"].removeprefix(f"{store.uri}/"), kept[each["uri"]], precondition=ABSENT)
    *again, _ = map(json.loads, run(store, "gc", *where, "--json").splitlines())
    assert [each["uri"] for each in again] == [each["uri"] for each in listed]


def test_clean_up_subsumes_no_checkpoint_unasked(store):
    """The job's retention is not known here, so only --keep subsumes checkpoints; a dry run does not."""
    assert subsumed(store) == []
    assert "would be subsumed: 1, 2" in run(store, "gc", "--keep", "1", "--dry-run")
    assert [line["checkpoint_id"] for line in map(json.loads, run(store, "list", "--json").splitlines())] == [
        1,
        2,
        3,
    ]


def test_a_blocked_file_is_audited_and_resolved(store):
    """The audit ends with 1 and the command to use; that command, with a word, puts the job in order."""
    assert "in order" in run(store, "audit")
    coordinator = CheckpointCoordinator(JOB, store, owner="test")
    attempt = coordinator.trigger()
    stream = GSRecoverableWriter(store, attempt=attempt.attempt).open(store.uri_of("out/4"))
    stream.write(b"ours")
    committer = stream.close_for_commit()
    coordinator.record(attempt, [], [FileReport(committer.recoverable, tuple(committer.components))])
    coordinator.confirm(attempt)
    assert "in order; checkpoint 4 is not published yet" in run(store, "audit")
    store.put("out/4", b"foreign", precondition=ABSENT)
    coordinator.compose_commit()
    assert "dstl checkpoints resolve 4 out/4" in run(store, "audit", code=1)
    assert json.loads(run(store, "audit", "--json", code=1))["blocked"] == {"4": ["out/4"]}
    assert "say --keep" in run(store, "resolve", "4", "out/4", code=2)
    shown = run(store, "resolve", "4", "out/4", "--replace", "--json")
    assert json.loads(shown)["state"] == "committed"
    assert store.get("out/4") == b"ours"
    run(store, "audit")


def test_settings_of_the_job_are_taken(store):
    """-o KEY=VALUE reaches the coordinator; an unknown key is refused by name."""
    run(store, "gc", "-o", "dstl.checkpoint.reader-grace=1s", "--keep", "1")
    assert "unknown" in str(invoke(store, "gc", "-o", "dstl.checkpoint.unknown=1").exception)
    assert "KEY=VALUE" in run(store, "gc", "-o", "keep", code=2)


def kept(store: LocalObjectStore, *arguments: str, environ: str = "") -> list[int]:
    """The checkpoints that are there after a clean-up with these arguments."""
    where = {"DSTL_STORE": store.uri, "DSTL_JOB": JOB, "DSTL_OPTIONS": environ}
    result = CliRunner().invoke(checkpoints_group, ["gc", *arguments], env=where)
    assert result.exit_code == 0, (result.output, result.exception)
    return [each.checkpoint_id for each in CheckpointCoordinator(JOB, store).list()]


def test_retention_that_is_given_acts(store, tmp_path):
    """By -o, by its file, by the environment, in this order; -D is Flink's habit. Unasked nothing goes."""
    key = "execution.checkpointing.num-retained"
    file = tmp_path / "options"
    file.write_text(f"# of the job\n{key}: 2\n")
    assert kept(store) == [1, 2, 3]
    assert kept(store, environ=f"{key}=3") == [1, 2, 3]
    assert kept(store, "--options-file", str(file), environ=f"{key}=1") == [2, 3]
    assert kept(store, f"-D{key}=2", "--options-file", str(file), "--keep", "2") == [2, 3]
    assert kept(store, "--option", f"{key}=1", "--options-file", str(file)) == [3]


def test_an_option_is_given_once(store):
    """Of two values for one key none is the right one."""
    both = ["-o", "dstl.checkpoint.reader-grace=1s", "-o", "dstl.checkpoint.reader-grace=2s"]
    assert "gives dstl.checkpoint.reader-grace twice" in run(store, "gc", *both, code=2)


def test_neither_spark_nor_dagster_is_loaded(store):
    """The command works where only the base package is installed."""
    code = (
        "import sys; from dstl_dagster.cli import main\n"
        "try: main(['checkpoints', 'list'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('pyspark', 'dagster', 'google.cloud') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"DSTL_STORE": store.uri, "DSTL_JOB": JOB, "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip().endswith("[]")


def test_what_a_checkpoint_cost_is_shown(store):
    """Requests by class and step; a folder bills none of them. In JSON every count, and the prices."""
    shown = run(store, "show", "2")
    assert "Requests by class, at no price" in shown
    assert "4 record" in shown
    assert "6 compose-commit" in shown
    cost = json.loads(run(store, "show", "2", "--json"))["cost"]
    (record,) = cost["steps"]
    assert (record["step"], record["usd"], record["retries"]) == ("record", 0, 0)
    assert record["class_a"] + record["class_b"] + record["free"] == cost["requests"] > 0
    assert cost["prices"]["as_of"] is None


def test_the_cost_of_an_old_checkpoint_is_unknown(store, monkeypatch):
    """Its manifest says nothing of it."""
    monkeypatch.setattr("dstl_dagster.keyed.documents.manifest.CheckpointCost.from_json", lambda _: None)
    assert "cost: not counted" in run(store, "show", "2")
    assert json.loads(run(store, "show", "2", "--json"))["cost"] is None
