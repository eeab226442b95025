"""An asset whose state is a job of its own begins at zero under a new name: then it is refused, or named.

A code location is a file, which is edited between runs that Dagster itself makes from it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner
from dagster._core.definitions.reconstruct import ReconstructableJob, ReconstructableRepository

import dstl_dagster as dstl
from dstl_dagster.cli import main

pytestmark = pytest.mark.dagster

HEAD = """\
import dagster as dg
import dstl_dagster as dstl
import pyarrow as pa

changelog = dstl.ChangelogStorageResource(uri={uri!r})
"""
KEPT = """
@dg.asset(name={name!r}, metadata={metadata!r})
def rows_of_{name}() -> pa.Table:
    return pa.table({{{key!r}: ["ada"]}})
"""
DECORATED = """
@dstl.checkpointed_asset({job!r}, keys=["customer"], changelog=changelog)
def totals():
    return pa.table({{"customer": ["ada"]}})
"""
OPS = """
@dg.op(name={op!r}, out=dg.Out(pa.Table, metadata={metadata!r}))
def rows_of_{op}():
    return pa.table({{"customer": ["ada"]}})

@dg.job(name={job!r})
def {job}():
    rows_of_{op}()
"""
TAIL = """
assets = [each for each in globals().values() if isinstance(each, dg.AssetsDefinition)]
defs = dg.Definitions(
    assets=assets,
    jobs=[each for each in globals().values() if isinstance(each, dg.JobDefinition)],
    resources={"io_manager": dstl.KeyedStateIOManager(changelog=changelog)},
    executor=dg.in_process_executor,
)
"""


@dataclass
class Location:
    """A code location, in a file of its own; `store` is a URI."""

    file: Path
    store: str
    instance: dg.DagsterInstance

    def write(self, *assets: str) -> None:
        self.file.write_text(HEAD.format(uri=self.store) + "".join(assets) + TAIL)
        sys.modules.pop(self.file.stem, None)  # a process has one state of a file
        ReconstructableJob.get_repository_definition.cache_clear()
        ReconstructableJob.get_definition.cache_clear()

    def run(self, key: str, tags: Mapping[str, str] | None = None, *, job: str | None = None) -> str:
        """Materialize one of its assets, or run a job; what went wrong, or nothing."""
        repository = ReconstructableRepository.for_file(str(self.file), "defs")
        job = repository.get_reconstructable_job("__ASSET_JOB" if job is None else job)
        wanted = [dg.AssetKey(key.split("/"))] if key else None
        with dg.execute_job(job, self.instance, asset_selection=wanted, tags={**(tags or {})}) as result:
            self.run_id = result.run_id
            failed = [
                each.step_failure_data for each in result.filter_events(lambda each: each.is_step_failure)
            ]
            return " ".join(each.user_failure_data.description for each in failed)

    def command(self, *words: str) -> None:
        found = CliRunner().invoke(main, [*words, "--store", self.store])
        assert found.exit_code == 0, found.output

    def logged(self) -> str:
        return "\n".join(each.user_message for each in self.instance.all_logs(self.run_id))


def kept(name: str, key: str = "customer", **metadata: str) -> str:
    named = {f"dstl/{each}": value for each, value in metadata.items()}
    return KEPT.format(name=name, key=key, metadata={"dstl/keys": [key], **named})


@pytest.fixture
def location(tmp_path: Path) -> Iterator[Location]:
    (tmp_path / "home").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as instance:
        yield Location(tmp_path / "shop.py", (tmp_path / "store").as_uri(), instance)


def test_a_renamed_asset_begins_no_second_state(location: Location) -> None:
    """The refusal names the way to go on, each command of which is obeyed; nothing begins at zero."""
    location.write(kept("orders"))
    assert location.run("orders") == ""
    location.write(kept("sales"))
    said = location.run("sales")
    assert (
        "job 'sales' is new, and job 'orders' is that of asset orders, which this code location wrote" in said
    )
    assert "dstl jobs drop orders" in said
    assert "dstl/ignore_unclaimed_state: true" in said
    assert "dstl/job: orders" in said
    location.write(kept("sales", job="orders"))
    for _ in range(2):
        said = location.run("sales")
        command = re.search(r"(checkpoints \w+ --rename \S+);", said)
        assert command is not None, said
        location.command(*command[1].split(), "--job", "orders", "--yes")
    assert location.run("sales") == ""
    changelog = dstl.ChangelogStorageResource(uri=location.store)
    assert changelog.read_state("orders", "sales").to_arrow().num_rows == 1


def test_what_is_meant_begins(location: Location) -> None:
    """By the run's tag once; or once the former job is dropped."""
    location.write(kept("orders"))
    assert location.run("orders") == ""
    location.write(kept("sales"), kept("refunds"))
    assert "is new" in location.run("sales")
    assert location.run("sales", {"dstl/ignore_unclaimed_state": "true"}) == ""
    assert location.run("sales") == ""
    location.command("jobs", "drop", "orders", "--force", "--yes")
    assert location.run("refunds") == ""


def test_an_asset_of_other_keys_begins_and_names_what_is_left(location: Location) -> None:
    """The state of other keys cannot go on under its name."""
    location.write(kept("orders"))
    assert location.run("orders") == ""
    location.write(kept("products", key="product"))
    assert location.run("products") == ""
    assert "and no longer defines: orders (asset orders)" in location.logged()
    assert location.run("products") == ""
    assert "no longer defines" not in location.logged()


def test_an_asset_beside_others_begins(location: Location) -> None:
    """What is still defined, here or in another code location, is no former name."""
    location.write(kept("orders"), kept("sales"))
    assert location.run("orders") == ""
    assert location.run("sales") == ""
    other = Location(location.file.with_name("other.py"), location.store, location.instance)
    other.write(kept("refunds"))
    assert other.run("refunds") == ""


def test_a_decorated_asset_under_a_new_name_of_its_job_is_refused(location: Location) -> None:
    """Its job is named in its program, which is the way out."""
    location.write(DECORATED.format(job="orders"))
    assert location.run("orders/totals") == ""
    location.write(DECORATED.format(job="sales"))
    assert "job 'sales' is new, and job 'orders' is that of asset orders/totals" in location.run(
        "sales/totals"
    )
    location.write(DECORATED.format(job="orders"))
    assert location.run("orders/totals") == ""


def ops(job: str, op: str = "sums", **metadata: str) -> str:
    return OPS.format(job=job, op=op, metadata={"dstl/keys": ["customer"], **metadata})


@pytest.mark.parametrize(("job", "op"), [("nightly", "sums"), ("daily", "totals")])
def test_an_output_of_a_renamed_job_or_op_begins_no_second_state(
    job: str, op: str, location: Location
) -> None:
    """Its name is that of both, and under the former one it goes on. A job beside it begins."""
    location.write(ops("daily"), "@dg.job\ndef weekly():\n    rows_of_sums()\n")
    assert [location.run("", job=each) for each in ("daily", "weekly")] == ["", ""]
    location.write(ops(job, op))
    said = location.run("", job=job)
    assert (
        f"job '{job}.{op}.result' is new, and job 'daily.sums.result' is that of an output of op sums" in said
    )
    former = {"dstl/job": "daily.sums.result", "dstl/operator": "sums"}
    location.write(ops(job, op, **former))
    if op == "totals":
        assert location.run("", {"dstl/ignore_unclaimed_state": "true"}, job=job) == ""
    assert location.run("", job=job) == ""
