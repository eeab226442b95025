"""Reading a checkpoint back: whatever is wrong is named, and nothing resumes from it."""

from __future__ import annotations

import pytest

from dstl_dagster.checkpoint.inspect.integrity import Expected, Findings, check_object
from dstl_dagster.errors import FormatError, UnavailableError
from dstl_dagster.recoverable import GSCommitRecoverable
from dstl_dagster.storage import ABSENT, ANY
from dstl_dagster.storage.memory import MemoryObjectStore
from tests.unit.checkpoint.counting import Counted


def flipped(payload: bytes, at: int = -1) -> bytes:
    changed = bytearray(payload)
    changed[at] ^= 1
    return bytes(changed)


def three_checkpoints(keyed):
    for number in range(3):
        keyed.changes([{"tail": f"N{number}", "flights": number}, {"tail": "all", "flights": number}])


def changelog_of(keyed, checkpoint_id):
    manifest = keyed.coordinator.get(checkpoint_id).manifest
    handle = manifest.operators[keyed.OPERATOR].report.handles[0]
    return handle.handles_and_offsets[0][0].name


def test_a_whole_checkpoint_verifies(keyed):
    """The manifest and the files of all older changes are checked, and every byte is counted once."""
    three_checkpoints(keyed)
    found = keyed.coordinator.verify()
    files = [name for name in keyed.names("dstl/orders/attempts/") if "/changelog/" in name]
    assert (found.checkpoint_id, found.ok, found.notes) == (3, True, ())
    assert found.objects == len(files) + 1
    assert found.bytes == sum(keyed.store.stat(name).size for name in files)


@pytest.mark.parametrize("at", [0, 20, -1])
def test_a_flipped_bit_is_found(keyed, at):
    """One bit of an older changelog file: that file is named, once; an earlier checkpoint still verifies."""
    three_checkpoints(keyed)
    name = changelog_of(keyed, 2)
    keyed.store.put(name, flipped(keyed.store.get(name), at), precondition=ANY)
    found = keyed.coordinator.verify(3)
    (problem,) = found.problems
    assert problem.object_name == name
    assert "was overwritten" in problem.what
    assert "is damaged" in problem.what
    assert keyed.coordinator.verify(1).ok


def test_each_object_is_named_by_itself(keyed):
    """A missing file and a truncated one at the same time: both are named."""
    three_checkpoints(keyed)
    missing = changelog_of(keyed, 3)
    short = changelog_of(keyed, 1)
    keyed.store.delete(missing, precondition=ANY)
    payload = keyed.store.get(short)
    keyed.store.put(short, payload[: len(payload) // 2], precondition=ANY)
    found = keyed.coordinator.verify(3)
    assert {problem.object_name for problem in found.problems} == {missing, short}


def test_nothing_resumes_from_damaged_state(keyed):
    """Restore names the damage and decides nothing; the newest undamaged checkpoint is found instead."""
    three_checkpoints(keyed)
    name = changelog_of(keyed, 2)
    keyed.store.put(name, flipped(keyed.store.get(name)), precondition=ANY)
    before = keyed.coordinator.timeline.tail().slot
    with pytest.raises(FormatError, match=name) as caught:
        keyed.coordinator.restore(2)
    assert caught.value.kind == "damaged"
    assert keyed.coordinator.timeline.tail().slot == before
    newest, damaged = keyed.coordinator.newest_verified()
    assert newest.checkpoint_id == 1
    assert [(found.checkpoint_id, found.ok) for found in damaged] == [(3, False), (2, False)]
    assert keyed.coordinator.restore(newest.checkpoint_id).checkpoint_id == 1


def test_an_unreadable_manifest_is_skipped(keyed):
    """The newest undamaged checkpoint is found if the last one's manifest is gone or truncated."""
    three_checkpoints(keyed)
    manifest = keyed.coordinator.get(3).entry.completed.manifest
    keyed.store.put(manifest, b"dstl/manifest 1", precondition=ANY)
    newest, (damaged,) = keyed.coordinator.newest_verified()
    assert newest.checkpoint_id == 2
    assert damaged.problems[0].object_name == manifest


def test_an_outage_is_not_damage(keyed, monkeypatch):
    """A store that does not answer proves nothing about the checkpoint."""
    three_checkpoints(keyed)
    changelog = changelog_of(keyed, 1)
    for method in ("open_read", "get", "get_range"):
        real = getattr(MemoryObjectStore, method)

        def away(self, name, *rest, real=real, **more):
            if name == changelog:
                raise UnavailableError("no answer")
            return real(self, name, *rest, **more)

        monkeypatch.setattr(MemoryObjectStore, method, away)
    with pytest.raises(UnavailableError):
        keyed.coordinator.verify(3)
    with pytest.raises(UnavailableError):
        keyed.coordinator.newest_verified()


def test_a_file_costs_one_request(keyed_on):
    """Before a restore, and with its rows decoded; one more for the list of runs, however many there are."""
    store = Counted(MemoryObjectStore())
    keyed = keyed_on(store, num_retained=40)
    for number in range(30):
        keyed.changes([{"tail": f"N{number}", "flights": number}, {"tail": "all", "flights": number}])
    files = len([name for name in keyed.names("dstl/orders/attempts/") if "/changelog/" in name])
    store.spent()
    assert keyed.coordinator.verify().ok
    assert store.spent() <= files + 5
    assert keyed.coordinator.newest_verified()[0].checkpoint_id == 30
    assert store.spent() <= files + 5


def test_a_large_object_costs_a_request_for_8_mib():
    """Nothing but its bytes is asked for; what is wrong with it is found out by more."""
    store = Counted(MemoryObjectStore())
    payload = bytes(20 << 20)
    stat = store.put("large", payload, precondition=ABSENT)
    expected = Expected(stat.generation, stat.size, stat.crc32c)
    store.spent()
    found = Findings()
    check_object(store, "large", expected, found)
    assert (found.problems, found.bytes) == ((), len(payload))
    assert store.requests == {"get_range": 3}
    store.put("large", flipped(payload), precondition=ANY)
    check_object(store, "large", expected, found)
    (problem,) = found.problems
    assert "was overwritten" in problem.what


def with_file(job, *parts: bytes):
    coordinator = job.coordinator()
    attempt = coordinator.trigger()
    coordinator.record(attempt, [], [job.file(attempt, "out/a", *parts)])
    coordinator.confirm(attempt)
    return coordinator


def test_a_file_that_waits_needs_its_components(job):
    """Before step 6 the components are checked; a damaged and a missing one are named."""
    coordinator = with_file(job, b"first", b"second", b"third")
    assert coordinator.verify(1).ok
    first, second, _third = job.names(".inprogress/")
    job.store.put(first, b"wrong", precondition=ANY)
    job.store.delete(second, precondition=ANY)
    assert {problem.object_name for problem in coordinator.verify(1).problems} == {first, second}


def test_a_published_file_is_checked_by_its_bytes(job):
    """A file moved away or replaced is a note; corrupt bytes in our own object are damage."""
    coordinator = with_file(job, b"first", b"second")
    coordinator.compose_commit()
    assert coordinator.verify(1).bytes == len(b"firstsecond")
    stat = job.store.stat("out/a")
    job.store.put("out/a", b"somebody's", precondition=ANY)
    replaced = coordinator.verify(1)
    assert (replaced.ok, [note.object_name for note in replaced.notes]) == (True, ["out/a"])
    job.store.put("out/a", b"firstsecone", precondition=ANY, metadata=stat.metadata)
    assert coordinator.verify(1).notes == replaced.notes  # its pairs no longer prove it ours
    job.store.delete("out/a", precondition=ANY)
    assert "moved or deleted" in coordinator.verify(1).notes[0].what


def test_a_file_that_is_already_composed_is_undamaged(job):
    """Step 6 was killed between composing and its record: no component is missing."""
    coordinator = with_file(job, b"first", b"second")
    from dstl_dagster.recoverable.commit import FileCommit

    file = coordinator.get(1).manifest.files[0]
    assert isinstance(file.recoverable, GSCommitRecoverable)
    FileCommit(job.store, file.recoverable, file.components).commit()
    assert coordinator.verify(1).ok


@pytest.mark.parametrize("committed", [True, False])
def test_a_checkpoint_that_a_restore_left_behind_says_so(job, committed):
    """Its files were retracted: nobody took them away, and nothing is damaged."""
    coordinator = job.coordinator()
    job.checkpoint(coordinator, 1)
    attempt = coordinator.trigger()
    coordinator.record(attempt, [job.changes(attempt)], [job.file(attempt, "out/2.txt", b"x", b"y")])
    coordinator.confirm(attempt)
    if committed:
        coordinator.compose_commit()
    coordinator.savepoint(2, "kept")
    coordinator.restore(1)
    found = coordinator.verify(2)
    files = {note.object_name: note.what for note in found.notes}
    assert files.pop("out/2.txt") == "was retracted by the restore that left this checkpoint behind"
    assert next(what for name, what in files.items() if "/manifests/" in name).startswith(
        "is of a checkpoint that a"
    )
    assert not [problem for problem in found.problems if "/changelog/" not in problem.object_name]
