"""The values of the changelog: their bounds, order, texts and JSON."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstl_dagster.errors import FormatError, InvalidInputError
from dstl_dagster.format import (
    ChangelogStateHandle,
    KeyGroupRange,
    SequenceNumber,
    SnapshotResult,
    StateChange,
    StreamStateHandle,
)
from dstl_dagster.format.handles import LocalStateHandle
from dstl_dagster.format.sequence import SequenceNumberRange

RANGE = KeyGroupRange.of(2, 5)


class TestSequenceNumber:
    def test_it_is_ordered_and_hashable(self) -> None:
        """By its number; its text is the number."""
        assert sorted([SequenceNumber.of(3), SequenceNumber.of(1)])[0] == SequenceNumber.of(1)
        assert len({SequenceNumber.of(3), SequenceNumber.of(3)}) == 1
        assert (int(SequenceNumber.of(7)), str(SequenceNumber.of(7).next())) == (7, "8")

    @pytest.mark.parametrize("wrong", [-1, 2**63, 1.0, "1", True, None])
    def test_its_bounds(self, wrong: Any) -> None:
        """0 to 2^63-1, and an int."""
        with pytest.raises(InvalidInputError):
            SequenceNumber.of(wrong)
        with pytest.raises(InvalidInputError):
            SequenceNumber.of(2**63 - 1).next()

    def test_a_range_is_half_open(self) -> None:
        """From inclusive, to exclusive; its text is upstream's."""
        span = SequenceNumberRange(SequenceNumber.of(2), SequenceNumber.of(4))
        assert [span.contains(SequenceNumber.of(n)) for n in (1, 2, 3, 4)] == [False, True, True, False]
        assert str(span) == "from=2, to=4, size=2"
        assert SequenceNumberRange(SequenceNumber.of(2), SequenceNumber.of(2)).is_empty
        with pytest.raises(InvalidInputError):
            SequenceNumberRange(SequenceNumber.of(2), SequenceNumber.of(1))


class TestKeyGroupRange:
    def test_it_is_closed(self) -> None:
        """Both ends inclusive."""
        assert list(RANGE) == [2, 3, 4, 5]
        assert (RANGE.number_of_key_groups, RANGE.contains(5), RANGE.contains(6)) == (4, True, False)
        assert RANGE.intersection(KeyGroupRange.of(5, 9)) == KeyGroupRange.of(5, 5)
        assert RANGE.intersection(KeyGroupRange.of(6, 9)) is KeyGroupRange.EMPTY
        assert KeyGroupRange.of(3, 1) == KeyGroupRange.EMPTY
        assert list(KeyGroupRange.EMPTY) == []

    def test_key_group_id_is_bounded(self) -> None:
        """Upstream accepts the index just beyond the end."""
        assert RANGE.key_group_id(3) == 5
        with pytest.raises(InvalidInputError):
            RANGE.key_group_id(4)

    @pytest.mark.parametrize("bounds", [(-1, 2), (0, 2**31 - 1), (0.5, 2), ("0", "2")])
    def test_its_bounds(self, bounds: Any) -> None:
        """Whole numbers from 0 on, whose count fits 31 bits."""
        with pytest.raises(InvalidInputError):
            KeyGroupRange(*bounds)


class TestStateChange:
    def test_metadata_has_its_own_factory(self) -> None:
        """A data change takes key groups from 0 on; only `meta` gives -1."""
        assert StateChange.meta(b"x").key_group == -1
        with pytest.raises(InvalidInputError):
            StateChange.of(-1, b"x")
        with pytest.raises(InvalidInputError):
            StateChange.of(0, None)  # type: ignore[arg-type]  # what upstream answers with an NPE

    def test_its_text_holds_no_state(self) -> None:
        """The bytes are the user's: they are in no log."""
        assert "secret" not in f"{StateChange.of(1, b'secret')!r} {StateChange.of(1, b'secret')}"


HANDLES = st.builds(
    ChangelogStateHandle,
    st.lists(
        st.tuples(
            st.builds(
                StreamStateHandle,
                st.text(min_size=1, max_size=5),
                st.none() | st.integers(0, 2**40),
                st.none() | st.integers(1, 2**60),
                st.none() | st.integers(0, 2**32 - 1),
                st.none() | st.integers(0, 2**40),
            )
            | st.builds(LocalStateHandle, st.text(min_size=1, max_size=5), st.integers(0, 2**40)),
            st.integers(0, 2**40),
        ),
        max_size=5,
    ),
    st.just(RANGE),
    st.integers(0, 2**40),
    st.integers(0, 2**40),
    held=st.sampled_from([(), (KeyGroupRange.of(2, 2), KeyGroupRange.of(4, 5))]),
)


class TestChangelogStateHandle:
    @given(HANDLES)
    def test_json_keeps_it(self, handle: ChangelogStateHandle) -> None:
        """It survives JSON and pickle, to the last field of its files."""
        back = ChangelogStateHandle.from_json(json.loads(json.dumps(handle.to_json())))
        assert back == handle == pickle.loads(pickle.dumps(handle))
        assert back.state_handle_id == handle.state_handle_id
        first_known = {file: file for file, _ in reversed(handle.handles_and_offsets)}
        for file, _ in back.handles_and_offsets:
            wanted = first_known[file]
            assert (file.generation, file.crc32c, file.stored_bytes) == (
                wanted.generation,
                wanted.crc32c,
                wanted.stored_bytes,
            )

    @given(HANDLES, st.data())
    def test_wrong_json_is_a_format_error(self, handle: ChangelogStateHandle, data: st.DataObject) -> None:
        """A field that is missing or of another type is FormatError, and nothing else."""
        document = handle.to_json()
        key = data.draw(st.sampled_from(sorted(document.keys() - {"share_bytes"})))
        value = data.draw(
            st.none() | st.integers() | st.text() | st.lists(st.integers(), max_size=3) | st.just({})
        )
        wrong = {**document, key: value}
        try:
            ChangelogStateHandle.from_json(json.loads(json.dumps(wrong)))
        except FormatError:
            return
        assert type(value) is type(document[key])

    def test_an_intersection_filters_nothing(self) -> None:
        """The same files for fewer key groups, sizes 0, a new id; None if nothing is shared."""
        handle = ChangelogStateHandle(((StreamStateHandle("a", 5), 0),), RANGE, 5, 5)
        part = handle.intersection(KeyGroupRange.of(4, 9))
        assert part is not None
        assert (part.key_group_range, part.handles_and_offsets) == (
            KeyGroupRange.of(4, 5),
            handle.handles_and_offsets,
        )
        assert (part.state_size, part.checkpointed_size) == (0, 0)
        assert part.state_handle_id != handle.state_handle_id
        assert handle.intersection(KeyGroupRange.of(6, 9)) is None

    def test_a_local_part_needs_a_durable_one(self) -> None:
        """A snapshot result with a local part but no durable part is refused."""
        handle = ChangelogStateHandle((), RANGE, 3, 0)
        with pytest.raises(InvalidInputError):
            SnapshotResult(None, handle)
        assert (SnapshotResult().state_size, SnapshotResult(handle, handle).state_size) == (0, 3)
