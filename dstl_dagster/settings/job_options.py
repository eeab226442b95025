"""The options of one job, as one value that travels: driver, control plane and tasks act on the same.

Owns which keys there are together, their precedence, and their form as plain JSON. Does not own an option's
meaning, default or bounds (`changelog`, `gs`, `checkpoint`), nor what the components do with it.

Precedence, the first that gives a key wins:

    call          options of one call: an op's, a write's, the command's `-o`
    configured    what configures the job: resource, component, the command's `--options-file`
    environment   `DSTL_OPTIONS` of the process that reads the other two; never a task's
    default
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings.changelog import (
    LOCAL_RECOVERY_KEYS,
    FsStateChangelogOptions,
    LocalRecoveryConfig,
)
from dstl_dagster.settings.checkpoint import CheckpointOptions
from dstl_dagster.settings.gs import GSFileSystemOptions
from dstl_dagster.settings.prices import StoragePrices
from dstl_dagster.settings.units import ConfigValue

ENVIRONMENT_VARIABLE: Final = "DSTL_OPTIONS"
_TABLES: Final = (
    CheckpointOptions.table(),
    StoragePrices.table(),
    FsStateChangelogOptions.table(),
    GSFileSystemOptions.table(),
    LOCAL_RECOVERY_KEYS,
)
_PREFIXES: Final = (
    "dstl.dfs.",
    "gs.",
    "execution.checkpointing.",
    "execution.state-recovery.",
    "dstl.checkpoint.",
    "dstl.prices.",
    "dstl.state.",
)
_BASE_PATH: Final = "dstl.dfs.base-path"
_ROOT_URL: Final = "gs.storage.root.url"
_PLACES: Final = ("gs.writer.temporary.bucket.name", "gs.filesink.entropy.enabled")
"""Where temporary objects lie: the job's clean-up must look in the same places."""


@dataclass(frozen=True)
class JobOptions:
    """The options that are set for a job. Compared by value; pickled as plain JSON.

    Attributes:
        texts: (canonical key, text), sorted by key. Use `of`, which checks it.
    """

    texts: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, *layers: Options | CheckpointOptions | GSFileSystemOptions | None) -> JobOptions:
        """One value from several; the first layer that gives a key wins. None gives nothing.

        A mapping has strings or typed values under our keys or upstream's.

        Raises: InvalidInputError naming an unknown key and the nearest known one, two spellings of one
        option, a value that cannot be used, also one that fits only apart from another, or what a job decides
        itself (`base-path`).
        """
        present = [layer for layer in layers if layer is not None and layer != {}]
        if not present:
            return cls()
        if len(present) == 1 and isinstance(present[0], JobOptions):
            return present[0]  # checked when it was made
        merged: dict[str, str] = {}
        for layer in reversed(present):
            merged.update(_texts_of(layer))
        return _checked(tuple(sorted(merged.items())))

    @classmethod
    def resolve(
        cls,
        call: Options | None,
        configured: Options | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
    ) -> JobOptions:
        """The options of an entry point, by the precedence of this module.

        Raises: InvalidInputError as `of`, and for lines of the environment variable that are no options.
        """
        lines = environ.get(ENVIRONMENT_VARIABLE, "")
        return cls.of(call, configured, parse_lines(lines, f"environment variable {ENVIRONMENT_VARIABLE}"))

    def with_call(self, call: Options | None) -> JobOptions:
        """These options, below those of one call. The places of temporary objects cannot be a call's.

        Raises: InvalidInputError as `of`, and for such a place.
        """
        changed = JobOptions.of(call, self)
        for key in _PLACES:
            if dict(changed.texts).get(key) != dict(self.texts).get(key):
                raise InvalidInputError(
                    f"{key} cannot be changed for one call: clean-up would not find the temporary objects. "
                    "Set it where the job is configured"
                )
        return changed

    @classmethod
    def from_json(cls, texts: Mapping[str, str]) -> JobOptions:
        """Reads back `to_json`. Raises: InvalidInputError, also for a key of a newer release."""
        return cls.of(texts)

    def to_json(self) -> dict[str, str]:
        """A plain JSON object of strings. Holds no secret."""
        return dict(self.texts)

    def gives(self, key: str) -> bool:
        """Whether this canonical key is set, be it to its default."""
        return key in dict(self.texts)

    @cached_property
    def checkpoint(self) -> CheckpointOptions:
        """Of the control plane."""
        return CheckpointOptions.from_mapping(dict(self.texts))

    @cached_property
    def changelog(self) -> FsStateChangelogOptions:
        """Of the changelog, with the defaults of a batch."""
        return FsStateChangelogOptions.for_batches(**FsStateChangelogOptions.table().values(dict(self.texts)))

    @cached_property
    def files(self) -> GSFileSystemOptions:
        """Of the store's requests, and of the files' temporary objects."""
        return GSFileSystemOptions.from_mapping(dict(self.texts))

    @cached_property
    def local_recovery(self) -> LocalRecoveryConfig:
        """Whether tasks keep copies of changelog files on their machine's disk."""
        return LocalRecoveryConfig.from_mapping(dict(self.texts))

    def __reduce__(self) -> tuple[Any, ...]:
        return (JobOptions.of, (self.to_json(),))


@lru_cache(maxsize=64)  # Dagster asks for a resource's options dozens of times a run
def _checked(texts: tuple[tuple[str, str], ...]) -> JobOptions:
    options = JobOptions(texts)
    _ = options.checkpoint, options.changelog, options.files, options.local_recovery
    if options.gives(_BASE_PATH):
        raise InvalidInputError(
            f"{_BASE_PATH}: a job's files lie below the URI of its store, under the attempt: put the "
            "folder into the URI"
        )
    root = urlsplit(options.files.storage_root_url or "")
    if root.username is not None or root.password is not None or root.query:
        raise InvalidInputError(
            f"{_ROOT_URL} holds a user, a password or a query, and options are shown and stored: give "
            "the address alone; Google's libraries find the credentials"
        )
    return options


Options = JobOptions | Mapping[str, ConfigValue]
"""A job's options, or a mapping of keys to values."""


def parse_lines(text: str, where: str) -> dict[str, ConfigValue]:
    """Options from lines: `key=value` or `key: value`; blank lines and those with # at the start are skipped.

    `where` names the text in errors. Raises: InvalidInputError for another line, or a key set twice.
    """
    found: dict[str, ConfigValue] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        ends = [at for at in (line.find("="), line.find(":")) if at > 0]
        if not ends:
            raise InvalidInputError(f"{where}, line {number}: expected key=value or key: value, not {line!r}")
        key, value = line[: min(ends)].strip(), line[min(ends) + 1 :].strip()
        if key in found:
            raise InvalidInputError(f"{where}, line {number}: {key} occurs twice")
        found[key] = value
    return found


def _texts_of(layer: Options | CheckpointOptions | GSFileSystemOptions) -> dict[str, str]:
    match layer:
        case JobOptions():
            return dict(layer.texts)
        case CheckpointOptions():
            prices = StoragePrices.table().changed(layer.prices, StoragePrices())
            return CheckpointOptions.table().changed(layer, CheckpointOptions()) | prices
        case GSFileSystemOptions():
            return GSFileSystemOptions.table().changed(layer, GSFileSystemOptions())
        case Mapping():
            return _texts(layer)
        case _:
            raise InvalidInputError(f"options are a mapping of keys to values, or JobOptions, not {layer!r}")


def _texts(mapping: Mapping[str, ConfigValue]) -> dict[str, str]:
    _refuse_unknown(mapping)
    texts: dict[str, str] = {}
    for table in _TABLES:
        texts |= table.texts(table.values(mapping))
    return texts


def _refuse_unknown(keys: Iterable[str]) -> None:
    import difflib  # only the error path needs it

    known = {each for table in _TABLES for each in table.spellings}
    by_attribute = {option.attribute: [option.key] for table in _TABLES for option in table.options}
    for key in keys:
        if key in known:
            continue
        near = by_attribute.get(key) or difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the keys begin with {', '.join(_PREFIXES)}"
        raise InvalidInputError(f"{key} is not an option of a job; {hint}")
