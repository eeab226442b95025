"""docs/operations names every metric, and its hooks feed what they name."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.metrics import fan_out
from dstl_dagster.settings import FsStateChangelogOptions
from dstl_dagster.storage import ABSENT, MemoryObjectStore, open_store
from dstl_dagster.testing.fault_schedules import Fault, NoFaults, Request
from dstl_dagster.testing.fault_store import FaultStore
from tests.docs.pages import ROOT, blocks, chapters
from tests.unit.conftest import Job, KeyedJob

PAGE = "\n".join(page.read_text(encoding="utf-8") for page in chapters("operations"))


def test_every_metric_is_described() -> None:
    """By the names under which uploads measure."""
    source = (ROOT / "dstl_dagster" / "upload" / "metrics.py").read_text()
    names = set(re.findall(r'(?:_count\(|_observe\(|PREFIX \+ )"(\w+)"', source))
    assert len(names) >= 8
    assert [name for name in sorted(names) if f"`{name}`" not in PAGE] == []


def test_the_hooks_feed_prometheus_and_opentelemetry(tmp_path: Path) -> None:
    """One upload is counted, measured and gauged by both, with the libraries themselves."""
    if not os.environ.get("CI"):
        for each in ("prometheus_client", "opentelemetry.sdk"):
            pytest.importorskip(each)
    from opentelemetry.metrics import set_meter_provider
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from prometheus_client import REGISTRY

    set_meter_provider(MeterProvider([reader := InMemoryMetricReader()]))
    names: dict[str, Any] = {}
    for language, block, _ in blocks(ROOT / "docs" / "operations" / "watch.md"):
        if language == "python":
            exec(compile(block, "watch.md", "exec", dont_inherit=True), names)
    metrics = fan_out([names["PrometheusMetrics"](), names["OpenTelemetryMetrics"]()])
    store = open_store(tmp_path.as_uri())
    options = FsStateChangelogOptions(retry_policy="none")  # no second attempt beside one of over a second
    with (
        FsStateChangelogStorage("flights", store, options, metrics=metrics) as storage,
        storage.create_writer("delays", KeyGroupRange.of(0, 127)) as writer,
    ):
        writer.append(5, b"one change")
        writer.persist(writer.initial_sequence_number(), checkpoint_id=1).result()
        told = json.loads(reader.get_metrics_data().to_json())  # type: ignore[union-attr] # it was fed
        waiting = REGISTRY.get_sample_value("dstl_gauge", {"name": "ChangelogStorage.uploadQueueSize"})
    uploads = {"name": "ChangelogStorage.numberOfUploadRequests", "job": "flights"}
    sizes = uploads | {"name": "ChangelogStorage.uploadSizes"}
    assert waiting == 0
    assert REGISTRY.get_sample_value("dstl_counted_total", uploads) == 1
    assert REGISTRY.get_sample_value("dstl_measured_count", sizes) == 1
    (scope,) = told["resource_metrics"][0]["scope_metrics"]
    points = {each["name"]: each["data"]["data_points"] for each in scope["metrics"]}
    assert [each["value"] for each in points["dstl.counted"] if each["attributes"] == uploads] == [1]
    assert [each["count"] for each in points["dstl.measured"] if each["attributes"] == sizes] == [1]
    assert [each["value"] for each in points["dstl.gauge"]] == [0]


class _FirstUploadFails(NoFaults):
    failed = False

    def decide(self, request: Request) -> Fault | None:
        if self.failed or "/changelog/" not in request.name or not request.changes:
            return None
        self.failed = True
        return Fault.ERROR_BEFORE


def test_loggers_and_threads_have_the_names_of_the_page(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a job with an upload that is repeated, a file that is blocked, and a read of its state."""
    before = set(threading.enumerate())
    started: list[str] = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda it: (started.append(it.name), start(it)))
    store = FaultStore(MemoryObjectStore(), _FirstUploadFails())
    job = KeyedJob(store)
    with caplog.at_level(logging.INFO, "dstl_dagster"):
        attempt = job.coordinator.trigger()
        state = job.report(attempt, [{"tail": f"N{number}", "flights": number} for number in range(9)])
        file = Job(store).file(attempt, "out.txt", b"ours")
        job.coordinator.record(attempt, [state], [file])
        job.coordinator.confirm(attempt)
        store.put("out.txt", b"another's", precondition=ABSENT)
        job.coordinator.compose_commit()
        assert len(KeyedJob(store).rows()) == 9
    (section,) = re.findall(r"^## Logs and threads\n(.*?)^## ", PAGE, re.DOTALL | re.MULTILINE)
    logged = {(each.name.split(".")[1], each.levelname) for each in caplog.records}
    assert {("timeline", "INFO"), ("upload", "INFO"), ("checkpoint", "WARNING")} <= logged
    assert set(re.findall(r"`dstl_dagster\.(\w+)`", section)) == {"timeline", "upload", "checkpoint"}
    assert [name for name in started if not name.startswith("dstl-")] == []
    assert set(re.findall(r"`(dstl-[a-z-]+\w)`", section)) <= {name.partition("_")[0] for name in started}
    assert set(threading.enumerate()) <= before
