"""The options that Spark passes to a data source, taken apart: ours, and those of the job.

Owns telling them apart, whatever their case, and refusing the rest. Does not own what ours mean
(`sink.options`, `source.options`) nor the job's (`settings.JobOptions`).
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings import JobOptions

__all__ = ["own_and_job_options"]

_OF_A_TABLE = "option."
"""The catalog passes each option of `CREATE TABLE ... OPTIONS` a second time, under this prefix."""


def own_and_job_options(
    options: Mapping[str, str], known: Collection[str], doing: str
) -> tuple[dict[str, str], JobOptions]:
    """The data source's own options by lower-case name, and the job's: those whose key has a dot.

    Spark ignores the case of keys and may pass them in lower case, which ours are.

    Raises: InvalidInputError naming an unknown option and the nearest known one, or for a table of the
    catalog; as `JobOptions.resolve`.
    """
    given = {key.lower(): value for key, value in options.items()}
    if any(key.startswith(_OF_A_TABLE) for key in given):
        # Seen with Spark 4.3.0: the schema is asked for with the table's options, the reader without any.
        raise InvalidInputError(
            'format("dstl") cannot be a table of the catalog: Spark reads such a table without its options. '
            'Use spark.read.format("dstl").options(...).load().createOrReplaceTempView("name")'
        )
    own = {key: value for key, value in given.items() if "." not in key}
    unknown = sorted(key for key in own if key not in known)
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        hint = (
            f"did you mean {near[0]}?" if near else f"it knows {', '.join(known)}, and the options of a job"
        )
        raise InvalidInputError(f'format("dstl") does not know option {unknown[0]!r} for {doing}; {hint}')
    return own, JobOptions.resolve({key: value for key, value in given.items() if key not in own})
