"""Texts of libraries and services, without secrets: for errors, logs and all that is made of them.

Owns which parts of a text may be secrets. Does not own where such texts come from (`gcs.errors`).

A text is cut by its form, not by a list of known secrets: of a URL all after its `?` (upload ids, signatures)
and what stands before an `@` go, and so does anything that looks like a token or a key.
"""

from __future__ import annotations

import re
from typing import Final

_MOST_CHARACTERS: Final = 300
_READ_CHARACTERS: Final = 10_000
"""Of a page of errors that some proxy sends, no more is looked at."""
_HIDDEN: Final = "***"

_FIELDS: Final = (
    r"upload_?id|[a-z_-]*token|[a-z_-]*signature|[a-z_-]*credential|[a-z_-]*secret|private_key(?:_id)?|assertion"
    r"|password|passwd|pwd|(?:api_?)?key|authorization"
)
_SECRETS: Final = (
    (re.compile(r"-----BEGIN.*?(?:-----END[A-Z ]*-----|$)", re.DOTALL), _HIDDEN),
    (re.compile(r"://[^\s'\"<>]*@"), f"://{_HIDDEN}@"),
    (re.compile(r"\?[^\s'\"<>()?]*=[^\s'\"<>()]*"), f"?{_HIDDEN}"),
    (re.compile(r"\b(bearer|basic)\s+[^\s'\",]+", re.IGNORECASE), rf"\1 {_HIDDEN}"),
    # A field of a JSON document, of a form or of the representation of either; its end may have been cut off.
    (
        re.compile(rf"((?:{_FIELDS})\\?['\"]?\s*:\s*\\?)(?:'[^']*'?|\"[^\"]*\"?)", re.IGNORECASE),
        rf"\1{_HIDDEN}",
    ),
    (re.compile(rf"((?:{_FIELDS})=)[^\s&'\"<>()]+", re.IGNORECASE), rf"\1{_HIDDEN}"),
    (re.compile(r"\bya29\.[\w.-]+|\beyJ[\w-]+\.[\w.-]*|\bGOOG[\w-]{16,}|\bAIza[\w-]{20,}"), _HIDDEN),
    (re.compile(r"[\w+/=-]{120,}"), _HIDDEN),
)


def cleaned(text: object) -> str:
    """The text (or what `str` makes of an exception), at most 300 characters, with `***` for secrets."""
    found = str(text)[:_READ_CHARACTERS]
    for secret, instead in _SECRETS:
        found = secret.sub(instead, found)
    return found[:_MOST_CHARACTERS]
