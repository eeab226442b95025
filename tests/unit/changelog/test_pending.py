"""Where a column is cut, so that no batch waits whole, however large."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dstl_dagster.changelog.writer.pending import cut_by_size

MIB = 1 << 20


@pytest.mark.parametrize("arrow_type", [pa.binary(), pa.large_binary()])
def test_a_piece_ends_with_the_change_that_reaches_its_size(arrow_type: pa.DataType) -> None:
    """Also where only empty changes follow: one by one, they would come after the upload."""
    column = pa.array([b"x" * MIB, b"", b"", b"y" * (2 * MIB), b"z"], arrow_type)
    one = np.zeros(5, np.int32)
    assert list(cut_by_size(one[:3], column.slice(0, 3), MIB)) == [(0, 1), (1, 3)]
    assert list(cut_by_size(one, column, MIB)) == [(0, 1), (1, 4), (4, 5)]
    assert list(cut_by_size(one[:2], column.slice(1, 2), MIB)) == [(0, 2)]


def test_a_key_group_is_not_cut_if_the_piece_has_another() -> None:
    """Otherwise it is: one key group may be of any size."""
    groups = np.array([1, 2, 2, 2, 3], np.int32)
    column = pa.array([b"x"] * 5)
    assert list(cut_by_size(groups, column, 3)) == [(0, 1), (1, 4), (4, 5)]
    assert list(cut_by_size(groups[1:], column.slice(1), 2)) == [(0, 2), (2, 4)]
