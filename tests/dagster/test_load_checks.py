"""Slips in the definitions fail while these load, without a request, with the message of a run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from dstl_dagster import (
    ChangelogStorageResource,
    CheckpointLineageComponent,
    KeyedStateIOManager,
    RecoverableWriterResource,
    build_checkpoint_job,
    build_state_asset,
    checkpointed_asset,
)
from dstl_dagster.errors import InvalidInputError

pytestmark = pytest.mark.dagster

Build = Callable[..., Any]


def _resource(uri: str, options: dict[str, str]) -> dg.Definitions:
    return dg.Definitions(resources={"changelog": ChangelogStorageResource(uri=uri, options=options)})


def _writer(uri: str, options: dict[str, str]) -> dg.Definitions:
    return dg.Definitions(resources={"files": RecoverableWriterResource(uri=uri, options=options)})


def _component(uri: str, options: dict[str, str]) -> dg.Definitions:
    component = CheckpointLineageComponent(job="orders", store=uri, options=options)
    return component.build_defs(None)  # type: ignore[arg-type] # it asks nothing of it


BUILDS = pytest.mark.parametrize("build", [_resource, _writer, _component])


@BUILDS
@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://bucket/x", "there is no store for s3://; use gs://bucket/prefix"),
        ("/data/store", "did you mean the folder file:///data/store"),
        ("gs:/bucket", "did you mean gs://bucket"),
        ("gs://a@b/x", "is no bucket name"),
        ("file:///", "is the root of the file system"),
    ],
)
def test_a_store_that_is_none_fails_the_load(build: Build, uri: str, message: str) -> None:
    """By scheme, by form, and by what a bucket may be called."""
    with pytest.raises(InvalidInputError, match=message):
        dg.Definitions.validate_loadable(build(uri, {}))


@BUILDS
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gs.retry.max-atempt": "3"}, "did you mean gs.retry.max-attempt"),
        ({"gs.retry.max-attempt": "many"}, "gs.retry.max-attempt"),
    ],
)
def test_a_misspelt_option_fails_the_load(build: Build, options: dict[str, str], message: str) -> None:
    """An unknown key with the nearest known one; a value that cannot be used with its key."""
    with pytest.raises(InvalidInputError, match=message):
        dg.Definitions.validate_loadable(build("gs://bucket/x", options))


def test_what_the_environment_gives_is_left_to_the_run() -> None:
    """A variable need not be set where definitions load; what stands beside it is checked all the same."""
    where = dg.EnvVar("DSTL_NOT_SET_ANYWHERE")
    given = {"gs.retry.max-attempt": where}
    dg.Definitions.validate_loadable(_resource(where, given))
    dg.Definitions.validate_loadable(_writer(where, given))
    with pytest.raises(InvalidInputError, match="did you mean"):
        dg.Definitions.validate_loadable(_resource(where, {**given, "gs.retry.max-atempt": "3"}))


def test_a_good_definition_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No store is opened, of whatever scheme."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("a store was opened")

    monkeypatch.setattr("dstl_dagster.orchestration.inject.resources.open_store", refuse)
    for build in (_resource, _writer, _component):
        dg.Definitions.validate_loadable(build("gs://bucket/x", {"gs.retry.max-attempt": "3"}))


class Shown(CheckpointLineageComponent):
    """A component of a user's own."""

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        return spec.replace_attributes(group_name="shop", tags={**spec.tags, "tier": "gold"})


class Renamed(CheckpointLineageComponent):
    """One that goes too far."""

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        return spec.replace_attributes(key=dg.AssetKey("mine"))


def test_a_component_can_change_how_assets_are_shown() -> None:
    """All but their keys, under which events are reported."""
    defs = Shown(job="orders", store="file:///x").build_defs(None)  # type: ignore[arg-type] # as above
    specs = [spec for spec in defs.resolve_all_asset_specs() if spec.key.path[0] == "orders"]
    assert {spec.group_name for spec in specs} == {"shop"}
    assert {spec.tags["tier"] for spec in specs} == {"gold"}
    with pytest.raises(InvalidInputError, match="Change anything but the key"):
        Renamed(job="orders", store="file:///x").build_defs(None)  # type: ignore[arg-type] # as above


@pytest.mark.parametrize("path", ["no.such.module:gcs", "json:gcs", "json", "json:JSONDecoder", ":gcs"])
def test_a_component_names_its_credentials(path: str) -> None:
    """Something with `get_client`, or it says what it found instead."""
    with pytest.raises(InvalidInputError, match=r"gcs: .*(module:name|get_client)"):
        CheckpointLineageComponent(job="orders", store="gs://b/x", gcs=path).build_defs(None)  # type: ignore[arg-type] # as above


def test_a_components_credentials_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its jobs, sensor and checks: the resource that is bound to all of them."""
    given = SimpleNamespace(get_client=lambda: "the client")
    monkeypatch.setitem(sys.modules, "shop.resources", SimpleNamespace(gcs=given))
    component = CheckpointLineageComponent(job="orders", store="gs://b/x", gcs="shop.resources:gcs")
    built: list[Any] = []
    real = ChangelogStorageResource.require_valid
    monkeypatch.setattr(
        ChangelogStorageResource, "require_valid", lambda resource: (built.append(resource), real(resource))
    )
    component.build_defs(None)  # type: ignore[arg-type] # as above
    assert built[0].gcs is given


@dg.op(out=dg.Out(dict))
def update(changelog: ChangelogStorageResource, reports: RecoverableWriterResource) -> dict[str, Any]:
    """Whatever a user does with both."""
    return {}


def _as_asset(resources: dict[str, Any]) -> dg.Definitions:
    return dg.Definitions(assets=[build_state_asset("orders", update)], resources=resources)


def _as_job(resources: dict[str, Any]) -> dg.Definitions:
    return dg.Definitions(jobs=[build_checkpoint_job("orders", update)], resources=resources)


def _as_function(resources: dict[str, Any]) -> dg.Definitions:
    @checkpointed_asset("orders")
    def orders(batch: Any, reports: RecoverableWriterResource) -> None:
        """As above."""

    return dg.Definitions(assets=[orders], resources=resources)


KINDS = pytest.mark.parametrize("build", [_as_asset, _as_job, _as_function])


def _both(store: Any, files: Any) -> dict[str, Any]:
    return {
        "changelog": ChangelogStorageResource(uri=store),
        "reports": RecoverableWriterResource(uri=files),
    }


@KINDS
@pytest.mark.parametrize(
    ("store", "files"),
    [
        ("file:///data/store", "file:///data/reports"),
        ("file:///data/store", "gs://bucket/reports"),
        ("gs://bucket/store", "file:///data/reports"),
        ("memory://bucket/store", "file:///data/reports"),
    ],
)
def test_files_outside_the_store_fail_the_load(build: Callable[..., Any], store: str, files: str) -> None:
    """With the op and the resource, before any run: of an asset, a job, and an asset of one function."""
    with pytest.raises(InvalidInputError, match=f"op '.*': resource 'reports' publishes files in {files}"):
        dg.Definitions.validate_loadable(build(_both(store, files)))


@KINDS
@pytest.mark.parametrize(
    ("store", "files"),
    [
        ("file:///data/store", "file:///data/store/reports"),
        ("gs://bucket/store", "gs://another/reports"),
        (dg.EnvVar("DSTL_NOT_SET_ANYWHERE"), "file:///data/reports"),
        ("file:///data/store", dg.EnvVar("DSTL_NOT_SET_ANYWHERE")),
    ],
)
def test_files_that_can_be_published_load(build: Callable[..., Any], store: Any, files: Any) -> None:
    """Inside of the folder, in any bucket, or where only the run knows."""
    dg.Definitions.validate_loadable(build(_both(store, files)))


def test_two_stores_of_one_op_are_left_to_the_run() -> None:
    """It says there in which of them it opens a batch; files that no op takes are nobody's."""

    @dg.op(out=dg.Out(dict))
    def two(
        old: ChangelogStorageResource, changelog: ChangelogStorageResource, reports: RecoverableWriterResource
    ) -> dict[str, Any]:
        return {}

    stores = {name: ChangelogStorageResource(uri=f"file:///data/{name}") for name in ("old", "changelog")}
    given = {**stores, "reports": RecoverableWriterResource(uri="file:///data/changelog/reports")}
    dg.Definitions.validate_loadable(
        dg.Definitions(jobs=[build_checkpoint_job("orders", two)], resources=given)
    )
    elsewhere = {"files": RecoverableWriterResource(uri="file:///elsewhere")}
    within = _both("file:///data/store", "file:///data/store/reports")
    dg.Definitions.validate_loadable(_as_asset({**within, **elsewhere}))


DAYS = dg.DailyPartitionsDefinition("2024-01-01")
BOTH = dg.MultiPartitionsDefinition({"day": DAYS, "colour": dg.StaticPartitionsDefinition(["red"])})


def _of_io_manager(*assets: tuple[str | list[str], Any, dict[str, Any]]) -> dg.Definitions:
    manager = KeyedStateIOManager(changelog=ChangelogStorageResource(uri="memory://load-checks"))

    def asset(key: str | list[str], definition: Any, metadata: dict[str, Any]) -> dg.AssetsDefinition:
        @dg.asset(key=key, partitions_def=definition, metadata=metadata, io_manager_key="state")
        def rows() -> Any: ...

        return rows

    return dg.Definitions(assets=[asset(*each) for each in assets], resources={"state": manager})


@pytest.mark.parametrize(
    ("definition", "metadata", "message"),
    [
        (DAYS, {"partition_expr": "a"}, "name the key columns of its state"),
        (None, {"dstl/keys": ["a"], "dstl/key": ["a"]}, "metadata dstl/key means nothing"),
        (None, {"dstl/keys": ["a"], "partition_expr": "a"}, "partition_expr .* it has no partitions_def"),
        (None, {"dstl/keys": "a"}, r"expected names in a list, such as \['a'\]"),
        (None, {"dstl/keys": ["a"], "dstl/schema": "a INT"}, "the state's columns, belong together"),
        (None, {"dstl/keys": ["a"], "mode": "append"}, "mode 'append' is none of merge, overwrite"),
        (
            None,
            {"dstl/keys": ["a"], "dstl/rerun": "replace"},
            "dstl/rerun is for partitions of a cumulative state",
        ),
        (
            DAYS,
            {"dstl/keys": ["a"], "dstl/rerun": "skip"},
            "dstl/rerun is replace or refuse, not 'skip': Dagster",
        ),
        (DAYS, {"dstl/keys": ["a"], "mode": "overwrite"}, "would delete the rows of all other partitions"),
        (
            DAYS,
            {"dstl/keys": ["a"], "partition_expr": "day"},
            r"column 'day', which is not among its dstl/keys \(a\)",
        ),
        (
            DAYS,
            {"dstl/keys": ["a"], "partition_expr": {"day": "a"}},
            "does not name a column for each dimension",
        ),
        (BOTH, {"dstl/keys": ["a"], "partition_expr": "a"}, "does not name a column for each dimension"),
        (
            BOTH,
            {"dstl/keys": ["a"], "partition_expr": {"day": "a"}},
            "does not name a column for each dimension",
        ),
        (BOTH, {"dstl/keys": ["a"], "partition_expr": {"day": "a", "colour": "a"}}, "names a column twice"),
        (
            DAYS,
            {"dstl/keys": ["a"], "partition_expr": "a", "dstl/schema": "a INT", "dstl/update": {}},
            "dstl/update merges into rows that partition_expr replaces",
        ),
        (
            None,
            {"dstl/keys": ["a"], "mode": "overwrite", "dstl/delete": "b"},
            "rows that mode overwrite replaces",
        ),
    ],
)
def test_metadata_of_an_io_manager_fails_the_load(
    definition: Any, metadata: dict[str, Any], message: str
) -> None:
    """By the sentence that a run would have, which names the asset."""
    with pytest.raises(InvalidInputError, match=f"asset orders/rows: .*{message}"):
        dg.Definitions.validate_loadable(_of_io_manager((["orders", "rows"], definition, metadata)))


KEYED = {"dstl/keys": ["a"]}


@pytest.mark.parametrize("hint", [None, dg.MaterializeResult])
def test_keys_without_rows_fail_the_load(hint: Any) -> None:
    """An op that returns nothing by its hint would be green, and write nothing. So would one that returns a
    result in which it forgot them: Dagster notices where the hint says that there are rows.
    """

    def rows() -> Any: ...

    rows.__annotations__ = {"return": hint}
    orders = dg.asset(key="orders", metadata=KEYED, io_manager_key="state")(rows)
    manager = KeyedStateIOManager(changelog=ChangelogStorageResource(uri="memory://load-checks"))
    with pytest.raises(InvalidInputError, match="asset orders: it has dstl/keys, and by its type no rows"):
        dg.Definitions.validate_loadable(dg.Definitions(assets=[orders], resources={"state": manager}))


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ((["a", "b"], None, KEYED), (["a.b"], None, KEYED), "would share the job 'a.b'"),
        (
            ("orders", None, KEYED),
            ("late", None, KEYED | {"dstl/job": "orders"}),
            "would share the job 'orders'",
        ),
        (
            (["late", "o"], None, KEYED | {"dstl/job": "j"}),
            (["early", "o"], None, KEYED | {"dstl/job": "j"}),
            "would both write 'o' of job 'j'",
        ),
        (
            ("orders", None, KEYED | {"dstl/job": "j", "dstl/operator": "o"}),
            ("late", None, KEYED | {"dstl/job": "j", "dstl/operator": "o", "mode": "overwrite"}),
            "would both write 'o' of job 'j'",
        ),
    ],
)
def test_a_job_that_is_shared_by_accident_fails_the_load(one: Any, other: Any, message: str) -> None:
    """By keys that join to one name, by a name that is another one's default, by rows that go."""
    with pytest.raises(InvalidInputError, match=message):
        dg.Definitions.validate_loadable(_of_io_manager(one, other))


def test_a_job_may_be_shared_on_purpose() -> None:
    """By two assets that both name it, each with its own operator. Other IO managers are not asked."""
    shared = KEYED | {"dstl/job": "orders"}
    definitions = _of_io_manager(("early", None, shared), ("late", None, shared))

    @dg.asset(metadata={"mode": "append"})
    def elsewhere() -> None: ...

    other = dg.Definitions(assets=[elsewhere], resources={"io_manager": dg.mem_io_manager})
    dg.Definitions.validate_loadable(dg.Definitions.merge(definitions, other))


@pytest.mark.parametrize("rule", ["'gold'", "'gold' -- for now", "nvl(old.v, 'gold')", "old.v = ''"])
def test_a_rule_may_end_in_text_or_be_nothing_else(rule: str) -> None:
    @checkpointed_asset("orders", keys=["k"], schema="k STRING, v STRING", update={"v": rule})
    def orders() -> None: ...

    assert orders.key == dg.AssetKey(["orders", "orders"])
