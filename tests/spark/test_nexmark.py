"""NEXMark's queries give in keyed state what Spark's own operators give, also after SIGKILL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(2400)]

ROOT = Path(__file__).parents[2]


def test_every_query_gives_the_same_rows_on_both_sides() -> None:
    """The benchmark in a small form: it fails if a row differs."""
    # A hundred seconds of events: bidders' sessions must end.
    sizes = ["--batches", "6", "--events", "20000"]
    command = [sys.executable, str(ROOT / "benchmarks" / "nexmark.py"), *sizes]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("both have the same") == 5
