"""The prices of requests and of bytes read, and how much a checkpoint may cost: two frozen values.

Owns the keys, the defaults with their date. Does not own the requests that are counted, or
their sum in dollars (`storage.accounting`). Prices are in US dollars; no other currency is converted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from typing import ClassVar, Final, Self

from dstl_dagster.settings.option_table import KeyedOptions, option
from dstl_dagster.settings.units import (
    ConfigValue,
    parse_float,
    parse_int,
    parse_memory_size,
)

_PREFIX: Final = "dstl.prices."


def _parse_amount(key: str, value: ConfigValue) -> float:
    return parse_float(key, value, minimum=0)


@dataclass(frozen=True)
class StoragePrices(KeyedOptions):
    """List prices in US dollars. The defaults are Google's for Standard storage in one region.

    They leave out storage itself, early deletion, retrieval fees of colder classes and replication. Other
    locations and classes have other prices.

    Attributes:
        class_a_per_thousand, class_b_per_thousand: of that many operations.
        egress_per_gib: of 2^30 bytes read; 0 where the readers run in the bucket's own location.
        as_of: when these were the prices; `None` of a job's own.
        source: where they were found.
    """

    class_a_per_thousand: float = option(f"{_PREFIX}class-a-per-thousand", _parse_amount, 0.005)
    class_b_per_thousand: float = option(f"{_PREFIX}class-b-per-thousand", _parse_amount, 0.0004)
    egress_per_gib: float = option(f"{_PREFIX}egress-per-gib", _parse_amount, 0.0)
    as_of: date | None = date(2026, 9, 20)
    source: str = "https://cloud.google.com/storage/pricing"

    prefixes: ClassVar[tuple[str, ...]] = (_PREFIX,)

    @classmethod
    def free(cls) -> StoragePrices:
        """Of a store that bills no request, such as a folder."""
        return cls(0.0, 0.0, 0.0, None, source="a folder of this machine")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, ConfigValue]) -> Self:
        """As of `KeyedOptions`; prices that are set are of no day, and a job's own."""
        found = super().from_mapping(mapping)
        return found if found == cls() else replace(found, as_of=None, source=f"set by {_PREFIX}*")


@dataclass(frozen=True)
class CostBudget(KeyedOptions):
    """The most that one checkpoint may cost; `None`: no limit.

    Attributes:
        requests: of all classes.
        bytes: of objects' contents, up and down together.
        usd: at the prices in force.
    """

    requests: int | None = option("requests", partial(parse_int, minimum=0))
    bytes: int | None = option("bytes", parse_memory_size)
    usd: float | None = option("usd", _parse_amount)

    prefixes: ClassVar[tuple[str, ...]] = ("",)

    def __bool__(self) -> bool:
        return self != CostBudget()
