"""NEXMark's events from a seed: 1 person, 3 auctions and 46 bids of every 50, in order of time.

Owns the events, and the files that a stream reads them from. Does not own the queries.

Made anew after the published description: of the auctions three quarters are of a hot seller, of the bids
half are on a hot auction and three quarters of a hot bidder, who change with every 100 persons or auctions;
the others are of the last 1,000 persons and on the last 100 auctions. 1,000 events are
a second of event time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["AUCTION", "BID", "EVENTS_SCHEMA", "PERSON", "events", "write_events"]

PERSON, AUCTION, BID = 0, 1, 2
EVENTS_SCHEMA: Final = (
    "kind INT, ts TIMESTAMP, id BIGINT, name STRING, city STRING, state STRING, seller BIGINT, category INT, "
    "auction BIGINT, bidder BIGINT, price BIGINT"
)
_PER_SECOND: Final = 1_000
_PERSONS, _AUCTIONS, _EPOCH = 1, 3, 50
_FIRST_ID, _FIRST_CATEGORY, _CATEGORIES = 1000, 10, 5
_HOT, _ACTIVE_PERSONS, _OPEN_AUCTIONS = 100, 1000, 100
_BEGAN_MICROSECONDS: Final = 1_767_225_600_000_000
_STATES: Final = np.array(["AZ", "CA", "ID", "OR", "WA", "WY"])
_CITIES: Final = np.array(
    ["Phoenix", "Palo Alto", "Boise", "Portland", "Bend", "Redmond", "Kent", "Cheyenne"]
)
_FIRST_NAMES: Final = np.array(["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah"])
_LAST_NAMES: Final = np.array(["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones"])

Integers = npt.NDArray[np.int64]


def events(first: int, count: int, seed: int) -> pa.Table:
    """Events number `first` to `first + count - 1`: always the same for the same arguments."""
    random = np.random.default_rng([seed, first])
    number = np.arange(first, first + count, dtype=np.int64)
    epoch, offset = number // _EPOCH, number % _EPOCH
    kind = np.where(offset < _PERSONS, PERSON, np.where(offset < _PERSONS + _AUCTIONS, AUCTION, BID))
    last_person = epoch  # each epoch begins with its person
    # The last one up to here: at an epoch's first event that of the epoch before.
    last_auction = epoch * _AUCTIONS + np.clip(offset, 0, _AUCTIONS) - 1
    seller = _chosen(random, last_person, 3 / 4, 0, _ACTIVE_PERSONS)
    bidder = _chosen(random, last_person, 3 / 4, 1, _ACTIVE_PERSONS)
    on = _chosen(random, np.maximum(last_auction, 0), 1 / 2, 0, _OPEN_AUCTIONS)
    person, auction, bid = kind == PERSON, kind == AUCTION, kind == BID

    def only(where: npt.NDArray[np.bool_], values: Any, type_: pa.DataType) -> pa.Array:
        return pa.array(values, type_, mask=~where)

    first_names, last_names = random.choice(_FIRST_NAMES, count), random.choice(_LAST_NAMES, count)
    names = np.char.add(np.char.add(first_names, " "), last_names)
    ids = np.where(person, last_person, last_auction) + _FIRST_ID
    ts = _BEGAN_MICROSECONDS + number * (1_000_000 // _PER_SECOND)
    categories = _FIRST_CATEGORY + random.integers(0, _CATEGORIES, count)
    prices = np.round(10 ** (random.random(count) * 6) * 100).astype(np.int64)
    return pa.table(
        {
            "kind": pa.array(kind, pa.int32()),
            "ts": pa.array(ts, pa.timestamp("us", "UTC")),
            "id": only(person | auction, ids, pa.int64()),
            "name": only(person, names, pa.string()),
            "city": only(person, random.choice(_CITIES, count), pa.string()),
            "state": only(person, random.choice(_STATES, count), pa.string()),
            "seller": only(auction, seller, pa.int64()),
            "category": only(auction, categories, pa.int32()),
            "auction": only(bid, on, pa.int64()),
            "bidder": only(bid, bidder, pa.int64()),
            "price": only(bid, prices, pa.int64()),
        }
    )


def _chosen(random: np.random.Generator, last: Integers, hot: float, shift: int, among: int) -> Integers:
    """For each event one of those so far: the hot one, or any of the last `among`."""
    hottest = np.minimum(last // _HOT * _HOT + shift, last)
    any_recent = last - (random.random(len(last)) * np.minimum(last + 1, among)).astype(np.int64)
    return np.where(random.random(len(last)) < hot, hottest, any_recent) + _FIRST_ID


def write_events(folder: Path, batches: int, batch_events: int, seed: int) -> None:
    """A Parquet file for each micro-batch."""
    folder.mkdir()
    for batch in range(batches):
        file = folder / f"{batch:05d}.parquet"
        pq.write_table(events(batch * batch_events, batch_events, seed), file)
        os.utime(file, (1e9 + batch, 1e9 + batch))  # the file source orders files by their modification time
