"""The events that `benchmarks/nexmark.py` measures with: in the published proportions, and from a seed."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def nexmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("nexmark_events")


def test_of_fifty_events_one_is_a_person_and_three_are_auctions(nexmark: Any) -> None:
    """In every fifty."""
    kinds = nexmark.events(100, 5_000, 7).column("kind").to_pylist()
    for first in range(0, 5_000, 50):
        found = Counter(kinds[first : first + 50])
        assert found == {nexmark.PERSON: 1, nexmark.AUCTION: 3, nexmark.BID: 46}


def test_ids_are_given_once_and_in_order_over_blocks(nexmark: Any) -> None:
    """A micro-batch goes on where the one before ended."""
    blocks = [nexmark.events(first, 1_000, 7).to_pandas() for first in (0, 1_000)]
    for kind, of_fifty in ((nexmark.PERSON, 1), (nexmark.AUCTION, 3)):
        ids = [int(each) for block in blocks for each in block[block.kind == kind].id]
        assert ids == list(range(1000, 1000 + 40 * of_fifty))


def test_bids_and_sellers_refer_to_what_came_before(nexmark: Any) -> None:
    """No bid is on an auction, and no auction by a person, that is still to come."""
    block = nexmark.events(0, 20_000, 7).to_pandas()
    people = block.id.where(block.kind == nexmark.PERSON).ffill()
    auctions = block.id.where(block.kind == nexmark.AUCTION).ffill().fillna(1000)
    assert (block.seller.dropna() <= people[block.seller.notna()]).all()
    assert (block.bidder.dropna() <= people[block.bidder.notna()]).all()
    assert (block.auction.dropna() <= auctions[block.auction.notna()]).all()


def test_a_seed_gives_the_same_events(nexmark: Any) -> None:
    """Another seed gives others."""
    assert nexmark.events(500, 500, 7) == nexmark.events(500, 500, 7)
    assert nexmark.events(500, 500, 7) != nexmark.events(500, 500, 8)
