"""The Dagster side: resources, ops, jobs and assets. Holds no logic of the protocol; it translates.

The only layer that imports Dagster. The public names stand in `dstl_dagster`.
"""
