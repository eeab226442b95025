"""Paged lists and copies between buckets, on top of the model. Owns these methods of the API."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from dstl_dagster.testing.gcs_server.model import Model
from dstl_dagster.testing.gcs_server.objects import ApiError
from dstl_dagster.testing.gcs_server.refusals import check_built_listing
from dstl_dagster.testing.gcs_server.wire import Answer, conditions, number

__all__ = ["bucket_list", "object_list", "rewrite"]

_MAX_RESULTS = 1000


def bucket_list(model: Model) -> dict[str, Any]:
    """All buckets."""
    return {
        "kind": "storage#buckets",
        "items": [model.bucket_resource(name) for name in model.bucket_names()],
    }


def object_list(model: Model, bucket: str, query: Mapping[str, str]) -> dict[str, Any]:
    """One page of a list. Raises: ApiError."""
    check_built_listing(query)
    prefix = query.get("prefix", "").encode()
    delimiter = query.get("delimiter", "").encode()
    end = query.get("endOffset", "").encode()
    limit = max(1, min(_MAX_RESULTS, int(query.get("maxResults") or _MAX_RESULTS)))
    position = max(prefix, query.get("startOffset", "").encode())
    if "pageToken" in query:
        position = _position_of(query["pageToken"])
    items: list[dict[str, Any]] = []
    folders: list[str] = []
    answer: dict[str, Any] = {"kind": "storage#objects"}
    encrypted = "defaultKmsKeyName" in (model.bucket_resource(bucket).get("encryption") or {})
    while True:
        batch = model.names_from(bucket, position, limit + 1)
        for stored in batch:
            key = stored.name.encode()
            if key < position:
                continue  # inside a folder already listed as a prefix
            if not key.startswith(prefix) or (end and key >= end):
                batch = []
                break
            if len(items) + len(folders) == limit:
                answer["nextPageToken"] = base64.urlsafe_b64encode(key).decode()
                batch = []
                break
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            if cut >= 0:
                folder = key[: cut + len(delimiter)]
                folders.append(folder.decode())
                position = folder[:-1] + bytes((folder[-1] + 1,))
            else:
                items.append(_without_checksums(stored.resource()) if encrypted else stored.resource())
                position = key + b"\0"
        if not batch:
            break
    if items:
        answer["items"] = items
    if folders:
        answer["prefixes"] = folders
    return answer


def _position_of(page_token: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(page_token)
    except ValueError:
        raise ApiError(400, "invalid", "Invalid page token") from None


def _without_checksums(resource: dict[str, Any]) -> dict[str, Any]:
    # The service returns the checksums of objects encrypted with a customer's key from `objects.get` only.
    return {key: value for key, value in resource.items() if key not in ("crc32c", "md5Hash")}


def rewrite(
    model: Model,
    source: tuple[str, str],
    target: tuple[str, str],
    query: Mapping[str, str],
    resource: Mapping[str, Any],
) -> Answer:
    """Copy, in one call. Raises: ApiError."""
    with model.lock:
        live = model.find(*source, number(query, "sourceGeneration"))
        wanted = number(query, "ifSourceGenerationMatch")
        if wanted is not None and wanted != live.generation:
            raise ApiError(412, "conditionNotMet", "The source is of another generation.")
        # Without a resource the copy takes the source's metadata; with one, only what the resource has.
        described = resource or {"metadata": dict(live.metadata), "contentType": live.content_type}
        made = model.insert(*target, live.payload, described, conditions(query))
    size = str(len(made.payload))
    return Answer(
        200,
        {
            "kind": "storage#rewriteResponse",
            "totalBytesRewritten": size,
            "objectSize": size,
            "done": True,
            "resource": made.resource(),
        },
    )
