"""Frames as Spark's Kafka source gives them, and bronze tables made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import _parse_datatype_string

from mirrorlake.bronze import shape_bronze
from mirrorlake.records import BRONZE, SourcePartition
from mirrorlake.tables import FolderTables, bronze_properties

CONFIG = """
clusters: {a: {bootstrap_servers: 'a:1'}, b: {bootstrap_servers: 'b:1'}}
flows: {f: {source: a, topics: [t], targets: [{cluster: b}]}}
runner: {parallelism: 2, driver_memory: 1g}
"""

KAFKA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key:string,value:binary>>"
)
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
ORDERS_ID = "7b1c2d3e-0000-4000-8000-00000000000a"
CLICKS_ID = "7b1c2d3e-0000-4000-8000-00000000000b"
TABLE = "bronze.a__orders"


def kafka_row(offset: int, topic: str = "orders", partition: int = 0, **fields: Any) -> dict[str, Any]:
    row = {
        "key": b"k%d" % offset,
        "value": b"v%d" % offset,
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": NOON + timedelta(milliseconds=offset),
        "timestampType": 0,
        "headers": None,
    }
    return {**row, **fields}


def kafka_frame(spark: SparkSession, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    return local_frame(spark, rows, KAFKA).coalesce(1)


def local_frame(spark: SparkSession, rows: Iterable[Mapping[str, Any]], schema: str) -> DataFrame:
    """By Arrow: lists of Python values would need a Python worker for every use of the frame."""
    wanted = to_arrow_schema(_parse_datatype_string(schema))  # type: ignore[arg-type]
    return spark.createDataFrame(pa.Table.from_pylist([dict(row) for row in rows], schema=wanted))


def make_bronze(tables: FolderTables) -> str:
    tables.ensure(TABLE, BRONZE, bronze_properties(168))
    return TABLE


def commit(
    spark: SparkSession, tables: FolderTables, batch: int, sources: Mapping[SourcePartition, Iterable[int]]
) -> None:
    """One batch of ingest: a file for each source partition, as Spark's Kafka source writes them."""
    frames = [shape_bronze(records(spark, s, held), {s.topic: s.topic_id}, batch) for s, held in sources.items()]
    tables.append_frame(reduce(DataFrame.union, frames), TABLE, "ingest", batch)


def records(spark: SparkSession, source: SourcePartition, offsets: Iterable[int]) -> DataFrame:
    """Times fall while offsets rise: who orders by time gets it wrong."""
    rows = [
        kafka_row(n, source.topic, source.partition, headers=headers(n), timestamp=NOON - timedelta(seconds=n))
        for n in offsets
    ]
    return kafka_frame(spark, rows)


def headers(offset: int) -> list[tuple[str, bytes | None]] | None:
    """None, empty, and some, with a null and an empty value."""
    some: list[tuple[str, bytes | None]] = [("n", b"%d" % offset), ("n", None), ("empty", b"")]
    return (None, [], some)[offset % 3]
