"""Parsing configuration values: sizes, durations, booleans, numbers.

Owns the grammar of single values and the lookup of a key by its upstream spelling or ours. Does not own any
option: each settings module names its keys.

Source: Flink's `MemorySize` and `TimeUtils`. Size units are powers of two (`1kb` is 1,024 bytes). A bare
number is bytes in a size, milliseconds in a duration.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta

from dstl_dagster.errors import InvalidInputError

ConfigValue = object
"""A string as in a configuration file, or a value that already has the right type."""

_QUANTITY = re.compile(r"([0-9]{1,20})\s*([^\W\d_]*)", re.UNICODE)

_SIZE_UNITS: Mapping[str, int] = {
    unit: 1 << shift
    for shift, units in (
        (0, ("", "b", "bytes")),
        (10, ("k", "kb", "kibibytes")),
        (20, ("m", "mb", "mebibytes")),
        (30, ("g", "gb", "gibibytes")),
        (40, ("t", "tb", "tebibytes")),
    )
    for unit in units
}

_NANOS_PER_UNIT: Mapping[str, int] = {
    unit: nanos
    for nanos, units in (
        (86_400 * 10**9, ("d", "day", "days")),
        (3_600 * 10**9, ("h", "hour", "hours")),
        (60 * 10**9, ("min", "m", "minute", "minutes")),
        (10**9, ("s", "sec", "secs", "second", "seconds")),
        (10**6, ("", "ms", "milli", "millis", "millisecond", "milliseconds")),
        # Both micro signs: U+00B5 is what keyboards send, U+03BC is the Greek letter.
        (10**3, ("us", "\u00b5s", "\u03bcs", "micro", "micros", "microsecond", "microseconds")),
        (1, ("ns", "nano", "nanos", "nanosecond", "nanoseconds")),
    )
    for unit in units
}

_LONG_MAX = 2**63 - 1
_MOST_METADATA_BYTES = 4096


def parse_memory_size(key: str, value: ConfigValue, *, minimum: int = 0) -> int:
    """Bytes (`minimum` or more) from `5MB`, `64 kb`, `1024`, or an int of bytes.

    Raises: InvalidInputError naming `key`.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        number, unit = _split(key, value, "a size such as '5MB' or '512kb'")
        if unit not in _SIZE_UNITS:
            raise _wrong(key, value, f"{unit!r} is not a unit of size; use b, kb, mb, gb or tb")
        size = number * _SIZE_UNITS[unit]
    if not minimum <= size <= _LONG_MAX:
        raise _wrong(key, value, f"a size must be between {minimum} and 2^63-1 bytes")
    return size


class MemorySize(int):
    """A number of bytes, for wherever an option takes a size."""

    @classmethod
    def parse(cls, text: str) -> MemorySize:
        """Bytes from `5MB`, `64 kb`, `1024`. Raises: InvalidInputError."""
        return cls(parse_memory_size("MemorySize.parse", text))

    @property
    def bytes(self) -> int:
        """The number of bytes."""
        return int(self)


def parse_duration(key: str, value: ConfigValue) -> timedelta:
    """A duration of 0 or more from `10 ms`, `30s`, `1 min`, `2 h`, a bare number of milliseconds, or a
    timedelta. Truncated to whole microseconds.

    Raises: InvalidInputError naming `key`.
    """
    if isinstance(value, timedelta):
        duration = value
    else:
        if isinstance(value, int) and not isinstance(value, bool):
            number, unit = value, ""
        else:
            number, unit = _split(key, value, "a duration such as '30s' or '10 ms'")
        if unit not in _NANOS_PER_UNIT:
            raise _wrong(key, value, f"{unit!r} is not a unit of time; use d, h, min, s, ms, us or ns")
        nanos = number * _NANOS_PER_UNIT[unit]
        if nanos > _LONG_MAX:
            raise _wrong(key, value, "a duration is at most 2^63-1 nanoseconds (292 years)")
        duration = timedelta(microseconds=nanos // 1_000)
    if duration < timedelta(0):
        raise _wrong(key, value, "a duration cannot be negative")
    return duration


def parse_bool(key: str, value: ConfigValue) -> bool:
    """`true` or `false` in any case, or a bool. Raises: InvalidInputError naming `key`."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise _wrong(key, value, "expected true or false")


def parse_int(key: str, value: ConfigValue, *, minimum: int | None = None) -> int:
    """A whole number of `minimum` or more. Raises: InvalidInputError naming `key`."""
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,20}", value.strip()):
        number = int(value.strip())
    else:
        raise _wrong(key, value, "expected a whole number")
    if minimum is not None and number < minimum:
        raise _wrong(key, value, f"expected {minimum} or more")
    return number


def parse_count(key: str, value: ConfigValue) -> int:
    """A whole number of 1 or more. Raises: InvalidInputError naming `key`."""
    return parse_int(key, value, minimum=1)


def parse_float(key: str, value: ConfigValue, *, minimum: float | None = None) -> float:
    """A finite number of `minimum` or more. Raises: InvalidInputError naming `key`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
    else:
        try:
            number = float(str(value).strip()) if isinstance(value, str) else float("nan")
        except ValueError:
            number = float("nan")
    if number != number or number in (float("inf"), float("-inf")):
        raise _wrong(key, value, "expected a finite number")
    if minimum is not None and number < minimum:
        raise _wrong(key, value, f"expected {minimum:g} or more")
    return number


def parse_text(key: str, value: ConfigValue) -> str:
    """A non-blank string, stripped. Raises: InvalidInputError naming `key`."""
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise _wrong(key, value, "expected a non-blank string")


def parse_user_metadata(key: str, value: ConfigValue) -> str:
    """Text of at most 4 KiB. Raises: InvalidInputError naming `key`."""
    text = parse_text(key, value)
    size = len(text.encode("utf-8", "replace"))
    if size > _MOST_METADATA_BYTES:
        raise _wrong(key, f"{text[:40]}...", f"expected at most {_MOST_METADATA_BYTES} bytes, not {size}")
    return text


def parse_choice(key: str, value: ConfigValue, choices: tuple[str, ...]) -> str:
    """One of these words, in any case of letters. Raises: InvalidInputError naming `key`."""
    chosen = parse_text(key, value).lower()
    if chosen not in choices:
        raise _wrong(key, value, f"expected {', '.join(choices[:-1])} or {choices[-1]}")
    return chosen


def parse_names(key: str, value: ConfigValue) -> tuple[str, ...]:
    """Names in a list, a tuple or a set. A text is refused: its letters would each be a name.

    Raises: InvalidInputError naming `key`.
    """
    if isinstance(value, str | bytes):
        raise _wrong(key, value, f"expected names in a list, such as [{value!r}]")
    if not isinstance(value, Iterable):
        raise _wrong(key, value, "expected names in a list")
    names = tuple(value)
    others = [each for each in names if not isinstance(each, str)]
    if others:
        raise _wrong(key, others[0], "expected a name, as text")
    return names


def pick(mapping: Mapping[str, ConfigValue], *spellings: str) -> tuple[str, ConfigValue] | None:
    """The one entry of `mapping` under any spelling of a key: (spelling found, value), or None.

    A value of None counts as not set. Raises: InvalidInputError if two spellings are set.
    """
    found = [(key, mapping[key]) for key in spellings if mapping.get(key) is not None]
    if len(found) > 1:
        names = " and ".join(key for key, _ in found)
        raise InvalidInputError(f"{names} are two spellings of one option; set only one of them")
    return found[0] if found else None


def refuse_unknown(
    mapping: Mapping[str, ConfigValue], known: Collection[str], prefixes: tuple[str, ...]
) -> None:
    """Refuse an obvious misspelling: a key without a dot, or under one of `prefixes`, that is not `known`.

    Other keys belong to other components (a whole Flink configuration may be passed) and are ignored.

    Raises: InvalidInputError naming the key and the nearest known one.
    """
    import difflib  # only the error path needs it

    for key in mapping:
        if key in known or ("." in key and not key.startswith(prefixes)):
            continue
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(known))}"
        raise InvalidInputError(f"{key} is not an option{hint}")


def _split(key: str, value: ConfigValue, expected: str) -> tuple[int, str]:
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise _wrong(key, value, f"expected {expected}")
    return int(match.group(1)), match.group(2).lower()


def _wrong(key: str, value: ConfigValue, expected: str) -> InvalidInputError:
    return InvalidInputError(f"{key}: {value!r} cannot be used: {expected}")
