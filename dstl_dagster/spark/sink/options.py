"""The options of `format("dstl")` for writing, as one validated value.

Owns their names, parsing, and which go together. Does not own their effect (`plan`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from dstl_dagster.checkpoint import Claim, Measure
from dstl_dagster.errors import InvalidInputError
from dstl_dagster.settings import JobOptions, StateTtlConfig, parse_bool, parse_int
from dstl_dagster.spark.file_formats import LINE_FORMATS, checked_format
from dstl_dagster.spark.given_options import own_and_job_options
from dstl_dagster.spark.sink.micro_batches import MicroBatch
from dstl_dagster.timeline import BatchKey

__all__ = ["SinkOptions", "names_of"]

_KNOWN = (
    *("store", "job", "operator", "keys", "deleted", "max_parallelism", "ttl", "ttl_column"),
    *("path", "file_format", "single_file", "header_line", "compression"),
    *("case_sensitive", "idempotency_key", "adopt_after", "take_over", "owner", "clean_up_every"),
    *("checkpointlocation", "queryname"),  # Spark's own, which come with ours
)
_BATCH = "{batch}"
_FILES = "files"
"""The source of files that no stream writes: their path may be another one each day."""


@dataclass(frozen=True)
class SinkOptions:
    """What to write, and into which job: state if `operator` is given, files if `path` is.

    Attributes:
        store, job: the job that the checkpoints belong to.
        operator, keys, deleted, max_parallelism: as in `write_state`. A single operator.
        ttl: from options `ttl` (`30 d`, or `disabled`) and `ttl_column`, by event time; `None`: as before.
        case_sensitive: whether column names may differ only in case. Spark does not tell a data source.
        path, file_format, single_file: as in `write_files`; a stream's path contains `{batch}`.
        header_line: written before the lines of each file.
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
    max_parallelism: int | None = None
    ttl: StateTtlConfig | None = None
    case_sensitive: bool = False
    path: str | None = None
    file_format: str = "parquet"
    single_file: bool = False
    header_line: str = ""
    compression: str | None = None
    idempotency_key: str | None = None
    adopt_after: str | None = None
    take_over: bool = False
    owner: str = ""
    clean_up_every: int = 0
    job_options: JobOptions = field(default_factory=JobOptions)

    @classmethod
    def of(cls, options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
        """Raises: InvalidInputError naming the option."""
        given, job_options = own_and_job_options(options, _KNOWN, "writing")
        groups = given.get("max_parallelism")
        file_format = checked_format(given.get("file_format", "parquet"))
        parsed = cls(
            store=_required(given, "store"),
            job=_required(given, "job"),
            operator=given.get("operator"),
            keys=names_of(given.get("keys", ""), "keys"),
            deleted=given.get("deleted"),
            max_parallelism=parse_int("max_parallelism", groups) if groups else None,
            ttl=StateTtlConfig.from_texts(given.get("ttl"), given.get("ttl_column")),
            case_sensitive=parse_bool("case_sensitive", given.get("case_sensitive", "false")),
            path=given.get("path"),
            file_format=file_format,
            single_file=parse_bool(
                "single_file", given.get("single_file", str(file_format in LINE_FORMATS).lower())
            ),
            header_line=given.get("header_line", ""),
            compression=given.get("compression"),
            idempotency_key=given.get("idempotency_key"),
            adopt_after=given.get("adopt_after"),
            take_over=parse_bool("take_over", given.get("take_over", "false")),
            owner=given.get("owner") or ("" if streaming else f"spark batch {given.get('idempotency_key')}"),
            clean_up_every=parse_int(
                "clean_up_every", given.get("clean_up_every", "10" if streaming else "0"), minimum=0
            ),
            job_options=job_options,
        )
        parsed._check(streaming=streaming)
        return parsed

    @property
    def key(self) -> BatchKey | None:
        """The identity of a batch; `None` of a stream, whose tasks know it. It belongs to what is written."""
        if self.idempotency_key is None:
            return None
        written = f"path:{self.path}" if self.operator is None else self._source
        return BatchKey(self.idempotency_key, written)

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
        return Claim(self._source, f"sink {self._source}", Measure("keys"), operators)

    def _check(self, *, streaming: bool) -> None:
        if (self.operator is None) == (self.path is None):
            raise InvalidInputError(
                "give option operator (with keys) to write state, or path to write files, but not both: "
                "checkpointed_batches writes state and files in one checkpoint"
            )
        if self.operator is not None and not self.keys:
            raise InvalidInputError('state needs option keys, such as "tail" or "airport,day"')
        if self.operator is None and self.ttl is not None:
            raise InvalidInputError("options ttl and ttl_column are of state: files stay")
        if self.path is not None and self.single_file and self.file_format not in LINE_FORMATS:
            raise InvalidInputError(
                f"{self.file_format} files cannot be joined from parts: leave out single_file, or write one "
                f"of {', '.join(LINE_FORMATS)}"
            )
        if streaming:
            if self.idempotency_key is not None:
                raise InvalidInputError("a stream's batches are named by Spark: leave out idempotency_key")
            if self.path is not None and _BATCH not in self.path:
                raise InvalidInputError(
                    f"each micro-batch of a stream writes its own files: put {_BATCH} into path, as in "
                    f"flights/{_BATCH}.jsonl"
                )
        elif not self.idempotency_key:
            raise InvalidInputError(
                "a batch needs option idempotency_key, a name for what it holds, such as its day: written "
                "again under the same key, it changes nothing"
            )


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


def _required(given: Mapping[str, str], option: str) -> str:
    value = given.get(option, "")
    if not value:
        raise InvalidInputError(f'format("dstl") needs option {option}')
    return value
