"""The JSON form of a stored value: an object with its fields, each checked by its type when it is read.

Owns the form of each type that a field may have. Does not own the bytes of a document (`envelope`), nor the
values whose JSON is shorter than their fields: these have a `to_json` and a `from_json` of their own.

    bool, str, Any          themselves
    int                     a whole number of 0 or more; a `Signed` may be negative
    float                   a number
    UUID, datetime, bytes   text; bytes as Base64
    an enum                 its value
    X | None                null, or as X
    tuple[X, ...]           a list, as of a Sequence[X] and a tuple[X, Y]
    Mapping[str, X]         an object
    a dataclass             an object with all of its fields; others, of a later release, are ignored
"""

from __future__ import annotations

import base64
import dataclasses
import types
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import cache, partial
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from dstl_dagster.format.envelope import reading

T = TypeVar("T")

Signed: TypeAlias = Annotated[int, "may be negative"]
"""The type of a stored whole number that may be below 0."""

NOT_STORED: Final[Mapping[str, Any]] = types.MappingProxyType({"stored": False})
"""The `metadata` of a field that its class stores otherwise, or not at all."""


class Stored:
    """A dataclass that is stored as its fields."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """A plain JSON object with its fields."""
        return to_fields(self)

    @classmethod
    def from_json(cls, plain: Any) -> Self:
        """Inverse of `to_json`. Raises: FormatError."""
        with reading(f"a stored {cls.__name__} is not valid"):
            return from_fields(cls, plain)


def to_fields(value: Any) -> dict[str, Any]:
    """The stored fields of a dataclass as plain JSON, by name."""
    kind: Any = type(value)
    return _write(_forms_of(kind), value)


def from_fields(kind: type[T], plain: Any, **others: Any) -> T:
    """Inverse of `to_fields`, in a block of `reading`. `others`: fields that are not in `plain`.

    Raises: ValueError, TypeError or LookupError for a field that is missing, or not of its type.
    """
    stored: Any = kind
    found: T = _read(stored, _forms_of(stored), plain, **others)
    return found


class _Form(NamedTuple):
    """A value of one type to plain JSON, and back. `read` raises TypeError, ValueError, LookupError."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def whole_number(plain: Any) -> int:
    """A stored number of 0 or more. Raises: ValueError."""
    if isinstance(plain, bool) or not isinstance(plain, int) or plain < 0:
        raise ValueError(f"{plain!r} is not a whole number of 0 or more")
    return plain


def plain_list(plain: Any) -> list[Any]:
    """A stored list, and nothing else that has items or none. Raises: ValueError."""
    if not isinstance(plain, list):
        raise ValueError(f"{plain!r} is not a list")
    return plain


def plain_object(plain: Any) -> dict[str, Any]:
    """A stored object, and nothing else that has items or none. Raises: ValueError."""
    if not isinstance(plain, dict):
        raise ValueError(f"{plain!r} is not an object")
    return plain


def _signed(plain: Any) -> int:
    if isinstance(plain, bool) or not isinstance(plain, int):
        raise ValueError(f"{plain!r} is not a whole number")
    return plain


def _number(plain: Any) -> float:
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise ValueError(f"{plain!r} is not a number")
    return float(plain)


def _only(kind: type) -> Callable[[Any], Any]:
    def same(plain: Any) -> Any:
        if not isinstance(plain, kind):
            raise ValueError(f"{plain!r} is not a {kind.__name__}")
        return plain

    return same


def _as_it_is(value: Any) -> Any:
    return value


_FORMS: Final[dict[Any, _Form]] = {
    Any: _Form(_as_it_is, _as_it_is),
    bool: _Form(_as_it_is, _only(bool)),
    str: _Form(_as_it_is, _only(str)),
    int: _Form(_as_it_is, whole_number),
    Signed: _Form(_as_it_is, _signed),
    float: _Form(_as_it_is, _number),
    uuid.UUID: _Form(str, uuid.UUID),
    datetime: _Form(datetime.isoformat, datetime.fromisoformat),
    bytes: _Form(
        lambda octets: base64.b64encode(octets).decode("ascii"),
        lambda text: base64.b64decode(text, validate=True),
    ),
}


@cache
def _form_of(kind: Any) -> _Form:
    if kind in _FORMS:
        return _FORMS[kind]
    if hasattr(kind, "from_json"):
        return _Form(lambda value: value.to_json(), lambda plain: kind.from_json(plain))
    if hasattr(kind, "__dataclass_fields__"):
        of_fields = _forms_of(kind)
        return _Form(partial(_write, of_fields), partial(_read, kind, of_fields))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _Form(lambda member: member.value, kind)
    origin, (first, *others) = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType) and others == [types.NoneType]:
        write, read = _form_of(first)
        return _Form(
            lambda value: None if value is None else write(value),
            lambda plain: None if plain is None else read(plain),
        )
    if origin is Sequence or (origin is tuple and others == [Ellipsis]):
        write, read = _form_of(first)
        return _Form(lambda values: [*map(write, values)], lambda plain: tuple(map(read, plain_list(plain))))
    if origin is tuple:
        forms = [*map(_form_of, (first, *others))]
        return _Form(
            lambda values: [form.write(value) for form, value in zip(forms, values, strict=True)],
            lambda plain: tuple(form.read(each) for form, each in zip(forms, plain_list(plain), strict=True)),
        )
    if origin is Mapping and first is str:
        write, read = _form_of(others[0])
        return _Form(
            lambda values: {name: write(value) for name, value in values.items()},
            lambda plain: {name: read(each) for name, each in plain_object(plain).items()},
        )
    raise TypeError(f"no stored value has the type {kind}")


@cache
def _forms_of(kind: Any) -> Mapping[str, _Form]:
    """The form of each stored field of a dataclass, by name."""
    hints = get_type_hints(kind, include_extras=True)
    stored = (each.name for each in dataclasses.fields(kind) if each.metadata.get("stored", True))
    return {name: _form_of(hints[name]) for name in stored}


def _write(forms: Mapping[str, _Form], value: Any) -> dict[str, Any]:
    return {name: form.write(getattr(value, name)) for name, form in forms.items()}


def _read(kind: Any, forms: Mapping[str, _Form], plain: Any, **others: Any) -> Any:
    return kind(**others, **{name: form.read(plain[name]) for name, form in forms.items()})
