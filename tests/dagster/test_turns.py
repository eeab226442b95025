"""Two steps of one run write one job: each is applied, or one is refused in a sentence. None fences another.

In steps of their own processes, as Dagster runs a job unless it is asked not to; forked, they start quickly.
The process that forks them is shared with other tests and has the environment of the first: all that a step
needs to know stands in its code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.reconstruct import ReconstructableRepository

import dstl_dagster as dstl

pytestmark = [pytest.mark.dagster, pytest.mark.timeout(240)]

CODE = '''\
import os
import time

import dagster as dg
import dstl_dagster as dstl
import pyarrow as pa
from dstl_dagster.keyed import write_rows
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import open_store

changelog = dstl.ChangelogStorageResource(uri=STORE)
ROWS = pa.schema([("id", pa.string())])


def met(name, other, patience_seconds=20):
    """Both have begun: the other one had a chance to open its attempt."""
    open(f"{FOLDER}/{name}", "w").close()
    deadline = time.monotonic() + patience_seconds
    while not os.path.exists(f"{FOLDER}/{other}") and time.monotonic() < deadline:
        time.sleep(0.05)


def rows_of(name):
    return pa.table({"id": [name]}, ROWS)


def kept(name, other):
    @dg.asset(name=name, metadata={"dstl/keys": ["id"], "dstl/job": "kept", "dstl/operator": name})
    def rows() -> pa.RecordBatchReader:
        def batches():
            met(name, other, patience_seconds=3)  # they take turns: the second one begins after the first
            yield from rows_of(name).to_batches()

        return pa.RecordBatchReader.from_batches(ROWS, batches())

    return rows


def put(batch, name):
    store = open_store(batch.attempt.store_uri)
    schema = StateSchema.of(ROWS, ("id",))
    batch.add(write_rows(rows_of(name), batch.attempt, store, operator=name, schema=schema))


@dg.asset
def killed(context) -> None:
    with changelog.checkpoint(context, "dead") as batch:
        open(f"{FOLDER}/killed", "w").close()
        os._exit(9)


@dg.asset
def survivor(context) -> None:
    met("survivor", "killed")
    with changelog.checkpoint(context, "dead") as batch:
        put(batch, "survivor")


@dg.op(out=dg.DynamicOut(str))
def parts():
    for each in ("a", "b", "c"):
        yield dg.DynamicOutput(each, mapping_key=each)


@dg.op
def written(context: dg.OpExecutionContext, part: str) -> None:
    with changelog.checkpoint(context, "mapped") as batch:
        if batch.already_in is None:
            put(batch, part)


days = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-10")


@dg.job(partitions_def=days)
def mapped_days():
    parts().map(written)


@dg.job
def mapped():
    parts().map(written)


def begins(name):
    @dg.op(name=name)
    def begin(context: dg.OpExecutionContext) -> dict:
        with changelog.checkpoint(context, "two") as batch:
            put(batch, name)
        return batch.reference

    return begin


@dg.job(resource_defs={"changelog": changelog}, executor_def=dg.in_process_executor)
def two():
    one, other = begins("one")(), begins("other")()
    dstl.confirm_op.alias("end_one")(dstl.persist_op.alias("record_one")(one))
    dstl.confirm_op.alias("end_other")(dstl.persist_op.alias("record_other")(other))


defs = dg.Definitions(
    assets=[kept("one", "other"), kept("other", "one"), killed, survivor],
    jobs=[mapped, mapped_days, two],
    resources={"io_manager": dstl.KeyedStateIOManager(changelog=changelog)},
    executor=dstl.build_step_executor(max_concurrent=3),
)
'''


@dataclass
class Code:
    """A code location; `said`: what its steps logged in the last run."""

    file: Path
    store: str
    instance: dg.DagsterInstance
    said: str = ""

    def run(self, job: str, *assets: str, **tags: str) -> str:
        """What went wrong, or nothing."""
        found = ReconstructableRepository.for_file(str(self.file), "defs").get_reconstructable_job(job)
        keys = [dg.AssetKey(each) for each in assets] or None
        with dg.execute_job(found, self.instance, asset_selection=keys, tags=tags) as result:
            self.said = "\n".join(each.user_message for each in self.instance.all_logs(result.run_id))
            failed = [
                each.step_failure_data for each in result.filter_events(lambda each: each.is_step_failure)
            ]
            return " ".join(
                (each.user_failure_data and each.user_failure_data.description) or each.error.message
                for each in failed
            )

    def rows(self, job: str) -> dict[str, list[str]]:
        """By operator."""
        changelog = dstl.ChangelogStorageResource(uri=self.store)
        latest = changelog.coordinator(job).latest()
        operators = {} if latest is None else latest.manifest.operators
        return {
            each: [row["id"] for row in changelog.read_state(job, each).to_arrow().to_pylist()]
            for each in operators
        }


@pytest.fixture
def code(tmp_path: Path) -> Iterator[Code]:
    for folder in ("home", "met"):
        (tmp_path / folder).mkdir()
    store = (tmp_path / "store").as_uri()
    file = tmp_path / "shop.py"
    file.write_text(f"STORE, FOLDER = {store!r}, {str(tmp_path / 'met')!r}\n{CODE}")
    with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as instance:
        yield Code(file, store, instance)


def test_two_assets_of_one_job_are_both_applied_in_one_run(code: Code) -> None:
    """The second one waits for the first, which is at work."""
    assert code.run("__ASSET_JOB", "one", "other") == ""
    assert code.rows("kept") == {"one": ["one"], "other": ["other"]}
    assert re.search(r"step (one|other) of this run makes checkpoint 1 of job 'kept': waiting", code.said)


def test_a_step_goes_on_where_another_one_died(code: Code) -> None:
    """The attempt of a step that was killed is fenced, though its run goes on."""
    assert "died" in code.run("__ASSET_JOB", "killed", "survivor") or "9" in code.said
    assert code.rows("dead") == {"survivor": ["survivor"]}


def test_each_mapped_step_is_a_batch(code: Code) -> None:
    """Of one op."""
    assert code.run("mapped") == ""
    assert code.rows("mapped") == {"a": ["a"], "b": ["b"], "c": ["c"]}


def test_mapped_steps_of_one_partition_are_refused(code: Code) -> None:
    """All but one: a partition is one batch of its source, and the rows of the others would be dropped."""
    said = code.run("mapped_days", **{"dagster/partition": "2024-01-01"})
    assert (
        "partition 2024-01-01 of source 'op:written' is in checkpoint 1 of job 'mapped', which step" in said
    )
    assert "write both in one batch, or give each step an idempotency_key of its own" in said
    assert len(code.rows("mapped")) == 1


def test_a_step_between_another_one_and_its_end_is_refused(code: Code) -> None:
    """To wait for it would be to wait for ever, where steps come one after another."""
    said = code.run("two")
    assert "of job 'two', and a later step completes it: let this one depend on that" in said
    assert len(code.rows("two")) == 1
