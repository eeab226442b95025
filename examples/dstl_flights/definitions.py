"""The example as Dagster loads it by module name: `dagster dev -m dstl_flights.definitions`."""

from dstl_flights.assets import build_definitions

defs = build_definitions()
