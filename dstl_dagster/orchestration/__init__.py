"""The Dagster side: resources, ops, jobs, assets and sensors. Translates; holds no rule of the protocol.

The only layer that imports Dagster. Its public names are those of `dstl_dagster`.
"""

from dagster_shared.libraries import DagsterLibraryRegistry

from dstl_dagster import __version__

DagsterLibraryRegistry.register("dstl-dagster", __version__, is_dagster_package=False)
