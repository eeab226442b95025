"""What a replay keeps of a log's batches: views of their bytes, whatever form these have."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.state.replay import payloads

VALUES = [b"short", b"", b"exactly 12 b", b"a longer one than is inline", b"x" * 5000, b"another long value"]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
@pytest.mark.parametrize("start", [0, 2])
def test_values_come_as_they_are(kind: pa.DataType, start: int) -> None:
    """Also of a slice, and where a value stands in its view."""
    changes = pa.array(VALUES, kind).slice(start)
    rows = np.array([0, 1, 3])
    found = [bytes(each) for each in payloads(changes, rows)]
    assert found == [VALUES[start + row] for row in rows]


def test_long_values_are_not_copied() -> None:
    """A scalar of a view would have bytes of its own."""
    changes = pa.array(VALUES, pa.binary_view())
    (found,) = payloads(changes, np.array([4]))
    begin = changes.buffers()[2].address
    assert begin <= found.address < begin + changes.buffers()[2].size
