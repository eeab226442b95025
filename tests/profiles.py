"""How long Hypothesis looks: four profiles, and a test's share of the one in force.

    python -m pytest --hypothesis-profile=quick     a tenth, while one works
    python -m pytest                                `ci`: the same examples on every machine and in every run
    python -m pytest --hypothesis-profile=soak      a hundred times as many, new ones in every run
    python -m pytest --hypothesis-profile=fuzz      five hundred times, for `test_document_fuzz`

A failure prints how to repeat it: the smallest example, and under `soak` the `@reproduce_failure` line that
holds it. `--hypothesis-seed=N` repeats a whole run.

Owns numbers of examples. Does not own searches that end with what they look for, such as those for a fault
that was put in: their limit is no budget, and no profile lowers it.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

_CI_EXAMPLES = 100
_LONG_SECONDS = 4 * 3600


def register() -> None:
    """Make the profiles known, and `ci` the one that holds unless the command line says otherwise."""
    # No deadline: a machine that runs other tests beside this one makes no example wrong.
    always: dict[str, Any] = {"deadline": None, "print_blob": True}
    fixed: dict[str, Any] = {"derandomize": True, "database": None}
    settings.register_profile("quick", max_examples=_CI_EXAMPLES // 10, **always, **fixed)
    settings.register_profile("ci", max_examples=_CI_EXAMPLES, **always, **fixed)
    for name, times in (("soak", 100), ("fuzz", 500)):
        settings.register_profile(
            name,
            max_examples=_CI_EXAMPLES * times,
            suppress_health_check=[HealthCheck.too_slow],
            derandomize=False,
            **always,
        )
    settings.load_profile("ci")


def limit() -> list[pytest.MarkDecorator]:
    """For a module's `pytestmark`: under a long profile each of its tests may take four hours."""
    is_long = settings.default.max_examples > _CI_EXAMPLES
    return [pytest.mark.timeout(_LONG_SECONDS)] if is_long else []


def examples(under_ci: int, **more: Any) -> settings:
    """Settings of a test that looks at `under_ci` examples under `ci`, and at as many times more or fewer of
    them under another profile as that has more or fewer in general; at least 1. `more` is as in `settings`.
    """
    share = under_ci * settings.default.max_examples // _CI_EXAMPLES
    return settings(max_examples=max(1, share), **more)
