"""What `dagster dev` loads from this checkout: the flights example on local storage."""

from dstl_flights.definitions import defs

__all__ = ["defs"]
