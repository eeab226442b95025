"""The jobs of a store: listed without listing their objects, dropped whole, also by a drop that is killed."""

from __future__ import annotations

import json
from itertools import count

import pytest
from click.testing import CliRunner

from dstl_dagster.checkpoint import CheckpointCoordinator
from dstl_dagster.cli import main
from dstl_dagster.errors import ConflictError, DstlError, FormatError, NotFoundError, UnavailableError
from dstl_dagster.jobs import drop_job, list_jobs, plan_drop
from dstl_dagster.storage import ABSENT, ANY, LocalObjectStore, MemoryObjectStore, open_store
from dstl_dagster.testing.fault_store import FaultStore
from dstl_dagster.testing.virtual_clock import VirtualClock
from dstl_dagster.timeline import job_names

OWNER = "dstl-jobs-drop:me"


class Listing(MemoryObjectStore):
    """Counts the objects that listings give."""

    listed = 0

    def list(self, prefix="", *, start_offset=None):
        for stat in super().list(prefix, start_offset=start_offset):
            self.listed += 1
            yield stat


def other_job(store, name: str) -> CheckpointCoordinator:
    coordinator = CheckpointCoordinator(name, store, owner="test")
    attempt = coordinator.trigger(idempotency_key="2001-01-05")
    coordinator.record(attempt, [], [], {"source": "2001-01-05"})
    coordinator.confirm(attempt)
    coordinator.compose_commit()
    return coordinator


def test_jobs_are_found_by_a_listing_each(job_of):
    """Whatever they hold: a name that begins like another one's hides nothing, nor does a stray object."""
    store = Listing()
    job = job_of(store)
    for position in range(1, 6):
        job.checkpoint(job.coordinator(), position)
    for name in ("orders-2", "orders.old", "a", "orders2"):
        other_job(store, name)
    store.put("dstl/readme", b"a person's", precondition=ABSENT)
    store.put("dstl/not a job/x", b"", precondition=ABSENT)
    store.listed = 0
    assert job_names(store) == ["a", "orders", "orders-2", "orders.old", "orders2"]
    assert store.listed <= 8


def test_a_job_is_told_by_its_last_checkpoint(keyed):
    """Its batch, what can be restored, the bytes of its state, who works on it."""
    for number in range(3):
        keyed.changes([{"tail": f"N{number}", "flights": number}])
    attempt = other_job(keyed.store, "b").trigger()
    orders_b, orders = list_jobs(keyed.store)
    assert (orders_b.job, orders_b.batch, orders_b.open_owner) == ("b", "2001-01-05", "test")
    assert attempt.checkpoint_id == 2
    assert (orders.checkpoint_id, orders.retained, orders.problem) == (3, 3, None)
    files = [name for name in keyed.names("dstl/orders/attempts/") if "/changelog/" in name]
    assert orders.state_bytes == sum(keyed.store.stat(name).size for name in files)


def test_a_damaged_job_does_not_hide_the_others(job):
    """It says what is wrong."""
    other_job(job.store, "a")
    job.checkpoint(job.coordinator(), 1)
    job.store.put("dstl/orders/timeline/00000000000000000001", b"x", precondition=ANY)
    good, bad = list_jobs(job.store)
    assert (good.checkpoint_id, good.problem) == (1, None)
    assert bad.problem is not None


def test_a_drop_takes_all_that_is_the_jobs_and_nothing_else(job):
    """Components of its dead attempts too; published files and other jobs stay."""
    other_job(job.store, "a")
    coordinator = job.coordinator(snapshot_interval=8)
    for position in range(1, 7):
        job.checkpoint(coordinator, position)
    job.file(coordinator.trigger(), "out/never.txt", b"x")
    coordinator.savepoint(1, "kept")
    mine = {name for name in job.names() if name.startswith(("dstl/orders/", ".inprogress/"))}
    others = set(job.names()) - mine
    plan = plan_drop(job.store, "orders")
    assert (plan.objects, plan.savepoints, plan.open_owner) == (len(mine), {"kept": 1}, "test")
    assert sum(plan.kinds.values()) == plan.objects
    assert set(job.names()) == mine | others
    with pytest.raises(ConflictError, match="running: 'test' makes a checkpoint"):
        drop_job(job.store, "orders", owner=OWNER, clock=VirtualClock())
    assert mine <= set(job.names())
    done = drop_job(job.store, "orders", owner=OWNER, force=True, clock=VirtualClock())
    assert (done.done, done.left) == (True, 0)
    assert set(job.names()) == others
    assert job.coordinator().trigger().checkpoint_id == 1


@pytest.mark.parametrize("step", ["clean-up", "drop"])
def test_components_in_another_bucket_go_too(job_of, monkeypatch, step):
    """Where the job has published files; one that is gone, or cannot be listed, is passed over."""
    job, published = job_of(MemoryObjectStore()), []
    for bucket in ("gone", "other"):
        attempt = job.coordinator().trigger()
        other = job_of(job.store.in_bucket(bucket))
        published.append(other.file(attempt, f"out/{bucket}.txt", b"part"))
        job.coordinator().record(attempt, (), published[-1:])
        job.coordinator().confirm(attempt)
        job.coordinator().compose_commit()
    dead = job.coordinator().trigger()
    other.file(dead, "out/never.txt", b"part")
    job.coordinator().abort(dead)
    listed = MemoryObjectStore.list

    def not_gone(store, *where, **how):
        if store.bucket_name == "gone":
            raise NotFoundError("no such bucket")
        return listed(store, *where, **how)

    monkeypatch.setattr(MemoryObjectStore, "list", not_gone)
    if step == "clean-up":
        job.coordinator().clean_up()
    else:
        drop_job(job.store, "orders", owner=OWNER, clock=VirtualClock())
    assert other.names() == ["out/other.txt"]


def test_a_store_below_the_folder_of_jobs_is_no_job(job_of):
    """Whoever opens the bucket as a whole sees no job in it, and drops none of it."""
    whole = MemoryObjectStore()
    for prefix in ("dstl", "dstl/orders"):
        inner = job_of(open_store(f"{whole.uri}/{prefix}"))
        inner.checkpoint(inner.coordinator(), 1)
    before = [stat.name for stat in whole.list()]
    assert [found.job for found in list_jobs(whole)] == []
    for name in ("dstl", "orders"):
        with pytest.raises(NotFoundError, match=f"there is no job '{name}'"):
            drop_job(whole, name, owner=OWNER, force=True, clock=VirtualClock())
    job = job_of(whole)
    job.checkpoint(job.coordinator(), 2)
    assert [found.job for found in list_jobs(whole)] == ["orders"]
    assert drop_job(whole, "orders", owner=OWNER, clock=VirtualClock()).left == 0
    assert [name for name in (stat.name for stat in whole.list()) if name != "out/2.txt"] == before


class Dying(MemoryObjectStore):
    """Refuses every change after so many deletions."""

    lives: int | None = None

    def delete(self, name, *, precondition):
        if self.lives is not None:
            if not self.lives:
                raise UnavailableError("killed")
            self.lives -= 1
        return super().delete(name, precondition=precondition)

    def delete_all(self, objects):
        return [self.delete(name, precondition=wanted) for name, wanted in objects]


def test_a_drop_can_be_killed_at_any_deletion_and_run_again(job_of):
    """In between no run takes the job for one of an earlier state, and the same command finishes it."""
    for lives in range(60):
        store = Dying()
        job = job_of(store)
        coordinator = job.coordinator(snapshot_interval=8)
        for position in range(1, 4):
            job.checkpoint(coordinator, position)
        store.lives = lives
        try:
            drop_job(
                store, "orders", {"dstl.checkpoint.commit-threads": "1"}, owner=OWNER, clock=VirtualClock()
            )
        except UnavailableError:
            store.lives = None
            try:
                assert job.coordinator("other").trigger().checkpoint_id == 1  # all records are gone
            except (ConflictError, FormatError):
                done = drop_job(store, "orders", owner=OWNER, clock=VirtualClock())
                assert done.left == 0
                assert job.names("dstl/") == []
        else:
            break
    assert 15 < lives < 59


def test_a_reader_during_a_drop_is_not_sent_to_a_backup(job_of, tmp_path):
    """At whatever request of its first look the job goes."""
    for dropped_at in range(60):
        store = LocalObjectStore(tmp_path / str(dropped_at), durable=False)
        job = job_of(store)
        for position in (1, 2, 3):
            job.checkpoint(job.coordinator(), position)
        requests = count(-dropped_at)

        def drop_once(store=store, requests=requests):
            if next(requests) == 0:
                drop_job(store, "orders", owner=OWNER, clock=VirtualClock())

        reader, said = CheckpointCoordinator("orders", FaultStore(store, before_request=drop_once)), ""
        try:
            reader.list()
        except DstlError as error:
            said = str(error)
        assert "a record was deleted" not in said
        if next(requests) <= 0:
            break
    assert 5 < dropped_at < 59


def test_a_damaged_job_is_dropped_by_force_alone(job):
    """Its components are found by what is left."""
    coordinator = job.coordinator()
    job.checkpoint(coordinator, 1)
    job.file(coordinator.trigger(), "out/never.txt", b"x")
    job.store.put("dstl/orders/timeline/00000000000000000001", b"x", precondition=ANY)
    with pytest.raises(DstlError, match=r"\(--force\)"):
        drop_job(job.store, "orders", owner=OWNER, clock=VirtualClock())
    assert drop_job(job.store, "orders", owner=OWNER, force=True, clock=VirtualClock()).left == 0
    assert job.names("dstl/") == []


def test_a_job_that_is_not_there_is_named_with_those_that_are(job):
    """A typo is no success."""
    job.checkpoint(job.coordinator(), 1)
    with pytest.raises(NotFoundError, match=r"no job 'order' in memory://.*; did you mean 'orders'"):
        plan_drop(job.store, "order")


def test_the_command_lists_shows_and_drops(tmp_path):
    """Dry run first; it asks unless it is told not to."""
    store = LocalObjectStore(tmp_path / "store", durable=False)
    other_job(store, "orders")

    def run(*arguments, code=0, given=None):
        result = CliRunner().invoke(main, ["jobs", *arguments], env={"DSTL_STORE": store.uri}, input=given)
        assert result.exit_code == code, result.output
        return result.stdout

    assert "orders" in run("list")
    (line,) = run("list", "--json").splitlines()
    assert json.loads(line)["batch"] == "2001-01-05"
    assert "would be deleted" in run("drop", "orders", "--dry-run")
    plan = json.loads(run("drop", "orders", "--dry-run", "--json"))
    assert (plan["done"], plan["checkpoints"]) == (False, [1])
    assert "files that it published stay" in run("drop", "orders", code=1, given="n\n")
    assert json.loads(run("drop", "orders", "--yes", "--json"))["done"] is True
    assert "there is no job" in run("list")
    run("drop", "orders", "--yes", code=1)
