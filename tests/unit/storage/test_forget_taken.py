"""What the local store keeps of objects whose files consumers took, and the command that forgets them."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from dstl_dagster.cli import main
from dstl_dagster.storage import ABSENT, Generation, LocalObjectStore


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "root", durable=False)


def records(store: LocalObjectStore) -> int:
    return len(list((store.root / ".dstl-store" / "records").rglob("*.json")))


def test_only_records_of_no_file_go(store: LocalObjectStore) -> None:
    """Files that are there keep generation and metadata; a name that is used again gets a higher one."""
    assert list(store.forget_taken()) == []
    kept = store.put("out/kept", b"x", precondition=ABSENT, metadata={"k": "v"})
    taken = store.put("out/deep/taken", b"x", precondition=ABSENT)
    store.put("removed", b"x", precondition=ABSENT)
    (store.root / "out" / "deep" / "taken").rename(store.root / "elsewhere")
    (store.root / "out" / "deep").rmdir()
    (store.root / "removed").unlink()
    assert sorted(store.forget_taken(dry_run=True)) == ["out/deep/taken", "removed"]
    assert records(store) == 3
    assert sorted(store.forget_taken()) == ["out/deep/taken", "removed"]
    assert list(store.forget_taken()) == []
    assert records(store) == 1
    assert store.stat("out/kept") == kept
    again = store.put("out/deep/taken", b"x", precondition=ABSENT)
    assert again.generation > taken.generation


def test_what_cannot_be_decided_stays(store: LocalObjectStore) -> None:
    """A damaged record, and one that lies where no store writes it."""
    store.put("a", b"x", precondition=ABSENT)
    (store.root / "a").unlink()
    (record,) = (store.root / ".dstl-store" / "records").rglob("*.json")
    record.with_name("0.json").write_bytes(record.read_bytes())
    record.write_text("{")
    assert list(store.forget_taken()) == []
    assert records(store) == 2


def test_a_writer_beside_it_loses_nothing(store: LocalObjectStore) -> None:
    """Every object that was written is there with its metadata, whenever the walk came by."""
    done = threading.Event()
    forgotten: list[str] = []

    def forget() -> None:
        while not done.is_set():
            forgotten.extend(store.forget_taken())

    thread = threading.Thread(target=forget)
    thread.start()
    try:
        for turn in itertools.count():
            made = store.put("a", b"%d" % turn, precondition=ABSENT, metadata={"turn": str(turn)})
            assert store.stat("a") == made
            assert store.put("a", b"more", precondition=Generation(made.generation)).generation > 0
            (store.root / "a").unlink()
            if turn >= 50 and forgotten:
                break
    finally:
        done.set()
        thread.join(20)
    assert set(forgotten) == {"a"}


def test_the_command(store: LocalObjectStore) -> None:
    """It names what it forgets; another store than a folder is refused."""
    store.put("a", b"x", precondition=ABSENT)
    (store.root / "a").unlink()
    for arguments, count in ((["--dry-run"], 1), ([], 1), ([], 0)):
        result = CliRunner().invoke(main, ["storage", "forget-taken", store.uri, *arguments])
        assert result.exit_code == 0
        assert result.stdout.split() == ["a"] * count
    assert CliRunner().invoke(main, ["storage", "forget-taken", "memory://b"]).exit_code == 1
