"""How a sensor or a check gets at the store: by the resource that it was given, or by the injected one."""

# No postponed annotations here: Dagster reads the types of the arguments as objects.

from collections.abc import Callable, Iterator
from typing import Any

from dstl_dagster.orchestration.inject.resources import ChangelogStorageResource

__all__ = ["with_changelog"]


def with_changelog(
    given: ChangelogStorageResource | None,
    evaluate: Callable[[Any, ChangelogStorageResource], Any],
) -> Callable[..., Any]:
    """The function that Dagster calls; it asks for the resource named `changelog` where none is given."""

    def with_given(context):  # type: ignore[no-untyped-def] # Dagster takes no Any here
        assert given is not None
        with given.process_config_and_initialize_cm() as resource:
            found = evaluate(context, resource)
            if not isinstance(found, Iterator):
                return found
            results = list(found)  # while there is the resource
        return (result for result in results)

    def with_injected(context, changelog: ChangelogStorageResource):  # type: ignore[no-untyped-def]
        return evaluate(context, changelog)

    return with_injected if given is None else with_given
