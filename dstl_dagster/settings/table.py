"""The keys of one component's options: each with its canonical key, other spellings, and parser.

Owns looking values up under any spelling, and their form as text. Does not own any option (each settings
module has its table), nor the grammar of a value (`units`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

from dstl_dagster.settings.units import ConfigValue, pick

__all__ = ["Option", "OptionTable", "Parse"]

Parse = Callable[[str, ConfigValue], Any]
"""From (key for messages, value given) to the value. Raises: InvalidInputError naming the key."""


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        attribute: of the component's options; a spelling of the key as well.
        key: the canonical key.
        parse: of the canonical key and the attribute.
        aliases: other keys, with their parsers.
    """

    attribute: str
    key: str
    parse: Parse
    aliases: Mapping[str, Parse] = field(default_factory=dict)

    @cached_property
    def spellings(self) -> Mapping[str, Parse]:
        return {self.key: self.parse, **self.aliases, self.attribute: self.parse}


class OptionTable:
    """All options of one component."""

    def __init__(self, options: Iterable[Option]) -> None:
        self.options = tuple(options)
        self.keys = frozenset(option.key for option in self.options)
        self.spellings = frozenset(each for option in self.options for each in option.spellings)

    def values(self, mapping: Mapping[str, ConfigValue]) -> dict[str, Any]:
        """What `mapping` gives, parsed, by attribute. A value of None counts as not given.

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


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return f"{value // timedelta(microseconds=1)} us"
    if isinstance(value, tuple):
        return os.pathsep.join(map(str, value))
    return str(value)
