"""export: messages to Parquet (zstd), a directory a topic and day, each message once, again and again.

    store or brokers ─▶ stream ─▶ decoded? ─▶ OUT/topic=Orders/date=2024-05-01/part-….zstd.parquet
                                              OUT/_spark_metadata   which files count
                                              OUT/_checkpoint       how far it has come

The export is a stream that ends when it has caught up (or goes on, with `follow`). Run again, it goes on where it
was; killed anywhere, it repeats the batch in flight and Spark's file sink counts each batch once. Readers that go
by `_spark_metadata` (Spark does) see complete batches only.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

import mqlake.spark
from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.lake.bodies.decoder import UNDECODED, VALUE
from mqlake.spark.error_messages import when_workers_start
from mqlake.spark.jobs.avro import avro_type, parse_avro_schema
from mqlake.spark.jobs.search import first_line

CHECKPOINT = "_checkpoint"
RAW, JSON, AVRO = "raw", "json", "avro"
DECODINGS = (RAW, JSON, AVRO)
SAMPLE = 1000
"""Bodies from which a JSON schema is inferred."""

_CORRUPT = "_mqlake_corrupt"


@dataclass(frozen=True)
class Decoding:
    """The format of bodies. `schema`: Spark's DDL (`id long, name string`) or its JSON form, for Avro .avsc."""

    kind: str = RAW
    schema: str = ""

    def __post_init__(self) -> None:
        if self.kind not in DECODINGS:
            raise UnknownKeyError(self.kind, DECODINGS, what="decoding of bodies")
        if self.kind != RAW and not self.schema:
            raise ConfigError(f"bodies that are {self.kind} need a schema")


@dataclass
class ExportReport:
    """Report of one run; `seconds` of wall time."""

    path: str
    rows: int
    batches: int
    seconds: float


# ---------------------------------------------------------------------- bodies to columns


def decoded(messages: DataFrame, decoding: Decoding) -> DataFrame:
    """Instead of `body` the column `value`, a structure; a body that cannot be decoded is in `undecoded`, unchanged.

    ConfigError for an invalid schema.
    """
    if decoding.kind == RAW:
        return messages
    if "body" not in messages.columns:
        raise ConfigError("without the column 'body' there is nothing to decode")
    if decoding.kind == JSON:
        return _from_json(messages, decoding.schema)
    return _from_avro(messages, decoding.schema)


def _from_json(messages: DataFrame, text: str) -> DataFrame:
    schema = json_schema(text)
    marked = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    parsed = F.from_json(
        F.col("body").cast("string"), marked, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    )
    is_whole = F.col(f"{VALUE}.{_CORRUPT}").isNull() & F.col(VALUE).isNotNull()
    found = messages.withColumn(VALUE, parsed)
    found = found.withColumn(UNDECODED, F.when(~is_whole, F.col("body")))
    return found.withColumn(VALUE, F.when(is_whole, F.col(VALUE).dropFields(_CORRUPT))).drop("body")


def json_schema(text: str) -> StructType:
    """Parses DDL or Spark's JSON form. ConfigError."""
    try:
        if text.lstrip().startswith("{"):
            return StructType.fromJson(json.loads(text))
        schema = StructType.fromDDL(text)
    except (ParseException, PySparkException, ValueError, KeyError) as error:
        raise ConfigError(
            f"{text!r} is no schema such as 'id long, name string': {first_line(error)}"
        ) from error
    if not isinstance(schema, StructType) or not schema.fields:
        raise ConfigError(f"{text!r} is no schema such as 'id long, name string'")
    return schema


def infer_json_schema(spark: SparkSession, messages: DataFrame, sample: int = SAMPLE) -> str:
    """The schema of JSON bodies as DDL, of the first `sample` of them. ConfigError when none is an object."""
    bodies = messages.select(F.col("body").cast("string").alias("body")).limit(sample).collect()
    texts = [row.body for row in bodies if row.body]
    objects = [text for text in texts if _has_fields(text)]
    if not objects:
        raise ConfigError(f"no schema follows from {len(texts)} bodies: none of them is a JSON object")
    # of all of them as one array: RDDs, of which the reader would take lines, are not there with Connect
    of_array = F.schema_of_json(F.lit(f"[{','.join(objects)}]"))
    kind = spark.range(1).select(of_array).collect()[0][0]
    return str(StructType.fromDDL(f"v {kind}")["v"].dataType.elementType.toDDL())


def _has_fields(text: str) -> bool:
    """True if it is a JSON object, and not an empty one."""
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, dict) and bool(found)


def sampled(spark: SparkSession, path: str, topics: Sequence[str] = ()) -> DataFrame:
    """Bodies of a store's messages, for infer_json_schema()."""
    options = {"topics": list(topics)} if topics else {}
    return mqlake.spark.read_log(spark, path, columns="topic,body", **options)


def _from_avro(messages: DataFrame, text: str) -> DataFrame:
    """fastavro reads one body at a time: Avro says where a datum ends only by decoding it."""
    schema = parse_avro_schema(text)
    kind = avro_type(schema)
    if not isinstance(kind, StructType):
        kind = StructType([StructField("value", kind)])
        wrapped = True
    else:
        wrapped = False
    kept = [field for field in messages.schema.fields if field.name != "body"]
    result = StructType([*kept, StructField(VALUE, kind), StructField(UNDECODED, BinaryType())])
    value_type = to_arrow_schema(StructType([StructField(VALUE, kind)]), timezone="UTC").field(0).type

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import fastavro

        parsed = fastavro.parse_schema(schema)
        for batch in batches:
            bodies = batch.column("body").to_pylist()
            values = [_avro_datum(fastavro, parsed, body, wrapped) for body in bodies]
            failed = [body if value is None else None for body, value in zip(bodies, values, strict=True)]
            columns = [batch.column(field.name) for field in kept]
            yield pa.RecordBatch.from_arrays(
                [*columns, pa.array(values, value_type), pa.array(failed, pa.binary())],
                names=[*(field.name for field in kept), VALUE, UNDECODED],
            )

    return messages.mapInArrow(decode, result)


def _avro_datum(fastavro: Any, schema: Any, body: bytes | None, wrapped: bool) -> Any:
    """None for what is no datum of the schema, whole and alone."""
    stream = io.BytesIO(body or b"")
    try:
        value = fastavro.schemaless_reader(stream, schema)
    except Exception:  # whatever bytes that are not Avro lead to
        return None
    if stream.read(1):
        return None
    return {"value": value} if wrapped else value


# ---------------------------------------------------------------------- to files


def by_topic_and_date(messages: DataFrame) -> DataFrame:
    """With the column `date`, of the store time in UTC."""
    return messages.withColumn("date", F.to_date("storeTimestamp"))


def export_stream(messages: DataFrame, path: str, *, follow: bool = False) -> StreamingQuery:
    """Starts the export of a stream of messages to the directory `path`, which may have a part of them already."""
    writer = (
        by_topic_and_date(messages)
        .writeStream.format("parquet")
        .partitionBy("topic", "date")
        .option("compression", "zstd")
        .option("path", path)
        .option("checkpointLocation", os.path.join(path, CHECKPOINT))
    )
    return (writer if follow else writer.trigger(availableNow=True)).start()


def export(messages: DataFrame, path: str, decoding: Decoding = Decoding()) -> ExportReport:
    """Exports what a stream has and `path` lacks. Raises what the stream raises."""
    began = time.monotonic()

    def run() -> StreamingQuery:
        query = export_stream(decoded(messages, decoding), path)
        query.awaitTermination()
        return query

    query = when_workers_start(run)  # goes on from its checkpoint
    return report_of(query, path, time.monotonic() - began)


def report_of(query: StreamingQuery, path: str, seconds: float) -> ExportReport:
    """Returns the report of the batches that Spark remembers (the last hundred)."""
    batches = [each for each in query.recentProgress if each.numInputRows]
    return ExportReport(path, sum(each.numInputRows for each in batches), len(batches), seconds)
