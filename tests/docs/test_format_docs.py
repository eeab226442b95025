"""dstl_dagster/format/README.md lists the fields of each record, and those that may be null."""

from __future__ import annotations

import dataclasses
import re
from types import NoneType
from typing import get_args, get_type_hints

import pytest

from dstl_dagster.timeline.record_codec import _KINDS
from tests.docs.pages import ROOT

PAGE = (ROOT / "dstl_dagster" / "format" / "README.md").read_text(encoding="utf-8")
OF_ALL = {"slot", "decision_id", "recorded_at"}


@pytest.mark.parametrize("kind", _KINDS)
def test_the_fields_of_a_record(kind: str) -> None:
    """No more and no fewer."""
    (row,) = re.findall(rf"^\| `{kind}` \| (.*) \|$", PAGE, re.MULTILINE)
    listed = set(re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", row)))
    assert listed == {field.name for field in dataclasses.fields(_KINDS[kind])} - OF_ALL


def test_the_fields_that_may_be_null() -> None:
    """In the sentence below the table."""
    (sentence,) = re.findall(r"^(`parent`.*?) may be null", PAGE, re.MULTILINE | re.DOTALL)
    hints = (hint for kind in _KINDS.values() for hint in get_type_hints(kind).items())
    optional = {name for name, hint in hints if NoneType in get_args(hint)}
    assert set(re.findall(r"`(\w+)`", sentence)) == optional
