"""Whose warnings are errors in a test: ours are, those of a library about itself are not."""

from __future__ import annotations

import warnings
from pathlib import Path

import dagster
import pytest

import dstl_dagster


def warn_in(module: str, category: type[Warning]) -> None:
    """As a line of that module would."""
    exec("import warnings\nwarnings.warn('old', category)", {"__name__": module, "category": category})


@pytest.mark.parametrize(
    ("module", "category"),
    [
        ("dstl_dagster.orchestration.define.assets", DeprecationWarning),
        ("dstl_dagster.testing.gcs_server", ResourceWarning),
        ("dstl_flights.pipeline", FutureWarning),
        ("tests.readme", DeprecationWarning),
        ("__main__", PendingDeprecationWarning),
        ("socket", ResourceWarning),  # collected there, whoever left it open
        ("_pytest.unraisableexception", pytest.PytestUnraisableExceptionWarning),
        ("dagster._utils", UserWarning),  # of how it is used
        ("dagsterish", DeprecationWarning),
    ],
)
def test_ours_is_an_error(module: str, category: type[Warning]) -> None:
    with pytest.raises(category, match="old"):
        warn_in(module, category)


def test_of_our_call_is_an_error() -> None:
    """A library attributes what it wants its caller to change to the caller."""
    with pytest.raises(DeprecationWarning, match="old"):
        exec(
            "warnings.warn('old', DeprecationWarning, stacklevel=2)",
            {"__name__": "dagster", "warnings": warnings},
        )


@pytest.mark.parametrize(
    "module", ["dagster", "dagster._core.events", "pyspark.sql", "google.cloud.storage", "six"]
)
def test_of_a_library_about_itself_is_none(module: str) -> None:
    warn_in(module, DeprecationWarning)


def test_of_a_module_that_is_compiled() -> None:
    """It has no name yet. Python 3.12 warns of escapes that it does not know."""

    def compiled(package: str | None) -> None:
        file = str(Path(str(package)).with_name("escape.py"))
        warnings.warn_explicit("invalid escape sequence", SyntaxWarning, file, 1)

    compiled(dagster.__file__)
    with pytest.raises(SyntaxWarning):
        compiled(dstl_dagster.__file__)
