"""The names under which Dagster shows a job: asset keys, partitions, tags, metadata. Spelled nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import dagster as dg

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.format import unbroken, validated_job
from dstl_dagster.settings import parse_names

TAG_JOB = "dstl/job"
TAG_ASSET = "dstl/asset"
"""What an asset is of its job, as `AssetRole` says: by it events find an asset whose key was changed."""
TAG_CHECKPOINT = "dstl/checkpoint_id"
TAG_PARENT = "dstl/parent_id"
TAG_ATTEMPT = "dstl/attempt"
TAG_STEP = "dstl/step"
TAG_SLOT = "dstl/slot"
"""The slot of the `completed` record on the timeline."""
TAG_TIMELINE = "dstl/timeline"
"""The id of the checkpoint's timeline; as metadata its slot and attempt follow."""
TAG_VERSION = "dagster/data_version"
"""Dagster's own tag, one of the few that its storage can search: what an event says is in here."""
TAG_RESTORED = "dstl/restored_in"
"""The slot of the `restored` record that an event tells of."""
TAG_REPORTER = "dstl/reported_by"
"""`run` or `sensor`."""
TAG_COMMIT = "dstl/commit"
"""The checkpoint that a run was requested to commit: `<job>/<checkpoint>/<attempt>`."""
TAG_DOWNSTREAM = "dstl/downstream"
"""What a run of a user's own job is for: `<its name>/<timeline>/<checkpoint>/<attempt>`."""
TAG_CORRECTION = "dstl/correction"
"""The run that corrects a partition, on each run that it makes."""
TAG_ALREADY_IN = "dstl/already_in"
"""The checkpoint that held the batch of the run before it: the run changed nothing."""
TAG_FAIL_IF_APPLIED = "dstl/fail_if_applied"
"""A run with this tag set to `true` fails if a checkpoint holds its batch already."""
TAG_IGNORE_UNCLAIMED = "dstl/ignore_unclaimed_state"
"""A run with this tag set to `true` leaves state as it is that nothing here claims, once."""
TAG_START_OVER = "dstl/start_over"
"""A run with this tag set to `true` begins the job on a store that is not the one that was shown."""
TAG_BACKFILL = "dagster/backfill"
"""Dagster's own tag, of each run of a backfill: its id."""
TAG_MARK = "dstl/mark"
"""On a run that is none: what it lets Dagster show, and of which partitions."""
TAG_TAKE_OVER = "dstl/take_over"
"""A run with this tag set to `true` fences an attempt that another owner has open."""
SAMPLE = "dstl/sample"
"""The metadata by which the asset of an operator says how many changed rows its page shows."""
KEYS = "dstl/keys"
"""The metadata by which an asset names the key columns of its state, which an IO manager writes."""
OPERATOR = "dstl/operator"
"""The metadata by which an asset names the operator that it shows, or loads."""


class AssetRole(StrEnum):
    """The part of a job that an asset shows."""

    STATE = "state"
    OPERATOR = "operator"
    FILES = "files"
    CHECKPOINTS = "checkpoints"


_sources: dict[tuple[str, str], str] = {}
"""Which asset each source is whose definition was built in this process, by the names of job and source."""
_defined: dict[str, JobAssets] = {}
"""Each job whose definitions were built in this process, by the name of its group."""
_DAGSTER_NAME = re.compile(r"[A-Za-z0-9_]+")
_PARTITION = re.compile(r"chk-(\d{8,})")


def dagster_name(name: str, what: str) -> str:
    """A name that Dagster takes for a job. `what`: the argument. Raises: InvalidInputError."""
    if not isinstance(name, str) or not _DAGSTER_NAME.fullmatch(name):
        better = re.sub(r"[^A-Za-z0-9_]+", "_", str(name))
        raise InvalidInputError(
            f"{what} {name!r} cannot be the name of a Dagster job: use letters, digits and underscores, "
            f"such as {better!r}"
        )
    return name


OF_ASSET = "asset"
"""The first part of the job of an op's output, where the op is in a graph asset: else Dagster's job."""


def job_of_output(key: dg.AssetKey, metadata: Mapping[str, Any]) -> str:
    """The job of an asset that an IO manager writes."""
    named = metadata.get(TAG_JOB)
    return str(getattr(named, "value", named) or ".".join(key.path))


@dataclass(frozen=True)
class JobAssets:
    """The asset keys of one job.

    Attributes:
        job: the job's name; the first part of every key.
        state: the last part of the key of the job's state; by default `state`, and for `@checkpointed_asset`
            the name of its function.
        files, checkpoints: that of its output files and its checkpoints.
        operators: those whose state is an asset of its own, `<job>/<state>/<operator>`.
        sample: how many of the rows that a checkpoint changed the page of each of these shows, old and new.
            They are read for it, and stand in Dagster's event log.
        _found, _states: the keys under which some definitions have them, by role and operator, and all assets
            that write its state.
    """

    job: str
    state: str | None = None
    files: str = "files"
    checkpoints: str = "checkpoints"
    operators: tuple[str, ...] = ()
    sample: int = 0
    _found: Mapping[tuple[str, str | None], dg.AssetKey] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _states: tuple[dg.AssetKey, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        validated_job(self.job)
        object.__setattr__(self, "operators", parse_names("operators", self.operators))

    @classmethod
    def of(cls, job: str | JobAssets | dg.AssetsDefinition) -> JobAssets:
        """The `job` argument of every builder: a job's name, which has the default keys, its asset keys, or
        the asset of its state.

        Raises: InvalidInputError for an asset of something else.
        """
        if isinstance(job, JobAssets):
            return job
        if not isinstance(job, dg.AssetsDefinition):
            return cls(job)
        names = {tags[TAG_JOB] for tags in job.tags_by_key.values() if TAG_JOB in tags}
        if len(names) != 1 or len(job.keys) != 1:
            raise InvalidInputError(
                f"{job!r} is the state of no job: name the job, or the asset that @checkpointed_asset or "
                "build_state_asset made"
            )
        return cls(names.pop()).of_state(job.key)

    def found_in(self, nodes: Iterable[Any]) -> JobAssets:
        """The same with the keys and operators of these assets, where the job's are among them."""
        found, states, operators, sample = dict(self._found), [], list(self.operators), self.sample
        for node in nodes:
            role, job = node.tags.get(TAG_ASSET), node.tags.get(TAG_JOB)
            if role is None and KEYS in node.metadata:
                role, job = AssetRole.STATE, job_of_output(node.key, node.metadata)
            if role is None or job != self.job:
                continue
            if role == AssetRole.STATE:
                states.append(node.key)
                continue
            shown = node.metadata.get(OPERATOR)
            operator = None if shown is None else unbroken(shown)
            sample = max(sample, node.metadata.get(SAMPLE, 0))
            found[role, operator if role == AssetRole.OPERATOR else None] = node.key
            if operator is not None and operator not in operators:
                operators.append(operator)
        if states and found.get((AssetRole.STATE, None)) not in states:
            found[AssetRole.STATE, None] = states[0]
        named = replace(self, operators=tuple(operators), sample=sample)
        return named._with(found, tuple(states) or self._states)

    def of_state(self, key: dg.AssetKey) -> JobAssets:
        """The same with this one of the assets that write the job's state."""
        return self._with({**self._found, (AssetRole.STATE, None): key}, self._states)

    def with_states(self, keys: Iterable[dg.AssetKey]) -> JobAssets:
        """The same with these, which write the job's state as well."""
        return self._with(self._found, [*dict.fromkeys((*self.state_keys, *keys))])

    def _with(self, found: Mapping[Any, dg.AssetKey], states: Sequence[dg.AssetKey]) -> JobAssets:
        made = replace(self)
        vars(made).update(_found=found, _states=tuple(states))
        return made

    def _key(self, role: AssetRole, *default: str, operator: str | None = None) -> dg.AssetKey:
        return self._found.get((role, operator)) or dg.AssetKey([self.group_name, *default])

    @classmethod
    def defined(cls, job: str) -> JobAssets:
        """Those of the job's definitions in this process, for an op that has only the job's name."""
        assets = cls(job)
        known = _defined.get(assets.group_name)
        return known if known is not None and known.job == job else assets

    @property
    def group_name(self) -> str:
        """The job's name in the letters, digits and underscores that Dagster allows in a group's name."""
        return "".join(letter if letter.isalnum() else "_" for letter in self.job)

    def require_own_names(self) -> None:
        """Claim the names of the job's assets in this process, for its definitions.

        Raises: InvalidInputError if another job has the same: they would show as one, mixed up.
        """
        known = _defined.setdefault(self.group_name, self)
        if known.job != self.job:
            raise InvalidInputError(
                f"jobs {known.job!r} and {self.job!r} are both {self.group_name!r} in Dagster, which allows "
                "only letters, digits and underscores: rename one of them in its program"
            )
        if self.operators:  # the asset of the state need not name them
            _defined[self.group_name] = self

    def require_own_source(self, source: str, by: str) -> None:
        """Claim a source of the job in this process, for the asset `by`.

        Raises: InvalidInputError if another one has it: it would take the other one's batches for its own.
        """
        other = _sources.setdefault((self.job, source), by)
        if other != by:
            raise InvalidInputError(
                f"source {source!r} of job {self.job!r} is {other}, and cannot be {by} too: give each a "
                "source of its own, or leave `source` out"
            )

    @property
    def pool(self) -> str:
        """The concurrency pool of the job's steps: a limit of 1 on it makes its runs wait for each other."""
        return f"dstl_{self.group_name}"

    @property
    def state_key(self) -> dg.AssetKey:
        return self._key(AssetRole.STATE, self.state or "state")

    @property
    def state_keys(self) -> tuple[dg.AssetKey, ...]:
        """Of each asset that writes the job's state: as a rule one."""
        return self._states or (self.state_key,)

    @property
    def showing_keys(self) -> tuple[dg.AssetKey, ...]:
        """Of each asset whose events name the job's checkpoints; those of an IO manager's do at once."""
        return (self.checkpoints_key, *self.state_keys)

    def operator_key(self, operator: str) -> dg.AssetKey:
        """The asset of one operator's state."""
        return self._key(AssetRole.OPERATOR, self.state or "state", operator, operator=operator)

    @property
    def files_key(self) -> dg.AssetKey:
        return self._key(AssetRole.FILES, self.files)

    @property
    def checkpoints_key(self) -> dg.AssetKey:
        return self._key(AssetRole.CHECKPOINTS, self.checkpoints)

    @property
    def partitions_name(self) -> str:
        """The name under which the instance keeps the keys of `partitions`."""
        return f"{self.group_name}_checkpoints"

    @property
    def partitions(self) -> dg.DynamicPartitionsDefinition:
        """One partition for each checkpoint that can be restored now."""
        return dg.DynamicPartitionsDefinition(name=self.partitions_name)

    @staticmethod
    def partition_key(checkpoint_id: int) -> str:
        """`chk-00000042`: keys sort in the order of checkpoints."""
        return f"chk-{checkpoint_id:08d}"

    @staticmethod
    def checkpoint_of(partition: str) -> int:
        """The checkpoint that a partition key names. Raises: InvalidInputError."""
        match = _PARTITION.fullmatch(partition)
        if match is None:
            raise InvalidInputError(
                f"{partition!r} names no checkpoint: expected a partition like chk-00000042"
            )
        return int(match[1])
