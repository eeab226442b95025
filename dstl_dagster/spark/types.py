"""Spark SQL types to the Arrow types they are stored as, and back; and columns by their exact names.

Owns which Spark types can be stored, the one Arrow form of each, and how names and types are spelled in SQL.
Does not own Spark's conversion of rows to Arrow and back: its result is cast to this form, so stored bytes
do not depend on a session's settings (time zone, large types).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as st

from dstl_dagster.errors import ErrorKind, InvalidInputError

_ATOMIC: tuple[tuple[type[st.DataType], pa.DataType], ...] = (
    (st.BooleanType, pa.bool_()),
    (st.ByteType, pa.int8()),
    (st.ShortType, pa.int16()),
    (st.IntegerType, pa.int32()),
    (st.LongType, pa.int64()),
    (st.FloatType, pa.float32()),
    (st.DoubleType, pa.float64()),
    (st.BinaryType, pa.binary()),
    (st.DateType, pa.date32()),
    (st.TimestampType, pa.timestamp("us", "UTC")),
    (st.TimestampNTZType, pa.timestamp("us")),
)


def arrow_schema(schema: st.StructType, what: str, *, case_sensitive: bool = False) -> pa.Schema:
    """The Arrow schema in which rows of this Spark schema are stored; every field nullable.

    Raises: InvalidInputError (kind `unsupported_type`) naming `what`, the column and its type; (kind
    `invalid_input`) if two columns have the same name, compared without case unless `case_sensitive`.
    """
    refuse_same_names(schema.names, what, case_sensitive=case_sensitive)
    return pa.schema(
        [pa.field(field.name, _arrow_type(field.dataType, field.name, what)) for field in schema]
    )


def refuse_same_names(names: Iterable[str], what: str, *, case_sensitive: bool) -> None:
    """Pass if no two columns have the same name. Raises: InvalidInputError, as `arrow_schema`."""
    seen: dict[str, str] = {}
    for name in names:
        compared = name if case_sensitive else name.lower()
        if compared in seen:
            first = seen[compared]
            raise InvalidInputError(f"{what}: columns {first!r} and {name!r} have the same name: rename one")
        seen[compared] = name


def spark_schema(schema: pa.Schema) -> st.StructType:
    """The Spark schema of stored rows. Inverse of `arrow_schema`, except for nullability."""
    return st.StructType([st.StructField(field.name, _spark_type(field.type)) for field in schema])


def _arrow_type(spark_type: st.DataType, column: str, what: str) -> pa.DataType:
    for kind, arrow_type in _ATOMIC:
        # By exact class: a subclass (with a collation, with a length, of another library) is another type.
        if type(spark_type) is kind:
            return arrow_type
    match spark_type:
        case st.StringType() if _is_plain_text(spark_type):
            return pa.string()
        case st.DecimalType():
            return pa.decimal128(spark_type.precision, spark_type.scale)
        case st.DayTimeIntervalType():
            return pa.duration("us")
        case st.ArrayType():
            element = _arrow_type(spark_type.elementType, f"{column}.element", what)
            return pa.list_(pa.field("element", element))
        case st.MapType():
            key = _arrow_type(spark_type.keyType, f"{column}.key", what)
            return pa.map_(key, pa.field("value", _arrow_type(spark_type.valueType, f"{column}.value", what)))
        case st.StructType():
            return pa.struct([_arrow_field(field, column, what) for field in spark_type.fields])
    raise InvalidInputError(
        f"{what}: column {column!r} has type {spark_type.simpleString()}, which cannot be stored: cast it, "
        "or leave it out",
        kind=ErrorKind.UNSUPPORTED_TYPE,
    )


def _arrow_field(field: st.StructField, column: str, what: str) -> pa.Field:
    return pa.field(field.name, _arrow_type(field.dataType, f"{column}.{field.name}", what))


def _is_plain_text(text: st.StringType) -> bool:
    """Without a collation: it changes which values are equal, and would be lost."""
    return getattr(text, "collation", "UTF8_BINARY") == "UTF8_BINARY"


def _spark_type(arrow_type: pa.DataType) -> st.DataType:
    for kind, known in _ATOMIC:
        if known == arrow_type:
            return kind()
    if pt.is_string(arrow_type):
        return st.StringType()
    if pt.is_decimal128(arrow_type):
        return st.DecimalType(arrow_type.precision, arrow_type.scale)
    if pt.is_duration(arrow_type):
        return st.DayTimeIntervalType()
    if pt.is_map(arrow_type):
        return st.MapType(_spark_type(arrow_type.key_type), _spark_type(arrow_type.item_type))
    if pt.is_list(arrow_type):
        return st.ArrayType(_spark_type(arrow_type.value_type))
    if pt.is_struct(arrow_type):
        return st.StructType([st.StructField(f.name, _spark_type(f.type)) for f in _fields(arrow_type)])
    raise InvalidInputError(f"Spark has no type for stored {arrow_type}", kind=ErrorKind.UNSUPPORTED_TYPE)


def _fields(arrow_type: pa.StructType) -> Iterator[pa.Field]:
    return (arrow_type.field(index) for index in range(arrow_type.num_fields))


def is_case_sensitive(spark: SparkSession) -> bool:
    """Whether column names may differ only in case in this session."""
    return _is_set(spark, "spark.sql.caseSensitive")


def is_ansi(spark: SparkSession) -> bool:
    """Whether a cast in this session fails for a value that the type does not hold; else it changes it."""
    return _is_set(spark, "spark.sql.ansi.enabled")


def _is_set(spark: SparkSession, setting: str) -> bool:
    return (spark.conf.get(setting) or "").lower() == "true"  # SET keeps it as it was spelled


def quoted(name: str) -> str:
    """The name in SQL, taken exactly, dots and backticks included."""
    return "`" + name.replace("`", "``") + "`"


def exact_column(name: str) -> Column:
    """The column of exactly this name."""
    return F.col(quoted(name))


def sql_type(spark_type: st.DataType) -> str:
    """The type in SQL. Unlike Spark's `simpleString`, also with field names that need quotes, and whatever
    `timestamp` is in the session (`spark.sql.timestampType`).
    """
    match spark_type:
        case st.TimestampType():
            return "timestamp_ltz"
        case st.ArrayType():
            return f"array<{sql_type(spark_type.elementType)}>"
        case st.MapType():
            return f"map<{sql_type(spark_type.keyType)}, {sql_type(spark_type.valueType)}>"
        case st.StructType():
            fields = [f"{quoted(field.name)}: {sql_type(field.dataType)}" for field in spark_type.fields]
            return f"struct<{', '.join(fields)}>"
    return spark_type.simpleString()


def has_same_fields(one: st.DataType, other: st.DataType) -> bool:
    """Whether each struct in the one type has the names of its counterpart in the other, in their order.

    Spark casts a struct by the order of its fields.
    """
    match one, other:
        case st.ArrayType(), st.ArrayType():
            return has_same_fields(one.elementType, other.elementType)
        case st.MapType(), st.MapType():
            return has_same_fields(one.keyType, other.keyType) and has_same_fields(
                one.valueType, other.valueType
            )
        case st.StructType(), st.StructType():
            names = [[each.name.lower() for each in kind.fields] for kind in (one, other)]
            parts = zip(one.fields, other.fields, strict=False)
            return names[0] == names[1] and all(has_same_fields(a.dataType, b.dataType) for a, b in parts)
    return True


def selected(df: DataFrame, columns: Sequence[str | Column]) -> DataFrame:
    """`df.select` of SQL expressions and columns.

    A column that is made in Python takes some thirty calls of the JVM, an expression in SQL one.
    """
    texts = [each for each in columns if isinstance(each, str)]
    if len(texts) == len(columns):
        return df.selectExpr(*texts)
    return df.select(*[F.expr(each) if isinstance(each, str) else each for each in columns])
