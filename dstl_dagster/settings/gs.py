"""The options of the Google Storage file system and its recoverable writer.

Owns `GSFileSystemOptions` and the upstream keys. Does not own what the options do: `storage` applies
time-outs and retries, `recoverable` the temporary names.

Source: Flink's `GSFileSystemOptions`; same keys, same meaning, unset means the client's default.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import ClassVar

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings.option_table import KeyedOptions, option
from dstl_dagster.settings.units import (
    ConfigValue,
    parse_bool,
    parse_duration,
    parse_float,
    parse_int,
    parse_memory_size,
    parse_text,
)

CHUNK_SIZE_UNIT_BYTES = 256 * 1024
"""The service requires upload chunks to be a multiple of this."""


def _parse_milliseconds(key: str, value: ConfigValue) -> int:
    """As upstream's: a number alone, unlike other durations."""
    try:
        return parse_int(key, value, minimum=0)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{key}: {value!r} cannot be used: expected milliseconds as a number alone, such as 60000"
        ) from error


def _parse_chunk_size(key: str, value: ConfigValue) -> int:
    size = parse_memory_size(key, value)
    if size == 0 or size % CHUNK_SIZE_UNIT_BYTES:
        raise InvalidInputError(
            f"{key}: {size} bytes cannot be used: "
            "the chunk size must be greater than zero and a multiple of 256KB"
        )
    return size


_parse_factor = partial(parse_float, minimum=0.0)


@dataclass(frozen=True)
class GSFileSystemOptions(KeyedOptions):
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

    writer_temporary_bucket_name: str | None = option("gs.writer.temporary.bucket.name", parse_text)
    writer_chunk_size: int | None = option("gs.writer.chunk.size", _parse_chunk_size)
    filesink_entropy_enabled: bool = option("gs.filesink.entropy.enabled", parse_bool, False)
    http_connect_timeout: int | None = option("gs.http.connect-timeout", _parse_milliseconds)
    http_read_timeout: int | None = option("gs.http.read-timeout", _parse_milliseconds)
    retry_max_attempt: int | None = option("gs.retry.max-attempt", partial(parse_int, minimum=0))
    retry_init_rpc_timeout: timedelta | None = option("gs.retry.init-rpc-timeout", parse_duration)
    retry_rpc_timeout_multiplier: float | None = option("gs.retry.rpc-timeout-multiplier", _parse_factor)
    retry_max_rpc_timeout: timedelta | None = option("gs.retry.max-rpc-timeout", parse_duration)
    retry_total_timeout: timedelta | None = option("gs.retry.total-timeout", parse_duration)
    storage_root_url: str | None = option("gs.storage.root.url", parse_text)

    prefixes: ClassVar[tuple[str, ...]] = ("gs.writer.", "gs.filesink.", "gs.http.", "gs.retry.")
