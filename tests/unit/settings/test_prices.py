"""Prices and budgets: from texts, and the arithmetic."""

from __future__ import annotations

import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings import CheckpointOptions, CostBudget, StoragePrices
from dstl_dagster.storage import Cost


def test_money_is_operations_and_bytes_read() -> None:
    prices = StoragePrices(class_a_per_thousand=5.0, class_b_per_thousand=0.4, egress_per_gib=0.12)
    assert Cost(class_a=1000).usd(prices) == pytest.approx(5.0)
    assert Cost(class_a=1, class_b=10, bytes_down=1 << 29).usd(prices) == pytest.approx(0.005 + 0.004 + 0.06)
    assert Cost(class_a=9, class_b=9, bytes_down=9).usd(StoragePrices.free()) == 0


def test_prices_are_options_of_the_job() -> None:
    """Under `dstl.prices.*`, wherever options of the coordinator go; the others keep their defaults."""
    given = {"dstl.prices.class-a-per-thousand": "0.01"}
    prices = CheckpointOptions.from_mapping(given).prices
    assert prices.class_a_per_thousand == 0.01
    assert prices.class_b_per_thousand == StoragePrices().class_b_per_thousand
    assert prices.as_of is None
    assert "google" not in prices.source
    assert CheckpointOptions.from_mapping({}).prices == StoragePrices()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"dstl.prices.class-a-per-thousand": "-1"}, "0 or more"),
        ({"dstl.prices.class-a-per-thousand": "cheap"}, "finite number"),
        ({"dstl.prices.class-a-per-thousands": "1"}, "did you mean dstl.prices.class-a-per-thousand"),
    ],
)
def test_a_mistake_names_the_key(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        CheckpointOptions.from_mapping(given)


@pytest.mark.parametrize("wrong", [-0.1, float("nan"), float("inf")])
def test_a_price_is_a_finite_amount(wrong: float) -> None:
    with pytest.raises(InvalidInputError, match="egress"):
        StoragePrices(egress_per_gib=wrong)


def test_a_budget_is_read_from_texts() -> None:
    assert CostBudget.from_mapping({"requests": "500", "bytes": "10 gb", "usd": "0.01"}) == CostBudget(
        500, 10 << 30, 0.01
    )
    assert not CostBudget.from_mapping({})
    assert CostBudget(requests=0)
    for wrong in ({"request": "1"}, {"requests": "-1"}, {"usd": "much"}):
        with pytest.raises(InvalidInputError, match=next(iter(wrong))):
            CostBudget.from_mapping(wrong)
    with pytest.raises(InvalidInputError, match="usd"):
        CostBudget(usd=float("nan"))
