"""The code in README.md, and its longer form on the page of a function, runs as printed."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest

import dstl_dagster as dstl
from tests.docs.pages import PAGES, ROOT

if TYPE_CHECKING:
    from dstl_dagster.testing.gcs_server import GCSServer

README = (ROOT / "README.md").read_text(encoding="utf-8")
FUNCTION_PAGE = (ROOT / "docs" / "dagster" / "function.md").read_text(encoding="utf-8")
DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-03")
_buckets = itertools.count(1)


@pytest.fixture(params=["file", "gs"])
def store(
    request: pytest.FixtureRequest, strict_gcs: GCSServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The URI of an empty store: every example runs on a folder and on a bucket."""
    if request.param == "file":
        return (tmp_path / "store").as_uri()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", strict_gcs.url)
    bucket = f"readme-{next(_buckets)}"
    strict_gcs.create_bucket(bucket)
    return f"gs://{bucket}/store"


def marked(name: str, page: str = README) -> str:
    """The code block after this marker."""
    match = re.search(rf"<!-- example: {name} -->\n```python\n(.*?)```", page, re.DOTALL)
    assert match is not None
    return match[1]


def test_three_lines_are_ours():
    """What an ordinary asset needs: the import, the key columns, the IO manager."""
    assert len([line for line in marked("three lines").splitlines() if "dstl" in line]) == 3


@pytest.mark.dagster
@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")
def test_three_lines_keep_rows_by_key(store, tmp_path):
    """A second run replaces the rows of its keys and keeps the others; the first state is still read."""
    names = {"INBOX": str(tmp_path), "STORE": store, "__name__": "readme"}
    exec(compile(marked("three lines"), "README.md", "exec", dont_inherit=True), names)
    job = dg.Definitions.merge(
        names["defs"], dg.Definitions(jobs=[dg.define_asset_job("keep", [names["customers"]])])
    ).resolve_job_def("keep")
    first = ['{"customer":"ada","city":"London"}', '{"customer":"bob","city":"Rome"}']
    with dg.DagsterInstance.ephemeral() as instance:
        for lines in (first, ['{"customer":"ada","city":"Paris"}']):
            (tmp_path / "customers.json").write_text("\n".join(lines))
            assert job.execute_in_process(instance=instance).success
    at = {
        checkpoint: dstl.read_state(store, "customers", "customers", at=checkpoint).to_arrow().to_pylist()
        for checkpoint in (1, 2)
    }
    cities = {checkpoint: {row["customer"]: row["city"] for row in rows} for checkpoint, rows in at.items()}
    assert cities == {1: {"ada": "London", "bob": "Rome"}, 2: {"ada": "Paris", "bob": "Rome"}}


def test_the_asset_is_shown_in_under_15_lines():
    """The asset, and those that show its checkpoints."""
    assert len([line for line in marked("asset", FUNCTION_PAGE).splitlines() if line]) < 15


@pytest.mark.spark
def test_the_asset_merges_two_days(spark, store):
    """The second day's visits are added to the first's; a day that runs twice counts once."""
    visits = {"2024-01-01": [("/", 3)], "2024-01-02": [("/", 4)]}

    def visits_of(session, day):
        return session.createDataFrame(visits[day], "page STRING, visits BIGINT")

    names = {"dg": dg, "dstl": dstl, "DAYS": DAYS, "visits_of": visits_of, "__name__": "readme"}
    exec(compile(marked("asset", FUNCTION_PAGE), "function.md", "exec", dont_inherit=True), names)
    changelog = dstl.ChangelogStorageResource(uri=store)
    job = dg.Definitions(
        assets=[names["pages"], *names["pages_specs"]],
        jobs=[dg.define_asset_job("day", [names["pages"]])],
        resources={"changelog": changelog, "spark": dstl.SparkSessionResource()},
    ).resolve_job_def("day")
    with dg.DagsterInstance.ephemeral() as instance:
        for day in ("2024-01-01", "2024-01-01", "2024-01-02"):
            assert job.execute_in_process(partition_key=day, instance=instance).success
    assert changelog.read_state("visits", "pages").to_arrow().to_pylist() == [{"page": "/", "visits": 7}]


@pytest.mark.parametrize(("name", "ends_with"), [("demo", "dstl demo"), ("test", "-m pytest")])
def test_the_two_commands_stand_in_the_readme(name, ends_with):
    """CI finds the commands by their markers, so that it runs what people read, without scrolling."""
    shown = subprocess.run(
        [ROOT / ".ci/readme-command", name], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout.strip().endswith(ends_with)
    assert max(map(len, shown.stdout.splitlines())) <= 90


def test_links_lead_somewhere():
    """Every relative link and picture of a page is a file of the project."""
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_named_paths_exist():
    """Tests, benchmarks, examples and CI's commands, wherever a page names them."""
    for page in PAGES:
        if page.parent.name == "peers":
            continue  # it names theirs
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"(?<![\w/.])(?:tests|benchmarks|examples|\.ci)/[\w./-]*\w", text):
            assert (ROOT / path).exists(), f"{page.name} names {path}"
