"""One value for the options of a job: keys, precedence, what it refuses, and how it travels."""

from __future__ import annotations

import json
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings import CheckpointOptions, GSFileSystemOptions, JobOptions, parse_lines
from dstl_dagster.settings.job_options import _TABLES

NUM_RETAINED = "execution.checkpointing.num-retained"
LOCAL = "execution.checkpointing.local-backup."

_SIZES = st.integers(1, 2**40)
_COUNTS = st.integers(1, 1000)
_TIMES = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=400))
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "num_retained": _COUNTS,
    "reader_grace": _TIMES,
    "commit_threads": _COUNTS,
    "snapshot_interval": st.integers(8, 999),
    "materialize": st.booleans(),
    "materialize_log_ratio": st.floats(0.001, 1e9),
    "materialize_max_runs": st.integers(2, 999),
    "compression": st.sampled_from(["none", "snappy", "zstd"]),
    "preemptive_persist_threshold_in_bytes": _SIZES,
    "batch_persist_delay": _TIMES,
    "upload_buffer_bytes": st.integers(1, 2**31 - 1),
    "num_upload_threads": _COUNTS,
    "num_discard_threads": _COUNTS,
    "max_in_flight_bytes": st.integers(2**24, 2**40),
    "retry_policy": st.sampled_from(["none", "fixed"]),
    "upload_timeout": _TIMES,
    "max_upload_attempts": _COUNTS,
    "next_attempt_delay": _TIMES,
    "cache_idle_timeout": _TIMES,
    "max_cache_bytes": _SIZES,
    "writer_temporary_bucket_name": st.just("scratch"),
    "writer_chunk_size": st.integers(1, 100).map(lambda count: count * 256 * 1024),
    "filesink_entropy_enabled": st.booleans(),
    "http_connect_timeout": _COUNTS,
    "retry_max_attempt": _COUNTS,
    "retry_rpc_timeout_multiplier": st.floats(0.001, 1e9),
    "retry_total_timeout": _TIMES,
    "storage_root_url": st.just("http://127.0.0.1:4443"),
}


@given(st.fixed_dictionaries({}, optional=_VALUES))
def test_every_value_comes_back_from_plain_json(values: dict[str, Any]) -> None:
    """Typed values in, equal typed values out, through JSON and through pickle."""
    keys = {option.attribute: option.key for table in _TABLES for option in table.options}
    options = JobOptions.of({keys[name]: value for name, value in values.items()})
    found = {**vars(options.checkpoint), **vars(options.changelog), **vars(options.files)}
    assert {name: found[name] for name in values} == values
    assert JobOptions.of(json.loads(json.dumps(options.to_json()))) == options
    assert pickle.loads(pickle.dumps(options)) == options
    assert all(type(text) is str for text in options.to_json().values())


def test_what_is_pickled_is_the_json() -> None:
    """A task of another release meets keys and texts, no object of this one."""
    options = JobOptions.of({NUM_RETAINED: 3})
    assert options.checkpoint.num_retained == 3  # kept by now, and not pickled
    assert options.__reduce__() == (JobOptions.of, ({NUM_RETAINED: "3"},))


def test_every_key_is_in_lower_case() -> None:
    """Spark passes keys in lower case, so an upper-case one would never be met; and each has a dot."""
    spellings = {each for table in _TABLES for each in table.spellings}
    assert {each for each in spellings if "." not in each or each != each.lower()} == set()


def test_no_spelling_is_of_two_options() -> None:
    """Otherwise one mapping could not hold both."""
    spellings = [each for table in _TABLES for option in table.options for each in option.spellings]
    assert len(spellings) == len(set(spellings))


def test_the_changelog_has_the_defaults_of_a_batch() -> None:
    """Tasks write in one go; what is given replaces only itself."""
    options = JobOptions.of({"dstl.dfs.upload.max-attempts": "7"}).changelog
    assert (options.compression, options.upload_timeout) == ("zstd", timedelta(seconds=60))
    assert options.max_upload_attempts == 7


def test_precedence() -> None:
    """Call, then what configures the job, then the environment, whatever the spelling."""
    lines = f"{NUM_RETAINED}=3\ngs.retry.max-attempt=3\ndstl.dfs.upload.max-attempts: 3\n"
    options = JobOptions.resolve(
        {NUM_RETAINED: 1, "state.changelog.dstl.dfs.upload.max-attempts": 4},
        {NUM_RETAINED: "2", "gs.retry.max-attempt": "2"},
        environ={"DSTL_OPTIONS": lines},
    )
    assert options.checkpoint.num_retained == 1
    assert options.files.retry_max_attempt == 2
    assert options.changelog.max_upload_attempts == 4


def test_a_default_that_is_given_wins() -> None:
    """It is what the caller wants, although nobody needs to say it."""
    assert JobOptions.of({NUM_RETAINED: "10"}, {NUM_RETAINED: "3"}).checkpoint.num_retained == 10


def test_typed_values_are_a_layer() -> None:
    """What they change is given."""
    options = JobOptions.of(CheckpointOptions(num_retained=3), GSFileSystemOptions(retry_max_attempt=2))
    assert options.to_json() == {NUM_RETAINED: "3", "gs.retry.max-attempt": "2"}
    assert options.gives(NUM_RETAINED)
    assert not options.gives("dstl.checkpoint.reader-grace")


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"dstl.dfs.upload.timeouts": "1 s"}, "did you mean dstl.dfs.upload.timeout?"),
        ({"upload.timeout": "1 s"}, "did you mean dstl.dfs.upload.timeout?"),
        ({"gs.retry.max-attempts": "3"}, "did you mean gs.retry.max-attempt?"),
        ({"parallelism.default": "4"}, "not an option of a job; the keys begin with"),
        ({"gs.retry.max-attempt": "many"}, "expected a whole number"),
        ({"gs.http.read-timeout": "30 s"}, "expected milliseconds as a number alone, such as 60000"),
        ({"dstl.dfs.upload.timeout": "soon"}, "expected a duration such as '30s'"),
        ({"gs.writer.chunk.size": "big"}, "expected a size such as '5MB'"),
        ({"dstl.state.materialize.enabled": "yes"}, "expected true or false"),
        ({"dstl.dfs.base-path": "x"}, "put the folder into the URI"),
        ({"gs.storage.root.url": "https://me:hunter2@host"}, "give the address alone"),
        ({"gs.storage.root.url": "https://host?key=hunter2"}, "give the address alone"),
        ({f"{LOCAL}dirs": "/a"}, "does nothing alone: set execution.checkpointing.local-backup.enabled"),
        ({f"{LOCAL}enabled": "true"}, "needs execution.checkpointing.local-backup.dirs"),
        ({f"{LOCAL}enabled": "true", f"{LOCAL}dirs": "here"}, "expected absolute folders"),
        ({f"{each}dstl.dfs.upload.max-attempts": "3" for each in ("", "state.changelog.")}, "two spellings"),
        ({"num_retained": "3"}, "did you mean execution.checkpointing.num-retained?"),
    ],
)
def test_what_cannot_act_is_refused(mapping: dict[str, str], message: str) -> None:
    """In one sentence: the key, and what it should look like."""
    with pytest.raises(InvalidInputError) as refused:
        JobOptions.of(mapping)
    assert message in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_local_recovery_by_upstreams_keys() -> None:
    """Several folders are separated as upstream does."""
    options = JobOptions.of({f"{LOCAL}enabled": "true", f"{LOCAL}dirs": "/a,/b:/c d"})
    assert options.local_recovery.directories == (Path("/a"), Path("/b"), Path("/c d"))
    assert JobOptions.of(options.to_json()) == options
    off = JobOptions.of({f"{LOCAL}enabled": "false"}, options)
    assert not off.local_recovery.is_local_backup_enabled


def test_a_call_changes_all_but_places() -> None:
    """Clean-up looks for temporary objects where the job says."""
    job = JobOptions.of({"gs.writer.temporary.bucket.name": "scratch"})
    assert job.with_call({"gs.retry.max-attempt": "1"}).files.retry_max_attempt == 1
    assert job.with_call({"gs.writer.temporary.bucket.name": "scratch"}) == job
    for key, value in (("gs.writer.temporary.bucket.name", "other"), ("gs.filesink.entropy.enabled", "true")):
        with pytest.raises(InvalidInputError, match="cannot be changed for one call"):
            job.with_call({key: value})


def test_lines() -> None:
    """Properties, or Flink's flat YAML; the first separator counts."""
    text = "# retention\n\nexecution.checkpointing.num-retained: 3\n gs.storage.root.url = http://h:1/?a=b\n"
    assert parse_lines(text, "file") == {
        NUM_RETAINED: "3",
        "gs.storage.root.url": "http://h:1/?a=b",
    }
    for wrong, named in (
        ("nonsense", "line 1: expected key=value"),
        ("a=1\na=2", "line 2: a occurs twice"),
    ):
        with pytest.raises(InvalidInputError, match=named):
            parse_lines(wrong, "file")


def test_a_wrong_environment_names_the_variable() -> None:
    """The reader has to know where the line is."""
    with pytest.raises(InvalidInputError, match="environment variable DSTL_OPTIONS, line 1"):
        JobOptions.resolve(None, environ={"DSTL_OPTIONS": "nonsense"})


def test_something_else_is_refused() -> None:
    """Text, for example, which would be read letter by letter."""
    with pytest.raises(InvalidInputError, match="options are a mapping"):
        JobOptions.of("gs.retry.max-attempt=3")  # type: ignore[arg-type] # the point
