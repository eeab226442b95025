"""The Dagster side: resources, ops, jobs and assets. Holds no logic of the protocol; it translates.

The only layer that imports Dagster. The public names stand in `dstl_dagster`.
"""

from dagster_shared.libraries import DagsterLibraryRegistry

from dstl_dagster import __version__

DagsterLibraryRegistry.register("dstl-dagster", __version__, is_dagster_package=False)
