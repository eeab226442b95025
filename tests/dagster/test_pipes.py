"""`changelog.pipes_checkpoint`: what Dagster does around a driver elsewhere, whatever that does.

The drivers here are functions that get the extras as Pipes brings them: as JSON, in another process or not.
"""

# No postponed annotations here: Dagster reads the types of an op's arguments as objects.

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_pipes import (
    PipesCliArgsParamsLoader,
    PipesEnvVarParamsLoader,
    PipesParamsLoader,
    open_dagster_pipes,
)

import dstl_dagster as dstl
from dstl_dagster.checkpoint import CheckpointCoordinator, Claim
from dstl_dagster.errors import FencedError, InvalidInputError, NotFoundError, UnavailableError
from dstl_dagster.pipes import HandedBatch, open_batch
from dstl_dagster.storage import open_store
from tests.dagster.pipes_driver import CONTENT, NAME, write_file

pytestmark = [
    pytest.mark.dagster,
    pytest.mark.filterwarnings("ignore:Function `PipesMessageReader:Warning"),  # of Dagster's own
]

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-04")
JOB = dstl.JobAssets("orders")
Driver = Callable[[dict[str, Any]], None]


def hand_over(extras: Any) -> None:
    with open_batch(extras) as batch:
        write_file(batch)


def hand_over_nothing(extras: dict[str, Any]) -> None:
    with open_batch(extras):
        pass


class Orders:
    """The job `orders`, whose days are written by `driver`."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.uri = (folder / "store").as_uri()
        self.instance = instance
        self.launched: list[dict[str, Any]] = []

    @property
    def coordinator(self) -> CheckpointCoordinator:
        return CheckpointCoordinator("orders", open_store(self.uri), owner="the test")

    def kinds(self) -> list[str]:
        return [record.kind for record in self.coordinator.timeline.records()]

    def run(
        self, driver: Driver, day: str = "2024-01-01", uri: str | None = None
    ) -> dg.ExecuteInProcessResult:
        launched = self.launched

        @dg.op(out=dg.Out(dict), retry_policy=dg.RetryPolicy(max_retries=1))
        def update(
            context: dg.OpExecutionContext, changelog: dstl.ChangelogStorageResource
        ) -> dg.Output[dict]:  # type: ignore[type-arg]
            with changelog.pipes_checkpoint(context, "orders", source="inbox") as batch:
                if batch.already_in is None:
                    launched.append(json.loads(json.dumps(batch.extras)))
                    driver(launched[-1])
            return batch.reference

        options = {"dstl.dfs.compression": "none"}
        return dg.materialize(
            [dstl.build_state_asset(JOB, update, partitions_def=DAYS)],
            partition_key=day,
            instance=self.instance,
            resources={"changelog": dstl.ChangelogStorageResource(uri=uri or self.uri, options=options)},
            raise_on_error=False,
        )

    def said(self, result: dg.ExecuteInProcessResult) -> str:
        """All that the run logged, and why it failed."""
        lines = [entry.user_message for entry in self.instance.all_logs(result.run_id)]
        failed = [event.step_failure_data for event in result.all_events if event.is_step_failure]
        whys = [each.user_failure_data.description for each in failed if each.user_failure_data]
        return "\n".join([*lines, *map(str, whys)])


@pytest.fixture
def orders(tmp_path: Path) -> Any:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Orders(tmp_path, instance)


def test_a_day_is_written_elsewhere_and_completed_here(orders: Orders) -> None:
    """The lineage is that of any checkpoint: parent, position, options, file, cost, and events."""
    assert orders.run(hand_over).success
    assert orders.run(hand_over_nothing, "2024-01-02").success
    one, two = orders.coordinator.list()
    assert (two.parent, two.positions) == (one.checkpoint_id, {"inbox": "2024-01-03T00:00:00+00:00"})
    assert orders.coordinator.store.get(NAME) == CONTENT
    assert orders.launched[0]["dstl"]["options"] == {"dstl.dfs.compression": "none"}
    assert two.manifest.cost is not None
    assert list(two.manifest.cost.steps)[:2] == ["trigger", "persist"]
    key = dg.AssetKey(["orders", "checkpoints"])
    assert len(orders.instance.fetch_materializations(key, limit=10).records) == 2
    kinds = ["opened", "completed", "committed"]
    assert orders.kinds() == kinds * 2


def test_the_run_page_tells_what_was_written_elsewhere(orders: Orders) -> None:
    """Steps 1 to 3 by number, as for a batch that is written here."""
    said = orders.said(orders.run(hand_over))
    for line in ("step 1 trigger: checkpoint 1", f"step 2 append: file {NAME}", "step 3 persist: 0 changed"):
        assert line in said


def test_nothing_is_launched_for_a_day_that_is_done(orders: Orders) -> None:
    """A second run changes nothing, and says so."""
    assert orders.run(hand_over).success
    before = orders.kinds()
    again = orders.run(hand_over)
    assert again.success
    assert "already in checkpoint 1" in orders.said(again)
    assert (len(orders.launched), orders.kinds()) == (1, before)


def test_a_day_out_of_order_is_refused_before_a_launch(orders: Orders) -> None:
    """Dagster's side knows the partitions, the other does not."""
    result = orders.run(hand_over, "2024-01-02")
    assert "out of order" in orders.said(result)
    assert (orders.launched, orders.kinds()) == ([], [])


def test_a_driver_that_fails_is_launched_again_under_a_new_attempt(orders: Orders) -> None:
    """With its work durable: none of it counts."""

    def once(extras: dict[str, Any]) -> None:
        with open_batch(extras) as batch:
            write_file(batch)
            if len(orders.launched) == 1:
                raise UnavailableError("the cluster is gone")

    assert orders.run(once).success
    assert orders.kinds() == ["opened", "aborted", "opened", "completed", "committed"]


def test_a_refusal_elsewhere_is_not_tried_again(orders: Orders) -> None:
    """A user's mistake is told on Dagster's page, in the words of the other process."""

    def refuse(extras: dict[str, Any]) -> None:
        try:
            with open_batch(extras):
                raise InvalidInputError("column 'x' is missing")
        except InvalidInputError as error:
            raise RuntimeError("process failed with code 1") from error

    result = orders.run(refuse)
    assert not result.success
    assert "InvalidInputError: column 'x' is missing" in orders.said(result)
    assert (len(orders.launched), orders.kinds()) == (1, ["opened", "aborted"])


@pytest.mark.parametrize("driver", [lambda _: None, lambda extras: open_batch(extras)], ids=["no", "unused"])
def test_a_process_that_hands_nothing_over_is_an_error(orders: Orders, driver: Driver) -> None:
    """It would be an empty checkpoint otherwise, and the day would count as done."""
    result = orders.run(driver)
    assert not result.success
    assert "`with open_batch(pipes) as batch:`" in orders.said(result)
    assert orders.kinds() == ["opened", "aborted"]


def test_a_store_that_only_dagster_sees_is_refused(orders: Orders) -> None:
    """Before an attempt opens."""
    result = orders.run(hand_over, uri="memory://elsewhere/job")
    assert "cannot see memory://elsewhere" in orders.said(result)
    assert orders.launched == []


def test_a_machine_that_sees_another_store_is_told(orders: Orders) -> None:
    """Such as a folder of its own under the same name: writing there would lose the batch."""

    def elsewhere(extras: dict[str, Any]) -> None:
        extras["dstl"]["attempt"]["store_uri"] += "-of-another-machine"
        with pytest.raises(NotFoundError, match="or this is another store"):
            hand_over(extras)

    assert "handed to no process" in orders.said(orders.run(elsewhere))


def test_a_driver_started_again_after_its_hand_over_writes_nothing(orders: Orders) -> None:
    """As YARN starts one whose machine died on leaving. Its work is done: it neither fails nor repeats it."""

    def twice(extras: dict[str, Any]) -> None:
        hand_over(extras)
        with open_batch(extras) as batch:
            assert batch.already_in == 1

    assert orders.run(twice).success
    assert orders.kinds() == ["opened", "completed", "committed"]
    with open_batch(orders.launched[0]) as batch:  # long after
        assert batch.already_in == 1


class Launched:
    """What `open_dagster_pipes()` yields, of which a process has one."""

    def __init__(self, extras: dict[str, Any]) -> None:
        self.extras = extras


def test_a_second_block_of_a_driver_is_refused(orders: Orders) -> None:
    """It would find the work of the first, and write nothing; after one that failed it does all."""

    def twice(extras: dict[str, Any]) -> None:
        pipes = Launched(extras)
        hand_over(pipes)
        hand_over(pipes)

    def once_more(extras: dict[str, Any]) -> None:
        pipes = Launched(extras)
        with suppress(OSError), open_batch(pipes):
            raise OSError("a mishap")
        hand_over(pipes)

    said = orders.said(orders.run(twice))
    assert "has handed its batch over in an earlier block" in said
    assert orders.kinds() == ["opened", "aborted"]
    assert orders.run(once_more).success


def test_of_two_drivers_at_once_one_report_counts(orders: Orders) -> None:
    """A platform's second try beside a zombie of the first: neither fails, and one is it."""

    def race(extras: dict[str, Any]) -> None:
        with open_batch(extras) as late:
            write_file(late, content=b"of the one that came late")
            hand_over(extras)

    assert orders.run(race).success
    assert orders.coordinator.store.get(NAME) == CONTENT
    assert orders.kinds() == ["opened", "completed", "committed"]


def test_a_zombie_that_fails_does_not_end_what_another_driver_handed_over(orders: Orders) -> None:
    """The attempt is Dagster's to end: the driver may be the platform's first of two."""

    def race(extras: dict[str, Any]) -> None:
        def cut_off() -> None:
            with open_batch(extras):
                hand_over(extras)
                raise UnavailableError("cut off")

        with pytest.raises(UnavailableError):
            cut_off()

    assert orders.run(race).success
    assert orders.kinds() == ["opened", "completed", "committed"]


def test_a_driver_of_a_dead_attempt_stops_before_it_works(orders: Orders) -> None:
    """It came up hours later, when its attempt was long aborted."""
    orders.run(lambda _: None)
    with (
        pytest.raises(FencedError, match="nothing it wrote can be published"),
        open_batch(orders.launched[0]),
    ):
        pytest.fail("it would write for nothing")


def test_both_forms_in_which_clients_pass_the_context(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Variables of the environment (a process, a new cluster of Databricks) and arguments of the program
    (Dataproc, a cluster that exists): the whole context goes in them, or in a file that they name.
    """
    injectors = [dg.PipesEnvContextInjector(), dg.PipesFileContextInjector(str(tmp_path / "context"))]
    found: list[str] = []

    @dg.op
    def launch(context: dg.OpExecutionContext) -> None:
        for injector in injectors:
            extras = HandedBatch(orders.coordinator.trigger(True), Claim("inbox", "op:hand_over")).to_extras()
            reader = dg.PipesTempFileMessageReader()
            with dg.open_pipes_session(context, injector, reader, extras=extras) as session:
                with monkeypatch.context() as patch:
                    patch.setattr("dagster_pipes.PipesContext._instance", None)  # one for each process
                    for name, value in session.get_bootstrap_env_vars().items():
                        patch.setenv(name, value)
                    found.append(_taken_up(PipesEnvVarParamsLoader()))
                with monkeypatch.context() as patch:
                    patch.setattr("dagster_pipes.PipesContext._instance", None)
                    arguments = session.get_bootstrap_cli_arguments().items()
                    patch.setattr("sys.argv", ["driver.py", *(part for pair in arguments for part in pair)])
                    found.append(_taken_up(PipesCliArgsParamsLoader()))

    @dg.job
    def launches() -> None:
        launch()

    assert launches.execute_in_process().success
    opened = [record.attempt for record in orders.coordinator.timeline.records() if record.kind == "opened"]
    assert found == [str(attempt) for attempt in opened for _ in range(2)]


def _taken_up(params: PipesParamsLoader) -> str:
    """The attempt that a program finds which is started so."""
    with open_dagster_pipes(params_loader=params) as pipes:
        return str(HandedBatch.from_extras(pipes.extras).attempt.attempt)
