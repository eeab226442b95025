"""A strict Google Cloud Storage server on loopback, for tests and demonstrations without a cloud.

Owns the JSON API as google-cloud-storage uses it, with generations, preconditions, checksums and limits
enforced as the service does, and faults on demand. Does not own authentication: it has none, and so listens
on loopback only.
"""

from __future__ import annotations

from dstl_dagster.testing.gcs_server.faults import FaultKind, ServerFault
from dstl_dagster.testing.gcs_server.server import GCSServer

__all__ = ["FaultKind", "GCSServer", "ServerFault"]
