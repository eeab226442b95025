"""What `dagster dev` loads from this checkout: the flights example on local storage."""

from dstl_flights.assets import build_definitions

defs = build_definitions()
