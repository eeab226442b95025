"""The `dstl` command as a whole: what it offers, what it costs to start, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.cli import main
from dstl_dagster.storage import LocalObjectStore

COMMANDS = ["changelog", "checkpoints", "demo", "gcs-server", "jobs", "storage"]
MAP_TITLES = {"Look", "Check", "Decide", "Tidy", "Prepare", "Try"}


@pytest.fixture
def store(tmp_path):
    """A local store with two checkpoints of job `orders`."""
    store = LocalObjectStore(tmp_path, durable=False)
    coordinator = CheckpointCoordinator("orders", store)
    for day in (1, 2):
        attempt = coordinator.trigger(idempotency_key=f"day-{day}")
        coordinator.record(attempt, positions={"source": day})
        coordinator.confirm(attempt)
        coordinator.compose_commit()
    return store


def test_help_names_every_command():
    """`dstl --help` lists the commands with their first sentences, and each of them has help of its own."""
    listed = " ".join(CliRunner().invoke(main, ["--help"]).output.split())
    for name in COMMANDS:
        assert f"{name} {main.get_command(click.Context(main), name).get_short_help_str(200)} " in listed
        shown = CliRunner().invoke(main, [name, "--help"])
        assert shown.exit_code == 0, shown.output


def test_help_imports_none_of_the_commands():
    """It is there at once: what reads stores takes ten times as long to import."""
    program = (
        "import sys\nfrom dstl_dagster.cli import main\nmain(['--help'], standalone_mode=False)\n"
        "sys.exit({'numpy', 'pyarrow', 'dstl_dagster.checkpoint'} & {*sys.modules} or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_map_has_every_command():
    """The help's map names each command of each group once, and none that is not there."""
    shown = CliRunner().invoke(main, ["--help"]).output
    mapped, group = [], None
    for line in shown.partition("Look ")[2].partition("`dstl COMMAND")[0].splitlines():
        words = [word for word in line.replace(",", " ").split() if word not in MAP_TITLES]
        if words:
            group, *named = words
            mapped += [(group, name) for name in named] or [(group, None)]
    context = click.Context(main)
    found = []
    for name in COMMANDS:
        command = main.get_command(context, name)
        inner = command.list_commands(context) if isinstance(command, click.Group) else [None]
        found += [(name, each) for each in inner]
    assert sorted(mapped, key=str) == sorted(found, key=str)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["checkpoints", "list"], 0),
        (["checkpoints", "audit"], 0),
        (["checkpoints", "show", "7"], 1),
        (["checkpoints", "show", "9" * 5_000], 1),
        (["checkpoints", "show", "checkpoint:" + "9" * 5_000], 2),
        (["checkpoints", "diff", "1", "2", "--limit", "9" * 20], 2),
        (["checkpoints", "show"], 2),
        (["checkpoints", "savepoint", "7", "kept"], 1),
        (["checkpoints", "resolve", "1", "a"], 2),
        (["checkpoints", "nothing"], 2),
        (["checkpoints", "list", "--nothing"], 2),
        (["changelog", "show", "/nowhere/at/all"], 1),
        (["storage", "check", "gs:///no-bucket"], 1),
        (["gcs-server", "--port", "0", "--folder", "/proc/nothing"], 1),
    ],
    ids=lambda value: "-".join(value)[:60] if isinstance(value, list) else str(value),
)
def test_the_exit_status_is_as_the_help_says(store, monkeypatch, arguments, status):
    """0 done, 1 refused, 2 not understood; in no case a traceback."""
    monkeypatch.setenv("DSTL_STORE", store.uri)
    monkeypatch.setenv("DSTL_JOB", "orders")
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == status, done.output
    assert isinstance(done.exception, SystemExit | None), done.exception
    assert "Traceback" not in done.output
    if status == 1:
        assert done.output.strip().splitlines()[-1].startswith(("dstl: ", "Error: "))


def test_checkpoints_are_listed_for_people(store):
    """The table has a row for each checkpoint, with its parent and position."""
    shown = CliRunner().invoke(main, ["checkpoints", "list", "--store", store.uri, "--job", "orders"])
    rows = [line.split() for line in shown.output.splitlines() if "committed" in line]
    assert [[row[0], row[3]] for row in rows] == [["1", "-"], ["2", "1"]]


def test_checkpoints_are_listed_for_programs(store):
    """With `--json` each line is one checkpoint."""
    shown = CliRunner().invoke(
        main, ["checkpoints", "list", "--store", store.uri, "--job", "orders", "--json"]
    )
    found = [json.loads(line) for line in shown.output.splitlines()]
    assert [(each["checkpoint_id"], each["idempotency_key"]) for each in found] == [
        (1, "day-1"),
        (2, "day-2"),
    ]


def test_a_job_without_checkpoints_says_so(tmp_path):
    """A job whose first attempt is open is an answer, not an error."""
    CheckpointCoordinator("orders", LocalObjectStore(tmp_path), owner="test").trigger()
    shown = CliRunner().invoke(main, ["checkpoints", "list", "--store", tmp_path.as_uri(), "--job", "orders"])
    assert (shown.exit_code, "has no checkpoint" in shown.output) == (0, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "--store", "ftp://somewhere", "--job", "orders"],
        ["list", "--store", "memory://x", "--job", "../orders"],
    ],
    ids=["uri", "job"],
)
def test_bad_input_is_one_line(arguments):
    """An error of ours is its message and kind on stderr, not a traceback, and exit code 1."""
    shown = CliRunner().invoke(main, ["checkpoints", *arguments])
    assert shown.exit_code == 1
    assert shown.output.startswith("dstl: ")
    assert "Traceback" not in shown.output


def test_checkpoints_need_neither_spark_nor_dagster(store):
    """Listing checkpoints imports no dagster, pyspark, pandas or google.cloud."""
    code = (
        "import sys; from dstl_dagster.cli import main\n"
        "try: main(['checkpoints', 'list', '--store', sys.argv[1], '--job', 'orders'])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "found = {'dagster', 'pyspark', 'pandas', 'google.cloud'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run(
        [sys.executable, "-c", code, store.uri], check=True, timeout=120, stdout=subprocess.DEVNULL
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["checkpoints", "list"], "Missing option '--store' (env var: 'DSTL_STORE')"),
        (["jobs", "list"], "Missing option '--store' (env var: 'DSTL_STORE')"),
        (
            ["checkpoints", "list", "--store", "file:///data"],
            "name the job, by --job or DSTL_JOB: `dstl jobs",
        ),
    ],
)
def test_a_store_and_a_job_may_stand_in_the_environment(arguments, said, monkeypatch):
    """Whoever names neither is told both ways to."""
    for name in ("DSTL_STORE", "DSTL_JOB"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


def _commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from _commands(found, (*words, name))
        elif found is not None:
            yield " ".join((*words, name)), found


def test_every_command_on_a_store_has_the_same_options() -> None:
    """JSON, a verbose log and quiet are asked for in the same words everywhere."""
    missing = {
        name: {"--json", "-v", "-q", "-o"} - {each for option in command.params for each in option.opts}
        for name, command in _commands(main)
        if name not in ("demo", "gcs-server")
    }
    assert {name: options for name, options in missing.items() if options} == {}
