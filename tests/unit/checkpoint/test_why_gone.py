"""What a reader says of an object that is not there: who permitted to delete it, and when; or damage."""

from __future__ import annotations

import shutil
import subprocess
from datetime import timedelta

import pytest

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.errors import NotFoundError
from dstl_dagster.jobs import drop_job
from dstl_dagster.storage import ABSENT, ANY, LocalObjectStore
from dstl_dagster.testing.virtual_clock import VirtualClock

DAY = [{"tail": "a", "flights": 1}]


def delete(keyed, part):
    (*_, name) = [name for name in keyed.names("dstl/orders/") if part in name]
    payload = keyed.store.get(name)
    keyed.store.delete(name, precondition=ANY)
    return name, payload


def test_a_lost_file_of_a_retained_checkpoint_is_damage(keyed):
    """Clean-up did not delete it: the error says so, names it, and the file put back mends it."""
    checkpoint = keyed.changes(DAY, partitions=1)
    name, payload = delete(keyed, "/changelog/")
    with pytest.raises(
        NotFoundError, match="'aircraft' at checkpoint 1 of job 'orders' is damaged"
    ) as caught:
        keyed.rows(checkpoint)
    assert caught.value.kind == "state_missing"
    assert name in str(caught.value)
    assert "dstl checkpoints restore --newest-verified" in str(caught.value)
    keyed.store.put(name, payload, precondition=ABSENT)
    assert keyed.rows(checkpoint) == DAY


@pytest.mark.parametrize("snapshot_interval", [8, 1000])
def test_a_checkpoint_that_was_cleaned_up_says_by_which_record(keyed_on, keyed, snapshot_interval):
    """Of a reader that was too slow, and of one who asks for it later; whatever this process retains."""
    job = keyed_on(
        keyed.store, num_retained=2, reader_grace=timedelta(0), snapshot_interval=snapshot_interval
    )
    first = job.changes(DAY)
    state = job.state(first)
    for _ in range(3):
        job.changes(DAY)
    job.coordinator.clean_up()
    (subsumed,) = [each for each in job.coordinator.timeline.records() if each.kind == "subsumed"]
    for _ in range(4):
        job.changes(DAY)
    said = (
        f"checkpoint 1 of job 'orders' was cleaned up: record {subsumed.slot}, of "
        f"{subsumed.recorded_at:%Y-%m-%d %H:%M:%S} UTC, subsumed it"
    )
    for name in job.names("dstl/orders/manifests/0000000001-"):  # as after a base that replaces it
        job.store.delete(name, precondition=ANY)
    for ask in (lambda: job.coordinator.get(1), lambda: keyed.coordinator.get(1)):
        with pytest.raises(NotFoundError) as caught:
            ask()
        assert said in str(caught.value)
        assert caught.value.kind == "checkpoint_gone"
    for name in job.names("dstl/orders/attempts/"):
        job.store.delete(name, precondition=ANY)
    with pytest.raises(NotFoundError) as caught:
        list(state.tables())
    assert said in str(caught.value)
    assert caught.value.kind == "checkpoint_gone"


@pytest.mark.parametrize("begins_again", [False, True])
def test_a_state_of_a_job_that_was_dropped(keyed, begins_again):
    """It was not cleaned up, and a longer retention keeps none; the new job's checkpoint is another one."""
    state = keyed.state(keyed.changes(DAY))
    drop_job(keyed.store, "orders", owner="person", force=True, clock=VirtualClock())
    if begins_again:
        again = CheckpointCoordinator("orders", keyed.store)
        attempt = again.trigger()
        again.confirm(attempt, manifest=again.record(attempt))
    with pytest.raises(
        NotFoundError, match="checkpoint 1 of job 'orders' is gone: the job was dropped"
    ) as caught:
        list(state.tables())
    assert caught.value.kind == "job_gone"
    assert ("another job of that name has begun since" in str(caught.value)) == begins_again


def test_a_state_of_a_job_that_is_being_dropped(keyed_on, keyed):
    """The drop has deleted the first record and the manifests; who starts at a snapshot sees neither gone."""
    job = keyed_on(keyed.store, snapshot_interval=8)
    for _ in range(6):
        job.changes(DAY)
    state = job.state(job.coordinator.latest())
    for part in ("/timeline/00000000000000000001", "/manifests/0000000006-", "/changelog/"):
        for name in [name for name in keyed.names("dstl/orders/") if part in name]:
            keyed.store.delete(name, precondition=ANY)
    for ask in (lambda: CheckpointCoordinator("orders", keyed.store).get(6), lambda: list(state.tables())):
        with pytest.raises(NotFoundError, match=r"6 of job 'orders' is gone: the job was dropped") as caught:
            ask()
        assert caught.value.kind == "job_gone"
        assert "begun since" not in str(caught.value)


def test_a_lost_manifest_of_a_retained_checkpoint_is_damage(keyed):
    """And the command that the error names goes on from the one before."""
    keyed.changes(DAY)
    keyed.changes(DAY)
    name, _ = delete(keyed, "/manifests/")
    with pytest.raises(NotFoundError, match=r"checkpoint 2 of job 'orders' is damaged: .*manifest") as caught:
        keyed.coordinator.get(2)
    assert name in str(caught.value)
    whole, _ = keyed.coordinator.newest_verified()
    assert whole.checkpoint_id == 1


def test_a_renamed_folder_names_the_command_that_mends_it(keyed_on, tmp_path):
    """Readers, audit and trigger of the new name say which job it is; after the command it is that one."""
    root = tmp_path / "store"
    keyed_on(LocalObjectStore(root)).changes(DAY)
    shutil.move(root / "dstl" / "orders", root / "dstl" / "archived")
    renamed = CheckpointCoordinator("archived", LocalObjectStore(root))
    for ask in (renamed.latest, renamed.audit, renamed.trigger, renamed.list):
        with pytest.raises(NotFoundError, match="holds the records of job 'orders'") as caught:
            ask()
    (command,) = [str(caught.value).partition("Rename it back: ")[2]]
    subprocess.run(command.split(), check=True)
    assert keyed_on(LocalObjectStore(root)).rows() == DAY


def test_a_renamed_folder_of_a_bucket(keyed):
    """The command is gcloud's, with whole URIs."""
    keyed.changes(DAY)
    for name in keyed.names("dstl/orders/"):
        new = name.replace("dstl/orders/", "dstl/archived/", 1)
        keyed.store.put(new, keyed.store.get(name), precondition=ABSENT)
        keyed.store.delete(name, precondition=ANY)
    with pytest.raises(NotFoundError) as caught:
        CheckpointCoordinator("archived", keyed.store).latest()
    uri = keyed.store.uri
    assert f"gcloud storage mv {uri}/dstl/archived {uri}/dstl/orders" in str(caught.value)
