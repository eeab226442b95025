"""What steps 5 and 6 cost, noted beside the record that ends them: shown, and never depended on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dstl_dagster.cli import main
from dstl_dagster.cli.render import cost_json, cost_sections
from dstl_dagster.settings import StoragePrices
from dstl_dagster.storage import ANY, LocalObjectStore, MemoryObjectStore
from dstl_dagster.timeline import Timeline
from tests.unit.checkpoint.counting import Counted

SLOTS = {"confirm": 2, "compose-commit": 3}


@pytest.fixture
def store():
    return Counted(MemoryObjectStore())


def one_checkpoint(job):
    """Each step by a process of its own; the requests of steps 5 and 6."""
    attempt = job.coordinator().trigger()
    job.coordinator().record(attempt, [job.changes(attempt)], [job.file(attempt, "out/a", b"a", b"b")])
    job.store.spent()
    job.coordinator().confirm(attempt)
    confirmed = job.store.spent()
    job.coordinator().compose_commit(attempt.checkpoint_id, attempt=attempt)
    return {"confirm": confirmed, "compose-commit": job.store.spent()}


def later(job):
    coordinator = job.coordinator()
    return coordinator.later_cost(coordinator.latest()).steps


def test_each_step_has_its_requests(store, job_of):
    """All that the step's process requested, the record's own write included; asking costs two."""
    job = job_of(store)
    expected = one_checkpoint(job)
    assert {name: step.requests for name, step in later(job).items()} == expected
    assert later(job)["compose-commit"].composes == 1
    coordinator = job.coordinator()
    latest = coordinator.latest()
    store.spent()
    coordinator.later_cost(latest)
    assert store.requests == {"stat": 2}


@pytest.mark.parametrize(
    "note", [None, "", "{", "[]", '{"seconds": "soon"}', '{"seconds": 1, "class_a": -1}']
)
def test_a_note_that_is_none_is_ignored(store, job_of, note):
    """Somebody edited it, or it has none; the record itself is read as ever."""
    job = job_of(store)
    one_checkpoint(job)
    for slot in SLOTS.values():
        (name,) = job.names(f"dstl/orders/timeline/{slot:020}")
        kept = {key: text for key, text in store.stat(name).metadata.items() if key != "dstl-cost"}
        payload = store.get(name)
        store.delete(name, precondition=ANY)
        metadata = kept if note is None else {**kept, "dstl-cost": note}
        store.put(name, payload, precondition=ANY, metadata=metadata)
    assert later(job) == {}
    assert job.coordinator().latest().committed


def test_a_note_is_no_part_of_the_record(store, job_of):
    """The record's bytes are the same with a note and without."""
    job = job_of(store)
    one_checkpoint(job)
    for record in Timeline("orders", store).records():
        (name,) = job.names(f"dstl/orders/timeline/{record.slot:020}")
        assert "cost" not in store.get(name).decode()


def test_a_folder_has_no_second_file_for_it(tmp_path: Path, job_of):
    job = job_of(Counted(LocalObjectStore(tmp_path, durable=False)))
    one_checkpoint(job)
    assert later(job) == {}


def test_show_has_a_row_for_each(tmp_path: Path, job_of):
    """On a folder the seconds alone; the JSON has the later steps beside the others."""
    job = job_of(Counted(LocalObjectStore(tmp_path, durable=False)))
    one_checkpoint(job)
    arguments = ["checkpoints", "show", "1", "--store", tmp_path.as_uri(), "--job", "orders"]
    shown = CliRunner().invoke(main, arguments, catch_exceptions=False).output
    assert "5 confirm" in shown
    assert "6 compose-commit" in shown
    as_json = CliRunner().invoke(main, [*arguments, "--json"], catch_exceptions=False).output
    assert json.loads(as_json)["cost"]["later_steps"] == []


def test_a_row_has_what_was_noted(store, job_of):
    """As the rows of the other steps: counts, bytes, seconds and money."""
    job = job_of(store)
    expected = one_checkpoint(job)
    coordinator = job.coordinator()
    latest = coordinator.latest()
    prices = StoragePrices()
    noted = coordinator.later_cost(latest)
    (table,) = cost_sections(latest, noted, prices)
    *_, confirm, compose_commit = table.lines()
    assert confirm.startswith("5 confirm")
    label, *cells = compose_commit.removeprefix("6 ").split()
    assert label == "compose-commit"
    assert sum(map(int, cells[:3])) == expected["compose-commit"]
    plain = cost_json(latest, noted, prices)
    assert [step["step"] for step in plain["later_steps"]] == ["confirm", "compose-commit"]
    assert plain["later_steps"][1]["composes"] == 1
