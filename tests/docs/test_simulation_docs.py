"""The commands in tests/simulated/README.md run, and its lists are complete."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.simulated.__main__ import main
from tests.simulated.points import Harm

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "tests" / "simulated" / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ python -m tests\.simulated (.*)$", PAGE, re.MULTILINE)


def test_every_harm_is_listed():
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == [harm.value for harm in Harm]


def test_the_broken_protocols_are_counted():
    tests = (ROOT / "tests" / "simulation").glob("test_broken_*.py")
    count = sum(path.read_text(encoding="utf-8").count("\n@caught_by(") for path in tests)
    assert f"{count} in all" in PAGE


@pytest.mark.parametrize("command", [each for each in COMMANDS if "--trace" in each])
def test_a_replay_prints_what_happened(capsys, command):
    assert main(shlex.split(command)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "all is well"
    assert any(" put " in line for line in lines)
    assert any("slot" in line and " is " in line for line in lines)


def test_runs_are_counted_and_end_well(capsys):
    """The last lines of a run are for people and for CI."""
    assert main(["--runs", "8", "--first", "1000", "--jobs", "1"]) == 0
    assert re.search(r"^8 runs, 8 distinct, 0 wrong, \d+ seconds$", capsys.readouterr().out, re.MULTILINE)


def test_what_ends_wrong_is_printed_with_its_replay(capsys, monkeypatch):
    """A protocol in which nobody fences: the exit code reports it, with the command that replays it."""
    from dstl_dagster.timeline import Completed, decisions

    monkeypatch.setattr(
        decisions, "to_complete", lambda view, attempt, **said: Completed(
            attempt=attempt.attempt, checkpoint_id=attempt.checkpoint_id, parent=attempt.parent,
            batch=attempt.batch, **{**said, "files": tuple(said["files"])},
        ),
    )  # fmt: skip
    assert main(["--point", "blocked-replace:7:25:pause"]) == 1
    assert "WRONG: slot 9 (completed): the attempt is not the open one" in capsys.readouterr().out
