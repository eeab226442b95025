"""The options of a read, without Spark."""

from __future__ import annotations

import pytest

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import KeyGroupRange
from dstl_dagster.spark.source.options import SourceOptions
from dstl_dagster.timeline import AsOf

GIVEN = {"store": "file:///x", "job": "job", "operator": "op"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"table": "rows"}, "one of state, changes, checkpoints"),
        ({"push_filters": "true"}, "does not know option 'push_filters'"),
        ({"operater": "x"}, "does not know option 'operater' for reading state"),
        ({"table": "changes", "checkpoint": "1"}, "for reading changes"),
        ({"operator": ""}, "needs option operator"),
        ({"checkpoint": "0"}, "checkpoint"),
        ({"key_groups": "0-x"}, "not '0-x'"),
        ({"key_groups": "5-1"}, "not '5-1'"),
        ({"key_groups": "0-5,3-8"}, "names key group 3 twice"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], reason: str) -> None:
    """Before anything is read."""
    with pytest.raises(InvalidInputError, match=reason):
        SourceOptions.of({**GIVEN, **options})


def test_options_of_a_read() -> None:
    """Ranges in any order, one number among them; the table of checkpoints has no operator."""
    found = SourceOptions.of({**GIVEN, "key_groups": "20,0-15", "columns": "a, b"})
    assert found.key_groups == (KeyGroupRange.of(0, 15), KeyGroupRange.of(20, 20))
    assert found.columns == ("a", "b")
    assert SourceOptions.of({"store": "x", "job": "y", "table": "checkpoints"}).operator == ""


@pytest.mark.parametrize(
    ("given", "same_as"),
    [
        ({"checkpoint": "2001-01-05"}, "2001-01-05"),
        ({"versionAsOf": "12"}, 12),
        ({"versionAsOf": "savepoint:kept"}, "savepoint:kept"),
        ({"timestampAsOf": "2026-11-22"}, "time:2026-11-22"),
        ({}, None),
    ],
)
def test_a_checkpoint_is_named_as_everywhere(given, same_as):
    """With the names that other formats have for it."""
    assert SourceOptions.of({**GIVEN, **given}).checkpoint == AsOf.of(same_as)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"checkpoint": "1", "versionAsOf": "1"}, "both name the checkpoint"),
        ({"versionAsOf": "2026-11-22T18:00Z"}, "use timestampAsOf"),
        ({"timestampAsOf": "kept"}, "option timestampasof: 'kept' is not a time"),
        ({"checkpoint": "0"}, "option checkpoint: checkpoint ids are numbers from 1 on"),
    ],
)
def test_a_checkpoint_named_wrongly_is_refused(given, says):
    """By the option."""
    with pytest.raises(InvalidInputError, match=says):
        SourceOptions.of({**GIVEN, **given})
