"""Options as fields of a dataclass: each with its key, upstream's spelling of it, its parser and its default.

Owns reading them from a mapping under any spelling, checking them however they are set, and their form as
text. Does not own any option (each settings module has its class), nor the grammar of a value (`units`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache, cached_property
from typing import Any, ClassVar, Final, Self

from dstl_dagster.settings.units import ConfigValue, pick, refuse_unknown

Parse = Callable[[str, ConfigValue], Any]
"""From (key for messages, value set) to the value. Raises: InvalidInputError naming the key."""
_OPTION: Final = "option"


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        attribute: of the component's options.
        key: ours, or upstream's where that is not longer.
        parse: of the key.
        upstreams: upstream's spellings of the key, with their parsers.
    """

    attribute: str
    key: str
    parse: Parse
    upstreams: Mapping[str, Parse] = field(default_factory=dict)

    @cached_property
    def spellings(self) -> Mapping[str, Parse]:
        return {self.key: self.parse, **self.upstreams}


def option(key: str, parse: Parse, default: Any = None, upstreams: Mapping[str, Parse] | None = None) -> Any:
    """A field of `KeyedOptions`. `None` as its value means that nothing is set, and is not parsed."""
    return field(default=default, metadata={_OPTION: (key, parse, upstreams or {})})


class OptionTable:
    """All options of one component."""

    def __init__(self, options: Iterable[Option]) -> None:
        self.options = tuple(options)
        self.spellings = frozenset(each for option in self.options for each in option.spellings)

    def values(self, mapping: Mapping[str, ConfigValue]) -> dict[str, Any]:
        """The options in `mapping`, parsed, by attribute. A value of None counts as not set.

        Raises: InvalidInputError for a value that cannot be parsed, or two spellings of one option.
        """
        found: dict[str, Any] = {}
        for option in self.options:
            picked = pick(mapping, *option.spellings)
            if picked is not None:
                found[option.attribute] = option.spellings[picked[0]](*picked)
        return found

    def texts(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Values by attribute as texts by canonical key, which `values` reads back. None is left out."""
        by_attribute = {option.attribute: option.key for option in self.options}
        return {by_attribute[name]: _text(value) for name, value in values.items() if value is not None}

    def changed(self, options: object, defaults: object) -> dict[str, str]:
        """Those that differ from the defaults, as `texts`."""
        values = {each.attribute: getattr(options, each.attribute) for each in self.options}
        return self.texts({name: each for name, each in values.items() if each != getattr(defaults, name)})


@dataclass(frozen=True)
class KeyedOptions:
    """A base of frozen options. A field that `option` declares is parsed however it is set."""

    prefixes: ClassVar[tuple[str, ...]] = ()
    """Of its keys: an unknown key that begins with one is a slip, any other is another component's."""

    def __post_init__(self) -> None:
        for each in self.table().options:
            value = getattr(self, each.attribute)
            if value is not None:
                object.__setattr__(self, each.attribute, each.parse(each.key, value))

    @classmethod
    @cache
    def table(cls) -> OptionTable:
        declared = [(each.name, each.metadata[_OPTION]) for each in fields(cls) if _OPTION in each.metadata]
        return OptionTable(Option(name, *declaration) for name, declaration in declared)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, ConfigValue]) -> Self:
        """Options from strings or typed values under our keys or upstream's.

        Keys of other components are ignored, as in a whole Flink configuration. None counts as not set.

        Raises: InvalidInputError naming the key, also for an unknown one under our prefixes.
        """
        refuse_unknown(mapping, cls.table().spellings, cls.prefixes)
        return cls(**cls.table().values(mapping))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return f"{value // timedelta(microseconds=1)} us"
    if isinstance(value, tuple):
        return os.pathsep.join(map(str, value))
    return str(value)
