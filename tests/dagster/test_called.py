"""Assets and ops that a test calls: the function runs; what writes a checkpoint has an attempt of its own."""

# No postponed annotations here: Dagster reads the types of an asset's arguments as objects.

from contextlib import ExitStack
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

import dstl_dagster as dstl

pytestmark = pytest.mark.dagster

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-05")
DAY = "2024-01-01"


class Rate(dg.Config):
    """What a launchpad may set."""

    factor: int = 1


class Prices(dg.ConfigurableResource[Any]):
    """A resource of the user's."""

    of_one: int = 1


@dstl.checkpointed_asset("orders", keys=["customer"], partitions_def=DAYS)
def totals(context: dg.AssetExecutionContext, raw: pa.Table, prices: Prices, config: Rate) -> pa.Table:
    assert context.asset_key == dg.AssetKey(["orders", "totals"])
    day = [context.partition_key] * raw.num_rows
    context.add_output_metadata({"read": raw.num_rows})
    amounts = [amount * prices.of_one * config.factor for amount in raw["amount"].to_pylist()]
    return pa.table({"customer": raw["customer"], "amount": amounts, "day": day})


@dstl.checkpointed_asset("plain", keys=["customer"])
def without_context(raw: pa.Table) -> pa.Table:
    return raw


@dstl.checkpointed_asset("batches", partitions_def=DAYS)
def by_batch(context: dg.OpExecutionContext, batch: Any, raw: pa.Table) -> None:
    assert batch.already_in is None
    batch.write_state(raw, operator="rows", keys=["customer"])


@dg.op(out=dg.Out(dict))
def update(context: dg.OpExecutionContext, changelog: dstl.ChangelogStorageResource) -> dict[str, Any]:
    with changelog.checkpoint(context, job="ops", source="inbox") as batch:
        if batch.already_in is None:
            batch.write_state(ROWS, operator="rows", keys=["customer"])
    return batch.reference


@dg.asset(partitions_def=DAYS)
def plain_asset(context: dg.AssetExecutionContext, changelog: dstl.ChangelogStorageResource) -> None:
    with changelog.checkpoint(context, job="assets", source="inbox") as batch:
        if batch.already_in is None:
            batch.write_state(ROWS, operator="rows", keys=["customer"])


ROWS = pa.table({"customer": ["ada"], "amount": [2]})


@pytest.fixture
def changelog(request: pytest.FixtureRequest) -> dstl.ChangelogStorageResource:
    return dstl.ChangelogStorageResource(uri=f"memory://called/{abs(hash(request.node.nodeid))}")


def test_an_asset_that_is_called_runs_its_function() -> None:
    """With a context, inputs, resources and config as Dagster's own; no store, no checkpoint."""
    context = dg.build_asset_context(partition_key=DAY, resources={"prices": Prices(of_one=3)})
    found = totals(context, ROWS, config=Rate(factor=5))
    assert found.to_pylist() == [{"customer": "ada", "amount": 30, "day": DAY}]
    context = dg.build_asset_context(partition_key=DAY)
    assert totals(context, raw=ROWS, prices=Prices(), config=Rate()).num_rows == 1
    assert without_context(ROWS) is ROWS


def test_it_is_checked_as_dagsters_own_are() -> None:
    """A missing input or resource is Dagster's own sentence."""
    with pytest.raises(dg.DagsterInvalidInvocationError, match='required input "raw"'):
        without_context()
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="prices"):
        totals(dg.build_asset_context(partition_key=DAY), ROWS)


def test_with_a_batch_it_is_a_checkpoint(changelog: dstl.ChangelogStorageResource) -> None:
    """On an attempt of its own; called again for the partition, it finds it applied."""
    with dg.build_asset_context(partition_key=DAY, resources={"changelog": changelog}) as context:
        assert by_batch(context, ROWS) is None
    assert by_batch(dg.build_asset_context(partition_key=DAY), ROWS, changelog=changelog) is None
    assert changelog.read_state("batches", "rows", at=DAY).to_arrow().to_pylist() == ROWS.to_pylist()
    (done,) = changelog.coordinator("batches").list()
    assert done.committed
    assert done.positions == {"asset:batches/by_batch": "2024-01-02T00:00:00+00:00"}


@pytest.mark.parametrize(
    "build",
    [
        lambda changelog: dg.build_op_context(resources={"changelog": changelog}),
        lambda changelog: dg.build_op_context(partition_key=DAY, resources={"changelog": changelog}),
    ],
)
def test_an_op_that_is_called_completes_its_checkpoint(
    build: Any, changelog: dstl.ChangelogStorageResource
) -> None:
    """As no later op does; its reference names the attempt."""
    with build(changelog) as context:
        reference = update(context)
    (done,) = changelog.coordinator("ops").list()
    assert reference["attempt"] == str(done.attempt)
    assert changelog.read_state("ops", "rows").to_arrow().to_pylist() == ROWS.to_pylist()


def test_a_plain_asset_with_a_checkpoint_is_called(changelog: dstl.ChangelogStorageResource) -> None:
    """Its partitions are those of its definition: in order, each once."""
    for day in (DAY, "2024-01-02"):
        plain_asset(dg.build_asset_context(partition_key=day), changelog=changelog)
    assert [each.idempotency_key for each in changelog.coordinator("assets").list()] == [DAY, "2024-01-02"]
    with pytest.raises(dg.Failure, match="out of order"):
        plain_asset(dg.build_asset_context(partition_key="2024-01-04"), changelog=changelog)


def test_a_copy_that_dagster_makes_is_called_as_well(changelog: dstl.ChangelogStorageResource) -> None:
    """Such as one whose group was changed."""
    (copy,) = dg.map_asset_specs(lambda spec: spec.replace_attributes(group_name="sales"), [without_context])
    with dg.build_asset_context(resources={"changelog": changelog}) as context:
        assert copy(context, ROWS) is ROWS


def test_the_io_manager_works_with_contexts_that_a_test_has_built(
    changelog: dstl.ChangelogStorageResource,
) -> None:
    """An output is a checkpoint, and an input its rows."""
    manager = dstl.KeyedStateIOManager(changelog=changelog)

    # Of a context that is not entered Dagster never closes its instance.
    with ExitStack() as contexts:

        def output(**more: Any) -> dg.OutputContext:
            metadata = {"dstl/keys": ["customer"]}
            built = dg.build_output_context(
                asset_key=dg.AssetKey("rows"), definition_metadata=metadata, **more
            )
            return contexts.enter_context(built)

        for amount in (1, 2):
            manager.handle_output(output(), pa.table({"customer": ["ada"], "amount": [amount]}))
        hint = dg.PythonObjectDagsterType(pa.Table)
        context = dg.build_input_context(
            asset_key=dg.AssetKey("rows"), upstream_output=output(), dagster_type=hint
        )
        found = manager.load_input(contexts.enter_context(context))
        assert found.to_pylist() == ROWS.to_pylist()
        assert len(changelog.coordinator("rows").list()) == 2
        manager.handle_output(output(partition_key=DAY), ROWS)
        assert changelog.coordinator("rows").latest().idempotency_key == DAY  # type: ignore[union-attr]
