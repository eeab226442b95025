"""The options of a read, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.spark.source.options import SourceOptions
from dstl_dagster.timeline import AsOf

NINE = datetime(2026, 11, 22, 9, tzinfo=UTC)
GIVEN = {"store": "file:///x", "job": "job", "operator": "op"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"table": "rows"}, "one of state, changes, checkpoints"),
        ({"push_filters": "true"}, "does not know option 'push_filters'"),
        ({"operater": "x"}, "does not know option 'operater' for reading state"),
        ({"excludeRegex": "x"}, "does not know option 'excluderegex' for reading state"),
        ({"failOnDataLoss": "false"}, "does not know option 'failondataloss' for reading state"),
        ({"versionAsOf": "1", "timestampAsOf": "2020-01-01T00:00Z"}, "both name the checkpoint"),
        ({"table": "changes", "at": "1"}, "for reading changes"),
        ({"operator": ""}, "needs option operator"),
        ({"at": "0"}, "option at"),
        ({"key_groups": "0-x"}, "not '0-x'"),
        ({"key_groups": "5-1"}, "not '5-1'"),
        ({"key_groups": "0-5,3-8"}, "names key group 3 twice"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], reason: str) -> None:
    """Before anything is read."""
    with pytest.raises(InvalidInputError, match=reason):
        SourceOptions.of({**GIVEN, **options})


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("startingVersion", "from_checkpoint"),
        ("readChangeFeed", 'table="changes"'),
        ("snapshot-id", "it has at"),
        ("as-of-timestamp", "it has at, which takes a time"),
        ("scan.mode", "startingCheckpoint"),
        ("maxFilesPerTrigger", "maxCheckpointsPerTrigger"),
        ("maxBytesPerTrigger", "maxCheckpointsPerTrigger"),
        ("startingTimestamp", "startingCheckpoint"),
        ("ignoreDeletes", "has deletes as rows"),
        ("skipChangeCommits", "has changes as rows"),
        ("inferSchema", "a state has its columns"),
    ],
)
def test_the_words_of_other_sources_are_known(word: str, says: str) -> None:
    """In any case of letters: Delta's, Iceberg's, Paimon's and those of Spark's files."""
    for spelled in (word, word.lower()):
        with pytest.raises(InvalidInputError, match=says):
            SourceOptions.of({**GIVEN, spelled: "1"})


@pytest.mark.parametrize("path", ["gs://bucket/folder/orders/totals", "gs://bucket/folder/orders/totals/"])
def test_an_address_is_store_job_and_operator(path: str) -> None:
    """What `load` takes; of the table of checkpoints without an operator."""
    found = SourceOptions.of({"path": path, "at": "3"})
    assert (found.store, found.job, found.operator) == ("gs://bucket/folder", "orders", "totals")
    found = SourceOptions.of({"path": "file:///a/b/orders", "table": "checkpoints"})
    assert (found.store, found.job) == ("file:///a/b", "orders")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"path": "orders"}, "is no address: write <store>/<job>/<operator>"),
        ({"path": "gs://bucket/totals"}, "is no address"),
        ({"path": "gs://b/orders/totals", "job": "orders"}, "leave out option job"),
    ],
)
def test_what_is_no_address_is_refused(given: dict[str, str], says: str) -> None:
    """Before anything is read."""
    with pytest.raises(InvalidInputError, match=says):
        SourceOptions.of(given)


def test_options_of_a_read() -> None:
    """Ranges in any order, one number among them; the table of checkpoints has no operator."""
    found = SourceOptions.of({**GIVEN, "key_groups": "20,0-15", "columns": "a, b"})
    assert found.key_groups == (KeyGroupRange.of(0, 15), KeyGroupRange.of(20, 20))
    assert found.columns == ("a", "b")
    assert SourceOptions.of({"store": "x", "job": "y", "table": "checkpoints"}).operator == ""


@pytest.mark.parametrize(
    ("given", "same_as"),
    [
        ({"at": "2001-01-05"}, "2001-01-05"),
        ({"versionAsOf": "12"}, AsOf.of_text("12")),
        ({"versionAsOf": "savepoint:kept"}, "savepoint:kept"),
        ({"timestampAsOf": "2026-11-22T09:00Z"}, NINE),
        ({"timestampAsOf": "2026-11-22T18:00+09:00"}, NINE),
        ({"timestampAsOf": "2026-11-22 18:00:00", "timeZone": "Asia/Tokyo"}, NINE),
        ({"timestampAsOf": "2026-11-22T04:00", "timeZone": "-05:00"}, NINE),
        ({"timestampAsOf": "2026-11-22", "timeZone": "-09:00"}, NINE),
        ({"timestampAsOf": "2026-11-22T09:00Z", "timeZone": "Asia/Tokyo"}, NINE),
        ({}, None),
    ],
)
def test_a_checkpoint_is_named_as_everywhere(given, same_as):
    """With the names that other formats have for it."""
    found = SourceOptions.of({**GIVEN, **given}).checkpoint
    if isinstance(same_as, datetime):
        assert found._time == same_as
    else:
        assert found == AsOf.of(same_as)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"at": "1", "versionAsOf": "1"}, "both name the checkpoint"),
        ({"versionAsOf": "2026-11-22T18:00Z"}, "use timestampAsOf"),
        ({"timestampAsOf": "kept"}, "option timestampAsOf: 'kept' is not a time"),
        ({"timestampAsOf": "2026-11-22T18:00"}, "has no time zone, and Spark .* add option timeZone"),
        ({"timestampAsOf": "2026-11-22"}, "has no time zone"),
        ({"timestampAsOf": "2026-11-22", "timeZone": "Tokyo"}, "option timeZone is 'Tokyo'"),
        ({"timestampAsOf": "2026-11-22", "timeZone": "+9"}, r"option timeZone is '\+9'"),
        ({"at": "0"}, "option at: checkpoint ids are numbers from 1 on"),
    ],
)
def test_a_checkpoint_named_wrongly_is_refused(given, says):
    """By the option."""
    with pytest.raises(InvalidInputError, match=says):
        SourceOptions.of({**GIVEN, **given})
