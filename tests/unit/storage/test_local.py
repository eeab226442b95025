"""The local store's own promises: hands on files, kills inside a step, many processes, hostile names."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from dstl_dagster.errors import (
    ClosedError,
    ConflictError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from dstl_dagster.storage.base import ABSENT, ANY, Generation, Source
from dstl_dagster.storage.local import files as local_files
from dstl_dagster.storage.local import writing as local_writing
from dstl_dagster.storage.local.store import LocalObjectStore, open_local
from dstl_dagster.storage.open import open_store
from dstl_dagster.testing.virtual_clock import VirtualClock


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "root", durable=False)


def test_names_are_paths(store: LocalObjectStore) -> None:
    """An object is a plain file at its name, and nothing is made before the first write."""
    assert not store.root.exists()
    assert store.stat("reports/x.jsonl") is None
    assert list(store.list()) == []
    store.put("reports/x.jsonl", b"{}\n", precondition=ABSENT)
    assert (store.root / "reports" / "x.jsonl").read_bytes() == b"{}\n"


def test_another_process_sees_the_same(store: LocalObjectStore) -> None:
    """The uri opens the same objects, with generation and metadata."""
    made = store.put("a b", b"x", precondition=ABSENT, metadata={"k": "v"})
    assert open_store(store.uri).stat("a b") == made
    assert open_store("file://localhost" + store.uri[len("file://") :]).stat("a b") == made


def test_file_taken_away_by_hand(store: LocalObjectStore) -> None:
    """A file that somebody removed or moved is no object any more; its name can be made again, higher."""
    first = store.put("a", b"x", precondition=ABSENT)
    (store.root / "a").rename(store.root / "b")
    assert store.stat("a") is None
    with pytest.raises(NotFoundError):
        store.get("a")
    second = store.put("a", b"x", precondition=ABSENT)
    assert second.generation > first.generation


def test_file_put_there_by_hand(store: LocalObjectStore) -> None:
    """A foreign file is an object with lasting generation, checksum and no metadata; it can be deleted."""
    store.root.mkdir(parents=True)
    (store.root / "hand").write_bytes(b"123456789")
    found = store.stat("hand")
    assert found is not None
    assert (found.size, found.crc32c, dict(found.metadata)) == (9, 0xE3069283, {})
    assert store.stat("hand") == found
    assert [stat.name for stat in store.list()] == ["hand"]
    with pytest.raises(ConflictError):
        store.put("hand", b"", precondition=ABSENT)
    assert store.delete("hand", precondition=Generation(found.generation))


def test_file_replaced_by_hand(store: LocalObjectStore) -> None:
    """Other bytes under a name are another generation without our metadata: nobody takes them for ours."""
    made = store.put("a", b"ours", precondition=ABSENT, metadata={"fingerprint": "ours"})
    path = store.root / "a"
    path.unlink()
    path.write_bytes(b"them")
    found = store.stat("a")
    assert found is not None
    assert found.generation > made.generation
    assert dict(found.metadata) == {}
    with pytest.raises(ConflictError):
        store.delete("a", precondition=Generation(made.generation))


def test_bytes_of_an_earlier_generation_put_back_by_hand(store: LocalObjectStore) -> None:
    """They are a new generation: who replaced that one must not meet it again."""
    first = store.put("a", b"old", precondition=ABSENT, metadata={"k": "v"})
    second = store.put("a", b"new", precondition=Generation(first.generation))
    path = store.root / "a"
    path.unlink()
    path.write_bytes(b"old")
    found = store.stat("a")
    assert found is not None
    assert found.generation > second.generation
    assert dict(found.metadata) == {}


def test_tree_that_was_copied_during_a_replacement(store: LocalObjectStore, tmp_path: Path) -> None:
    """The record of the generation that never came is there already; the file is still the one before."""
    first = store.put("a", b"old", precondition=ABSENT)
    shutil.copy2(store.root / "a", tmp_path / "old")
    store.put("a", b"new", precondition=Generation(first.generation))
    shutil.copytree(store.root, tmp_path / "copy")
    (tmp_path / "copy" / "a").unlink()
    shutil.copy2(tmp_path / "old", tmp_path / "copy" / "a")
    found = LocalObjectStore(tmp_path / "copy").stat("a")
    assert found is not None
    assert found.generation == first.generation


def test_tree_that_was_copied(store: LocalObjectStore, tmp_path: Path) -> None:
    """A root that was copied or restored keeps its generations and metadata, though every inode is new."""
    made = store.put("f/a", b"bytes", precondition=ABSENT, metadata={"k": "v"})
    shutil.copytree(store.root, tmp_path / "copy", copy_function=shutil.copyfile)
    copied = LocalObjectStore(tmp_path / "copy").stat("f/a")
    assert copied is not None
    assert (copied.generation, dict(copied.metadata)) == (made.generation, {"k": "v"})


def test_turned_bit_is_told(store: LocalObjectStore) -> None:
    """Bytes changed in place, with the time of change put back, are FormatError, also in a compose."""
    store.put("a", b"right", precondition=ABSENT)
    path = store.root / "a"
    status = path.stat()
    path.write_bytes(b"wrong")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(FormatError):
        store.get("a")
    with pytest.raises(FormatError):
        store.compose([Source("a")], "b", precondition=ABSENT, delete_sources=True)
    assert path.exists()
    assert store.stat("b") is None


def test_damaged_record_is_told(store: LocalObjectStore) -> None:
    """A damaged record is FormatError that names the file and says what to do."""
    store.put("a", b"x", precondition=ABSENT)
    (record,) = (store.root / ".dstl-store" / "records").rglob("*.json")
    record.write_text("{")
    with pytest.raises(FormatError, match=r"\.json"):
        store.stat("a")


def test_record_is_durable_before_the_file(store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between record and file leaves no object; a kill right after the link leaves all of it."""
    real_link = os.link

    def killed(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", killed)
    with pytest.raises(KeyboardInterrupt):
        store.put("a", b"x", precondition=ABSENT, metadata={"k": "v"})
    assert store.stat("a") is None

    def killed_after(*args: object, **kwargs: object) -> None:
        real_link(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", killed_after)
    with pytest.raises(KeyboardInterrupt):
        store.put("a", b"x", precondition=ABSENT, metadata={"k": "v"})
    monkeypatch.undo()
    found = store.stat("a")
    assert found is not None
    assert dict(found.metadata) == {"k": "v"}


def test_broken_variant_record_after_the_file(
    store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the record written after the file, the test above would see an object without its metadata."""
    real_write = store._records.write

    def late(name: str, records: object) -> None:
        return None  # never comes: the kill was before it

    monkeypatch.setattr(store._records, "write", late)
    store.put("a", b"x", precondition=ABSENT, metadata={"k": "v"})
    monkeypatch.setattr(store._records, "write", real_write)
    found = store.stat("a")
    assert found is not None
    assert dict(found.metadata) == {}


def test_fsync_before_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put syncs bytes and record before the link, and the folder after it, before it returns."""
    order: list[str] = []
    real_fsync, real_link = os.fsync, os.link

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        order.append(path.name)
        real_fsync(descriptor)

    def link(*args: object, **kwargs: object) -> None:
        order.append("link")
        real_link(*args, **kwargs)

    store = LocalObjectStore(tmp_path / "root")
    store.put("f/warm-up", b"", precondition=ABSENT)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    store.put("f/a", b"x", precondition=ABSENT)
    assert order.index("link") >= 3
    assert order[-1] == "f"
    assert order.count("link") == 1


def test_stale_empty_folder_does_not_block(store: LocalObjectStore) -> None:
    """Empty folders, as a kill before the link leaves them, do not keep an object from their name."""
    (store.root / "a" / "b").mkdir(parents=True)
    store.put("a", b"x", precondition=ABSENT)
    assert store.get("a") == b"x"


def test_empty_folders_go(store: LocalObjectStore) -> None:
    """The last object below a folder takes it along."""
    made = store.put("a/b/c", b"", precondition=ABSENT)
    store.delete("a/b/c", precondition=Generation(made.generation))
    assert not (store.root / "a").exists()


@pytest.mark.parametrize(
    "name", [".dstl-store/x", ".dstl-store", "a/../b", "..", "/etc/x", "a//b", "a/", "x" * 256, "é" * 128]
)
def test_hostile_names(store: LocalObjectStore, name: str) -> None:
    """What could leave the root or touch the store's own folder is refused by every method."""
    for call in (
        lambda: store.put(name, b"", precondition=ANY),
        lambda: store.stat(name),
        lambda: store.get(name),
        lambda: store.delete(name, precondition=ANY),
        lambda: store.compose([Source(name)], "x", precondition=ANY),
        lambda: store.copy(Source("x"), name, precondition=ANY),
        lambda: store.uri_of(name),
    ):
        with pytest.raises(InvalidInputError):
            call()


def test_pipes_in_the_hidden_folder_block_nothing(store: LocalObjectStore) -> None:
    """A process that waited there for a writer would hold its locks."""
    for folder in ("temporary", "records/0"):
        (store.root / ".dstl-store" / folder).mkdir(parents=True, exist_ok=True)
        os.mkfifo(store.root / ".dstl-store" / folder / "pipe.json")
    put = threading.Thread(target=store.put, args=("a", b"1"), kwargs={"precondition": ABSENT}, daemon=True)
    put.start()
    put.join(10)
    assert not put.is_alive()
    assert list(store.forget_taken()) == []


def test_links_and_pipes_are_no_objects(store: LocalObjectStore, tmp_path: Path) -> None:
    """A symbolic link or a pipe is not followed, read or waited for."""
    store.put("f/a", b"x", precondition=ABSENT)
    (tmp_path / "secret").write_text("secret")
    (store.root / "link").symlink_to(tmp_path / "secret")
    (store.root / "folder").symlink_to(tmp_path)
    os.mkfifo(store.root / "pipe")
    assert [stat.name for stat in store.list()] == ["f/a"]
    for name in ("link", "pipe"):
        assert store.stat(name) is None
        with pytest.raises(NotFoundError):
            store.get(name)


@pytest.mark.parametrize("prefix", ["..", "../", "/", "a/../", ".dstl-store/", "a//b"])
def test_hostile_prefixes(store: LocalObjectStore, prefix: str) -> None:
    """A prefix never lists outside of the root or inside of the hidden folder."""
    store.put("a/b", b"x", precondition=ABSENT)
    assert list(store.list(prefix)) == []


def test_a_folder_above_has_a_uri_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook: tasks in other processes open it by that."""
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    store = LocalObjectStore("../data")
    store.put("x", b"1", precondition=ABSENT)
    assert open_store(store.uri).get("x") == b"1"
    assert store.root == tmp_path.resolve() / "data"
    with pytest.raises(InvalidInputError, match=f"did you mean the folder {store.uri}"):
        open_store("../data")


@pytest.mark.parametrize(
    "uri", ["file://relative", "file:///a/../b", "gs://b/o", "file:///a%00b", "file:///100%FF"]
)
def test_bad_roots(uri: str) -> None:
    """A root is an absolute path without climbing."""
    with pytest.raises(InvalidInputError):
        open_local(uri)


def test_outside_of_the_root(store: LocalObjectStore) -> None:
    """A URI outside of the root, of the root itself, or of another bucket is refused."""
    for uri in ("file:///etc/passwd", store.uri, store.uri + "/", store.uri + "/%FF", "gs://bucket/x"):
        with pytest.raises(InvalidInputError):
            store.locate(uri)
    with pytest.raises(InvalidInputError):
        store.in_bucket("other")


def test_refusals_of_the_file_system_are_told(
    store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is UnavailableError, nothing is made, and the next write works."""

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(local_files.os, "write", full)
    with pytest.raises(UnavailableError, match="No space left"):
        store.put("a", b"x", precondition=ABSENT)
    monkeypatch.undo()
    assert store.stat("a") is None
    store.put("a", b"x", precondition=ABSENT)


def test_list_does_not_load_the_tree(store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """From an offset and below a prefix, folders that cannot hold a result are not opened."""
    for folder in ("a", "b", "c"):
        for number in range(3):
            store.put(f"{folder}/{number}", b"", precondition=ABSENT)
    opened: list[str] = []
    real_scandir = os.scandir

    def scandir(path: Path) -> object:
        opened.append(Path(path).name)
        return real_scandir(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert [stat.name for stat in store.list(start_offset="b/1")] == ["b/1", "b/2", "c/0", "c/1", "c/2"]
    assert "a" not in opened
    opened.clear()
    next(store.list("b/"))
    assert opened == ["b"]


CREATE = """
import sys
from dstl_dagster.storage import LocalObjectStore
from dstl_dagster.storage.base import ABSENT, Generation
from dstl_dagster.errors import ConflictError, NotFoundError
store = LocalObjectStore(sys.argv[1], durable=False)
won = 0
for number in range(40):
    try:
        store.put(f"race/{number}", sys.argv[2].encode(), precondition=ABSENT)
        won += 1
    except ConflictError:
        pass
for _ in range(25):
    while True:
        live = store.stat("count")
        try:
            value = int(store.get("count", generation=live.generation))
            store.put("count", str(value + 1).encode(), precondition=Generation(live.generation))
            break
        except (ConflictError, NotFoundError):
            continue
print(won)
"""


def test_several_processes(store: LocalObjectStore) -> None:
    """Among processes, each name is created once, and no step of a count is lost."""
    store.put("count", b"0", precondition=ABSENT)
    command = [sys.executable, "-c", CREATE, str(store.root)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [
        subprocess.Popen([*command, f"p{number}"], env=environment, stdout=subprocess.PIPE)
        for number in range(3)
    ]
    won = [int(process.communicate(timeout=120)[0]) for process in running]
    assert sum(won) == 40
    assert store.get("count") == b"75"
    assert len(list(store.list("race/"))) == 40


def test_a_clock_that_goes_back(tmp_path: Path) -> None:
    """The generations of a name rise, also where it was deleted or taken meanwhile, in another store too."""
    clock = VirtualClock()
    made = [LocalObjectStore(tmp_path, clock=clock, durable=False).put("a", b"", precondition=ABSENT)]
    for gone in (
        lambda store: store.delete("a", precondition=ANY),
        lambda store: ((store.root / "a").unlink(), list(store.forget_taken())),
    ):
        store = LocalObjectStore(
            tmp_path, clock=VirtualClock(clock.now() - timedelta(hours=1)), durable=False
        )
        gone(store)
        made.append(store.put("a", b"", precondition=ABSENT))
        made.append(store.put("a", b"", precondition=Generation(made[-1].generation)))
    generations = [each.generation for each in made]
    assert generations == sorted(set(generations))


def test_a_replacement_that_cannot_be_synced(
    store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may not survive a power loss, so the name is unavailable until the store is opened again."""
    store.put("count", b"old", precondition=ABSENT)

    def sync(_: local_files.HiddenFolder, folder: Path) -> None:
        if folder == store.root:
            raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as patch:
        patch.setattr(local_files.HiddenFolder, "sync_folder", sync)
        with pytest.raises(UnavailableError, match="injected"):
            store.put("count", b"new", precondition=ANY)
    for call in (store.get, store.stat, lambda name: store.put(name, b"newer", precondition=ANY)):
        with pytest.raises(UnavailableError, match="open the store again"):
            call("count")
    assert LocalObjectStore(store.root).get("count") == b"new"
    assert list((store.root / ".dstl-store" / "temporary").iterdir()) == []


def test_temporary_file_of_the_living_stays(store: LocalObjectStore) -> None:
    """The sweep of leftovers takes files of dead processes, and leaves those of living ones."""
    upload = store.open_write("a", precondition=ABSENT)
    upload.write(b"half")
    folder = store.root / ".dstl-store" / "temporary"
    (folder / "left-behind").write_bytes(b"x")
    LocalObjectStore(store.root, durable=False).put("b", b"", precondition=ABSENT)
    assert not (folder / "left-behind").exists()
    upload.write(b"half")
    upload.close()
    assert store.get("a") == b"halfhalf"


def test_records_do_not_pile_up(store: LocalObjectStore) -> None:
    """A deleted object leaves no record behind."""
    for number in range(5):
        made = store.put(f"a{number}", b"", precondition=ABSENT)
        store.delete(f"a{number}", precondition=Generation(made.generation))
    assert list((store.root / ".dstl-store" / "records").rglob("*.json")) == []


def test_record_holds_what_it_says(store: LocalObjectStore) -> None:
    """The record beside an object is JSON for people, too."""
    made = store.put("a", b"x", precondition=ABSENT, metadata={"k": "v"})
    (record,) = (store.root / ".dstl-store" / "records").rglob("*.json")
    document = json.loads(record.read_text())
    assert document["name"] == "a"
    assert document["generations"][0]["generation"] == made.generation


def test_delete_beside_one_that_prunes_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delete succeeds though another delete takes the emptied folder away before its removal is synced.

    Cause: a commit deleted its components in parallel, and failed as if the file system had refused.
    """
    store = LocalObjectStore(tmp_path / "root")
    store.put("a/b/c", b"x", precondition=ABSENT)
    sync_removal = local_files.HiddenFolder.sync_removal

    def after_a_rival(self: local_files.HiddenFolder, path: Path) -> None:
        local_writing.prune_empty_folders(store.root, path.parent)
        sync_removal(self, path)

    monkeypatch.setattr(local_files.HiddenFolder, "sync_removal", after_a_rival)
    assert store.delete("a/b/c", precondition=ANY)
    assert list(store.list()) == []


@pytest.mark.parametrize(
    ("start", "length"), [(0, 3 << 20), (5, 2 << 20), (1 << 20, 9 << 20), (4 << 20, 2 << 20)]
)
def test_a_large_range_is_the_bytes(tmp_path, start, length):
    """Read into pooled memory: the same bytes, shorter at the end, and nobody can write to them."""
    store = LocalObjectStore(tmp_path, durable=False)
    payload = random.Random(7).randbytes((3 << 20) + 11)
    store.put("large", payload, precondition=ABSENT)
    found = store.get_range("large", start, length)
    assert found == payload[start : start + length]
    assert memoryview(found).readonly
    with closing(store.open_ranges("large")) as opened:
        assert opened.read_range(start, length) == found
        assert opened.read_range(start, 9) == found[:9]


def test_an_open_object_stays_what_it_was(store: LocalObjectStore) -> None:
    """Ranges are of the generation that was opened, whatever is written or deleted since."""
    made = store.put("a", b"old bytes", precondition=ABSENT)
    opened = store.open_ranges("a", generation=made.generation)
    store.put("a", b"new", precondition=Generation(made.generation))
    store.delete("a", precondition=ANY)
    assert opened.read_range(4, 99) == b"bytes"
    opened.close()
    with pytest.raises(ClosedError):
        opened.read_range(0, 1)
    with pytest.raises(NotFoundError):
        store.open_ranges("a")
