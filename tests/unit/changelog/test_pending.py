"""Where a column is cut, so that no batch waits whole, however large."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dstl_dagster.changelog.writer.pending import cut_by_size

MIB = 1 << 20


@pytest.mark.parametrize("arrow_type", [pa.binary(), pa.large_binary()])
def test_a_piece_ends_with_the_change_that_reaches_its_size(arrow_type: pa.DataType) -> None:
    """Also where only empty changes follow: one by one, they would come after the upload."""
    column = pa.array([b"x" * MIB, b"", b"", b"y" * (2 * MIB), b"z"], arrow_type)
    assert list(cut_by_size(column.slice(0, 3), MIB)) == [(0, 1), (1, 3)]
    assert list(cut_by_size(column, MIB)) == [(0, 1), (1, 4), (4, 5)]
    assert list(cut_by_size(column.slice(1, 2), MIB)) == [(0, 2)]
