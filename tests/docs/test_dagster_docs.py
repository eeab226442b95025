"""The code in docs/dagster runs as printed, and its lists are complete."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

import dstl_dagster as dstl
from dstl_dagster.keyed import write_rows
from dstl_dagster.orchestration.define.targets import _KNOWN as METADATA
from dstl_dagster.orchestration.yaml.asset_component import EXAMPLE
from dstl_dagster.orchestration.yaml.field_values import condition_at
from dstl_dagster.state import StateSchema
from dstl_dagster.storage import open_store
from tests.dagster.test_component import PROJECT, dg_commands
from tests.docs.pages import ROOT, chapters

pytestmark = pytest.mark.dagster

PAGE = "\n".join(page.read_text(encoding="utf-8") for page in chapters("dagster"))
DAYS = ("2024-01-01", "2024-01-02")
COLUMNS = pa.schema([("customer", pa.string()), ("total", pa.float64())])
STATE = StateSchema.from_parts(COLUMNS.serialize().to_pybytes(), ("customer",), 128)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def program(tmp_path: Path) -> dict[str, Any]:
    """Every block of the page, in one namespace, around a day's work without Spark."""
    store = (tmp_path / "store").as_uri()

    def merge_day(batch: Any, day: str) -> None:
        rows = pa.table({"customer": [day], "total": [1.0]}, schema=COLUMNS)
        batch.add(write_rows(rows, batch.attempt, open_store(store), operator="totals", schema=STATE))

    names: dict[str, Any] = {
        "STORE": store,
        "merge_day": merge_day,
        "words_of": {"2024-01-01": ["a", "b", "a"], "2024-01-02": ["b", "c"]}.__getitem__,
        "report_of": lambda counts: json.dumps(dict(sorted(counts.items()))),
        "visits_of": lambda session, day: session,
        "__name__": "orders",
    }
    for block in blocks("python"):
        exec(compile(block, "docs/dagster", "exec", dont_inherit=True), names)
    return names


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as found:
        yield found


def test_the_program_runs_days_and_rolls_back(program: dict[str, Any], instance: dg.DagsterInstance) -> None:
    """Two days become two checkpoints; after a restore the second day can run again."""
    defs: dg.Definitions = program["defs"]
    dg.Definitions.validate_loadable(defs)
    day_job = dg.Definitions.merge(
        defs, dg.Definitions(jobs=[dg.define_asset_job("day", [program["state"]])])
    ).resolve_job_def("day")
    for day in ("2024-01-01", "2024-01-02"):
        assert day_job.execute_in_process(partition_key=day, instance=instance).success
    assert instance.get_dynamic_partitions("orders_checkpoints") == ["chk-00000001", "chk-00000002"]
    assert program["roll_back"](instance, 2, 1)
    assert instance.get_dynamic_partitions("orders_checkpoints") == ["chk-00000001"]
    assert day_job.execute_in_process(partition_key="2024-01-02", instance=instance).success
    for job in ("orders_cleanup", "orders_materialize", "orders_verify"):
        assert defs.resolve_job_def(job).execute_in_process(instance=instance).success, job


def test_the_schedule_of_a_condition_is_that_of_yaml(program: dict[str, Any]) -> None:
    """Which `tests/dagster/test_asset_arguments.py` holds to what it requests."""
    assert program["at_six"] == condition_at("0 6 * * *", program["JOB"].state_key)


@pytest.mark.parametrize("name", ["test_sales_are_summed", "test_a_day_is_one_checkpoint"])
def test_the_tests_pass(name: str, program: dict[str, Any]) -> None:
    """As the page prints them."""
    program[name]()


def test_an_op_by_hand_that_is_retried_counts_once(
    program: dict[str, Any], instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try of each day dies with its changes persisted and its file begun; the second succeeds."""
    real, tries = program["report_of"], Counter[str]()

    def report_of(counts: Counter[str]) -> str:
        report: str = real(counts)
        tries[report] += 1
        if tries[report] == 1:
            raise RuntimeError("the first try")
        return report

    monkeypatch.setitem(program, "report_of", report_of)
    changelog = dstl.ChangelogStorageResource(
        uri=program["STORE"], options={"dstl.checkpoint.reader-grace": "0"}
    )
    resources = {
        "changelog": changelog,
        "files": dstl.RecoverableWriterResource(uri=f"{program['STORE']}/reports"),
    }
    for day in DAYS:
        result = program["words"].execute_in_process(
            partition_key=day, instance=instance, resources=resources
        )
        assert result.success
        assert result.retry_attempts_for_node("count_words") == 1
    store, coordinator = changelog.store(), changelog.coordinator("words")
    assert json.loads(store.get("reports/2024-01-01.txt")) == {"a": 2, "b": 1}
    assert json.loads(store.get("reports/2024-01-02.txt")) == {"a": 2, "b": 2, "c": 1}
    assert [each.idempotency_key for each in coordinator.list()] == list(DAYS)
    assert coordinator.clean_up(dry_run=True).objects == 0, "step 7 deleted what the first tries left"
    assert coordinator.verify().ok


def test_the_jobs_outside_load(program: dict[str, Any], instance: dg.DagsterInstance) -> None:
    """The sensor of a job without checkpoints reports nothing new."""
    clicks: dg.Definitions = program["clicks"]
    dg.Definitions.validate_loadable(clicks)
    given = {"changelog": dstl.ChangelogStorageResource(uri=program["STORE"])}
    with dg.build_sensor_context(instance=instance, resources=given) as context:
        result = clicks.resolve_sensor_def("clicks_checkpoints")(context)
    assert result.skip_reason.skip_message == "slot 0: nothing new"


RESOURCES = """\
from types import SimpleNamespace

import dagster as dg

import dstl_dagster as dstl

gcs = SimpleNamespace(get_client=lambda: None)


@dg.op
def send(): ...


@dg.job
def mail():
    send()


@dg.definitions
def defs():
    return dg.Definitions(jobs=[mail], resources={"spark": dstl.SparkSessionResource()})
"""


def test_the_yaml_has_every_field_and_loads(tmp_path: Path) -> None:
    """The examples have all fields of the components, and `dg check defs` loads them in a project."""
    import yaml

    documents = [block for block in blocks("yaml") if "attributes:" in block]
    anywhere, asset = (set(yaml.safe_load(block)["attributes"]) for block in documents)
    common = set(dstl.CheckpointLineageComponent.model_fields)
    assert anywhere == common
    assert asset - common == set(dstl.CheckpointedAssetComponent.model_fields) - common
    files = {
        **PROJECT,
        "src/shop/resources.py": RESOURCES,
        "src/shop/defs/resources.py": "from shop.resources import defs\n",
        "src/shop/defs/anywhere/defs.yaml": documents[0],
        "src/shop/defs/asset/rows.py": EXAMPLE.format(key="customer"),
        "src/shop/defs/asset/defs.yaml": documents[1].replace("job: orders", "job: customers"),
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (checked,) = dg_commands(tmp_path, ["check", "defs"])
    assert "All definitions loaded successfully" in checked


def test_the_settings_of_an_instance_are_dagsters(tmp_path: Path) -> None:
    """What the pages write for `dagster.yaml` is an instance's."""
    settings = [block for block in blocks("yaml") if "attributes:" not in block]
    assert settings
    (tmp_path / "dagster.yaml").write_text("\n".join(settings), encoding="utf-8")
    with dg.DagsterInstance.from_config(str(tmp_path)) as found:
        assert found.run_monitoring_enabled


def test_every_field_of_a_resource_is_listed() -> None:
    """And no other: a row without a name belongs to the resource above it."""
    page = (ROOT / "docs" / "dagster" / "resources.md").read_text(encoding="utf-8")
    listed: dict[str, set[str]] = {}
    for resource, fields in re.findall(r"^\| (?:`(\w+)` )?\| (`[^|]*`) \|", page, re.MULTILINE):
        listed.setdefault(resource or [*listed][-1], set()).update(re.findall(r"`(\w+)`", fields))
    assert listed == {name: set(getattr(dstl, name).model_fields) for name in listed}
    assert len(listed) == 4


def test_the_metadata_of_the_io_manager_is_listed() -> None:
    """All that an asset's metadata may say."""
    (table,) = re.findall(r"^\| metadata \|.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    first = "".join(row.split(" | ")[0] for row in table.splitlines())
    assert set(re.findall(r"`dstl/(\w+)`", first)) == {*METADATA}


def test_every_check_is_listed(program: dict[str, Any]) -> None:
    """Those of the page's program, and those of an argument."""
    (table,) = re.findall(r"^\| check \|.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    listed = set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))
    made = {spec.name for name in ("checks", "budgeted") for spec in program[name].check_specs}
    assert made <= listed
    assert "cost_budget" in made


def test_every_public_name_is_on_the_page() -> None:
    """Every exported name is documented, so nobody has to read the source to find it."""
    left_out = {"__version__", "next_partition"}
    names = {name for name in dstl.__all__ if f"{name}" not in PAGE} - left_out
    assert not names


def test_the_assets_of_the_io_manager_keep_their_word(
    program: dict[str, Any], instance: dg.DagsterInstance, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table in any order, the sums in theirs, and the newest state for an asset without partitions."""
    definitions, (first, second) = program["summed"], DAYS
    job = definitions.resolve_implicit_global_asset_job_def()

    def run(key: str, day: str | None = None) -> None:
        assert job.execute_in_process(
            instance=instance, asset_selection=[dg.AssetKey(key)], partition_key=day
        ).success

    for day in (second, first, second):
        run("orders_of_day", day)
    for day in (first, second, second):
        run("sums", day)
    run("grand_total")
    assert capsys.readouterr().out.splitlines()[-1] == "3"
