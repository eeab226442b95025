"""Files through real Spark: one object from many tasks, or one per task, visible only once committed."""

from __future__ import annotations

import csv
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.sql import functions as F

from dstl_dagster.errors import ConflictError, InvalidInputError
from dstl_dagster.spark import open_batch, write_files
from dstl_dagster.spark.dataframes.hive_folders import folders_of

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark


def visible(folder: Path) -> list[str]:
    """What a reader of the folder sees: no hidden file, nothing of the job's own."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return sorted(name for name in names if not name.startswith((".", "dstl/")))


def test_many_tasks_make_one_file_in_the_order_of_the_rows(job: Job) -> None:
    """The parts of seven tasks, some empty, form one file, whose lines are the sorted rows."""
    df = (
        job.spark.range(500)
        .withColumn("text", F.concat(F.lit("a\n\u2603 "), F.col("id") % 7))
        .where("id NOT BETWEEN 100 AND 300")
    )
    done = job.write_files(df.repartitionByRange(7, "id").sortWithinPartitions("id"), "out/x.jsonl")
    (report,) = done.manifest.files
    assert visible(job.folder) == ["out/x.jsonl"]
    lines = (job.folder / "out/x.jsonl").read_text("utf-8").splitlines()
    expected = [n for n in range(500) if not 100 <= n <= 300]
    assert [json.loads(line)["id"] for line in lines] == expected
    assert lines == [
        row.value for row in df.orderBy("id").select(F.to_json(F.struct("*")).alias("value")).collect()
    ]
    assert report.rows == len(expected)
    assert report.size == (job.folder / "out/x.jsonl").stat().st_size
    assert len(report.components) > 3


def test_parts_of_empty_partitions_do_not_exist(job: Job) -> None:
    """Rows in one of many partitions give one component."""
    df = job.spark.range(0, 100, 1, 20).where("id = 55")
    (report,) = job.write_files(df, "x.jsonl").manifest.files
    assert (len(report.components), report.rows) == (1, 1)
    assert (job.folder / "x.jsonl").read_text() == '{"id":55}\n'


@pytest.mark.parametrize(
    ("file_format", "content"),
    [("jsonl", ""), ("csv", "id,text\n")],
)
def test_no_rows_make_one_file_without_rows(job: Job, file_format: str, content: str) -> None:
    """A day on which nothing happened has its file, too."""
    df = job.spark.range(3).selectExpr("id", "'x' AS text").where("id > 9")
    (report,) = job.write_files(df, f"x.{file_format}", format=file_format).manifest.files
    assert report.rows == 0
    assert (job.folder / f"x.{file_format}").read_text() == content


def test_csv_has_one_header_and_quotes_what_must_be(job: Job) -> None:
    """Names and values with commas, quotes, line feeds and nulls are read back by Python's reader."""
    rows = [("a,b", 1), ('say "hi"', 2), ("line\nfeed", 3), (None, 4), ("", 5)]
    df = job.spark.createDataFrame(rows, "`te,xt` STRING, number INT").repartitionByRange(3, "number")
    job.write_files(df.sortWithinPartitions("number"), "x.csv", format="csv", options={"escape": '"'})
    with (job.folder / "x.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["te,xt", "number"]] + [[text or "", str(n)] for text, n in rows]


@pytest.mark.parametrize("options", [{}, {"nullValue": "NA"}, {"nullValue": ""}])
def test_csv_of_one_column_has_a_line_for_null(job: Job, options: dict[str, str]) -> None:
    """As for an empty text, where no option has another one: an empty line is none to a reader."""
    df = job.spark.sql("SELECT * FROM VALUES ('a'), (NULL), (''), (' '), ('b') AS t(x)").coalesce(1)
    job.write_files(df, "x.csv", format="csv", options=options)
    lines = (job.folder / "x.csv").read_text().splitlines()
    assert lines == ["x", "a", options.get("nullValue") or '""', '""', '""', "b"]
    assert job.spark.read.csv(str(job.folder / "x.csv"), header=True).count() == 5


def test_csv_options_reach_header_and_rows(job: Job) -> None:
    """The separator is the same in both; the header can be left out."""
    df = job.spark.sql("SELECT 1 AS a, 2 AS b")
    job.write_files(df, "x.csv", format="csv", options={"sep": ";"})
    job.write_files(df, "y.csv", format="csv", options={"header": "false"})
    assert (job.folder / "x.csv").read_text() == "a;b\n1;2\n"
    assert (job.folder / "y.csv").read_text() == "1,2\n"


def test_json_options_keep_nulls(job: Job) -> None:
    """Spark leaves out null fields by default; `ignoreNullFields=false` writes them."""
    job.write_files(
        job.spark.sql("SELECT 1 AS a, INT(NULL) AS b"), "x.jsonl", options={"ignoreNullFields": "false"}
    )
    assert (job.folder / "x.jsonl").read_text() == '{"a":1,"b":null}\n'


def test_text_is_the_column_itself(job: Job) -> None:
    """Each value is a line, null an empty one; odd column names do not matter."""
    df = job.spark.createDataFrame([("\u00e9",), (None,), ("",), ("b",)], "`odd.name` STRING").coalesce(1)
    job.write_files(df, "x.txt", format="text")
    assert (job.folder / "x.txt").read_text("utf-8") == "\u00e9\n\n\nb\n"


def test_lines_of_large_columns(job: Job) -> None:
    """A session with large Arrow types writes the same file, even with lines larger than a record batch."""
    spark = job.spark
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        df = spark.range(0, 30, 1, 1).select(F.repeat(F.col("id").cast("string"), 100_000).alias("line"))
        job.write_files(df, "x.txt", format="text")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    assert (job.folder / "x.txt").read_text() == "".join(f"{n}" * 100_000 + "\n" for n in range(30))


def test_one_file_a_task(job: Job) -> None:
    """Without single_file each partition with rows is a file of its own, with its own header."""
    df = job.spark.range(0, 40, 1, 4).where("id < 10 OR id >= 20")
    job.write_files(df, "parts", format="csv", single_file=False)
    assert visible(job.folder) == ["parts/part-00000.csv", "parts/part-00002.csv", "parts/part-00003.csv"]
    text = (job.folder / "parts/part-00002.csv").read_text()
    assert text == "id\n" + "".join(f"{n}\n" for n in range(20, 30))


def test_parquet_is_read_by_spark_as_it_was(job: Job) -> None:
    """Types, nulls and time stamps with and without zone come back; the file says UTC."""
    df = job.spark.range(0, 100, 1, 3).selectExpr(
        "id",
        "IF(id % 2 = 0, NULL, string(id)) AS text",
        "timestamp_seconds(id) AS at",
        "TIMESTAMP_NTZ'2013-01-01 05:15:00' AS wall",
        "CAST(id AS DECIMAL(12, 3)) AS amount",
        "array(named_struct('a', id)) AS nested",
        "DATE'2013-01-01' AS day",
    )
    done = job.write_files(df, "flights/", format="parquet")
    assert [report.rows for report in done.manifest.files] == [33, 33, 34]
    again = job.spark.read.parquet(str(job.folder / "flights"))
    assert again.schema.simpleString() == df.schema.simpleString()
    assert again.exceptAll(df).count() == 0
    assert df.exceptAll(again).count() == 0
    assert pq.read_schema(job.folder / "flights/part-00000.parquet").field("at").type == pa.timestamp(
        "us", "UTC"
    )


def test_arrow_files_and_compression(job: Job) -> None:
    """Arrow files open with Arrow; a compression that a format lacks is refused at once."""
    df = job.spark.range(0, 50, 1, 2)
    job.write_files(df, "arrow", format="arrow", options={"compression": "zstd"})
    tables = [pa.ipc.open_file(job.folder / f"arrow/part-0000{n}.arrow").read_all() for n in (0, 1)]
    assert pa.concat_tables(tables).column("id").to_pylist() == list(range(50))
    with pytest.raises(InvalidInputError, match="cannot write arrow with compression 'snappy'"):
        job.write_files(df, "more", format="arrow", options={"compression": "snappy"})


def test_an_empty_parquet_keeps_the_schema(job: Job) -> None:
    """A DataFrame without rows still gives one file, from which the columns can be read."""
    job.write_files(job.spark.range(0).selectExpr("id", "'x' AS text"), "empty", format="parquet")
    assert visible(job.folder) == ["empty/part-00000.parquet"]
    assert pq.read_table(job.folder / "empty/part-00000.parquet").schema.names == ["id", "text"]


@pytest.mark.parametrize(
    ("file_format", "name"), [("jsonl", "x.jsonl"), ("parquet", "x"), ("arrow", "x"), ("csv", "x.csv")]
)
def test_the_same_partitions_make_the_same_bytes(job: Job, file_format: str, name: str) -> None:
    """A second attempt on the same input writes the same files, byte for byte."""
    df = job.spark.range(0, 1000, 1, 3).selectExpr(
        "id", "concat('name ', id) AS text", "timestamp_seconds(id) AS at"
    )
    made = []
    for folder in ("one", "two"):
        job.write_files(df, f"{folder}/{name}", format=file_format)
        root = job.folder / folder
        made.append({path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()})
    assert made[0] == made[1]
    assert made[0]


def test_a_task_that_fails_once_changes_nothing(job: Job) -> None:
    """A task that dies after it sent its bytes leaves no trace in the file."""

    def fails_at_the_end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0 and context.partitionId() == 0:
            raise RuntimeError("the task dies with its last row")

    df = job.spark.range(0, 100_000, 1, 2)
    job.write_files(df.mapInArrow(fails_at_the_end, "id BIGINT"), "x.jsonl")
    lines = (job.folder / "x.jsonl").read_text().splitlines()
    assert lines == [f'{{"id":{n}}}' for n in range(100_000)]
    thirds = df.mapInArrow(fails_at_the_end, "id BIGINT").selectExpr("id", "id % 3 AS third")
    job.write_files(thirds, "p", format="parquet", partition_by=["third"])
    assert pq.read_table(job.folder / "p").num_rows == 100_000


def test_nothing_is_visible_before_the_commit(job: Job) -> None:
    """Written files are components of an attempt, under its half of a UUID, until step 6."""
    attempt = job.coordinator.trigger()
    (report,) = write_files(job.spark.range(10), attempt, (job.folder / "out/x.jsonl").as_uri())
    assert visible(job.folder) == []
    assert report.object_name == "out/x.jsonl"
    halves = {each.int >> 64 for each in report.recoverable.component_object_ids}
    assert halves == {attempt.attempt.int >> 64}
    job.coordinator.record(attempt, [], [report])
    job.coordinator.confirm(attempt)
    assert visible(job.folder) == []
    job.coordinator.compose_commit()
    assert visible(job.folder) == ["out/x.jsonl"]


@pytest.mark.parametrize(
    ("query", "uri", "how", "reason"),
    [
        ("SELECT 1 AS a", "x", {"format": "parquet", "single_file": True}, "cannot be joined"),
        ("SELECT 1 AS a", "x", {"format": "orc"}, "'orc' is not one of"),
        ("SELECT 1 AS a", "s3://bucket/x", {}, "s3://bucket/x"),
        ("SELECT 1 AS a", "file:///elsewhere/x", {}, "elsewhere"),
        ("SELECT 1 AS a", "x", {"format": "text"}, "exactly one text column"),
        ("SELECT 'a' AS a, 'b' AS b", "x", {"format": "text"}, "exactly one text column"),
        ("SELECT 1 AS a, 2 AS A", "x", {}, "have the same name"),
        ("SELECT 1 AS a", "x", {"options": {"pretty": "true"}}, "several lines per row"),
        ("SELECT 1 AS a", "x", {"format": "parquet", "options": {"codec": "lzo"}}, "compression 'lzo'"),
        ("SELECT 1 AS a", "x", {"format": "parquet", "options": {"Header": "true"}}, "take option 'Header'"),
        ("SELECT 1 AS a", "x.csv", {"format": "csv", "options": {"ENCODING": "latin1"}}, "ENCODING 'UTF-8'"),
        ("SELECT 1 AS a", "x.csv", {"format": "csv", "options": {"lineSep": "\r\n"}}, "lineSep"),
        ("SELECT 1 AS a", "x.csv", {"format": "csv", "options": {"delimter": ";"}}, "did you mean sep"),
        ("SELECT 1 AS a", "x.csv", {"format": "csv", "max_records_per_file": 1}, "set single_file to false"),
        ("SELECT 1 AS a, 2 AS b", "x", {"partition_by": ["c"]}, "names column 'c', which is not one of a, b"),
        ("SELECT 1 AS a, 2 AS b", "x", {"partition_by": ["a", "A"]}, "names column 'a', twice"),
        ("SELECT 1 AS a, 2 AS b", "x", {"partition_by": ["a", "b"]}, "names all columns"),
        ("SELECT 1 AS a, array(1) AS b", "x", {"partition_by": ["b"]}, "array<int>, which has no text"),
        ("SELECT 1 AS a, array(1) AS b", "x.csv", {"format": "csv"}, "'b' has type array<int>, which is not"),
        ("SELECT 1 AS a, 2 AS b", "x", {"partition_by": "a"}, r"such as \['a'\]"),
        ("SELECT 1 AS a", "x.jsonl.gz", {}, "set gzip"),
        ("SELECT 1 AS a", "x.jsonl", {"options": {"compression": "gzip"}}, "end it with .gz"),
        ("SELECT 1 AS a", "x.jsonl", {"mode": "append"}, 'mode="append" is of a folder'),
        ("SELECT 1 AS a", "x.jsonl", {"success": True}, "success=True is of a folder"),
        ("SELECT 1 AS a", "x", {"format": "parquet", "mode": "overwrite"}, "mode is error or append"),
        ("SELECT 1 AS a", "dbfs:/x", {}, "names no place in the store"),
        ("SELECT 1 AS a", "gs:/b/x", {}, "names no place in the store"),
        ("SELECT 1 AS a", "file:/elsewhere/x", {}, "lies outside"),
        ("SELECT INTERVAL '1' YEAR AS a", "x", {"format": "parquet"}, "column 'a' has type interval year"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_runs(
    job: Job, query: str, uri: str, how: Any, reason: str
) -> None:
    """Each mistake is named when the plan is made."""
    attempt = job.coordinator.trigger()
    with pytest.raises(InvalidInputError, match=reason):
        write_files(job.spark.sql(query), attempt, uri, **how)


ODD = {
    "text": [
        *(
            "NULL",
            "''",
            "'a b'",
            "'a/b=c'",
            "'50%'",
            "'%3A'",
            "'\u00e9\u2603 \U0001f600'",
            "'x:y?z#'",
            "'..'",
        ),
        *(
            "'__HIVE_DEFAULT_PARTITION__'",
            r"'a\\b'",
            r"'tab\tnew\nline'",
            "'[{^}]'",
            "'_x'",
            "'1.0'",
            '"it\'s"',
        ),
    ],
    "day": ["NULL", "DATE'2001-01-05'", "DATE'0001-01-01'", "DATE'9999-12-31'"],
    "at": ["NULL", "TIMESTAMP'2001-01-05 06:07:08.9'", "TIMESTAMP'2001-03-25 02:30:00'"],
    "wall": ["NULL", "TIMESTAMP_NTZ'2001-01-05 06:07:08'"],
    "amount": ["NULL", "CAST(1.50 AS DECIMAL(12, 3))", "CAST(-0.001 AS DECIMAL(12, 3))"],
    "flag": ["NULL", "true", "false"],
    "took": ["NULL", "INTERVAL '1 02:03:04.5' DAY TO SECOND"],
    "number": ["NULL", "0L", "-9223372036854775808L"],
    "real": ["NULL", "1e10D", "0.1D", "double('NaN')", "-0.0D"],
    "Odd:name %": ["NULL", "'1'"],
}


def test_folders_of_values_are_those_of_spark(job: Job) -> None:
    """Any values: the names are byte for byte those of Spark's `partitionBy`, and are read back alike."""
    draw = random.Random(os.environ.get("DSTL_SEED", "1"))
    values = [[draw.choice(texts) for texts in ODD.values()] for _ in range(40)]
    rows = ", ".join(f"({n}, {', '.join(each)})" for n, each in enumerate(values))
    names = ", ".join(f"`{name}`" for name in ["id", *ODD])
    escaped = job.spark._jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils.escapePathName
    for each in "".join(map(chr, range(1, 300))):
        assert folders_of([each], (each,)) == f"{escaped(each)}={escaped(each)}"
    df = job.spark.sql(f"SELECT * FROM VALUES {rows} AS t({names})").repartition(3, "id")
    theirs, ours = job.folder / "theirs", job.folder / "ours"
    df.write.partitionBy(*ODD).parquet(str(theirs))
    job.write_files(df, "ours", format="parquet", partition_by=[name.upper() for name in ODD])
    folders = [
        {path.parent.relative_to(root).as_posix() for path in root.rglob("*.parquet")}
        for root in (theirs, ours)
    ]
    assert folders[1] == folders[0]
    read = [job.spark.read.parquet(str(root)) for root in (theirs, ours)]
    assert read[1].schema == read[0].schema
    assert [sorted(map(repr, each.collect())) for each in read][1] == sorted(map(repr, read[0].collect()))


def test_each_value_has_one_file_of_all_tasks(job: Job) -> None:
    """Rows in any order; a file has its header, and its rows in the order that they had."""
    df = job.spark.range(0, 160, 1, 3).selectExpr("id", "id % 40 AS day")
    done = job.write_files(df, "out", format="csv", partition_by=["day"], success=True)
    assert [each.object_name for each in done.manifest.files][-1] == "out/_SUCCESS"
    assert visible(job.folder) == sorted(
        ["out/_SUCCESS", *(f"out/day={n}/part-00000.csv" for n in range(40))]
    )
    for day in (0, 7, 39):
        text = (job.folder / f"out/day={day}/part-00000.csv").read_text()
        assert text == "id\n" + "".join(f"{day + 40 * n}\n" for n in range(4))
    with pytest.raises(ConflictError, match="folder out holds"):
        job.write_files(df, "out", format="csv", partition_by=["day"])


def test_files_have_at_most_so_many_rows(job: Job) -> None:
    """In each folder of values a task begins to count anew, as Spark's does."""
    df = job.spark.range(0, 10, 1, 1).selectExpr("id", "id % 3 = 0 AS third")
    job.write_files(df, "a", single_file=False, partition_by=["third"], max_records_per_file=4)
    job.write_files(df, "b", format="parquet", max_records_per_file=5)
    assert visible(job.folder) == [
        "a/third=false/part-00000.c000.jsonl",
        "a/third=false/part-00000.c001.jsonl",
        "a/third=true/part-00000.c000.jsonl",
        "b/part-00000.c000.parquet",
        "b/part-00000.c001.parquet",
    ]
    assert (job.folder / "a/third=false/part-00000.c001.jsonl").read_text() == '{"id":7}\n{"id":8}\n'


@pytest.mark.parametrize(("codec", "suffix"), [("gzip", ".gz"), ("zstd", ".zst")])
def test_compressed_lines_are_read_by_spark(job: Job, codec: str, suffix: str) -> None:
    """One file of many tasks, and one per task; options in any case of letters."""
    df = job.spark.range(0, 40, 1, 3).selectExpr("id", "string(id) AS text")
    options = {"Codec": codec.upper(), "HEADER": "true", "Delimiter": ";"}
    job.write_files(df, f"one.csv{suffix}", format="csv", options=options)
    job.write_files(df, "parts", format="jsonl", single_file=False, options={"COMPRESSION": codec})
    again = job.spark.read.csv(str(job.folder / f"one.csv{suffix}"), header=True, sep=";", schema=df.schema)
    assert sorted(again.collect()) == sorted(df.collect())
    parts = job.spark.read.schema(df.schema).json(str(job.folder / "parts"))
    assert sorted(parts.collect()) == sorted(df.collect())
    assert {path.suffix for path in (job.folder / "parts").iterdir()} == {suffix}


def test_a_folder_of_parts_belongs_to_one_checkpoint(job: Job) -> None:
    """Whatever partitions of the second write are empty; refused before a task runs, unless it appends."""
    df = job.spark.range(0, 40, 1, 4)
    job.write_files(df.where("id < 10"), "parts", format="parquet")
    ran = job.folder.parent / "ran"

    def leave_a_trace(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ran.touch()
        yield from batches

    with pytest.raises(ConflictError, match=r'folder parts holds parts/part-00000.parquet.*mode="append"'):
        job.write_files(df.where("id > 30").mapInArrow(leave_a_trace, "id BIGINT"), "parts", format="parquet")
    with pytest.raises(ConflictError, match=r"parts/part-00000.parquet exists already"):
        job.write_files(df.mapInArrow(leave_a_trace, "id BIGINT"), "parts/part-00000.parquet")
    assert not ran.exists()
    job.write_files(df.where("id >= 10"), "parts", format="parquet", mode="append")
    found = job.spark.read.parquet(str(job.folder / "parts")).collect()
    assert sorted(row.id for row in found) == list(range(40))


def test_a_batch_appends_to_a_folder_again_and_again(job: Job) -> None:
    """As a loop over sources does, also below the folder; the same batch names its files alike."""
    tens = [job.spark.range(start, start + 10, 1, 2) for start in range(0, 40, 10)]
    names: list[list[str]] = []
    for folder in ("once", "again"):
        given: dict[str, Any] = {"format": "parquet", "mode": "append"}
        within = given | {"partition_by": ["day"]}
        with open_batch(job.folder.as_uri(), folder, clean_up_every=0) as batch:
            written = [
                *batch.write_files(tens[0], f"{folder}/day=1", **given),
                *batch.write_files(tens[1].withColumn("day", F.lit(1)), folder, **within),
                *batch.write_files(tens[2], f"{folder}/day=1", **given),
                *batch.write_files(tens[3].withColumn("day", F.col("id") % 2), folder, **within),
            ]
            mine = str(batch.attempt.attempt)
        names.append([each.object_name.replace(folder, "").replace(mine, "") for each in written])
        found = job.spark.read.parquet(str(job.folder / folder)).collect()
        assert sorted(row.id for row in found) == list(range(40))
    assert names[0] == names[1]


def test_success_comes_after_all_others(job: Job) -> None:
    """It is asked for, empty, and waits where a file is blocked; once that is resolved, it comes."""
    df = job.spark.range(0, 40, 1, 4)
    done = job.write_files(df, "parts", format="csv", single_file=False, success=True)
    assert [each.object_name for each in done.manifest.files][-1] == "parts/_SUCCESS"
    assert (job.folder / "parts/_SUCCESS").read_bytes() == b""
    attempt = job.coordinator.trigger()
    files = write_files(df, attempt, "more", format="csv", single_file=False, success=True)
    job.coordinator.record(attempt, [], files)
    job.coordinator.confirm(attempt)
    (job.folder / "more").mkdir()
    (job.folder / "more/part-00001.csv").write_text("foreign")
    (published,) = job.coordinator.compose_commit()
    assert {each.name for each in published.blocked} == {"more/part-00001.csv", "more/_SUCCESS"}
    assert not (job.folder / "more/_SUCCESS").exists()
    resolved = job.coordinator.resolve(2, "more/part-00001.csv", "replace")
    assert (resolved.blocked, (job.folder / "more/_SUCCESS").exists()) == ((), True)


def test_intervals_and_comments_come_back_from_parquet(job: Job) -> None:
    """As from a file that Spark itself wrote."""
    df = job.spark.sql("SELECT INTERVAL '1 02:03:04.5' DAY TO SECOND AS took, 1 AS n")
    df = df.withColumn("n", df.n.alias("n", metadata={"comment": "how many", "unit": "flights"}))
    job.write_files(df, "p", format="parquet")
    again = job.spark.read.parquet(str(job.folder / "p"))
    assert (again.collect(), again.dtypes) == (df.collect(), df.dtypes)
    assert again.schema["n"].metadata == {"comment": "how many", "unit": "flights"}


def test_a_name_is_what_was_written(job: Job) -> None:
    """Percent signs, blanks and question marks too; Hadoop's spelling of a whole URI names the same file."""
    df = job.spark.range(1)
    for name in ("g=a%2Fb/x.jsonl", "what? #1.jsonl"):
        job.write_files(df, name)
    job.write_files(df, f"file:{(job.folder / 'y.jsonl').as_uri().removeprefix('file://')}")
    assert visible(job.folder) == ["g=a%2Fb/x.jsonl", "what? #1.jsonl", "y.jsonl"]
