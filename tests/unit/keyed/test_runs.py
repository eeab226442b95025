"""The runs of a state in a document."""

from __future__ import annotations

from typing import Any

import pytest

from dstl_dagster.errors import FormatError
from dstl_dagster.format import ChangelogStateHandle, KeyGroupRange, StreamStateHandle
from dstl_dagster.keyed.documents.runs import Run, decode_runs, encode_runs

HANDLE = ChangelogStateHandle(((StreamStateHandle("a/b", 1, 1, 2), 0),), KeyGroupRange.of(0, 15), 1, 1)


@pytest.mark.parametrize("wrong", [{}, ""])
def test_each_list_is_a_list(wrong: Any) -> None:
    """Something else without items is not read as a state without rows."""
    plain = encode_runs([Run(1, 2, (HANDLE,))])
    (run,) = decode_runs(plain)
    assert (run.first, run.last, list(run.handles[0].streams)) == (1, 2, list(HANDLE.streams))
    with pytest.raises(FormatError):
        decode_runs({**plain, "runs": wrong})
    *others, ((bounds, sizes, _),) = plain["runs"][0]
    for handles in (wrong, [[bounds, sizes, wrong]]):
        with pytest.raises(FormatError):
            decode_runs({**plain, "runs": [[*others, handles]]})
