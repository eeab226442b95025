"""Whatever ranges of a file are needed: each byte once, no request that another could make, and bounded."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dstl_dagster.changelog.reader.read_plan import GAP_BYTES, REQUEST_BYTES, joined

lengths = st.one_of(
    st.integers(0, 5), st.integers(0, 2 * GAP_BYTES), st.integers(REQUEST_BYTES - 3, 3 * REQUEST_BYTES)
)
ranges = st.lists(st.tuples(st.integers(0, 8 * REQUEST_BYTES), lengths), max_size=30)


def covering(start: int, length: int, spans) -> list:
    return [span for span in spans if span.start <= start and start + length <= span.end]


@given(ranges)
def test_the_requests_of_a_file(needed):
    spans = joined(needed)
    for start, length in needed:
        if length:
            assert len(covering(start, length, spans)) == 1, "read by one request, whole"
    for before, after in itertools.pairwise(spans):
        assert before.end <= after.start, "no byte twice"
        near = after.start - before.end <= GAP_BYTES
        assert not (near and after.end - before.start <= REQUEST_BYTES) or before.length > REQUEST_BYTES, (
            "two that could be one"
        )
    union = 0
    edge = 0
    for start, length in sorted(needed):
        union += max(0, start + length - max(start, edge))
        edge = max(edge, start + length)
    assert sum(span.needed for span in spans) == union
    for span in spans:
        longest = max(length for start, length in needed if span.start <= start < span.end)
        overlapping = any(
            one[0] < other[0] + other[1] and other[0] < one[0] + one[1]
            for one, other in itertools.combinations(sorted(set(needed)), 2)
        )
        assert span.length <= max(REQUEST_BYTES, longest) or overlapping, "bounded by a request or one range"
