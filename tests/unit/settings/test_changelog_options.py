"""The changelog's options: upstream's keys in both spellings, values with units, and wrong ones refused."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dstl_dagster.changelog import FsStateChangelogStorage, FsStateChangelogStorageFactory
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import KeyGroupRange, SequenceNumber
from dstl_dagster.settings import FsStateChangelogOptions, LocalRecoveryConfig
from dstl_dagster.settings.units import MemorySize
from dstl_dagster.storage import MemoryObjectStore

MB = 1 << 20
PREFIX = "state.changelog."

EVERY_OPTION: dict[str, tuple[Any, str, Any]] = {
    "dstl.dfs.base-path": ("some/root", "base_path", "some/root"),
    "dstl.dfs.compression": ("zstd", "compression", "zstd"),
    "dstl.dfs.preemptive-persist-threshold": ("3MB", "preemptive_persist_threshold_in_bytes", 3 * MB),
    "dstl.dfs.batch.persist-delay": ("30s", "batch_persist_delay", timedelta(seconds=30)),
    "dstl.dfs.batch.persist-size-threshold": ("64 kb", "batch_persist_size_threshold_bytes", 64 << 10),
    "dstl.dfs.upload.buffer-size": ("2mb", "upload_buffer_bytes", 2 * MB),
    "dstl.dfs.upload.num-threads": ("9", "num_upload_threads", 9),
    "dstl.dfs.discard.num-threads": (2, "num_discard_threads", 2),
    "dstl.dfs.upload.max-in-flight": ("1 GB", "max_in_flight_bytes", 1 << 30),
    "dstl.dfs.upload.retry-policy": ("none", "retry_policy", "none"),
    "dstl.dfs.upload.timeout": ("2 min", "upload_timeout", timedelta(minutes=2)),
    "dstl.dfs.upload.max-attempts": ("7", "max_upload_attempts", 7),
    "dstl.dfs.upload.next-attempt-delay": ("10 ms", "next_attempt_delay", timedelta(milliseconds=10)),
    "dstl.dfs.download.local-cache.idle-timeout-ms": (
        "500",
        "cache_idle_timeout",
        timedelta(milliseconds=500),
    ),
    "dstl.dfs.download.local-cache.max-size": ("5MB", "max_cache_bytes", 5 * MB),
    "dstl.dfs.metrics": ("ours.hooks:HOOK", "metrics", "ours.hooks:HOOK"),
}
OURS = ("compression", "max_cache_bytes", "metrics")


@pytest.mark.parametrize("key", EVERY_OPTION)
def test_every_option_has_one_key_and_upstreams(key: str) -> None:
    """Upstream's full key as well, where it has the option, and no other spelling."""
    text, name, expected = EVERY_OPTION[key]
    for spelling in (key,) if name in OURS else (PREFIX + key, key):
        assert getattr(FsStateChangelogOptions.from_mapping({spelling: text}), name) == expected
    for spelling in (name, PREFIX + key) if name in OURS else (name,):
        with pytest.raises(InvalidInputError, match="is not an option"):
            FsStateChangelogOptions.from_mapping({spelling: text})


def test_no_option_is_left_out() -> None:
    """Each field has a key here."""
    fields = {field.name for field in dataclasses.fields(FsStateChangelogOptions)}
    assert {name for _, name, _ in EVERY_OPTION.values()} == fields


def test_the_defaults_are_upstreams() -> None:
    """What upstream documents; MB is 2^20."""
    options = FsStateChangelogOptions()
    assert options == FsStateChangelogOptions.from_mapping({})
    assert (options.base_path, options.compression) == (None, "none")
    assert options.preemptive_persist_threshold_in_bytes == 5 * MB
    assert (options.batch_persist_delay, options.batch_persist_size_threshold_bytes) == (
        timedelta(milliseconds=10),
        10 * MB,
    )
    assert (options.upload_buffer_bytes, options.num_upload_threads, options.num_discard_threads) == (
        MB,
        5,
        1,
    )
    assert (options.max_in_flight_bytes, options.retry_policy) == (100 * MB, "fixed")
    assert (options.upload_timeout, options.max_upload_attempts) == (timedelta(seconds=1), 3)
    assert (options.next_attempt_delay, options.cache_idle_timeout) == (
        timedelta(milliseconds=500),
        timedelta(minutes=10),
    )


@pytest.mark.parametrize(("value", "expected"), [("true", "snappy"), (False, "none")])
def test_upstreams_switch_for_compression(value: Any, expected: str) -> None:
    """`compression.enabled` means Snappy or none."""
    for key in (PREFIX + "dstl.dfs.compression.enabled", "dstl.dfs.compression.enabled"):
        assert FsStateChangelogOptions.from_mapping({key: value}).compression == expected


@pytest.mark.parametrize(
    ("mapping", "named"),
    [
        ({PREFIX + "dstl.dfs.upload.num-threads": "0"}, "upload.num-threads"),
        ({PREFIX + "dstl.dfs.upload.num-threads": "many"}, "upload.num-threads"),
        ({PREFIX + "dstl.dfs.upload.timeout": "5 parsecs"}, "upload.timeout"),
        ({PREFIX + "dstl.dfs.upload.buffer-size": "3GB"}, "upload.buffer-size"),
        ({PREFIX + "dstl.dfs.upload.retry-policy": "forever"}, "upload.retry-policy"),
        ({"dstl.dfs.compression": "brotli"}, "compression"),
        ({PREFIX + "dstl.dfs.upload.max-in-flight": "1MB"}, "batch.persist-size-threshold"),
        (
            {PREFIX + "dstl.dfs.upload.max-in-flight": "0", "dstl.dfs.batch.persist-size-threshold": 0},
            "upload.max-in-flight",
        ),
        ({PREFIX + "dstl.dfs.upload.num-thread": "3"}, "upload.num-thread"),
        ({"dstl.dfs.metrics": "ours.hooks.HOOK"}, "dstl.dfs.metrics: .* package.module:name"),
        ({f"{each}dstl.dfs.upload.max-attempts": 2 for each in ("", PREFIX)}, "two spellings"),
        ({"dstl.dfs.compression": "zstd", "dstl.dfs.compression.enabled": "true"}, "compression.enabled"),
    ],
)
def test_a_wrong_value_is_refused_by_name(mapping: dict[str, Any], named: str) -> None:
    """The message names the key: a wrong value, a slip, two spellings at once, and values that disagree."""
    with pytest.raises(InvalidInputError, match=named):
        FsStateChangelogOptions.from_mapping(mapping)


def test_other_peoples_keys_are_left_alone() -> None:
    """A whole Flink configuration may be passed."""
    assert FsStateChangelogOptions.from_mapping({"parallelism.default": "4"}) == FsStateChangelogOptions()


def test_the_factory_reads_a_configuration() -> None:
    """FsStateChangelogStorageLoaderTest.testLoaded, without a loader: the factory is known by its identifier,
    and a storage made from a configuration works under its base path.
    """
    factory = FsStateChangelogStorageFactory()
    configuration = factory.configure("root", timedelta(seconds=3), 2)
    assert configuration["state.changelog.storage"] == factory.identifier == "filesystem"
    store = MemoryObjectStore()
    with factory.create_storage("job", store, configuration) as storage:
        with storage.create_writer("op", KeyGroupRange.of(0, 0)) as writer:
            writer.append(0, b"x")
            handle = writer.persist(SequenceNumber.of(0), 1).result().job_manager_owned_snapshot
        assert handle is not None
    assert [stat.name.rpartition("/")[0] for stat in store.list()] == ["root/job/dstl"]
    with factory.create_storage_view(store, configuration) as view:
        assert list(view.create_reader().read(handle)) == [(0, b"x")]
    with pytest.raises(InvalidInputError, match="max-attempts"):
        factory.create_storage("job", store, factory.configure("root", timedelta(seconds=3), 0))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:HOOK", "cannot be imported in this process .*: install its module on each machine"),
        ("dstl_dagster.metrics:NO_SUCH", "cannot be imported in this process"),
        ("dstl_dagster.metrics:InMemoryMetrics", "is no MetricsHook, but <class .*: name an instance"),
    ],
)
def test_a_hook_that_is_none_is_refused_before_anything_is_written(name: str, message: str) -> None:
    """And not dropped with a warning at each measurement."""
    with pytest.raises(InvalidInputError, match=f"dstl.dfs.metrics: '{name}' {message}"):
        FsStateChangelogStorage("job", MemoryObjectStore(), FsStateChangelogOptions(metrics=name))


def test_a_job_id_stands_in_names_as_it_should() -> None:
    """A UUID and 32 hex digits give the digits, another valid name itself, and nothing else passes."""
    digits = "000102030405060708090a0b0c0d0e0f"
    for job_id, expected in ((digits.upper(), digits), ("flights", "flights")):
        with FsStateChangelogStorage(job_id, MemoryObjectStore()) as storage:
            assert storage.job_id == expected
    for wrong in ("", "a/b", "../up"):
        with pytest.raises(InvalidInputError):
            FsStateChangelogStorage(wrong, MemoryObjectStore())
    with pytest.raises(InvalidInputError, match="base path"):
        FsStateChangelogStorage("job", MemoryObjectStore(), base_path="a/../b")


def test_local_recovery_is_on_or_off(tmp_path: Path) -> None:
    """Enabled with a directory, made absolute; disabled without."""
    assert not LocalRecoveryConfig.disabled().is_local_backup_enabled
    assert LocalRecoveryConfig.enabled(tmp_path).directories == (tmp_path,)
    assert LocalRecoveryConfig.enabled("relative").directories == (Path("relative").absolute(),)
    with pytest.raises(InvalidInputError):
        LocalRecoveryConfig(())


def test_upstreams_names_of_options_are_constants() -> None:
    """Seeds 000 and 002 set options by constants, and sizes by `MemorySize.parse`."""
    constants = {
        name: value
        for name, value in vars(FsStateChangelogOptions).items()
        if name.isupper() and name[0] != "_"
    }
    upstreams = {PREFIX + key for key, (_, name, _) in EVERY_OPTION.items() if name not in OURS}
    assert set(constants.values()) == upstreams | {f"{PREFIX}dstl.dfs.compression.enabled"}
    options = FsStateChangelogOptions.from_mapping(
        {
            FsStateChangelogOptions.PREEMPTIVE_PERSIST_THRESHOLD: MemorySize.parse("6MB"),
            FsStateChangelogOptions.UPLOAD_TIMEOUT: timedelta(seconds=30),
        }
    )
    assert (options.preemptive_persist_threshold_in_bytes, options.upload_timeout.seconds) == (6 * MB, 30)


def test_a_memory_size_is_a_number_of_bytes() -> None:
    """Powers of two, as upstream's; a wrong text is refused with what was given."""
    assert MemorySize.parse("5MB") == MemorySize.parse("5 mb").bytes == 5 * MB
    with pytest.raises(InvalidInputError, match="5 parsecs"):
        MemorySize.parse("5 parsecs")
