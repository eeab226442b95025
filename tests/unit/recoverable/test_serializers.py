"""The byte format of the recoverables: vectors, Java's modified UTF-8, and damaged bytes."""

from __future__ import annotations

import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstl_dagster.errors import DstlError, FormatError, InvalidInputError
from dstl_dagster.recoverable import (
    GSBlobIdentifier,
    GSCommitRecoverable,
    GSCommitRecoverableSerializer,
    GSResumeRecoverable,
    GSResumeRecoverableSerializer,
)

COMMIT = GSCommitRecoverableSerializer.INSTANCE
RESUME = GSResumeRecoverableSerializer.INSTANCE
UUID = uuid.UUID("f09c43e5-ea49-4537-a406-0586f8f09d47")
COMMIT_BYTES = bytes.fromhex("0003666f6f000362617200000001f09c43e5ea494537a4060586f8f09d47")


def test_commit_vector() -> None:
    """foo/bar with one component is 30 known bytes."""
    recoverable = GSCommitRecoverable(GSBlobIdentifier("foo", "bar"), [UUID])
    assert COMMIT.serialize(recoverable) == COMMIT_BYTES
    assert COMMIT.deserialize(0, COMMIT_BYTES) == recoverable


def test_resume_vector() -> None:
    """The same at position 1234, closed, is 9 bytes more."""
    recoverable = GSResumeRecoverable(GSBlobIdentifier("foo", "bar"), [UUID], 1234, True)
    octets = COMMIT_BYTES + bytes.fromhex("00000000000004d201")
    assert RESUME.serialize(recoverable) == octets
    assert RESUME.deserialize(0, octets) == recoverable
    assert RESUME.deserialize(0, octets[:-1] + b"\x07").closed is True


def test_a_resume_state_reads_as_commit_state() -> None:
    """Trailing bytes are ignored, so the commit serializer reads a resume state."""
    octets = RESUME.serialize(GSResumeRecoverable(GSBlobIdentifier("foo", "bar"), [UUID], 1, False))
    assert COMMIT.deserialize(0, octets) == GSCommitRecoverable(GSBlobIdentifier("foo", "bar"), [UUID])


@pytest.mark.parametrize(
    ("text", "octets"),
    [("\0", "c080"), ("é", "c3a9"), ("€", "e282ac"), ("😀", "eda0bdedb880"), ("a\ud800b", "61eda08062")],
)
def test_modified_utf8(text: str, octets: str) -> None:
    """NUL is two bytes, and a character beyond the BMP is two surrogates of three bytes each."""
    recoverable = GSCommitRecoverable(GSBlobIdentifier(text, "o"), [])
    encoded = COMMIT.serialize(recoverable)
    assert encoded[2 : 2 + len(bytes.fromhex(octets))].hex() == octets
    assert COMMIT.deserialize(0, encoded) == recoverable


def test_too_long_a_name() -> None:
    """A name above 65,535 bytes has no encoding."""
    with pytest.raises(InvalidInputError):
        COMMIT.serialize(GSCommitRecoverable(GSBlobIdentifier("b", "x" * 65_536), []))


def test_newer_version() -> None:
    """A newer version is FormatError with upstream's words; a negative one is the caller's mistake."""
    for serializer in (COMMIT, RESUME):
        with pytest.raises(FormatError, match="with version 1 cannot be read by serializer with version 0"):
            serializer.deserialize(1, COMMIT_BYTES)
        with pytest.raises(InvalidInputError):
            serializer.deserialize(-1, COMMIT_BYTES)
        with pytest.raises(InvalidInputError):
            serializer.deserialize(0, None)


def test_hostile_count() -> None:
    """A count of two billion over no bytes is refused before any allocation; a negative one counts as 0."""
    head = COMMIT_BYTES[:10]
    with pytest.raises(FormatError):
        COMMIT.deserialize(0, head + struct.pack(">i", 2**31 - 1))
    assert list(COMMIT.deserialize(0, head + struct.pack(">i", -5)).component_object_ids) == []


@pytest.mark.parametrize("length", range(39))
def test_short_bytes(length: int) -> None:
    """Bytes truncated anywhere are FormatError."""
    octets = RESUME.serialize(GSResumeRecoverable(GSBlobIdentifier("foo", "bar"), [UUID], 1234, True))
    with pytest.raises(FormatError):
        RESUME.deserialize(0, octets[:length])


texts = st.text(st.characters(), max_size=40)


@given(texts, texts, st.lists(st.uuids(), max_size=5), st.integers(0, 2**63 - 1), st.booleans())
def test_round_trip(bucket: str, name: str, ids: list[uuid.UUID], position: int, closed: bool) -> None:
    """Any state comes back as it was."""
    state = GSResumeRecoverable(GSBlobIdentifier(bucket, name), ids, position, closed)
    assert RESUME.deserialize(0, RESUME.serialize(state)) == state


@given(st.binary(max_size=80))
def test_any_bytes(octets: bytes) -> None:
    """Any bytes either read as a state that is written back equal, or raise one of our errors."""
    for serializer in (COMMIT, RESUME):
        try:
            state = serializer.deserialize(0, octets)
        except DstlError:
            continue
        assert serializer.deserialize(0, serializer.serialize(state)) == state
