"""The options that Spark passes to a data source, taken apart: ours, and those of the job.

Owns distinguishing them, in any case of letters, and refusing the rest. Does not own what ours mean
(`sink.options`, `source.options`) nor the job's (`settings.JobOptions`).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from typing import Final

from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings import JobOptions

_OF_A_TABLE = "option."
"""The catalog passes each option of `CREATE TABLE ... OPTIONS` a second time, under this prefix."""


_REPLACE = 'it is of a write of state by mode("overwrite"): replaceWhere names the rows that are replaced'
_CHANGES = 'the option table="changes"'
_NEIGHBOURS: Final = {
    # Delta's
    "replacewhere": _REPLACE,
    "partitionoverwritemode": _REPLACE,
    "overwriteschema": "columns are dropped and renamed by write_state(drop_columns=, rename_columns=)",
    "mergeschema": "new columns and wider types are taken anyway",
    "txnappid": "it has idempotency_key",
    "txnversion": "it has idempotency_key",
    "readchangefeed": f"it has {_CHANGES}",
    "readchangedata": f"it has {_CHANGES}",
    "startingversion": f"it has from_checkpoint of {_CHANGES}, and startingCheckpoint of a stream",
    "startingtimestamp": f"it has from_checkpoint of {_CHANGES}, and startingCheckpoint of a stream",
    "endingversion": f"it has to_checkpoint of {_CHANGES}",
    "endingtimestamp": f"it has to_checkpoint of {_CHANGES}, which takes a time",
    "maxfilespertrigger": "it has maxCheckpointsPerTrigger",
    "maxbytespertrigger": "it has maxCheckpointsPerTrigger",
    "ignoredeletes": "a stream has deletes as rows of _change_type delete",
    "ignorechanges": "a stream has changes as rows of _change_type update_before and update_after",
    "skipchangecommits": "a stream has changes as rows of _change_type update_before and update_after",
    # Iceberg's and Paimon's
    "snapshot-id": "it has at",
    "as-of-timestamp": "it has at, which takes a time",
    "branch": "it has at, which takes the name of a savepoint",
    "tag": "it has at, which takes the name of a savepoint",
    "start-snapshot-id": f"it has from_checkpoint of {_CHANGES}",
    "end-snapshot-id": f"it has to_checkpoint of {_CHANGES}",
    "stream-from-timestamp": "it has startingCheckpoint, which takes a time",
    "scan.snapshot-id": "it has at",
    "scan.tag-name": "it has at, which takes the name of a savepoint",
    "scan.timestamp-millis": "it has at, which takes a time",
    "scan.mode": "it has startingCheckpoint: latest or earliest",
    # those of Spark's files
    "header": "a write of csv and text has header_line",
    "delimiter": "it is of lines(df, 'csv', options=...), which a write takes",
    "sep": "it is of lines(df, 'csv', options=...), which a write takes",
    "quote": "it is of lines(df, 'csv', options=...), which a write takes",
    "codec": "a write of files has compression",
    "encoding": "text is UTF-8",
    "linesep": "lines end with a line feed",
    "partitionby": "a write of files has partition_by",
    "inferschema": "a state has its columns",
    "checkpoint": "it has at",
}
"""What other sources call it, in lower case, and what is so here."""


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
    for key in given:
        if key in _NEIGHBOURS and key not in known:
            raise InvalidInputError(f'format("dstl") has no option {key!r} for {doing}: {_NEIGHBOURS[key]}')
    own = {key: value for key, value in given.items() if "." not in key}
    unknown = sorted(key for key in own if key not in known)
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        hint = (
            f"did you mean {near[0]}?" if near else f"it knows {', '.join(known)}, and the options of a job"
        )
        raise InvalidInputError(f'format("dstl") does not know option {unknown[0]!r} for {doing}; {hint}')
    return own, JobOptions.resolve({key: value for key, value in given.items() if key not in own})


def names_of(text: str, option: str) -> tuple[str, ...]:
    """Names separated by commas, or a JSON list for names with a comma. Raises: InvalidInputError."""
    if not text.strip():
        return ()
    if not text.lstrip().startswith("["):
        return tuple(name.strip() for name in text.split(","))
    try:
        names = json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"option {option} is not a JSON list of names: {text!r}") from error
    if not all(isinstance(name, str) for name in names):
        raise InvalidInputError(f"option {option} is not a JSON list of names: {text!r}")
    return tuple(names)
