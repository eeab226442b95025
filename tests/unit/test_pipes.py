"""What Dagster hands to a process that writes a batch: read back as it was, or refused in one sentence."""

from __future__ import annotations

import json
import uuid
from typing import Any
from unittest.mock import MagicMock

import pytest

from dstl_dagster.checkpoint import Claim
from dstl_dagster.errors import DstlError, ErrorKind, FormatError, InvalidInputError
from dstl_dagster.pipes import EXTRA, HandedBatch, open_batch
from dstl_dagster.settings import JobOptions
from dstl_dagster.storage import Cost
from dstl_dagster.timeline import Attempt, BatchKey

ATTEMPT = Attempt(
    3, uuid.UUID(int=7), 2, "orders", "gs://bucket/state", BatchKey("2024-01-03"), snapshot_slot=64
)
HANDED = HandedBatch(
    ATTEMPT,
    Claim("inbox", "op:update", position="2024-01-04T00:00:00+00:00"),
    JobOptions.of({"dstl.dfs.upload.timeout": "5 min"}),
    Cost(class_a=1, class_b=2, seconds=0.5),
)


def travelled(handed: HandedBatch) -> dict[str, Any]:
    """As a message reader of Pipes brings it."""
    return json.loads(json.dumps(handed.to_extras()))


def test_a_batch_travels_as_json() -> None:
    """Everything of it, beside extras that are the caller's own."""
    found = HandedBatch.from_extras({"mine": 1, **travelled(HANDED)})
    assert found == HANDED
    assert found.attempt.snapshot_slot == 64  # not compared


def _with(**changed: Any) -> dict[str, Any]:
    return {EXTRA: {**travelled(HANDED)[EXTRA], **changed}}


@pytest.mark.parametrize(
    "extras",
    [
        pytest.param({EXTRA: "batch"}, id="text"),
        pytest.param({EXTRA: ["x" * 10_000]}, id="a long list"),
        pytest.param({EXTRA: {}}, id="nothing"),
        pytest.param(_with(version=0), id="version 0"),
        pytest.param(_with(version="1"), id="a version in words"),
        pytest.param(_with(version=True), id="true is no version"),
        pytest.param(_with(attempt=None), id="no attempt"),
        pytest.param(_with(attempt={"checkpoint_id": 1}), id="half an attempt"),
        pytest.param(_with(attempt={**ATTEMPT.to_json(), "attempt": "7"}), id="no UUID"),
        pytest.param(_with(claim=[["inbox", 1]]), id="a claim in a list"),
        pytest.param(_with(claim={"source": "inbox"}), id="half a claim"),
        pytest.param(_with(options={"dstl.dfs.upload.timeout": "soon"}), id="an option's value"),
        pytest.param(_with(options={"dstl.of.tomorrow": "1"}), id="an option of a later release"),
        pytest.param(_with(options={"dstl.dfs.upload.timeout": {}}), id="an option that is no text"),
        pytest.param(_with(trigger={"seconds": "x"}), id="a cost that is none"),
    ],
)
def test_what_is_no_batch_is_refused(extras: dict[str, Any]) -> None:
    """In one short sentence, before any store is opened."""
    with pytest.raises(InvalidInputError) as refused:
        open_batch(extras)
    assert len(refused.value.message) < 400


def test_a_batch_of_a_later_release_is_refused() -> None:
    """Even if all that is known of it looks right."""
    with pytest.raises(FormatError, match="Install the same release here") as refused:
        open_batch(_with(version=2))
    assert refused.value.kind == ErrorKind.NEWER_VERSION


@pytest.mark.parametrize(
    "pipes", [MagicMock(), None, object(), '{"dstl": {}}'], ids=["mock", "none", "object", "text"]
)
def test_a_process_that_nobody_launched_is_told_so(pipes: Any) -> None:
    """Outside of a launch, dagster-pipes hands out a mock, which has everything."""
    with pytest.raises(InvalidInputError, match=r"run it by `pipes\.run"):
        open_batch(pipes)


def test_a_launch_without_the_extras_says_where_they_are() -> None:
    """The likely slip: `extras=` was forgotten, or holds other things only."""
    with pytest.raises(DstlError, match=r"extras=batch\.extras"):
        open_batch({"day": "2024-01-03"})
