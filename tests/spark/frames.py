"""Frames as Spark's Kafka source gives them, and bronze tables made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from pyspark.sql import DataFrame, SparkSession

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


def kafka_frame(spark: SparkSession, rows: Iterable[Mapping[str, Any]], files: int = 1) -> DataFrame:
    return spark.createDataFrame([dict(row) for row in rows], KAFKA).coalesce(files)


def make_bronze(tables: FolderTables) -> str:
    tables.ensure(TABLE, BRONZE, bronze_properties("zstd", 168))
    return TABLE


def commit(
    spark: SparkSession, tables: FolderTables, batch: int, sources: Mapping[SourcePartition, Iterable[int]]
) -> None:
    """One batch of ingest: a file for each source partition, as Spark's Kafka source writes them."""
    frame: DataFrame | None = None
    for source, offsets in sources.items():
        rows = [kafka_row(offset, source.topic, source.partition, headers=headers(offset)) for offset in offsets]
        shaped = shape_bronze(kafka_frame(spark, rows), {source.topic: source.topic_id}, batch)
        frame = shaped if frame is None else frame.union(shaped)
    assert frame is not None
    tables.append_frame(frame, TABLE, "ingest", batch)


def headers(offset: int) -> list[tuple[str, bytes | None]] | None:
    """None, empty, and some, with a null and an empty value."""
    return [None, [], [("n", b"%d" % offset), ("n", None), ("empty", b"")]][offset % 3]
