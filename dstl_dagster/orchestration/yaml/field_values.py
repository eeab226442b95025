"""The meaning of the fields of our components: partitions, retries, jobs downstream, objects by their path.

Owns how YAML names what Python users pass as objects. Does not own which fields there are (`component`,
`asset_component`).
"""

# No postponed annotations here: Dagster derives the YAML schema from them.

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, Self

import dagster as dg
from pydantic import BaseModel, ConfigDict

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.orchestration.keys import JobAssets
from dstl_dagster.orchestration.watch.downstream import build_downstream_sensor
from dstl_dagster.settings import StateTtlConfig, parse_float, parse_int

Option = str | int | float | bool
"""A template turns the text `30` into a number, so a number is accepted like its text."""

Context = dg.ComponentLoadContext | None
"""Of the component; `None` outside of a project, in a test of the user's."""

given: Final = dg.Resolver(lambda _context, value: value, model_field_type=str)
"""For a field that is text, or an object by a template: `"{{ automation_condition.eager() }}"`."""

_TEMPLATE: Final = re.compile("{[{%#]")
_CRON_FIELDS = 5
_OFFSETS = ("minute_offset", "hour_offset", "day_offset")
_OFFSETS_OF = {"hourly": _OFFSETS[:1], "daily": _OFFSETS[:2], "weekly": _OFFSETS, "monthly": _OFFSETS}
"""Dagster takes the others, and passes over them."""
_BY_TIME: Mapping[str, type[dg.TimeWindowPartitionsDefinition]] = {
    "hourly": dg.HourlyPartitionsDefinition,
    "daily": dg.DailyPartitionsDefinition,
    "weekly": dg.WeeklyPartitionsDefinition,
    "monthly": dg.MonthlyPartitionsDefinition,
}
_TYPES = (*_BY_TIME, "static")


class _AsWritten(dg.ResolutionContext):
    """Text without a template is itself. Dagster would read it as Python: of the SQL `'2024-10-11'` it drops
    the quotes, and makes 1.1 of a key `"1.10"`.
    """

    def resolve_value(self, val: Any, as_type: type | None = None) -> Any:  # noqa: ARG002 - of no effect
        if isinstance(val, str) and not _TEMPLATE.search(val):
            return val
        return super().resolve_value(val)


class Fields(dg.Model, dg.Resolvable):
    """Of a component, or of a field of one. Each is described by the text below it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    @classmethod
    def resolve_from_model(cls, context: dg.ResolutionContext, model: BaseModel) -> Self:
        as_written = _AsWritten(
            scope=context.scope,
            path=context.path,
            source_position_tree=context.source_position_tree,
            stash=context.stash,
        )
        resolved: Self = super().resolve_from_model(as_written, model)
        return resolved


class PartitionsFields(Fields):
    """A partitions definition; its fields are those of Dagster's class of that name."""

    type: str
    """hourly, daily, weekly, monthly or static."""
    start_date: str | None = None
    """Required, but for static ones."""
    end_date: str | None = None
    """Exclusive; without one they go on for ever."""
    timezone: str | None = None
    """Such as Europe/Berlin; UTC by default."""
    minute_offset: Option | None = None
    """Minutes after the full hour."""
    hour_offset: Option | None = None
    """Hours after midnight."""
    day_offset: Option | None = None
    """The day they begin: of the week from 0, a Sunday; of the month from 1."""
    partition_keys: list[Option] | None = None
    """Of static ones."""

    def definition(self) -> dg.PartitionsDefinition[str]:
        """Raises: InvalidInputError for fields that do not belong together."""
        # Dagster's reader takes any text for a literal of a nested model, and fails behind it without words.
        if self.type not in _TYPES:
            raise InvalidInputError(f"partitions_def: type is one of {', '.join(_TYPES)}, not {self.type!r}")
        given = self.model_dump(exclude={"type"}, exclude_none=True)
        if self.type == "static":
            keys = given.pop("partition_keys", None)
            if given or not keys:
                raise InvalidInputError("partitions_def: static partitions have partition_keys, and no more")
            return dg.StaticPartitionsDefinition([str(key) for key in keys])
        extra = [name for name in given if name in _OFFSETS and name not in _OFFSETS_OF[self.type]]
        if extra or "start_date" not in given or "partition_keys" in given:
            raise InvalidInputError(
                f"partitions_def: {self.type} partitions need a start_date, and may have an end_date, a "
                f"timezone and {', '.join(_OFFSETS_OF[self.type])}, not {', '.join(given) or 'nothing'}"
            )
        for name in set(given) & set(_OFFSETS):
            given[name] = parse_int(f"partitions_def: {name}", given[name], minimum=0)
        try:
            return _BY_TIME[self.type](**given)
        except Exception as error:  # of several kinds, in the words of strptime, zoneinfo and cron
            raise InvalidInputError(
                f"partitions_def: {given} make no {self.type} partitions: a date is such as 2024-01-01, a "
                "timezone such as Europe/Berlin, an offset less than the hour, day, week or month"
            ) from error


class RetryFields(Fields):
    """A retry policy; its fields are those of `dagster.RetryPolicy`."""

    max_retries: Option
    """After the first attempt."""
    delay: Option | None = None
    """Seconds before a retry."""
    backoff: str | None = None
    """LINEAR or EXPONENTIAL; needs a delay."""
    jitter: str | None = None
    """FULL or PLUS_MINUS; needs a delay."""

    def policy(self) -> dg.RetryPolicy:
        """Raises: InvalidInputError."""
        delay = self.delay
        try:
            return dg.RetryPolicy(
                max_retries=parse_int("retry_policy: max_retries", self.max_retries, minimum=0),
                delay=None if delay is None else parse_float("retry_policy: delay", delay, minimum=0),
                backoff=None if self.backoff is None else dg.Backoff(self.backoff),
                jitter=None if self.jitter is None else dg.Jitter(self.jitter),
            )
        except (ValueError, dg.DagsterInvalidDefinitionError) as error:
            raise InvalidInputError(
                f"retry_policy: {error}: backoff is LINEAR or EXPONENTIAL, jitter is FULL or PLUS_MINUS, and "
                "each needs a delay"
            ) from error


class TtlFields(Fields):
    """How long rows live; its fields are those of `StateTtlConfig`."""

    column: str
    """With a row's time."""
    ttl: str
    """Such as 30 d or 12 h."""
    processing_time: bool = False
    """The column is filled with the time of the checkpoint that wrote the row."""

    def config(self) -> StateTtlConfig:
        """Raises: InvalidInputError."""
        make = StateTtlConfig.processing_time if self.processing_time else StateTtlConfig.event_time
        return make(self.column, self.ttl)


class DownstreamFields(Fields):
    """A job that is asked for once for each checkpoint; its fields are those of `build_downstream_sensor`."""

    job: str
    """The name of the job to run."""
    partitions: str | None = None
    """`checkpoint`: a run is for the partition of the checkpoint (`JobAssets.partitions`); `batch`: for that
    of its batch (the component's `partitions_def`). Without it, for none.
    """
    run_config: str | None = None
    """`module:name` of a function of the `completed` record: the run's config."""
    name: str | None = None
    """Of the sensor."""
    max_runs_per_tick: Option = 20
    """The next tick asks for the others."""

    def sensor(
        self,
        assets: JobAssets,
        partitions: dg.PartitionsDefinition[str] | None,
        context: Context,
        **of_sensors: Any,
    ) -> dg.SensorDefinition:
        """Raises: InvalidInputError."""
        if self.partitions == "batch" and partitions is None:
            raise InvalidInputError(
                f"downstream {self.job}: runs for the partition of a batch need the field partitions_def, "
                "the partitions of the job"
            )
        known = {"checkpoint": assets.partitions, "batch": partitions, None: None}
        if self.partitions not in known:
            raise InvalidInputError(
                f"downstream {self.job}: partitions is checkpoint or batch, not {self.partitions!r}"
            )
        return build_downstream_sensor(
            assets,
            self.job,
            partitions_def=known[self.partitions],
            run_config=None if self.run_config is None else object_at("run_config", self.run_config, context),
            name=self.name,
            max_runs_per_tick=parse_int("max_runs_per_tick", self.max_runs_per_tick, minimum=1),
            **of_sensors,
        )


def partitions_of(
    given: PartitionsFields | dg.PartitionsDefinition[str] | str | None, context: Context
) -> dg.PartitionsDefinition[str] | None:
    """Raises: InvalidInputError."""
    if isinstance(given, dg.PartitionsDefinition):
        return given
    if given is None or isinstance(given, PartitionsFields):
        return None if given is None else given.definition()
    if ":" not in given:
        raise InvalidInputError(
            f"partitions_def: {given!r} is neither module:name nor fields, such as "
            '{type: daily, start_date: "2024-01-01"}'
        )
    found = object_at("partitions_def", given, context)
    if not isinstance(found, dg.PartitionsDefinition):
        raise InvalidInputError(f"partitions_def: {given} is {found!r}: name a PartitionsDefinition")
    return found


def object_at(field: str, path: Any, context: Context) -> Any:
    """What `module:name` names; a module that begins with a dot is looked for beside the component's file. An
    object that a template gave is itself.

    Raises: InvalidInputError naming `field`.
    """
    if not isinstance(path, str):
        return path
    module, _, name = path.partition(":")
    if not module or not name:
        raise InvalidInputError(f"{field}: {path!r} names nothing: write module:name")
    package = _package_of(context) if module.startswith(".") else None
    try:
        found = import_module(module, package)
    except ModuleNotFoundError as error:
        whole = f"{package or ''}{module}"
        if error.name is None or not (whole == error.name or whole.startswith(f"{error.name}.")):
            raise InvalidInputError(f"{field}: module {module} cannot be imported: {error}") from error
        raise InvalidInputError(
            f"{field}: {path!r}: there is no module {error.name}: write module:name, for a module beside the "
            "file with a dot before it"
        ) from error
    except Exception as error:  # the user's own
        raise InvalidInputError(
            f"{field}: module {module} fails as it is imported: {type(error).__name__}: {error}"
        ) from error
    if not hasattr(found, name):
        raise InvalidInputError(f"{field}: module {module} has no {name!r}: write module:name")
    return getattr(found, name)


def _package_of(context: Context) -> str | None:
    """The package of the component's own folder."""
    if context is None:
        return None
    folder = context.path if context.path.is_dir() else context.path.parent
    return context.defs_relative_module_name(folder)


def condition_at(
    given: Any, state: dg.AssetKey, context: Context = None
) -> dg.AutomationCondition[Any] | None:
    """`eager`, `on_missing`, a cron schedule, or the condition at this path; a condition is itself.

    By a schedule all that the asset, `state`, depends on is updated since its last tick, but for its own
    previous partition, which is only there. Raises: InvalidInputError.
    """
    known = {"eager": dg.AutomationCondition.eager, "on_missing": dg.AutomationCondition.on_missing}
    if given is None or isinstance(given, dg.AutomationCondition):
        return given
    if given in known:
        return known[given]()
    if isinstance(given, str) and (given.startswith("@") or len(given.split()) == _CRON_FIELDS):
        try:
            updated = dg.AutomationCondition.on_cron(given).ignore(dg.AssetSelection.assets(state))
            return updated & ~dg.AutomationCondition.any_deps_missing()
        except Exception as error:  # of several kinds, by release
            raise InvalidInputError(
                f"automation_condition: {given!r} is no cron schedule: {error}"
            ) from error
    found = object_at("automation_condition", given, context) if ":" in str(given) else given
    if not isinstance(found, dg.AutomationCondition):
        raise InvalidInputError(
            f"automation_condition: {given!r} is no condition: write eager, on_missing, a cron schedule, or "
            "the module:name of an AutomationCondition"
        )
    return found


def client_at(path: str, context: Context) -> Any:
    """The object with `get_client()` at this path. Raises: InvalidInputError."""
    found = object_at("gcs", path, context)
    if isinstance(found, type) or not hasattr(found, "get_client"):
        raise InvalidInputError(
            f"gcs: {path} is {found!r}: name an object with get_client(), such as a GCSResource(project=...)"
        )
    return found


def as_text(options: Mapping[str, Option]) -> dict[str, str]:
    """As the options' own parsers take them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()
    }
