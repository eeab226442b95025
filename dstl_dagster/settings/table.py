"""The keys of one component's options: each with its key, upstream's spelling of it, and parser.

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

Parse = Callable[[str, ConfigValue], Any]
"""From (key for messages, value given) to the value. Raises: InvalidInputError naming the key."""


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


class OptionTable:
    """All options of one component."""

    def __init__(self, options: Iterable[Option]) -> None:
        self.options = tuple(options)
        self.keys = frozenset(option.key for option in self.options)
        self.spellings = frozenset(each for option in self.options for each in option.spellings)

    def values(self, mapping: Mapping[str, ConfigValue]) -> dict[str, Any]:
        """The options in `mapping`, parsed, by attribute. A value of None counts as not given.

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
