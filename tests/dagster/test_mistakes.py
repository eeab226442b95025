"""Mistakes in definitions and configuration: told early, in our words, with what to do."""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pytest

import dstl_dagster as dstl
from dstl_dagster.errors import ErrorKind, InvalidInputError, NotFoundError
from dstl_dagster.orchestration.define.ops import StepOps

if TYPE_CHECKING:
    from tests.dagster.conftest import Days

pytestmark = pytest.mark.dagster


@dg.op(out=dg.Out(dict))
def update() -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (
            lambda: dstl.build_checkpoint_job("my-job", update),
            "use letters, digits and underscores, such as 'my_job'",
        ),
        (lambda: dstl.build_checkpoint_job("job", print), "decorate .* with @dg.op"),
        (lambda: dstl.build_maintenance("orders", "restore", name="a b"), "such as 'a_b'"),
        (lambda: dstl.build_maintenance("orders", "commit", name="a.b"), "such as 'a_b'"),
        (lambda: dstl.build_maintenance("orders", "tidy"), "it is cleanup, materialize, verify, checks,"),  # type: ignore[call-overload]
        (lambda: dstl.build_maintenance("orders", "correct"), "`day_job` is the job that `correct`"),
        (lambda: dstl.build_maintenance("orders", "restore", when="@daily"), "leave `when` out"),
        (
            lambda: dstl.build_maintenance(
                "orders", "verify", partitions_def=dg.StaticPartitionsDefinition(["a"])
            ),
            "verify is of no partition",
        ),
        (lambda: dstl.build_state_asset("my orders", update), "job name 'my orders' cannot be used"),
    ],
)
def test_a_wrong_definition_says_what_to_write(build: Callable[[], object], says: str) -> None:
    """Not Dagster's regular expression, and not its error of a composition."""
    with pytest.raises(InvalidInputError, match=says):
        build()


def test_files_outside_the_store_are_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only the run knows the folder: before the attempt is opened, by the resource's name."""
    began: list[str] = []

    @dg.op(out=dg.Out(dict))
    def work(
        context: dg.OpExecutionContext,
        changelog: dstl.ChangelogStorageResource,
        reports: dstl.RecoverableWriterResource,
    ) -> dict[str, Any]:
        with changelog.checkpoint(context, "orders") as batch:
            began.append(reports.uri)
        return batch.reference

    def run(folder: str) -> dg.ExecuteInProcessResult:
        resources = {
            "changelog": dstl.ChangelogStorageResource(uri=(tmp_path / "store").as_uri()),
            "reports": dstl.RecoverableWriterResource(uri=dg.EnvVar("DSTL_REPORTS")),
        }
        monkeypatch.setenv("DSTL_REPORTS", folder)
        job = dstl.build_checkpoint_job("orders", work, resource_defs=resources)
        return job.execute_in_process(raise_on_error=False)

    failed = run((tmp_path / "elsewhere").as_uri())
    (event,) = (event for event in failed.all_events if event.is_step_failure)
    said = event.step_failure_data.user_failure_data
    assert said is not None
    assert said.description is not None
    assert said.description.startswith("resource 'reports' publishes files in file://")
    assert (began, (tmp_path / "store" / "dstl").exists()) == ([], False)
    assert run((tmp_path / "store" / "out").as_uri()).success
    assert len(began) == 1


@pytest.mark.parametrize(("separate_steps", "step"), [(False, "complete"), (True, "persist")])
def test_an_op_that_hands_on_no_reference_is_told_how(
    separate_steps: bool, step: str, tmp_path: Path
) -> None:
    """The next step names the line that is missing."""

    @dg.op
    def forgetful(context: dg.OpExecutionContext, changelog: dstl.ChangelogStorageResource) -> None:
        with changelog.checkpoint(context, "orders"):
            pass

    job = dstl.build_checkpoint_job(
        "orders",
        forgetful.with_replaced_properties("forgetful", outs={"result": dg.Out(dg.Any)}),
        separate_steps=separate_steps,
        resource_defs={"changelog": dstl.ChangelogStorageResource(uri=tmp_path.as_uri())},
    )
    failed = job.execute_in_process(raise_on_error=False)
    (event,) = (event for event in failed.all_events if event.is_step_failure)
    assert event.step_key == step
    assert "end it with `return batch.reference`" in event.step_failure_data.error.message  # type: ignore[union-attr]


def test_a_batch_is_of_an_op_or_an_asset(tmp_path: Path) -> None:
    """A sensor, or a check, asks for a run of one."""
    changelog = dstl.ChangelogStorageResource(uri=tmp_path.as_uri())

    @dg.asset
    def inbox() -> None: ...

    @dg.asset_check(asset=inbox)
    def audited(
        context: dg.AssetCheckExecutionContext, changelog: dstl.ChangelogStorageResource
    ) -> dg.AssetCheckResult:
        with changelog.checkpoint(context, "audits"):  # type: ignore[arg-type]
            return dg.AssetCheckResult(passed=True)

    defs = dg.Definitions([inbox], asset_checks=[audited], resources={"changelog": changelog})
    job = defs.resolve_implicit_global_asset_job_def()
    with pytest.raises(dg.Failure, match="AssetCheckExecutionContext of none: ask for a run of one"):
        job.execute_in_process()
    with (
        pytest.raises(dg.Failure, match="SensorEvaluationContext of none: ask for a run of one"),
        changelog.checkpoint(dg.build_sensor_context(), "audits"),  # type: ignore[arg-type]
    ):
        pass


def test_an_op_of_another_job_is_refused(tmp_path: Path) -> None:
    """The asset would show what a job of a like name has, and nothing of its own."""
    state = dstl.build_state_asset("order", _of_blocks([None], within=False))
    changelog = dstl.ChangelogStorageResource(uri=tmp_path.as_uri())
    failed = dg.materialize([state], resources={"changelog": changelog}, raise_on_error=False)
    (event,) = (event for event in failed.all_events if event.is_step_failure)
    assert event.step_key == "order__state.complete"
    said = "has opened its batch with job='orders', and order/state is the state of job 'order'"
    assert said in event.step_failure_data.error.message  # type: ignore[union-attr]
    with pytest.raises(NotFoundError):
        dstl.read_state(tmp_path.as_uri(), "orders", "of block 0")


def _of_blocks(keys: list[str | None], within: bool, failing: bool = False) -> dg.OpDefinition:
    """An op with a block for each idempotency key, one after the other or `within` the first; `failing`: the
    first try of the first one does, and the op tries it once more.
    """

    @dg.op(out=dg.Out(dict))
    def blocks(context: dg.OpExecutionContext, changelog: dstl.ChangelogStorageResource) -> dict[str, Any]:
        with ExitStack() as open_blocks:
            for place, key in enumerate(keys):
                for goes_wrong in (True, False) if failing and not place else (False,):
                    with suppress(ValueError), ExitStack() as own:
                        block = changelog.checkpoint(context, "orders", idempotency_key=key)
                        batch = (open_blocks if within else own).enter_context(block)
                        if batch.already_in is None:
                            batch.write_state(
                                pa.table({"id": [1]}), operator=f"of block {place}", keys=["id"]
                            )
                        if goes_wrong:
                            raise ValueError("a mishap")
        return batch.reference

    return blocks


def _run_alone(op: dg.OpDefinition, store: str, completing: bool) -> dg.ExecuteInProcessResult:
    given = {"changelog": dstl.ChangelogStorageResource(uri=store)}
    if completing:
        return dstl.build_checkpoint_job("orders", op, resource_defs=given).execute_in_process(
            raise_on_error=False
        )
    return dg.GraphDefinition("alone", node_defs=[op]).execute_in_process(
        resources=given, raise_on_error=False
    )


@pytest.mark.parametrize(
    ("keys", "within", "completing", "says"),
    [
        (
            [None, None],
            False,
            False,
            "has begun a batch of job 'orders' in another block: .* idempotency_key of its own",
        ),
        ([None, None], True, False, "has begun a batch of job 'orders' in another block, and not"),
        ([None, None], False, True, "has begun a batch of job 'orders' in another block, and not"),
        (["a", "b"], False, True, "has begun a batch of job 'orders' in another block, and not"),
        (["a", "b"], True, False, "has begun a batch of job 'orders' in another block, and not"),
    ],
)
def test_a_second_block_in_place_of_the_first_is_refused(
    keys: list[str | None], within: bool, completing: bool, says: str, tmp_path: Path
) -> None:
    """It would find the batch applied, or end the first one's attempt as one of its own that had died."""
    failed = _run_alone(_of_blocks(keys, within), tmp_path.as_uri(), completing)
    (event,) = (event for event in failed.all_events if event.is_step_failure)
    assert event.step_key == "blocks"
    assert re.search(says, event.step_failure_data.user_failure_data.description)  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize("within", [False, True])
def test_a_batch_that_no_step_completes_is_refused(within: bool, tmp_path: Path) -> None:
    """One reference is handed on, of one of two jobs; the rows of the other would be in no checkpoint."""

    def op_of(outputs: int) -> dg.OpDefinition:
        @dg.op(out={f"of_{place}": dg.Out(dict) for place in range(outputs)})
        def both(
            context: dg.OpExecutionContext, changelog: dstl.ChangelogStorageResource
        ) -> Iterator[dg.Output[Any]]:
            with ExitStack() as open_blocks:
                references = []
                for job in ("customers", "orders"):
                    with ExitStack() as own:
                        entered = open_blocks if within else own
                        batch = entered.enter_context(changelog.checkpoint(context, job))
                        batch.write_state(pa.table({"id": [1]}), operator="rows", keys=["id"])
                        references.append(batch.reference)
            for place, reference in enumerate(references[-outputs:]):
                yield dg.Output(reference, f"of_{place}")

        return both

    failed = _run_alone(op_of(1), tmp_path.as_uri(), completing=True)
    (event,) = (event for event in failed.all_events if event.is_step_failure)
    said = event.step_failure_data.user_failure_data.description  # type: ignore[union-attr]
    assert re.search(r"hands on its batch of job '\w+' to a step that completes it, and that of job", said)  # type: ignore[arg-type]

    with_two, complete = op_of(2), [StepOps(prefix=f"{name}_").complete() for name in "ab"]

    @dg.job(resource_defs={"changelog": dstl.ChangelogStorageResource(uri=(tmp_path / "two").as_uri())})
    def each_by_an_output() -> None:
        for done, reference in zip(complete, with_two(), strict=True):
            done(reference)

    assert each_by_an_output.execute_in_process().success
    for job in ("customers", "orders"):
        assert dstl.read_state((tmp_path / "two").as_uri(), job, "rows").to_arrow().num_rows == 1


@pytest.mark.parametrize("failing", [False, True])
def test_blocks_of_their_own_are_batches(failing: bool, tmp_path: Path) -> None:
    """Each completes a checkpoint; one that has failed may be tried again."""
    assert _run_alone(_of_blocks(["a", "b"], False, failing), tmp_path.as_uri(), completing=False).success
    for place in range(2):
        state = dstl.read_state(tmp_path.as_uri(), "orders", f"of block {place}")
        assert state.to_arrow().num_rows == 1


def test_state_is_read_by_partition(days: "Days") -> None:
    """By the resource, in any asset; a day that has not run is no other day's state."""
    for day in ("2024-01-01", "2024-01-02"):
        assert days.run(day).success
    resource = days.resource()
    assert resource.read_state("days", "totals", "2024-01-01").to_arrow().num_rows == 1
    assert resource.read_state("days", "totals").to_arrow().num_rows == 2
    with pytest.raises(NotFoundError) as caught:
        resource.read_state("days", "totals", at="2024-01-03")
    assert caught.value.kind == ErrorKind.NO_CHECKPOINT


def test_the_names_of_the_package_can_be_looked_up() -> None:
    """`dir`, completion and `help` show what is public, with its text; so does the type of a batch."""
    assert {*dstl.__all__, "CheckpointBatch"} <= set(dir(dstl))
    found = dict(inspect.getmembers(dstl))
    assert [name for name in dstl.__all__ if name not in found] == []
    undocumented = [name for name in dstl.__all__ if not inspect.getdoc(found[name])]
    assert undocumented == []
