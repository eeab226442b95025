"""A wrapper forwards whatever the contract has, and declares what its inner store does."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dstl_dagster.storage import (
    ABSENT,
    LocalObjectStore,
    MemoryObjectStore,
    RangeReader,
    Source,
    WrapperStore,
)
from dstl_dagster.storage.base import (
    ObjectReader,
    ObjectStore,
    ObjectWriter,
)
from dstl_dagster.storage.wrapper import WrapperRanges, WrapperReader, WrapperWriter, unwrapped
from dstl_dagster.testing.fault_store import FaultStore
from tests.doubles.retrying_store import RetryingStore


def members(protocol: type) -> list[str]:
    """Every public method and property of a protocol, those it inherits included."""
    return sorted(
        {
            name
            for base in protocol.__mro__
            if base is not object
            for name, member in vars(base).items()
            if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
        }
    )


CASES = [
    pytest.param(protocol, wrapper, name, id=f"{protocol.__name__}.{name}")
    for protocol, wrapper in (
        (ObjectStore, WrapperStore),
        (ObjectWriter, WrapperWriter),
        (ObjectReader, WrapperReader),
        (RangeReader, WrapperRanges),
    )
    for name in members(protocol)
]


@pytest.mark.parametrize(("protocol", "wrapper", "name"), CASES)
def test_every_member_is_forwarded(protocol: type, wrapper: type, name: str) -> None:
    """Whatever the protocol has goes to the inner object with every argument, and its answer comes back."""
    inner = Mock(name="inner")
    wrapped = wrapper(inner)
    member = inspect.getattr_static(protocol, name)
    assert name in vars(wrapper), "declared by the wrapper itself, not inherited from the protocol's body"
    if isinstance(member, property):
        assert getattr(wrapped, name) is getattr(inner, name)
        return
    parameters = list(inspect.signature(member).parameters.values())[1:]
    given: dict[str, Any] = {each.name: object() for each in parameters}
    positional = [given[each.name] for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    keywords = {each.name: given[each.name] for each in parameters if each.kind is each.KEYWORD_ONLY}
    answer = getattr(wrapped, name)(*positional, **keywords)
    forwarded = getattr(inner, name)
    forwarded.assert_called_once()
    bound = inspect.signature(member).bind(None, *forwarded.call_args.args, **forwarded.call_args.kwargs)
    assert {key: bound.arguments[key] for key in given} == given
    if name in ("in_bucket", "counted_by"):
        assert isinstance(answer, wrapper)
        answer = answer.inner
    assert answer is forwarded.return_value or name in ("flush", "close", "abort")


@pytest.mark.parametrize("wrapper", [WrapperStore, FaultStore, RetryingStore])
def test_capabilities_survive_wrapping(wrapper: type[WrapperStore], tmp_path: Path) -> None:
    """However deep a store is wrapped, it declares what the store beneath does."""
    for store in (LocalObjectStore(tmp_path, durable=False), MemoryObjectStore()):
        wrapped = wrapper(WrapperStore(store))
        assert wrapped.capabilities is store.capabilities
        assert wrapped.in_bucket(store.bucket_name).capabilities is store.capabilities
        assert unwrapped(wrapped) is store


def test_copy_sees_through_wrappers() -> None:
    """Two wrapped stores of one kind copy between buckets as the stores beneath do."""
    source = MemoryObjectStore("one")
    target = WrapperStore(FaultStore(source.in_bucket("two")))
    source.put("a", b"abc", precondition=ABSENT)
    WrapperStore(source).copy(Source("a"), "b", to=target, precondition=ABSENT)
    assert target.get("b") == b"abc"
