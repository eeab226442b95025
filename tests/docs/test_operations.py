"""docs/operations names every metric, and its hooks feed what they name."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from dstl_dagster.changelog import FsStateChangelogStorage
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.metrics import fan_out
from dstl_dagster.storage import open_store
from tests.docs.pages import ROOT, blocks, chapters

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
    with (
        FsStateChangelogStorage("flights", open_store(tmp_path.as_uri()), metrics=metrics) as storage,
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
