"""The prices of requests and of bytes read, and how much a checkpoint may cost: two frozen values.

Owns the keys, the defaults with their date. Does not own the requests that are counted, or
their sum in dollars (`storage.accounting`). Prices are in US dollars; no other currency is converted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings.table import Option, OptionTable
from dstl_dagster.settings.units import (
    ConfigValue,
    parse_float,
    parse_int,
    parse_memory_size,
    pick,
    refuse_unknown,
)

_PREFIX: Final = "dstl.prices."


def _parse_price(key: str, value: ConfigValue) -> float:
    return parse_float(key, value, minimum=0)


PRICE_KEYS: Final = OptionTable(
    (
        Option("class_a_per_thousand", f"{_PREFIX}class-a-per-thousand", _parse_price),
        Option("class_b_per_thousand", f"{_PREFIX}class-b-per-thousand", _parse_price),
        Option("egress_per_gib", f"{_PREFIX}egress-per-gib", _parse_price),
    )
)


@dataclass(frozen=True)
class StoragePrices:
    """List prices in US dollars. The defaults are Google's for Standard storage in one region.

    They leave out storage itself, early deletion, retrieval fees of colder classes and replication. Other
    locations and classes have other prices.

    Attributes:
        class_a_per_thousand, class_b_per_thousand: of that many operations.
        egress_per_gib: of 2^30 bytes read; 0 where the readers run in the bucket's own location.
        as_of: when these were the prices; `None` of a job's own.
        source: where they were found.
    """

    class_a_per_thousand: float = 0.005
    class_b_per_thousand: float = 0.0004
    egress_per_gib: float = 0.0
    as_of: date | None = date(2026, 9, 20)
    source: str = "https://cloud.google.com/storage/pricing"

    def __post_init__(self) -> None:
        for price in PRICE_KEYS.options:
            value = getattr(self, price.attribute)
            if not 0 <= value < float("inf"):  # so that NaN is refused too
                raise InvalidInputError(f"{price.key} must be 0 or more US dollars, not {value}")

    @classmethod
    def free(cls) -> StoragePrices:
        """Of a store that bills no request, such as a folder."""
        return cls(0.0, 0.0, 0.0, None, source="a folder of this machine")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, ConfigValue]) -> StoragePrices:
        """From configuration texts under `dstl.prices.*`; other keys are ignored.

        Raises: InvalidInputError naming the key.
        """
        refuse_unknown(mapping, PRICE_KEYS.spellings, (_PREFIX,))
        values = PRICE_KEYS.values(mapping)
        return cls(**values, as_of=None, source=f"set by {_PREFIX}*") if values else cls()

    def to_mapping(self) -> dict[str, str]:
        """Keys and texts that `from_mapping` reads back to the same prices; none for the defaults."""
        if self == StoragePrices():
            return {}
        return PRICE_KEYS.texts(
            {each.attribute: getattr(self, each.attribute) for each in PRICE_KEYS.options}
        )


@dataclass(frozen=True)
class CostBudget:
    """The most that one checkpoint may cost; `None`: no limit.

    Attributes:
        requests: of all classes.
        bytes: of objects' contents, up and down together.
        usd: at the prices in force.
    """

    requests: int | None = None
    bytes: int | None = None
    usd: float | None = None

    def __post_init__(self) -> None:
        for name in ("requests", "bytes", "usd"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise InvalidInputError(f"a budget's {name} must be 0 or more, not {value}")

    def __bool__(self) -> bool:
        return self != CostBudget()

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, ConfigValue]) -> CostBudget:
        """From `requests`, `bytes` (a size) and `usd`.

        Raises: InvalidInputError naming the key.
        """
        parsers: Mapping[str, Any] = {
            "requests": lambda key, value: parse_int(key, value, minimum=0),
            "bytes": parse_memory_size,
            "usd": lambda key, value: parse_float(key, value, minimum=0),
        }
        refuse_unknown(mapping, parsers, ("",))
        found = {name: pick(mapping, name) for name in parsers}
        return cls(**{name: parsers[name](*each) for name, each in found.items() if each is not None})
