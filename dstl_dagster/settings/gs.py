"""The options of the Google Storage file system and its recoverable writer.

Owns `GSFileSystemOptions` and the upstream keys. Does not own what the options do: `storage` applies
time-outs and retries, `recoverable` the temporary names.

Source: Flink's `GSFileSystemOptions`; same keys, same meaning, unset means the client's default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings.table import Option, OptionTable
from dstl_dagster.settings.units import (
    ConfigValue,
    parse_bool,
    parse_duration,
    parse_float,
    parse_int,
    parse_memory_size,
    parse_text,
    refuse_unknown,
)

CHUNK_SIZE_UNIT_BYTES = 256 * 1024
"""The service requires upload chunks to be a multiple of this."""

_UPSTREAM_KEYS: Mapping[str, str] = {
    "writer_temporary_bucket_name": "gs.writer.temporary.bucket.name",
    "writer_chunk_size": "gs.writer.chunk.size",
    "filesink_entropy_enabled": "gs.filesink.entropy.enabled",
    "http_connect_timeout": "gs.http.connect-timeout",
    "http_read_timeout": "gs.http.read-timeout",
    "retry_max_attempt": "gs.retry.max-attempt",
    "retry_init_rpc_timeout": "gs.retry.init-rpc-timeout",
    "retry_rpc_timeout_multiplier": "gs.retry.rpc-timeout-multiplier",
    "retry_max_rpc_timeout": "gs.retry.max-rpc-timeout",
    "retry_total_timeout": "gs.retry.total-timeout",
    "storage_root_url": "gs.storage.root.url",
}


def _parse_milliseconds(key: str, value: ConfigValue) -> int:
    """As upstream's: a number alone, unlike other durations."""
    try:
        return parse_int(key, value, minimum=0)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{key}: {value!r} cannot be used: expected milliseconds as a number alone, such as 60000"
        ) from error


_PARSERS: Mapping[str, Callable[[str, ConfigValue], Any]] = {
    "writer_temporary_bucket_name": parse_text,
    "writer_chunk_size": parse_memory_size,
    "filesink_entropy_enabled": parse_bool,
    "http_connect_timeout": _parse_milliseconds,
    "http_read_timeout": _parse_milliseconds,
    "retry_max_attempt": lambda key, value: parse_int(key, value, minimum=0),
    "retry_init_rpc_timeout": parse_duration,
    "retry_rpc_timeout_multiplier": lambda key, value: parse_float(key, value, minimum=0.0),
    "retry_max_rpc_timeout": parse_duration,
    "retry_total_timeout": parse_duration,
    "storage_root_url": parse_text,
}

GS_KEYS = OptionTable(Option(name, key, _PARSERS[name]) for name, key in _UPSTREAM_KEYS.items())


@dataclass(frozen=True)
class GSFileSystemOptions:
    """Frozen, compared by value. `None` leaves the client's default.

    Attributes:
        writer_temporary_bucket_name: bucket of the temporary objects; None: that of the final object.
        writer_chunk_size: upload chunk in bytes, above 0 and a multiple of 256 KiB.
        filesink_entropy_enabled: prefix a temporary object's name with its id, to spread load.
        http_connect_timeout: milliseconds to connect; 0 means no limit.
        http_read_timeout: milliseconds between bytes of a response; 0 means no limit.
        retry_max_attempt: attempts of one request, including the first; 0: only the total time-out limits.
        retry_init_rpc_timeout: time-out of the first attempt.
        retry_rpc_timeout_multiplier: factor from one attempt's time-out to the next.
        retry_max_rpc_timeout: upper limit of an attempt's time-out.
        retry_total_timeout: time within which a request may be retried.
        storage_root_url: another endpoint of the service, such as `http://127.0.0.1:4443`.

    Raises: InvalidInputError for a value that cannot be used.

    """

    writer_temporary_bucket_name: str | None = None
    writer_chunk_size: int | None = None
    filesink_entropy_enabled: bool = False
    http_connect_timeout: int | None = None
    http_read_timeout: int | None = None
    retry_max_attempt: int | None = None
    retry_init_rpc_timeout: timedelta | None = None
    retry_rpc_timeout_multiplier: float | None = None
    retry_max_rpc_timeout: timedelta | None = None
    retry_total_timeout: timedelta | None = None
    storage_root_url: str | None = None

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if value is not None:
                parsed = _PARSERS[option.name](_UPSTREAM_KEYS[option.name], value)
                object.__setattr__(self, option.name, parsed)
        chunk_size = self.writer_chunk_size
        if chunk_size is not None and (chunk_size <= 0 or chunk_size % CHUNK_SIZE_UNIT_BYTES != 0):
            raise InvalidInputError(
                f"gs.writer.chunk.size: {chunk_size} bytes cannot be used: "
                "the chunk size must be greater than zero and a multiple of 256KB"
            )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, ConfigValue]) -> GSFileSystemOptions:
        """Options from upstream's keys, such as `gs.writer.chunk.size`.

        Keys of other components are ignored; an unknown key under these prefixes is an error.

        Raises: InvalidInputError naming the key.
        """
        ours = ("gs.writer.", "gs.filesink.", "gs.http.", "gs.retry.")
        refuse_unknown(mapping, GS_KEYS.spellings, ours)
        return cls(**GS_KEYS.values(mapping))

    def to_mapping(self) -> dict[str, str]:
        """Upstream keys and strings that `from_mapping` reads back to equal options."""
        values = {name: getattr(self, name) for name in _UPSTREAM_KEYS}
        return GS_KEYS.texts({name: value for name, value in values.items() if value is not False})
