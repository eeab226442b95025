"""Features of the service that the strict server does not have.

Owns their list and the 501 that refuses them: better than a success without effect. Does not own the checks
of what the server does have (`objects`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dstl_dagster.testing.gcs_server.objects import ApiError

__all__ = ["check_built_listing", "check_built_settings"]

_UNBUILT_SETTINGS: Mapping[str, Callable[[Any], object]] = {
    "versioning": lambda setting: setting.get("enabled"),
    "softDeletePolicy": lambda setting: int(setting.get("retentionDurationSeconds") or 0),
    "retentionPolicy": lambda setting: setting.get("retentionPeriod"),
    "hierarchicalNamespace": lambda setting: setting.get("enabled"),
    "lifecycle": lambda setting: setting.get("rule"),
    "defaultEventBasedHold": bool,
}
"""Bucket settings that would change the bucket's behaviour, each with whether its value turns it on."""


def check_built_settings(resource: Mapping[str, Any]) -> None:
    """Raises: ApiError 501 for a bucket setting that this server does not implement."""
    for setting, is_on in _UNBUILT_SETTINGS.items():
        if resource.get(setting) and is_on(resource[setting]):
            raise _not_built(setting)


def check_built_listing(query: Mapping[str, str]) -> None:
    """Raises: ApiError 501 for a listing parameter that this server does not implement."""
    if query.get("matchGlob"):
        raise _not_built("matchGlob")
    for parameter in ("versions", "softDeleted"):
        if query.get(parameter, "false").lower() != "false":
            raise _not_built(parameter)


def _not_built(what: str) -> ApiError:
    return ApiError(501, "notImplemented", f"This server does not implement {what}.")
