"""What Dagster's page says of the job `days`, and what `dstl checkpoints` says of it: to be compared.

Owns both readings. The page is read by GraphQL, from definitions of its own; the command by its JSON. Neither
uses the package's code for events, so that a mistake there cannot hide itself. Does not own the reading of
what a browser renders (`tests/ui/rendered.py`), which serves the same definitions.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
from click.testing import CliRunner
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster._daemon.freshness import FreshnessDaemon
from dagster_graphql.schema import create_schema

from dstl_dagster import (
    ChangelogStorageResource,
    build_checkpoint_checks,
    build_maintenance,
    checkpoint_asset_specs,
)
from dstl_dagster.cli.checkpoints import checkpoints_group
from tests.dagster.days import DAYS, JOB, URI, build_state

ASSETS = (["days", "checkpoints"], ["days", "state"], ["days", "files"], ["days", "state", "totals"])
CHECK, BLOCKED = "manifest_readable", "no_blocked_files"
QUERY = """
query Page($keys: [AssetKeyInput!]!) {
  assetNodes(assetKeys: $keys) {
    assetKey { path }
    partitionKeys
    assetMaterializations(limit: 1) { metadataEntries { label ... on MarkdownMetadataEntry { mdStr } } }
    assetPartitionStatuses {
      ... on TimePartitionStatuses { ranges { startKey endKey status } }
    }
    freshnessStatusInfo { freshnessStatus }
    assetChecksOrError {
      ... on AssetChecks {
        checks { name executionForLatestMaterialization { status evaluation { description success } } }
      }
    }
  }
}
"""


@dataclass(frozen=True)
class Truth:
    """One side of the comparison.

    Attributes:
        newest: the checkpoint that the job resumes from, as each asset shows it.
        restorable: the checkpoints that can be restored to.
        in_state: the days that the state holds.
        published: the days all of whose files are published.
        checked: the last checkpoint is readable.
        blocked: a file of some checkpoint waits for a person.
        fresh: something was completed within the last day.
    """

    newest: dict[str, int | None]
    restorable: list[int]
    in_state: list[str]
    published: list[str]
    checked: bool
    blocked: bool
    fresh: bool


class Page:
    """Dagster's page over an instance, as its GraphQL answers it."""

    def __init__(self, process: WorkspaceProcessContext) -> None:
        self.process = process
        self._schema = create_schema()

    @classmethod
    @contextmanager
    def of(cls, instance: dg.DagsterInstance) -> Iterator[Page]:
        origin = InProcessCodeLocationOrigin(
            LoadableTargetOrigin(python_file=str(Path(__file__)), attribute="defs"), location_name="days"
        )
        with WorkspaceProcessContext(instance, InProcessWorkspaceLoadTarget(origin)) as process:
            yield cls(process)

    def says(self) -> Truth:
        """After the freshness daemon's look."""
        self.judge_freshness()
        nodes = {tuple(node["assetKey"]["path"]): node for node in self._ask()}
        checkpoints, state, files, operator = (nodes[tuple(path)] for path in ASSETS)
        checks = {each["name"]: each for each in checkpoints["assetChecksOrError"]["checks"]}
        done, free = (checks[name]["executionForLatestMaterialization"] for name in (CHECK, BLOCKED))
        return Truth(
            newest={
                "checkpoints": _newest(checkpoints),
                "state": _newest(state),
                "files": _newest(files),
                "totals": _newest(operator),
            },
            restorable=[int(key.removeprefix("chk-")) for key in checkpoints["partitionKeys"]],
            in_state=_days(state, "MATERIALIZED"),
            published=_days(files, "MATERIALIZED"),
            checked=done is not None and done["evaluation"]["success"],
            blocked=free is None or not free["evaluation"]["success"],
            fresh=checkpoints["freshnessStatusInfo"]["freshnessStatus"] == "HEALTHY",
        )

    def failed_days(self) -> list[str]:
        """Of the state."""
        (state,) = (node for node in self._ask() if node["assetKey"]["path"] == ASSETS[1])
        return _days(state, "FAILED")

    def judge_freshness(self) -> None:
        """One look of Dagster's freshness daemon."""
        list(FreshnessDaemon().run_iteration(self.process))

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """What a query or a mutation gives."""
        answer = asyncio.run(
            self._schema.execute_async(
                query, context_value=self.process.create_request_context(), variable_values=variables
            )
        ).formatted
        assert "errors" not in answer, answer["errors"]
        found: dict[str, Any] = answer["data"]
        return found

    def _ask(self) -> list[dict[str, Any]]:
        keys = [{"path": path} for path in ASSETS]
        nodes: list[dict[str, Any]] = self.answer(QUERY, {"keys": keys})["assetNodes"]
        return nodes


def _newest(node: dict[str, Any]) -> int | None:
    for event in node["assetMaterializations"]:
        for entry in event["metadataEntries"]:
            if entry["label"] == "checkpoint":
                return int(entry["mdStr"].removeprefix("[chk-").partition("]")[0])
    return None


def _days(node: dict[str, Any], status: str) -> list[str]:
    found: list[str] = []
    days = list(DAYS.get_partition_keys())
    for each in node["assetPartitionStatuses"]["ranges"]:
        if each["status"] == status:
            found += days[days.index(each["startKey"]) : days.index(each["endKey"]) + 1]
    return sorted(found)


def command_says(uri: str) -> Truth:
    """By `dstl checkpoints`: its timeline, which is folded here once more, its list and its audit."""

    def run(*arguments: str) -> str:
        where = {"DSTL_STORE": uri, "DSTL_JOB": "days"}
        result = CliRunner().invoke(checkpoints_group, [*arguments, "--json"], env=where)
        assert result.exception is None or arguments[0] == "audit", result.output
        return result.stdout

    batches: dict[int, str] = {}
    committed: dict[int, bool] = {}
    for line in run("timeline").splitlines():
        record = json.loads(line)
        number = record.get("checkpoint_id")
        if record["kind"] == "completed":
            batches[number] = None if record["batch"] is None else record["batch"]["key"]
        elif record["kind"] == "committed":
            committed[number] = not record.get("blocked")
        elif record["kind"] == "restored":
            batches = {each: day for each, day in batches.items() if each <= number}
    on_chain = {number: day for number, day in batches.items() if number in committed}
    audit = json.loads(run("audit"))
    latest = audit["latest"]
    published = {number: day for number, day in on_chain.items() if committed[number]}
    listed = [json.loads(line)["checkpoint_id"] for line in run("list").splitlines()]
    return Truth(
        newest={
            "checkpoints": latest,
            "state": max(on_chain, default=None),
            "files": max(published, default=None),
            "totals": latest,
        },
        restorable=listed,
        in_state=sorted(on_chain.values()),
        published=sorted(published.values()),
        checked=not audit["damage"],
        blocked=not all(committed.get(number, True) for number in listed),
        fresh=True,
    )


def differences(page: Truth, command: Truth) -> dict[str, tuple[Any, Any]]:
    """What the page shows and what is so, where they differ."""
    shown, so = asdict(page), asdict(command)
    return {name: (shown[name], so[name]) for name in so if shown[name] != so[name]}


defs = dg.Definitions(
    assets=[build_state(), *checkpoint_asset_specs(JOB, partitions_def=DAYS, freshness=timedelta(days=1))],
    asset_checks=[build_checkpoint_checks(JOB)],
    jobs=[build_maintenance(JOB, "restore", partitions_def=DAYS)],
    executor=dg.in_process_executor,
    resources={"changelog": ChangelogStorageResource(uri=dg.EnvVar(URI))},
)
