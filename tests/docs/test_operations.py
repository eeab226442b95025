"""docs/operations names every option and every metric."""

from __future__ import annotations

import re

from dstl_dagster.settings.job import _TABLES
from tests.docs.pages import ROOT, chapters

PAGE = "\n".join(page.read_text(encoding="utf-8") for page in chapters("operations"))
PREFIXES = (
    "dstl.dfs.",
    "dstl.state.materialize.",
    "dstl.checkpoint.",
    "dstl.prices.",
    "execution.checkpointing.",
    "execution.state-recovery.",
    "gs.",
)


def test_every_option_is_a_trade_off() -> None:
    """Each key, without the prefix that its group names."""
    for option in (each for table in _TABLES for each in table.options):
        (prefix,) = [each for each in PREFIXES if option.key.startswith(each)][:1]
        short = option.key.removeprefix(prefix)
        assert f"`{short}`" in PAGE or f"`.{short.rpartition('.')[2]}`" in PAGE, option.key


def test_every_metric_is_described() -> None:
    """By the names under which uploads measure."""
    source = (ROOT / "dstl_dagster" / "upload" / "metrics.py").read_text()
    names = set(re.findall(r'(?:_count\(|_observe\(|PREFIX \+ )"(\w+)"', source))
    assert len(names) >= 8
    assert [name for name in sorted(names) if f"`{name}`" not in PAGE] == []
