"""The options of `format("dstl")` for writing, as one validated value.

Owns their names, parsing, and which go together. Does not own their effect (`plan`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dstl_dagster.checkpoint import Claim
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.keyed import Measure
from dstl_dagster.settings import JobOptions, StateTtlConfig, parse_bool, parse_int, parse_user_metadata
from dstl_dagster.spark.dataframes.file_formats import (
    FileLayout,
    checked_format,
)
from dstl_dagster.spark.option_names import names_of, own_and_job_options
from dstl_dagster.spark.streaming.micro_batches import MicroBatch
from dstl_dagster.timeline import BatchKey

_WHERE: Final = "replacewhere"
_MOST_ROWS, _METADATA = "maxrecordsperfile", "usermetadata"
_OF_STATE: Final = ("keys", "deleted", "max_parallelism", "ttl", "ttl_column", "case_sensitive", _WHERE)
_OF_FILES: Final = (
    *("file_format", "single_file", "header_line", "compression", "mode", "success"),
    *("partition_by", _MOST_ROWS),
)
_KNOWN: Final = (
    *("store", "job", "operator", "path", *_OF_STATE, *_OF_FILES, _METADATA),
    *("idempotency_key", "adopt_after", "take_over", "owner", "clean_up_every"),
    *("checkpointlocation", "queryname"),  # Spark's own, which come with ours
)
_OF_A_BATCH: Final = ("idempotency_key",)
_OF_A_STREAM: Final = ("adopt_after",)
_WITH_A_HEADER: Final = ("csv", "text")
BATCH, QUERY = "{batch}", "{query}"
_FILES = "files"
"""The source of files that no stream writes: their path may be another one each day."""


@dataclass(frozen=True)
class SinkOptions:
    """What to write, and into which job: state if `operator` is set, files if `path` is.

    Attributes:
        store, job: the job that the checkpoints belong to.
        operator, keys, deleted, max_parallelism: as in `write_state`. A single operator.
        replace: as in `write_state`: true by `mode("overwrite")`, or the text of option `replaceWhere`.
        ttl: from options `ttl` (`30 d`, or `disabled`) and `ttl_column`, by event time; `None`: as before.
        case_sensitive: whether column names may differ only in case. Spark does not pass it on.
        path: as in `write_files`; a stream's contains `{batch}`.
        layout: of the files; `None` for state.
        header_line: written before the lines of each file of `csv` or `text`.
        user_metadata: of each checkpoint of the write; may be empty.
        idempotency_key: identifies a batch; a stream has its own.
        adopt_after: `<query id>:<batch id>` of the last micro-batch, to continue from it with another query.
        take_over: fence another owner's open attempt.
        owner: of the attempts. By default (empty) named by the query's id, or by the batch's key.
        clean_up_every: run step 7 after every so many checkpoints; 0: never.
        job_options: every option whose key has a dot.
    """

    store: str
    job: str
    operator: str | None = None
    keys: tuple[str, ...] = ()
    deleted: str | None = None
    replace: bool | str = False
    max_parallelism: int | None = None
    ttl: StateTtlConfig | None = None
    case_sensitive: bool = False
    path: str | None = None
    layout: FileLayout | None = None
    header_line: str = ""
    user_metadata: str = ""
    idempotency_key: str | None = None
    adopt_after: str | None = None
    take_over: bool = False
    owner: str = ""
    clean_up_every: int = 0
    job_options: JobOptions = field(default_factory=JobOptions)

    @classmethod
    def of(cls, options: Mapping[str, str], *, streaming: bool, overwrite: bool = False) -> SinkOptions:
        """`overwrite`: the mode of the write. Raises: InvalidInputError naming the option."""
        given, job_options = own_and_job_options(options, _KNOWN, "writing")
        _refuse_misfits(given, streaming=streaming)
        _refuse_wrong_mode(given, overwrite=overwrite)
        groups = given.get("max_parallelism")
        return cls(
            store=_required(given, "store"),
            job=_required(given, "job"),
            operator=given.get("operator"),
            keys=names_of(given.get("keys", ""), "keys"),
            deleted=given.get("deleted"),
            replace=given.get(_WHERE, overwrite),
            max_parallelism=parse_int("max_parallelism", groups) if groups else None,
            ttl=StateTtlConfig.from_texts(given.get("ttl"), given.get("ttl_column")),
            case_sensitive=parse_bool("case_sensitive", given.get("case_sensitive", "false")),
            path=given.get("path"),
            layout=_layout(given) if "path" in given else None,
            header_line=given.get("header_line", ""),
            user_metadata=parse_user_metadata("userMetadata", text) if (text := given.get(_METADATA)) else "",
            idempotency_key=given.get("idempotency_key"),
            adopt_after=given.get("adopt_after"),
            take_over=parse_bool("take_over", given.get("take_over", "false")),
            owner=given.get("owner") or ("" if streaming else f"spark batch {given.get('idempotency_key')}"),
            clean_up_every=parse_int(
                "clean_up_every", given.get("clean_up_every", "10" if streaming else "0"), minimum=0
            ),
            job_options=job_options,
        )

    @property
    def key(self) -> BatchKey | None:
        """The identity of a batch; `None` of a stream, whose tasks know it. It belongs to what is written."""
        if self.idempotency_key is None:
            return None
        return BatchKey(self.idempotency_key, self._source, f"path:{self.path}" if self.path else "")

    @property
    def _source(self) -> str:
        return _FILES if self.operator is None else f"operator:{self.operator}"

    def claim(self, micro_batch: MicroBatch | None = None) -> Claim:
        """What the write says of itself. `micro_batch`: of a stream, once that is known."""
        operators = () if self.operator is None else (self.operator,)
        if micro_batch is not None:
            return micro_batch.claim(operators)
        if self.idempotency_key is None:
            return MicroBatch("", 0).claim(operators).at(None)
        return Claim(self._source, self._source, Measure("keys"), operators)


def _refuse_misfits(given: Mapping[str, str], *, streaming: bool) -> None:
    """Pass if each option has an effect beside the others.

    Raises: InvalidInputError naming one that has none, or one that is missing.
    """
    if ("operator" in given) == ("path" in given):
        raise InvalidInputError(
            "give option operator (with keys) to write state, or path to write files, but not both: "
            "checkpointed_batches writes state and files in one checkpoint"
        )
    is_state = "operator" in given
    target, other = ("operator", "path") if is_state else ("path", "operator")
    for name in _OF_FILES if is_state else _OF_STATE:
        if name in given:
            raise InvalidInputError(
                f"option {name} goes with {other}, and this write has {target}: leave it out"
            )
    for name in _OF_A_BATCH if streaming else _OF_A_STREAM:
        if name in given:
            kind = "batch: Spark names a stream's" if streaming else "stream"
            raise InvalidInputError(f"option {name} is of a {kind}: leave it out")
    if not streaming and not given.get("idempotency_key"):
        raise InvalidInputError(
            "a batch needs option idempotency_key, a name for what it holds, such as its day: written "
            "again under the same key, it changes nothing"
        )
    if "path" in given:
        _check_files(given, given["path"], streaming=streaming)
    elif not names_of(given.get("keys", ""), "keys"):
        raise InvalidInputError('state needs option keys, such as "tail" or "airport,day"')


def _refuse_wrong_mode(given: Mapping[str, str], *, overwrite: bool) -> None:
    if _WHERE in given and not overwrite:
        raise InvalidInputError('option replaceWhere goes with mode("overwrite"), and this is mode("append")')
    if overwrite and "path" in given:
        raise InvalidInputError('a published file is never overwritten: use mode("append"), and another name')


def _check_files(given: Mapping[str, str], path: str, *, streaming: bool) -> None:
    file_format = checked_format(given.get("file_format", "parquet"))
    if given.get("header_line") and file_format not in _WITH_A_HEADER:
        raise InvalidInputError(
            f"option header_line goes with file_format {' and '.join(_WITH_A_HEADER)}, and this write has "
            f"{file_format}: leave it out"
        )
    if streaming and BATCH not in path:
        raise InvalidInputError(
            f"each micro-batch of a stream writes its own files: put {BATCH} into path, as in "
            f"flights/{BATCH}.jsonl"
        )
    for mark in (BATCH, QUERY):
        if not streaming and mark in path:
            raise InvalidInputError(f"{mark} in path is of a stream, and this is a batch: write a name")


def _layout(given: Mapping[str, str]) -> FileLayout:
    single_file = given.get("single_file")
    return FileLayout.of(
        given.get("file_format", "parquet"),
        given.get("compression"),
        None if single_file is None else parse_bool("single_file", single_file),
        names_of(given.get("partition_by", ""), "partition_by"),
        parse_int("maxRecordsPerFile", given[_MOST_ROWS]) if _MOST_ROWS in given else None,
        given.get("mode", "error"),
        parse_bool("success", given.get("success", "false")),
    )


def _required(given: Mapping[str, str], option: str) -> str:
    value = given.get(option, "")
    if not value:
        raise InvalidInputError(f'format("dstl") needs option {option}')
    return value
