"""`dstl changelog show`: files of ours and of Flink's, and those that are neither."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.cli.changelog import changelog_group
from dstl_dagster.errors import FormatError, InvalidInputError, NotFoundError
from dstl_dagster.format import KeyGroupRange, SequenceNumber
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.storage import LocalObjectStore

GOLDEN = Path(__file__).parents[2] / "compat" / "flink"


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(changelog_group, ["show", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def written(tmp_path: Path) -> Path:
    store = LocalObjectStore(tmp_path, durable=False)
    options = FsStateChangelogOptions(compression="snappy")
    with (
        FsStateChangelogStorage("job", store, options) as storage,
        storage.create_writer("op", KeyGroupRange.of(0, 9)) as writer,
    ):
        writer.append_meta(b"schema")
        writer.append(3, b"abc")
        writer.append(3, b"x" * 40)
        handle = writer.persist(SequenceNumber.of(0), 1).result().job_manager_owned_snapshot
    assert handle is not None
    return tmp_path / handle.handles_and_offsets[0][0].name


def test_a_file_of_ours_is_shown(written: Path) -> None:
    """Set by set, with whose it is, how many changes each key group has, and on request the changes."""
    lines = [json.loads(line) for line in _run(str(written), "--json", "--changes").splitlines()]
    assert (lines[0]["compression"], lines[0]["footer"]) == ("snappy", True)
    assert (lines[1]["sqn"], lines[1]["key_groups"]) == (0, {"metadata": 1, "3": 2})
    assert [(line["key_group"], line["bytes"]) for line in lines[2:]] == [
        ("metadata", 6),
        ("3", 3),
        ("3", 40),
    ]
    assert "compression snappy, with footer" in _run(str(written))
    assert _run(written.as_uri()).count("offset 0:") == 1


def test_a_file_of_flinks_is_shown() -> None:
    """Flink's files have no footer; every set is found by walking."""
    for name in ("single-file-plain", "single-file-snappy"):
        lines = [json.loads(line) for line in _run(str(GOLDEN / name / "file-0.bin"), "--json").splitlines()]
        assert lines[0]["footer"] is False
        assert [line["changes"] for line in lines[1:4]] == [9, 4, 2]
        assert "without footer" in _run(str(GOLDEN / name / "file-0.bin"), "--changes")


def test_what_is_no_changelog_file_says_so(tmp_path: Path, written: Path) -> None:
    """Damage names file and offset; a missing file and a wrong URI say what to give."""
    content = bytearray(written.read_bytes())
    content[30] ^= 1
    (tmp_path / "harmed").write_bytes(content)
    for file, error in (
        (str(tmp_path / "harmed"), FormatError),
        (str(tmp_path / "missing"), NotFoundError),
        ("gs://", InvalidInputError),
    ):
        result = CliRunner().invoke(changelog_group, ["show", file])
        assert isinstance(result.exception, error)
    with pytest.raises(FormatError, match="harmed, offset 0"):
        _run(str(tmp_path / "harmed"))
