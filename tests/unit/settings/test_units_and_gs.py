"""Single values of configuration, and the options of the Google Storage writer."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings import GSFileSystemOptions, JobOptions
from dstl_dagster.settings.units import (
    parse_bool,
    parse_duration,
    parse_float,
    parse_int,
    parse_memory_size,
    parse_names,
    parse_text,
    pick,
    refuse_unknown,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1024", 1024),
        (" 7 b ", 7),
        ("1k", 1 << 10),
        ("2 KB", 2 << 10),
        ("3kibibytes", 3 << 10),
        ("5MB", 5 << 20),
        ("1 g", 1 << 30),
        ("1 tebibytes", 1 << 40),
        (4096, 4096),
    ],
)
def test_sizes(text: object, size: int) -> None:
    """Sizes count in powers of two; a bare number is bytes."""
    assert parse_memory_size("key", text) == size


@pytest.mark.parametrize(
    "text", ["", "MB", "1.5MB", "-1", "5 m b", "1pb", None, True, 1.5, -1, "9" * 19, "9" * 999]
)
def test_bad_sizes(text: object) -> None:
    """A value that is not a size is refused with the key in the message."""
    with pytest.raises(InvalidInputError, match="the-key"):
        parse_memory_size("the-key", text)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("10 ms", timedelta(milliseconds=10)),
        ("30s", timedelta(seconds=30)),
        ("1 min", timedelta(minutes=1)),
        ("1m", timedelta(minutes=1)),
        ("2 h", timedelta(hours=2)),
        ("3 days", timedelta(days=3)),
        ("250", timedelta(milliseconds=250)),
        (250, timedelta(milliseconds=250)),
        ("7 µs", timedelta(microseconds=7)),
        ("7 \u03bcs", timedelta(microseconds=7)),
        ("1999 ns", timedelta(microseconds=1)),
        (timedelta(seconds=4), timedelta(seconds=4)),
    ],
)
def test_durations(text: object, duration: timedelta) -> None:
    """Durations have units; a bare number is milliseconds; nanoseconds are truncated."""
    assert parse_duration("key", text) == duration


@pytest.mark.parametrize(
    "text", ["", "s", "1.5s", "-1s", "1 year", None, False, timedelta(seconds=-1), "9" * 20 + "d"]
)
def test_bad_durations(text: object) -> None:
    """A value that is not a duration is refused with the key in the message."""
    with pytest.raises(InvalidInputError, match="the-key"):
        parse_duration("the-key", text)


def test_other_values() -> None:
    """Booleans, numbers and strings parse; anything else is refused with its key."""
    assert parse_bool("k", " TRUE ") is True
    assert parse_bool("k", False) is False
    assert parse_int("k", " -3 ") == -3
    assert parse_float("k", "1.5") == 1.5
    assert parse_text("k", " x ") == "x"
    for refused in (
        lambda: parse_bool("k", "yes"),
        lambda: parse_int("k", "1.0"),
        lambda: parse_int("k", 0, minimum=1),
        lambda: parse_int("k", True),
        lambda: parse_float("k", "nan"),
        lambda: parse_float("k", "x"),
        lambda: parse_text("k", "  "),
    ):
        with pytest.raises(InvalidInputError, match=r"^k:"):
            refused()


def test_two_spellings_at_once() -> None:
    """One option under two spellings is refused; None counts as not given."""
    assert pick({"a": 1, "b": None}, "a", "b") == ("a", 1)
    assert pick({}, "a") is None
    with pytest.raises(InvalidInputError, match="two spellings"):
        pick({"a": 1, "b": 2}, "a", "b")


def test_slips_are_told() -> None:
    """A misspelled key of ours is refused with the right one; keys of other components are ignored."""
    refuse_unknown({"other.key": 1, "ours.good": 1}, ["ours.good"], ("ours.",))
    with pytest.raises(InvalidInputError, match=r"ours\.good"):
        refuse_unknown({"ours.god": 1}, ["ours.good"], ("ours.",))


FULL = {
    "gs.writer.temporary.bucket.name": "temp",
    "gs.writer.chunk.size": "512 kb",
    "gs.filesink.entropy.enabled": "true",
    "gs.http.connect-timeout": "20000",
    "gs.http.read-timeout": "30000",
    "gs.retry.max-attempt": "6",
    "gs.retry.init-rpc-timeout": "1 s",
    "gs.retry.rpc-timeout-multiplier": "1.5",
    "gs.retry.max-rpc-timeout": "50 s",
    "gs.retry.total-timeout": "2 min",
    "gs.storage.root.url": "http://127.0.0.1:1",
}


def test_every_upstream_key() -> None:
    """Each key sets its option, and the options written out read back equal."""
    options = GSFileSystemOptions.from_mapping(FULL)
    assert options == GSFileSystemOptions(
        writer_temporary_bucket_name="temp",
        writer_chunk_size=512 * 1024,
        filesink_entropy_enabled=True,
        http_connect_timeout=20_000,
        http_read_timeout=30_000,
        retry_max_attempt=6,
        retry_init_rpc_timeout=timedelta(seconds=1),
        retry_rpc_timeout_multiplier=1.5,
        retry_max_rpc_timeout=timedelta(seconds=50),
        retry_total_timeout=timedelta(minutes=2),
        storage_root_url="http://127.0.0.1:1",
    )
    texts = JobOptions.of(options).to_json()
    assert GSFileSystemOptions.from_mapping(texts) == options
    assert len(texts) == len(dataclasses.fields(GSFileSystemOptions))


def test_defaults_are_unset() -> None:
    """Nothing given means nothing set; keys of other components are ignored."""
    options = GSFileSystemOptions.from_mapping({"execution.other": "x", "gs.auth.type": "y"})
    assert options == GSFileSystemOptions()
    assert set(dataclasses.asdict(options).values()) == {None, False}


def test_one_spelling() -> None:
    """An attribute's name is no key."""
    with pytest.raises(InvalidInputError, match="writer_chunk_size is not an option"):
        GSFileSystemOptions.from_mapping({"writer_chunk_size": "256kb"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gs.writer.chunk.size", "257kb"),
        ("gs.writer.chunk.size", "0"),
        ("gs.writer.temporary.bucket.name", " "),
        ("gs.filesink.entropy.enabled", "perhaps"),
        ("gs.http.read-timeout", "-1"),
        ("gs.retry.total-timeout", "soon"),
        ("gs.retry.max-attemp", "1"),
        ("chunk_size", "1"),
    ],
)
def test_wrong_values_name_their_key(key: str, value: str) -> None:
    """A wrong value or a misspelled key is InvalidInputError, a ValueError, with the key in it."""
    with pytest.raises(ValueError, match=key):
        GSFileSystemOptions.from_mapping({key: value})


def test_frozen() -> None:
    """Options are immutable."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        GSFileSystemOptions().writer_chunk_size = 1


def test_names() -> None:
    """A list, a tuple or a set; never a text, whose letters would each be a name."""
    assert parse_names("keys", ["a", "b"]) == parse_names("keys", ("a", "b")) == ("a", "b")
    assert parse_names("keys", {"a"}) == ("a",)
    assert parse_names("keys", ()) == ()
    with pytest.raises(InvalidInputError, match=r"keys: 'ab' .* names in a list, such as \['ab'\]"):
        parse_names("keys", "ab")
    for wrong in (b"ab", 5, None, [1], [["a"]]):
        with pytest.raises(InvalidInputError, match="keys: "):
            parse_names("keys", wrong)
