"""The Dagster side: resources, ops, jobs, assets and sensors. Translates; holds no rule of the protocol.

The only layer that imports Dagster, an extra of the distribution. Its public names: `dstl_dagster`.
"""

try:
    from dagster_shared.libraries import DagsterLibraryRegistry
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "this name of dstl_dagster needs Dagster: pip install 'dstl-dagster[dagster]'", name=missing.name
    ) from missing

from dstl_dagster import __version__

DagsterLibraryRegistry.register("dstl-dagster", __version__, is_dagster_package=False)
